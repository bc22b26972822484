"""In strict mode memory is taken from the device in the pieces that hardware takes it in, and kept as long.

Code takes memory when a kernel of it is first used in a context.
"""

import struct

import pytest
from kit.driver_calls import AS_DESCRIPTOR, INVALID_VALUE, MIB, PAGE, PTX, Driver, Out, array3d_shape

POOL_RESERVED, DEFERRED = 5, 0x80
MODULE = 2 * MIB
NO_OPTIONS = (None, None, 0, None, None, 0)


class Ledger:
    """What the device has lost to whatever process since this was made."""

    def __init__(self, gpu: Driver) -> None:
        self._gpu, self._before = gpu, gpu.memory_info()[0]

    @property
    def lost(self) -> int:
        return self._before - self._gpu.memory_info()[0]


@pytest.fixture
def start(clients):
    """Starts a process on a machine, and the ledger of its device."""

    def make(*extra, **environment):
        gpu = clients("a100", "strict=1", *extra).gpu(**environment)
        return gpu, Ledger(gpu)

    return make


@pytest.mark.parametrize(
    ("size", "lost_mib"), [(512, 2), (64 << 10, 8), ((1 << 20) + 512, 200), ((2 << 20) + 512, 400), (2 << 20, 200)]
)
def test_allocations_take_pages_of_two_mebibytes(start, size, lost_mib):
    """A hundred allocations share pages where several fit into one, and take whole pages otherwise; all come back."""
    gpu, device = start()
    pointers = [gpu.new("cuMemAlloc_v2", size) for _ in range(100)]
    lost = device.lost
    for pointer in pointers:
        gpu.ok("cuMemFree_v2", pointer)

    assert (lost_mib * MIB, 0) == (lost, device.lost)


def test_allocations_that_share_a_page_have_addresses_in_it(start):
    """Four allocations of 512 KiB fill one page of the address space without overlap, the fifth starts another."""
    gpu, _ = start()
    addresses = [gpu.new("cuMemAlloc_v2", 512 << 10) for _ in range(5)]

    page = addresses[0] // PAGE
    assert [page] * 4 == [at // PAGE for at in addresses[:4]]
    assert page != addresses[4] // PAGE
    assert [i << 19 for i in range(4)] == sorted(at % PAGE for at in addresses[:4])


def test_managed_memory_takes_no_pages(start):
    """Managed memory moves as it is touched: a hundred allocations of 64 KiB take what they hold."""
    gpu, device = start()
    for _ in range(100):
        gpu.new("cuMemAllocManaged", 64 << 10, 1)

    assert 100 * 64 << 10 == device.lost


def test_contexts_share_no_page(clients):
    """Small allocations of two contexts take a page each."""
    driver = clients("a100", "strict=1").driver()
    driver.ok("cuInit", 0)
    first, _ = (driver.new("cuCtxCreate_v2", 0, 0) for _ in range(2))
    device = Ledger(driver)
    driver.new("cuMemAlloc_v2", 512)
    driver.ok("cuCtxSetCurrent", first)
    driver.new("cuMemAlloc_v2", 512)

    assert 2 * PAGE == device.lost


def test_a_hole_in_a_page_is_used_again(start):
    """What is freed between other small allocations is found by the next one that fits."""
    gpu, device = start()
    pointers = [gpu.new("cuMemAlloc_v2", 512 << 10) for _ in range(4)]
    for pointer in pointers[1:3]:
        gpu.ok("cuMemFree_v2", pointer)
    gpu.new("cuMemAlloc_v2", MIB)

    assert PAGE == device.lost


def test_pools_grow_by_32_mebibytes(start):
    """A pool reserves 32 MiB for the first megabyte, and gives them back when all of it is free."""
    gpu, device = start()
    pointer = gpu.allocate("async", MIB).value
    pool = gpu.new("cuDeviceGetDefaultMemPool", 0)
    reserved, lost = gpu.call("cuMemPoolGetAttribute", pool, POOL_RESERVED, Out()).value, device.lost
    gpu.free_async(pointer)
    gpu.sync()

    assert (32 * MIB, 32 * MIB, 0) == (reserved, lost, device.lost)


def test_a_destroyed_pool_keeps_its_memory_until_it_is_freed(start):
    """Memory of a destroyed pool stays taken while it is allocated."""
    gpu, device = start()
    pool = gpu.new_pool()
    pointer = gpu.take(pool, 512 * MIB).value
    gpu.ok("cuMemPoolDestroy", pool)
    kept = device.lost
    gpu.ok("cuMemFree_v2", pointer)

    assert (512 * MIB, 0) == (kept, device.lost)


def test_only_deferred_arrays_tell_their_requirements(start):
    """cuArrayGetMemoryRequirements is CUDA_ERROR_INVALID_VALUE unless the array's memory is mapped later."""
    gpu, _ = start()
    arrays = [gpu.new("cuArray3DCreate_v2", array3d_shape(64, 0, 0, flags)) for flags in (0, DEFERRED)]

    assert [INVALID_VALUE, 0] == [gpu.code("cuArrayGetMemoryRequirements", Out(64), array, 0) for array in arrays]


def test_an_import_holds_the_memory(start):
    """Memory exported and imported in one process is reserved once, until both handles are released."""
    gpu, device = start()
    handle = gpu.create(512 * MIB, handles=AS_DESCRIPTOR).value
    descriptor = gpu.export(handle)
    again = gpu.new("cuMemImportFromShareableHandle", descriptor, AS_DESCRIPTOR)
    lost = [device.lost]
    gpu.ok("cuMemRelease", handle)
    gpu.posix("close", descriptor)
    lost.append(device.lost)
    gpu.ok("cuMemRelease", again)

    assert [512 * MIB, 512 * MIB, 0] == [*lost, device.lost]


@pytest.mark.parametrize("how", ["released", "killed"])
def test_memory_in_another_process_outlives_its_exporter(clients, how):
    """An importer's handle keeps the memory and pays for it once the exporter has released it or has been killed."""
    machine = clients("a100")
    exporter, importer = machine.gpu(), machine.gpu()
    memory = exporter.create(512 * MIB, handles=AS_DESCRIPTOR).value
    device = Ledger(importer)
    handle = importer.imported(exporter, exporter.export(memory)).value
    paid = device.lost
    if how == "killed":
        exporter.kill()
    else:
        exporter.ok("cuMemRelease", memory)
    held = Ledger(importer)
    importer.ok("cuMemRelease", handle)

    assert (0, -512 * MIB) == (paid, held.lost)


def test_imported_memory_answers_with_its_own_handle(clients):
    """cuMemRetainAllocationHandle of an imported mapping is the handle of the import, which one more release ends."""
    machine = clients("a100")
    exporter, gpu = machine.gpu(), machine.gpu()
    handle = gpu.imported(exporter, exporter.export(exporter.create(PAGE, handles=AS_DESCRIPTOR).value)).value
    address = gpu.new("cuMemAddressReserve", PAGE, 0, 0, 0)
    gpu.ok("cuMemMap", address, PAGE, 0, handle, 0)
    retained = gpu.new("cuMemRetainAllocationHandle", address)
    codes = [gpu.code("cuMemRelease", retained)]
    gpu.ok("cuMemUnmap", address, PAGE)
    codes += [gpu.code("cuMemRelease", retained), gpu.code("cuMemRelease", handle)]

    assert (handle, [0, 0, INVALID_VALUE]) == (retained, codes)


def test_a_handle_is_released_once(start):
    """cuMemRelease, cuMemMap and cuMemExportToShareableHandle of a handle that is gone answer INVALID_VALUE."""
    gpu, _ = start()
    address = gpu.new("cuMemAddressReserve", PAGE, 0, 0, 0)
    handle = gpu.create(PAGE, handles=AS_DESCRIPTOR).value
    gpu.ok("cuMemRelease", handle)

    assert INVALID_VALUE == gpu.code("cuMemRelease", handle)
    assert INVALID_VALUE == gpu.code("cuMemMap", address, PAGE, 0, handle, 0)
    assert INVALID_VALUE == gpu.code("cuMemExportToShareableHandle", Out(4), handle, AS_DESCRIPTOR, 0)


def test_eight_threads_map_and_unmap_without_errors(start):
    """Threads that create, map, fill, unmap and release memory of their own never see another's addresses."""
    gpu, device = start()
    threads = [gpu.on(f"thread {number}") for number in range(8)]

    def together(name, *arguments):
        """All threads make a call at once; an argument that is a list has one for each of them."""
        begun = [
            thread.begin(name, *(each[number] if isinstance(each, list) else each for each in arguments))
            for number, thread in enumerate(threads)
        ]
        answers = [pending.answer() for pending in begun]
        assert {0} == {answer.code for answer in answers}, name
        return [answer.values[0] for answer in answers if answer.values]

    together("cuCtxSetCurrent", gpu.context)
    properties = struct.pack("4iQ8x", 1, 0, 1, 0, 0)
    for _ in range(150):
        addresses = together("cuMemAddressReserve", Out(), PAGE, 0, 0, 0)
        handles = together("cuMemCreate", Out(), PAGE, properties, 0)
        together("cuMemMap", addresses, PAGE, 0, handles, 0)
        together("cuMemRelease", handles)
        pointers = together("cuMemAlloc_v2", Out(), PAGE)
        together("cuMemsetD8_v2", addresses, 1, 4096)
        together("cuMemFree_v2", pointers)
        together("cuMemUnmap", addresses, PAGE)
        together("cuMemAddressFree", addresses, PAGE)

    assert 0 == device.lost


def test_a_library_takes_nothing_until_a_kernel_of_it_is_used(start):
    """Loading it and naming a kernel are free; cuKernelGetFunction takes the module's memory once."""
    gpu, device = start(f"module_kib={MODULE >> 10}")
    library = gpu.new("cuLibraryLoadData", PTX, *NO_OPTIONS)
    kernel = gpu.new("cuLibraryGetKernel", library, "spin_ns")
    steps = [device.lost]
    for _ in range(2):
        gpu.new("cuKernelGetFunction", kernel)
        steps.append(device.lost)
    gpu.ok("cuLibraryUnload", library)

    assert [0, MODULE, MODULE, 0] == [*steps, device.lost]


def test_a_launch_loads_the_kernel_of_a_library(clients):
    """A library loaded before any context takes its memory in the context of its first launch, and goes with it."""
    gpu = clients("a100", "strict=1", f"module_kib={MODULE >> 10}").driver()
    gpu.ok("cuInit", 0)
    library = gpu.new("cuLibraryLoadData", PTX, *NO_OPTIONS)
    gpu.open()
    device = Ledger(gpu)
    kernel = gpu.new("cuLibraryGetKernel", library, "step_ms2")
    steps = [device.lost]
    for _ in range(2):
        assert 0 == gpu.launch(kernel)
        steps.append(device.lost)
    gpu.ok("cuDevicePrimaryCtxReset_v2", 0)
    gpu.open()

    assert [0, MODULE, MODULE, 0] == [*steps, device.lost]


def test_a_module_is_loaded_with_its_first_function(start):
    """cuModuleLoadData takes nothing, cuModuleGetFunction the module's memory, once."""
    gpu, device = start(f"module_kib={MODULE >> 10}")
    module = gpu.new("cuModuleLoadData", PTX)
    steps = [device.lost]
    for name in ("spin_ns", "step_ms2"):
        gpu.new("cuModuleGetFunction", module, name)
        steps.append(device.lost)

    assert [0, MODULE, MODULE] == steps


def test_eager_loading_takes_the_memory_at_once(start):
    """With CUDA_MODULE_LOADING=EAGER a library and a module take their memory when they are loaded."""
    gpu, device = start(f"module_kib={MODULE >> 10}", CUDA_MODULE_LOADING="EAGER")
    gpu.new("cuLibraryLoadData", PTX, *NO_OPTIONS)
    library = device.lost
    gpu.new("cuModuleLoadData", PTX)

    assert [MODULE, 2 * MODULE] == [library, device.lost]
