"""Code is memory too: charged what the device lost, when it is loaded or, loaded lazily, when it is first used."""

from collections.abc import Callable
from pathlib import Path

import pytest
from kit.driver_calls import MIB, OUT_OF_MEMORY, PTX, Answer, Argument, Out
from kit.driver_process import DriverProcess

MODULE = 2 * MIB
NO_OPTIONS = (None, None, 0, None, None, 0)
LOADERS: dict[str, Callable[[str], tuple[Argument, ...]]] = {
    "cuModuleLoad": lambda path: (path,),
    "cuModuleLoadData": lambda path: (PTX,),
    "cuModuleLoadFatBinary": lambda path: (PTX,),
    "cuModuleLoadDataEx": lambda path: (PTX, 0, None, None),
    "cuLibraryLoadData": lambda path: (PTX, *NO_OPTIONS),
    "cuLibraryLoadFromFile": lambda path: (path, *NO_OPTIONS),
}


class Code:
    """Loads and unloads the modules of a process."""

    def __init__(self, gpu: DriverProcess, folder: Path) -> None:
        self.gpu, self.path = gpu, folder / "spin.ptx"
        self.path.write_bytes(PTX)

    def load(self, loader: str) -> Answer:
        return self.gpu.call(loader, Out(), *LOADERS[loader](str(self.path)))

    def unload(self, loader: str, handle: int) -> int:
        return self.gpu.code("cuLibraryUnload" if "Library" in loader else "cuModuleUnload", handle)

    def use(self, way: str, handle: int) -> int:
        """Use it for the first time, by one of `WAYS`."""
        return WAYS[way][1](self.gpu, handle)


@pytest.fixture
def code(tenant, tmp_path):
    """Makes a tenant that has room for some modules, and a process of it."""

    def make(*, modules=4, eager=False):
        extra = (f"module_kib={MODULE >> 10}", "strict=1")
        scene = tenant(memory_mib=modules * MODULE // MIB, auto_grant=True, extra=extra)
        return scene, Code(scene.gpu(CUDA_MODULE_LOADING="EAGER" if eager else "LAZY"), tmp_path)

    return make


@pytest.mark.parametrize("loader", LOADERS)
def test_code_is_charged_what_the_device_lost(code, loader):
    """Modules of 2 MiB, loaded at once, fill a limit of 8 MiB after four; the fifth leaves nothing behind."""
    scene, of = code(eager=True)
    loaded = [of.load(loader) for _ in range(5)]

    assert [0, 0, 0, 0, OUT_OF_MEMORY] == [answer.code for answer in loaded]
    assert 4 * MODULE == of.gpu.charged() == scene.lent()
    assert [0] * 4 == [of.unload(loader, answer.value) for answer in loaded[:4]]
    assert 0 == of.gpu.charged()


def test_code_that_cannot_fit_never_reaches_the_driver(tenant):
    """An image larger than what is left of the limit is refused by its size before the driver loads it."""
    gpu = tenant(memory_mib=1).gpu()

    assert (OUT_OF_MEMORY, (0,)) == gpu.call("cuModuleLoadData", Out(), PTX[:-1] + b" " * 2 * MIB + b"\0")
    assert 0 == gpu.charged()


def kernel_then(use: Callable[[DriverProcess, int], int]) -> Callable[[DriverProcess, int], int]:
    """With the kernel of a library, if that can be had."""

    def of(gpu: DriverProcess, library: int) -> int:
        kernel = gpu.call("cuLibraryGetKernel", Out(), library, "spin_ns")
        return kernel.code or use(gpu, kernel.value)

    return of


def launched(gpu: DriverProcess, kernel: int) -> int:
    """A launch that is waited for."""
    return gpu.launch(kernel, 1000) or gpu.code("cuCtxSynchronize")


def enumerated(gpu: DriverProcess, library: int) -> int:
    """A launch of a kernel that was not asked for by name."""
    kernel = gpu.call("cuLibraryEnumerateKernels", Out(), 1, library)
    return kernel.code or launched(gpu, kernel.value)


def function(gpu: DriverProcess, module: int) -> int:
    return gpu.code("cuModuleGetFunction", Out(), module, "spin_ns")


def kernels_function(gpu: DriverProcess, kernel: int) -> int:
    return gpu.code("cuKernelGetFunction", Out(), kernel)


WAYS: dict[str, tuple[str, Callable[[DriverProcess, int], int]]] = {
    "cuModuleGetFunction": ("cuModuleLoadData", function),
    "cuModuleGetFunction, file": ("cuModuleLoad", function),
    "cuModuleGetFunction, options": ("cuModuleLoadDataEx", function),
    "cuModuleGetGlobal": (
        "cuModuleLoadData",
        lambda gpu, module: gpu.code("cuModuleGetGlobal_v2", Out(), Out(), module, "words"),
    ),
    "cuKernelGetFunction": ("cuLibraryLoadData", kernel_then(kernels_function)),
    "cuKernelGetFunction, file": ("cuLibraryLoadFromFile", kernel_then(kernels_function)),
    "cuFuncLoad": ("cuLibraryLoadData", kernel_then(lambda gpu, kernel: gpu.code("cuFuncLoad", kernel))),
    "launch of a kernel": ("cuLibraryLoadData", kernel_then(launched)),
    "launch of an enumerated kernel": ("cuLibraryLoadData", enumerated),
    "cuLibraryGetModule": ("cuLibraryLoadData", lambda gpu, library: gpu.code("cuLibraryGetModule", Out(), library)),
    "cuLibraryGetGlobal": (
        "cuLibraryLoadData",
        lambda gpu, library: gpu.code("cuLibraryGetGlobal", Out(), Out(), library, "words"),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_code_is_charged_what_it_takes_when_it_is_first_used(code, way):
    """Of five modules of 2 MiB four fit into 8 MiB; the fifth is out of memory, and unloading gives all of it back."""
    scene, of = code()
    loader = WAYS[way][0]
    loaded = [of.load(loader) for _ in range(5)]
    used = [of.use(way, answer.value) for answer in loaded if answer.code == 0]

    assert [0, 0, 0, 0, OUT_OF_MEMORY] == used
    assert 4 * MODULE == of.gpu.charged() == scene.lent()
    assert {0} == {of.unload(loader, answer.value) for answer in loaded}
    assert (0, 0) == (of.gpu.charged(), scene.lent())


@pytest.mark.parametrize("way", ["launch of a kernel", "cuLibraryGetGlobal"])
def test_the_code_of_a_library_ends_with_the_context_and_is_charged_anew(code, way):
    """A reset of the context gives its charge back; the library's next use in another is charged again, once."""
    _, of = code()
    library = of.load(WAYS[way][0]).value
    codes, charged = [of.use(way, library)], [of.gpu.charged()]
    of.gpu.ok("cuDevicePrimaryCtxReset_v2", 0)
    charged.append(of.gpu.charged())
    of.gpu.open()
    for _ in range(2):
        codes.append(of.use(way, library))
        charged.append(of.gpu.charged())
    of.unload(WAYS[way][0], library)

    assert ([0, 0, 0], [MODULE, 0, MODULE, MODULE], 0) == (codes, charged, of.gpu.charged())


def test_a_library_that_was_loaded_before_there_was_a_context_is_charged_when_it_is_used(tenant, tmp_path):
    """Loading it without a context is free, on the device and in the ledger, also where code is not loaded lazily."""
    scene = tenant(memory_mib=512, auto_grant=True, extra=(f"module_kib={MODULE >> 10}", "strict=1"))
    of = Code(scene.driver(CUDA_MODULE_LOADING="EAGER"), tmp_path)
    of.gpu.ok("cuInit", 0)
    library = of.load("cuLibraryLoadData")
    first = of.gpu.charged()
    of.gpu.open()
    context_bytes = scene.device_bytes()

    assert (0, 0, 0) == (library.code, first, of.use("launch of a kernel", library.value))
    assert MODULE == of.gpu.charged() == scene.device_bytes() - context_bytes
