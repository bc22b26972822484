"""In strict mode memory is taken from the device in the pieces that hardware takes it in, and kept as long."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

FREE = "open_gpu()\ndef free(): return ck(d.cuMemGetInfo())[0]\nbefore = free()\n"
VMM = """
prop = d.CUmemAllocationProp(); prop.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
prop.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
FD = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; prop.requestedHandleTypes = FD
"""


@pytest.mark.parametrize(
    ("size", "lost_mib"), [(512, 2), (64 << 10, 8), ((1 << 20) + 512, 200), ((2 << 20) + 512, 400), (2 << 20, 200)]
)
def test_allocations_take_pages_of_two_mebibytes(clients, size, lost_mib):
    """A hundred allocations share pages where several fit into one, and take whole pages otherwise; all come back."""
    lost, left = clients("a100", "strict=1").run(
        FREE + f"ps = [ck(d.cuMemAlloc({size})) for _ in range(100)]; lost = before - free()\n"
        "for p in ps: ck(d.cuMemFree(p))\nanswer([lost, before - free()])"
    )

    assert (lost, left) == (lost_mib << 20, 0)


def test_allocations_that_share_a_page_have_addresses_in_it(clients):
    """Four allocations of 512 KiB fill one page of the address space without overlap, the fifth starts another."""
    addresses = clients("a100", "strict=1").run(
        "open_gpu(); answer([int(ck(d.cuMemAlloc(512 << 10))) for _ in range(5)])"
    )

    page = addresses[0] >> 21
    assert [page] * 4 == [at >> 21 for at in addresses[:4]]
    assert page != addresses[4] >> 21
    assert [i << 19 for i in range(4)] == sorted(at % (2 << 20) for at in addresses[:4])


def test_managed_memory_takes_no_pages(clients):
    """Managed memory moves as it is touched: a hundred allocations of 64 KiB take what they hold."""
    lost = clients("a100", "strict=1").run(
        FREE + "for _ in range(100): ck(d.cuMemAllocManaged(64 << 10, 1))\nanswer(before - free())"
    )

    assert lost == 100 * 64 << 10


def test_contexts_share_no_page(clients):
    """Small allocations of two contexts take a page each."""
    lost = clients("a100", "strict=1").run("""
ck(d.cuInit(0)); a = ck(d.cuCtxCreate(None, 0, 0)); b = ck(d.cuCtxCreate(None, 0, 0)); before = ck(d.cuMemGetInfo())[0]
ck(d.cuMemAlloc(512)); ck(d.cuCtxSetCurrent(a)); ck(d.cuMemAlloc(512)); answer(before - ck(d.cuMemGetInfo())[0])
""")

    assert lost == 4 << 20


def test_a_hole_in_a_page_is_used_again(clients):
    """What is freed between other small allocations is found by the next one that fits."""
    lost = clients("a100", "strict=1").run(
        FREE + "ps = [ck(d.cuMemAlloc(512 << 10)) for _ in range(4)]; ck(d.cuMemFree(ps[1])); ck(d.cuMemFree(ps[2]))\n"
        "ck(d.cuMemAlloc(1 << 20)); answer(before - free())"
    )

    assert lost == 2 << 20


def test_pools_grow_by_32_mebibytes(clients):
    """A pool reserves 32 MiB for the first megabyte, and gives them back when all of it is free."""
    reserved, lost, left = clients("a100", "strict=1").run(
        FREE + "pool = ck(d.cuDeviceGetDefaultMemPool(0)); s = ck(d.cuStreamCreate(1))\n"
        "p = ck(d.cuMemAllocAsync(1 << 20, s))\n"
        "held = int(ck(d.cuMemPoolGetAttribute(pool, d.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)))\n"
        "lost = before - free(); ck(d.cuMemFreeAsync(p, s)); ck(d.cuStreamSynchronize(s))\n"
        "answer([held, lost, before - free()])"
    )

    assert (reserved, lost, left) == (32 << 20, 32 << 20, 0)


def test_a_destroyed_pool_keeps_its_memory_until_it_is_freed(clients):
    """Memory of a destroyed pool stays taken while it is allocated, also when its context is gone."""
    kept, left, gone = clients("a100", "strict=1").run(
        FREE + "s = ck(d.cuStreamCreate(1)); props = d.CUmemPoolProps()\n"
        "props.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED\n"
        "props.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; pool = ck(d.cuMemPoolCreate(props))\n"
        "p = ck(d.cuMemAllocFromPoolAsync(512 << 20, pool, s)); ck(d.cuMemPoolDestroy(pool)); kept = before - free()\n"
        "ck(d.cuMemFree(p)); answer([kept, before - free(), 0])"
    )

    assert (kept, left, gone) == (512 << 20, 0, 0)


def test_only_deferred_arrays_tell_their_requirements(clients):
    """cuArrayGetMemoryRequirements is CUDA_ERROR_INVALID_VALUE unless the array's memory is mapped later."""
    codes = clients("a100", "strict=1").run("""
open_gpu(); desc = d.CUDA_ARRAY3D_DESCRIPTOR(); desc.Width, desc.NumChannels = 64, 1
desc.Format = d.CUarray_format.CU_AD_FORMAT_FLOAT; plain = ck(d.cuArray3DCreate(desc)); desc.Flags = 0x80
deferred = ck(d.cuArray3DCreate(desc)); answer([code(d.cuArrayGetMemoryRequirements(a, 0)) for a in (plain, deferred)])
""")

    assert codes == [1, 0]


def test_an_import_holds_the_memory(clients):
    """Memory exported and imported in one process is booked once, until both handles are released."""
    lost = clients("a100").run(
        FREE + VMM + "h = ck(d.cuMemCreate(512 << 20, prop, 0)); fd = ck(d.cuMemExportToShareableHandle(h, FD, 0))\n"
        "g = ck(d.cuMemImportFromShareableHandle(int(fd), FD)); lost = [before - free()]\n"
        "ck(d.cuMemRelease(h)); os.close(int(fd)); lost.append(before - free())\n"
        "ck(d.cuMemRelease(g)); answer([*lost, before - free()])"
    )

    assert lost == [512 << 20, 512 << 20, 0]


@pytest.mark.parametrize("how", ["released", "killed"])
def test_memory_in_another_process_outlives_its_exporter(clients, tmp_path: Path, how):
    """An importer's handle keeps the memory and pays for it once the exporter has released it or has been killed."""
    machine = clients("a100")
    path = str(tmp_path / "fd")
    connect = f"c = socket.socket(socket.AF_UNIX); c.connect({path!r})"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(2)
        owner = machine.start(
            "import socket\n" + FREE + VMM + "h = ck(d.cuMemCreate(512 << 20, prop, 0))\n"
            f"fd = int(ck(d.cuMemExportToShareableHandle(h, FD, 0))); {connect}\n"
            "socket.send_fds(c, [b'x'], [fd]); os.close(fd); sys.stdin.readline(); ck(d.cuMemRelease(h)); answer(1)\n"
            "sys.stdin.readline()"
        )
        taken, _ = listener.accept()
        _, (fd,), _, _ = socket.recv_fds(taken, 1, 1)
        importer = machine.start(
            "import socket\n" + FREE + VMM + f"{connect}\n"
            "_, (fd,), _, _ = socket.recv_fds(c, 1, 1); g = ck(d.cuMemImportFromShareableHandle(fd, FD))\n"
            "os.close(fd); answer(before - free()); sys.stdin.readline(); held = free(); ck(d.cuMemRelease(g))\n"
            "answer((free() - held) >> 20)"
        )
        given, _ = listener.accept()
        socket.send_fds(given, [b"x"], [fd])
        os.close(fd)
    assert importer.stdout.readline().strip() == "0"
    if how == "killed":
        owner.kill()
        owner.wait(10)
    else:
        owner.stdin.write("go\n")
        owner.stdin.flush()
        owner.stdout.readline()

    importer.stdin.write("go\n")
    importer.stdin.flush()
    assert machine.answer(importer) == 512


def test_imported_memory_answers_with_its_own_handle(clients):
    """cuMemRetainAllocationHandle of an imported mapping is the handle of the import, which one more release ends."""
    machine = clients("a100")
    owner = machine.start(
        FREE
        + VMM
        + "h = ck(d.cuMemCreate(2 << 20, prop, 0)); print(int(ck(d.cuMemExportToShareableHandle(h, FD, 0))),\n"
        "    flush=True); sys.stdin.readline()"
    )
    path = f"/proc/{owner.pid}/fd/{int(owner.stdout.readline())}"
    same, codes = machine.run(
        FREE + VMM + f"fd = os.open({path!r}, os.O_RDWR); g = ck(d.cuMemImportFromShareableHandle(fd, FD))\n"
        "at = ck(d.cuMemAddressReserve(2 << 20, 0, 0, 0)); ck(d.cuMemMap(at, 2 << 20, 0, g, 0))\n"
        "kept = ck(d.cuMemRetainAllocationHandle(int(at))); codes = [code(d.cuMemRelease(kept))]\n"
        "ck(d.cuMemUnmap(at, 2 << 20)); codes += [code(d.cuMemRelease(kept)), code(d.cuMemRelease(g))]\n"
        "answer([int(kept) == int(g), codes])"
    )

    assert same
    assert codes == [0, 0, 1]


def test_a_handle_is_released_once(clients):
    """cuMemRelease, cuMemMap and cuMemExportToShareableHandle of a handle that is gone answer INVALID_VALUE."""
    codes = clients("a100").run(
        FREE + VMM + "at = ck(d.cuMemAddressReserve(2 << 20, 0, 0, 0)); h = ck(d.cuMemCreate(2 << 20, prop, 0))\n"
        "ck(d.cuMemRelease(h)); answer([code(d.cuMemRelease(h)), code(d.cuMemMap(at, 2 << 20, 0, h, 0)),\n"
        "        code(d.cuMemExportToShareableHandle(h, FD, 0))])"
    )

    assert codes == [1, 1, 1]


def test_eight_threads_map_and_unmap_without_errors(clients):
    """Threads that create, map, fill, unmap and release memory of their own never see another's addresses."""
    errors, left = clients("a100").run(
        FREE + VMM + "import threading\ncontext = ck(d.cuCtxGetCurrent()); errors = []; size = 2 << 20\n"
        "def work():\n"
        "    ck(d.cuCtxSetCurrent(context))\n"
        "    try:\n"
        "        for _ in range(150):\n"
        "            at = ck(d.cuMemAddressReserve(size, 0, 0, 0)); h = ck(d.cuMemCreate(size, prop, 0))\n"
        "            ck(d.cuMemMap(at, size, 0, h, 0)); ck(d.cuMemRelease(h))\n"
        "            p = ck(d.cuMemAlloc(size)); ck(d.cuMemsetD8(at, 1, 4096)); ck(d.cuMemFree(p))\n"
        "            ck(d.cuMemUnmap(at, size)); ck(d.cuMemAddressFree(at, size))\n"
        "    except RuntimeError as error:\n"
        "        errors.append(str(error))\n"
        "ts = [threading.Thread(target=work) for _ in range(8)]\n"
        "for t in ts: t.start()\n"
        "for t in ts: t.join()\n"
        "answer([errors, before - free()])"
    )

    assert (errors, left) == ([], 0)
