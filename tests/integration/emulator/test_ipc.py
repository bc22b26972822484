"""Device memory can be shown to another process of the machine."""


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
