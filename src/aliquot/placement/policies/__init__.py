"""Placement policies, one module each, with the source of its rule in its docstring."""

MAX_CPU_MILLI = 128_000.0
MAX_GPU_MILLI = 8_000.0
"""CPU and GPUs of the largest machine in the published benchmark, by which its scores are normalised."""
