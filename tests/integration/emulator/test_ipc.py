"""Device memory can be shown to another process of the machine."""

import os

import pytest
from kit.driver_calls import AS_DESCRIPTOR, INVALID_VALUE, MIB, Driver, Out
from kit.driver_process import DriverProcess

LAZY_PEER_ACCESS = 1
HANDLE = 64  # bytes of CUipcMemHandle and of CUmemPoolPtrExportData


def first_byte(gpu: Driver, pointer: int) -> int:
    """What memory of the device begins with."""
    return int(gpu.call("cuMemcpyDtoH_v2", Out(1), pointer, 1).value)


def filled(gpu: Driver, pointer: int, value: int, size: int = 8192) -> int:
    """The same memory, with a value in every byte."""
    gpu.ok("cuMemsetD8_v2", pointer, value, size)
    return pointer


def opened(gpu: Driver, handle: bytes) -> int:
    """Memory behind an IPC handle, which is passed by value: on the stack, behind the registers."""
    words = [int.from_bytes(handle[at : at + 8], "little") for at in range(0, HANDLE, 8)]
    return gpu.new("cuIpcOpenMemHandle", LAZY_PEER_ACCESS, 0, 0, 0, 0, *words)


def test_exported_memory_is_the_same_memory(clients):
    """What one process writes the other reads, and the importer pays nothing."""
    machine = clients()
    owner, other = machine.gpu(), machine.gpu()
    handle = owner.call("cuIpcGetMemHandle", Out(HANDLE), filled(owner, owner.new("cuMemAlloc_v2", 8192), 9)).value
    before = other.memory_info()
    pointer = opened(other, handle)

    assert (9, before) == (first_byte(other, pointer), other.memory_info())
    other.ok("cuIpcCloseMemHandle", pointer)


def test_a_small_allocation_is_shown_within_its_page(clients):
    """Of two allocations that share a page the second is found behind its handle; freeing both gives the page back."""
    machine = clients("a100", "strict=1")
    owner, other = machine.gpu(), machine.gpu()
    before = owner.memory_info()
    first, second = (filled(owner, owner.new("cuMemAlloc_v2", 512), value, 512) for value in (1, 2))
    pointer = opened(other, owner.call("cuIpcGetMemHandle", Out(HANDLE), second).value)
    seen = first_byte(other, pointer)
    filled(other, pointer, 3, 512)
    written = first_byte(owner, second)
    other.ok("cuIpcCloseMemHandle", pointer)
    for each in (first, second):
        owner.ok("cuMemFree_v2", each)

    assert (2, 3, before) == (seen, written, owner.memory_info())


def test_the_management_library_in_the_same_process_keeps_its_ledger(clients):
    """Asking NVML from inside a client does not make the client's own memory disappear."""
    gpu = clients().gpu()
    gpu.new("cuMemAlloc_v2", 1024 * MIB)
    gpu.ok("nvmlInit_v2")
    device = gpu.call("nvmlDeviceGetHandleByIndex_v2", 0, Out()).value
    gpu.call("nvmlDeviceGetComputeRunningProcesses_v3", device, Out(start=bytes(4)), None)
    used = gpu.call("nvmlDeviceGetMemoryInfo", device, Out(24)).value[16:24]

    assert 1 == int.from_bytes(used, "little") // (1024 * MIB)


class Shown:
    """A process that shows two allocations of a pool, and another that imports the pool."""

    def __init__(self, owner: DriverProcess, other: DriverProcess) -> None:
        self.owner, self.other = owner, other
        self.free_bytes = [each.memory_info()[0] for each in (owner, other)]
        self.pool = owner.new_pool(handles=AS_DESCRIPTOR)
        descriptor = owner.call("cuMemPoolExportToShareableHandle", Out(4), self.pool, AS_DESCRIPTOR, 0).value
        self.pointers = [filled(owner, owner.take(self.pool, 8192).value, value) for value in (1, 2)]
        self.data = [owner.call("cuMemPoolExportPointer", Out(HANDLE), pointer).value for pointer in self.pointers]
        opened = other.posix("open", f"/proc/{owner.process.pid}/fd/{descriptor}", os.O_RDWR)
        self.imported = other.new("cuMemPoolImportFromShareableHandle", opened, AS_DESCRIPTOR, 0)
        other.posix("close", opened)


@pytest.fixture
def shown(clients):
    """Such processes of one machine."""
    machine = clients("a100")
    return Shown(machine.gpu(), machine.gpu())


def test_an_imported_pool_shows_the_memory_of_its_exporter(shown):
    """Pointers imported by a pool's descriptor show the same bytes both ways and cost the importer nothing."""
    owner, other = shown.owner, shown.other
    held = other.memory_info()
    pointers = [other.new("cuMemPoolImportPointer", shown.imported, data) for data in shown.data]
    seen = [first_byte(other, pointer) for pointer in pointers]
    filled(other, pointers[0], 7)

    assert ([1, 2], held) == (seen, other.memory_info())
    assert (0, 0) == (other.free_async(pointers[0]), other.sync())
    other.ok("cuMemFree_v2", pointers[1])
    other.ok("cuMemPoolDestroy", shown.imported)
    assert (7, held) == (first_byte(owner, shown.pointers[0]), other.memory_info())
    for pointer in shown.pointers:
        owner.free_async(pointer)
    owner.ok("cuMemPoolDestroy", shown.pool)
    owner.sync()
    assert shown.free_bytes == [each.memory_info()[0] for each in (owner, other)]


def test_nothing_is_allocated_from_an_imported_pool(shown):
    """An imported pool refuses allocations, being made current and being exported again."""
    other, pool = shown.other, shown.imported

    assert INVALID_VALUE == other.take(pool, 64).code
    assert INVALID_VALUE == other.code("cuDeviceSetMemPool", 0, pool)
    assert INVALID_VALUE == other.code("cuMemPoolExportToShareableHandle", Out(4), pool, AS_DESCRIPTOR, 0)


def test_only_a_pool_made_for_it_can_be_shown(clients):
    """Pools without a handle type, the default pool, their pointers and foreign descriptors are refused."""
    gpu = clients("a100").gpu()
    file = gpu.posix("open", "/dev/null", os.O_RDWR)
    pools = gpu.new_pool(), gpu.new("cuDeviceGetDefaultMemPool", 0)
    export = "cuMemPoolExportToShareableHandle"

    assert [INVALID_VALUE] * 2 == [gpu.code(export, Out(4), pool, AS_DESCRIPTOR, 0) for pool in pools]
    assert INVALID_VALUE == gpu.code("cuMemPoolExportPointer", Out(HANDLE), gpu.allocate("async", 64).value)
    assert INVALID_VALUE == gpu.code("cuMemPoolImportFromShareableHandle", Out(), file, AS_DESCRIPTOR, 0)
    made = gpu.new_pool(handles=AS_DESCRIPTOR)
    assert INVALID_VALUE == gpu.code("cuMemPoolImportPointer", Out(), made, bytes(HANDLE))


def test_exports_end_with_their_allocations(clients):
    """A process shows any number of allocations, and the descriptors of those that it has freed are closed."""
    gpu = clients().gpu()

    def descriptors() -> int:
        return len(gpu.posix("listdir", "/proc/self/fd"))

    for _ in range(600):
        pointer = gpu.new("cuMemAlloc_v2", 2 * MIB)
        gpu.call("cuIpcGetMemHandle", Out(HANDLE), pointer)
        gpu.ok("cuMemFree_v2", pointer)
    before = descriptors()
    for pointer in [gpu.new("cuMemAlloc_v2", 512) for _ in range(300)]:
        gpu.call("cuIpcGetMemHandle", Out(HANDLE), pointer)

    assert before < 100
    assert descriptors() - before < 10
