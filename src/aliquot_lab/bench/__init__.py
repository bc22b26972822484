"""The demonstration and the benchmarks: real CUDA clients as tenants, and what was measured of them.

Pure arithmetic (`fig6`, `figures`), the clients (`client`, `cuda`, `progress`) and the measurements (one module each)
are kept apart, so that what a figure means can be tested without a GPU.
"""
