"""Code that the driver loads when it is first used: charged then, in every way that leads there."""

from __future__ import annotations

import pytest
from test_hook_hidden_memory import LOADERS, MIB, MODULE_MIB

USES = (
    LOADERS
    + """
def launch(kernel): return cuda.launch(kernel, 1000) or cuda.sync()
def function(m): return new(L.cuModuleGetFunction, m, b"spin_ns")[0]
def kernel(l): return new(L.cuLibraryGetKernel, l, b"spin_ns")
def both(call, then): return call[0] or then(call[1])
def word(call, of): return call(c.byref(c.c_uint64()), c.byref(c.c_size_t()), of, b"words")
USE = {
    "cuModuleGetFunction": ("cuModuleLoadData", function),
    "cuModuleGetFunction, file": ("cuModuleLoad", function),
    "cuModuleGetFunction, options": ("cuModuleLoadDataEx", function),
    "cuModuleGetGlobal": ("cuModuleLoadData", lambda m: word(L.cuModuleGetGlobal_v2, m)),
    "cuKernelGetFunction": ("cuLibraryLoadData", lambda l: both(kernel(l), lambda k: new(L.cuKernelGetFunction, k)[0])),
    "cuKernelGetFunction, file": (
        "cuLibraryLoadFromFile", lambda l: both(kernel(l), lambda k: new(L.cuKernelGetFunction, k)[0])),
    "cuFuncLoad": ("cuLibraryLoadData", lambda l: both(kernel(l), L.cuFuncLoad)),
    "launch of a kernel": ("cuLibraryLoadData", lambda l: both(kernel(l), launch)),
    "launch of an enumerated kernel": (
        "cuLibraryLoadData", lambda l: both(new(L.cuLibraryEnumerateKernels, 1, l), launch)),
    "cuLibraryGetModule": ("cuLibraryLoadData", lambda l: new(L.cuLibraryGetModule, l)[0]),
    "cuLibraryGetGlobal": ("cuLibraryLoadData", lambda l: word(L.cuLibraryGetGlobal, l)),
}
def used(way):
    loader, use = USE[way]; result, handle = LOAD[loader]()
    return result or use(handle), loader, handle
"""
)
WAYS = [
    "cuModuleGetFunction",
    "cuModuleGetFunction, file",
    "cuModuleGetFunction, options",
    "cuModuleGetGlobal",
    "cuKernelGetFunction",
    "cuKernelGetFunction, file",
    "cuFuncLoad",
    "launch of a kernel",
    "launch of an enumerated kernel",
    "cuLibraryGetModule",
    "cuLibraryGetGlobal",
]


def scene_of(tenant, code, *, limit_mib=4 * MODULE_MIB):
    """The scene, the program that has made its context, and what the context holds."""
    extra = (f"module_kib={MODULE_MIB << 10}", "strict=1")
    scene = tenant(memory_mib=limit_mib, auto_grant=True, extra=extra)
    program = scene.run(USES + "say(); wait_line()\n" + code)
    program.read()
    context_bytes = scene.device_bytes()
    program.go()
    return scene, program, context_bytes


@pytest.mark.parametrize("way", WAYS)
def test_code_is_charged_what_it_takes_when_it_is_first_used(tenant, way):
    """Of five modules of 2 MiB four fit into 8 MiB; the fifth is out of memory, and unloading gives all of it back."""
    scene, program, context_bytes = scene_of(
        tenant,
        f"made = [used({way!r}) for _ in range(5)]; say(results=[r for r, *_ in made], full=held()); wait_line()\n"
        "freed = [unload(kind, h) for _, kind, h in made if h]; say(freed=sum(freed), end=held()); wait_line()",
    )
    facts = program.read()
    lent = scene.device_bytes() - context_bytes
    program.go()

    assert {"results": [0, 0, 0, 0, 2], "full": 4 * MODULE_MIB * MIB} == facts
    assert 4 * MODULE_MIB * MIB == lent
    assert {"freed": 0, "end": 0} == program.read()
    assert context_bytes == scene.device_bytes()


@pytest.mark.parametrize("way", ["launch of a kernel", "cuLibraryGetGlobal"])
def test_the_code_of_a_library_ends_with_the_context_and_is_charged_anew(tenant, way):
    """A reset of the context gives its charge back; the library's next use in another is charged again, once."""
    _, program, _ = scene_of(
        tenant,
        f"first, loader, library = used({way!r}); charged = [held()]; L.cuDevicePrimaryCtxReset_v2(0)\n"
        "charged.append(held()); L.cuDevicePrimaryCtxRetain(c.byref(cuda.ctx), 0); L.cuCtxSetCurrent(cuda.ctx)\n"
        f"again = USE[{way!r}][1](library); charged.append(held()); USE[{way!r}][1](library); charged.append(held())\n"
        "unload(loader, library); say(results=[first, again], charged=[*charged, held()])",
    )

    charged = [MODULE_MIB * MIB, 0, MODULE_MIB * MIB, MODULE_MIB * MIB, 0]
    assert {"results": [0, 0], "charged": charged} == program.read()


def test_a_library_that_was_loaded_before_there_was_a_context_is_charged_when_it_is_used(tenant):
    """Loading it without a context is free, on the device and in the ledger, also where code is not loaded lazily."""
    scene = tenant(memory_mib=512, auto_grant=True, extra=(f"module_kib={MODULE_MIB << 10}", "strict=1"))
    program = scene.run(
        "import os; os.environ['CUDA_MODULE_LOADING'] = 'EAGER'\n"
        + USES.replace("cuda = Cuda()", "cuda = Cuda(context=False)")
        + "result, library = LOAD['cuLibraryLoadData'](); first = held(); cuda.lib.cuDevicePrimaryCtxRetain(\n"
        "    c.byref(cuda.ctx), 0); L.cuCtxSetCurrent(cuda.ctx); say(); wait_line()\n"
        "used = both(kernel(library), launch); say(result=result, used=used, charged=[first, held()]); wait_line()"
    )
    program.read()
    context_bytes = scene.device_bytes()
    program.go()

    assert {"result": 0, "used": 0, "charged": [0, MODULE_MIB * MIB]} == program.read()
    assert MODULE_MIB * MIB == scene.device_bytes() - context_bytes
