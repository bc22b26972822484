"""Device memory can be shown to another process of the machine."""

import json

import pytest

POOL = """
FD = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; props = d.CUmemPoolProps()
props.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
props.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
def pool(shown=True):
    props.handleTypes = FD if shown else d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    return ck(d.cuMemPoolCreate(props))
open_gpu(); s = ck(d.cuStreamCreate(1)); before = ck(d.cuMemGetInfo())[0]
def lost(): return (before - ck(d.cuMemGetInfo())[0]) >> 20
"""


def test_exported_memory_is_the_same_memory(clients):
    """What one process writes the other reads, and the importer pays nothing."""
    machine = clients()
    owner = machine.start("""
open_gpu()
p = ck(d.cuMemAlloc(8192))
ck(d.cuMemsetD8(p, 9, 8192))
answer(list(ctypes.string_at(ck(d.cuIpcGetMemHandle(p)).getPtr(), 64))); sys.stdin.readline()
""")
    handle = owner.stdout.readline().strip()

    value, cost = machine.run(f"""
open_gpu()
handle = d.CUipcMemHandle()
ctypes.memmove(handle.getPtr(), bytes({handle}), 64)
before = ck(d.cuMemGetInfo())[0]
p = ck(d.cuIpcOpenMemHandle(handle, 1))
out = bytearray(1)
ck(d.cuMemcpyDtoH(out, p, 1))
cost = before - ck(d.cuMemGetInfo())[0]
ck(d.cuIpcCloseMemHandle(p))
answer([out[0], cost])
""")

    assert (value, cost) == (9, 0)


def test_a_small_allocation_is_shown_within_its_page(clients):
    """Of two allocations that share a page the second is found behind its handle; freeing both gives the page back."""
    machine = clients("a100", "strict=1")
    owner = machine.start("""
open_gpu(); before = ck(d.cuMemGetInfo())[0]; first, p = ck(d.cuMemAlloc(512)), ck(d.cuMemAlloc(512))
ck(d.cuMemsetD8(first, 1, 512)); ck(d.cuMemsetD8(p, 2, 512))
answer(list(ctypes.string_at(ck(d.cuIpcGetMemHandle(p)).getPtr(), 64))); sys.stdin.readline()
out = bytearray(1); ck(d.cuMemcpyDtoH(out, p, 1)); ck(d.cuMemFree(first)); ck(d.cuMemFree(p))
answer([out[0], before - ck(d.cuMemGetInfo())[0]])
""")
    handle = owner.stdout.readline().strip()

    seen = machine.run(f"""
open_gpu(); handle = d.CUipcMemHandle(); ctypes.memmove(handle.getPtr(), bytes({handle}), 64)
p = ck(d.cuIpcOpenMemHandle(handle, 1)); out = bytearray(1); ck(d.cuMemcpyDtoH(out, p, 1)); ck(d.cuMemsetD8(p, 3, 512))
answer(out[0])
""")
    owner.stdin.write("go\n")
    owner.stdin.flush()

    assert (2, [3, 0]) == (seen, machine.answer(owner))


def test_the_management_library_in_the_same_process_keeps_its_books(clients):
    """Asking NVML from inside a client does not make the client's own memory disappear."""
    used = clients().run("""
import pynvml as n
open_gpu()
p = ck(d.cuMemAlloc(1 << 30))
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
n.nvmlDeviceGetComputeRunningProcesses(h)
answer(n.nvmlDeviceGetMemoryInfo(h).used >> 30)
""")

    assert used == 1


@pytest.fixture
def shown(clients):
    """A machine, a client that shows two allocations of a pool, and how another process imports them."""
    machine = clients("a100")
    owner = machine.start(
        POOL + "p = pool(); fd = int(ck(d.cuMemPoolExportToShareableHandle(p, FD, 0)))\n"
        "first, second = [ck(d.cuMemAllocFromPoolAsync(8192, p, s)) for _ in range(2)]\n"
        "ck(d.cuMemsetD8(first, 1, 8192)); ck(d.cuMemsetD8(second, 2, 8192))\n"
        "data = [list(ctypes.string_at(ck(d.cuMemPoolExportPointer(x)).getPtr(), 64)) for x in (first, second)]\n"
        "answer([fd, data]); sys.stdin.readline(); out = bytearray(1); ck(d.cuMemcpyDtoH(out, first, 1))\n"
        "ck(d.cuMemFreeAsync(first, s)); ck(d.cuMemFreeAsync(second, s)); ck(d.cuMemPoolDestroy(p))\n"
        "ck(d.cuStreamSynchronize(s)); answer([out[0], lost()])"
    )
    fd, data = json.loads(owner.stdout.readline())
    opened = POOL + (
        f"fd = os.open('/proc/{owner.pid}/fd/{fd}', os.O_RDWR)\n"
        "p = ck(d.cuMemPoolImportFromShareableHandle(fd, FD, 0))\n"
        "os.close(fd); data = [d.CUmemPoolPtrExportData() for _ in range(2)]\n"
        f"for at, one in zip(data, {data}): ctypes.memmove(at.getPtr(), bytes(one), 64)\n"
    )
    return machine, owner, opened


def test_an_imported_pool_shows_the_memory_of_its_exporter(shown):
    """Pointers imported by a pool's descriptor show the same bytes both ways and cost the importer nothing."""
    machine, owner, opened = shown

    seen = machine.run(
        opened + "at = [ck(d.cuMemPoolImportPointer(p, one)) for one in data]; out = bytearray(2)\n"
        "for i in range(2): ck(d.cuMemcpyDtoH(memoryview(out)[i:], at[i], 1))\n"
        "ck(d.cuMemsetD8(at[0], 7, 8192)); cost = lost(); ck(d.cuMemFreeAsync(at[0], s))\n"
        "ck(d.cuStreamSynchronize(s))\n"
        "ck(d.cuMemFree(at[1])); ck(d.cuMemPoolDestroy(p)); answer([list(out), cost, lost()])"
    )
    owner.stdin.write("go\n")
    owner.stdin.flush()

    assert ([1, 2], 0, 0) == tuple(seen)
    assert [7, 0] == machine.answer(owner)


def test_nothing_is_allocated_from_an_imported_pool(shown):
    """An imported pool refuses allocations, being made current and being exported again."""
    machine, _, opened = shown

    codes = machine.run(
        opened + "answer([code(d.cuMemAllocFromPoolAsync(64, p, s)), code(d.cuDeviceSetMemPool(0, p)),\n"
        "    code(d.cuMemPoolExportToShareableHandle(p, FD, 0))])"
    )

    assert [1, 1, 1] == codes


def test_only_a_pool_made_for_it_can_be_shown(clients):
    """Pools without a handle type, the default pool, their pointers and foreign descriptors are refused."""
    codes = clients("a100").run(
        POOL + "p, q = pool(False), ck(d.cuMemAllocAsync(64, s)); file = os.open('/dev/null', os.O_RDWR)\n"
        "answer([code(d.cuMemPoolExportToShareableHandle(p, FD, 0)), code(d.cuMemPoolExportPointer(q)),\n"
        "    code(d.cuMemPoolExportToShareableHandle(ck(d.cuDeviceGetDefaultMemPool(0)), FD, 0)),\n"
        "    code(d.cuMemPoolImportFromShareableHandle(file, FD, 0)),\n"
        "    code(d.cuMemPoolImportPointer(pool(), d.CUmemPoolPtrExportData()))])"
    )

    assert [1] * 5 == codes


def test_exports_end_with_their_allocations(clients):
    """A process shows any number of allocations, and the descriptors of those that it has freed are closed."""
    machine = clients()

    assert machine.run("""
open_gpu(); os = __import__("os")
for _ in range(600):
    p = ck(d.cuMemAlloc(2 << 20)); ck(d.cuIpcGetMemHandle(p)); ck(d.cuMemFree(p))
before = len(os.listdir("/proc/self/fd")); kept = [ck(d.cuMemAlloc(512)) for _ in range(300)]
[ck(d.cuIpcGetMemHandle(p)) for p in kept]; answer([before < 100, len(os.listdir("/proc/self/fd")) - before < 10])
""") == [True, True]
