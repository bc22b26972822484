"""In strict mode code takes memory when a kernel of it is first used in a context."""

from __future__ import annotations

SCENE = """
open_gpu(); KIB = 1 << 10
def free(): return ck(d.cuMemGetInfo())[0]
before = free()
def lost(): return (before - free()) // KIB
"""
LIBRARY = "ck(d.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))"


def test_a_library_takes_nothing_until_a_kernel_of_it_is_used(clients):
    """Loading it and naming a kernel are free; cuKernelGetFunction takes the module's memory once."""
    taken = clients("a100", "strict=1", "module_kib=2048").run(
        SCENE + f"l = {LIBRARY}; k = ck(d.cuLibraryGetKernel(l, b'spin_ns')); steps = [lost()]\n"
        "ck(d.cuKernelGetFunction(k)); steps.append(lost()); ck(d.cuKernelGetFunction(k)); steps.append(lost())\n"
        "ck(d.cuLibraryUnload(l)); answer([*steps, lost()])"
    )

    assert taken == [0, 2048, 2048, 0]


def test_a_launch_loads_the_kernel_of_a_library(clients):
    """A library loaded before any context takes its memory in the context of its first launch, and goes with it."""
    taken = clients("a100", "strict=1", "module_kib=2048").run(
        f"ck(d.cuInit(0)); l = {LIBRARY}\n" + SCENE + "k = ck(d.cuLibraryGetKernel(l, b'step_ms2')); steps = [lost()]\n"
        "go = lambda: ck(d.cuLaunchKernel(d.CUfunction(int(k)), 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))\n"
        "go(); steps.append(lost()); go(); steps.append(lost())\n"
        "ck(d.cuDevicePrimaryCtxReset(0)); open_gpu(); answer([*steps, lost()])"
    )

    assert taken == [0, 2048, 2048, 0]


def test_a_module_is_loaded_with_its_first_function(clients):
    """cuModuleLoadData takes nothing, cuModuleGetFunction the module's memory, also in a second context."""
    taken = clients("a100", "strict=1", "module_kib=2048").run(
        SCENE + "m = ck(d.cuModuleLoadData(PTX)); steps = [lost()]; ck(d.cuModuleGetFunction(m, b'spin_ns'))\n"
        "steps.append(lost()); ck(d.cuModuleGetFunction(m, b'step_ms2')); answer([*steps, lost()])"
    )

    assert taken == [0, 2048, 2048]


def test_eager_loading_takes_the_memory_at_once(clients):
    """With CUDA_MODULE_LOADING=EAGER a library and a module take their memory when they are loaded."""
    taken = clients("a100", "strict=1", "module_kib=2048").run(
        SCENE + f"l = {LIBRARY}; steps = [lost()]; ck(d.cuModuleLoadData(PTX)); answer([*steps, lost()])",
        CUDA_MODULE_LOADING="EAGER",
    )

    assert taken == [2048, 4096]
