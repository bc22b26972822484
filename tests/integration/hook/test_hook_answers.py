"""Arguments that the driver refuses: the answer under the hook is the driver's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_hook_memory import PRELUDE

HERE = Path(__file__).parent

CALLS = (
    PRELUDE
    + f"__FILE__ = {__file__.encode()!r}\n"
    + """
MOST, HALF, PAGE = (1 << 64) - 1, 1 << 63, 2 << 20
size, prop = c.c_size_t, Prop(1, 0, Location(1, 0)); pool = c.c_void_p(); out = c.c_void_p()
made = c.c_uint64; L.cuMemPoolCreate(c.byref(pool), c.byref(POOL))
def into_graph(n, kind=AllocNode):
    graph, node = c.c_void_p(), c.c_void_p(); L.cuGraphCreate(c.byref(graph), 0); alloc = AllocNode(POOL, None, 0, n, 0)
    if kind is AllocNode: r = L.cuGraphAddMemAllocNode(c.byref(node), graph, None, size(0), c.byref(alloc))
    else: r = L.cuGraphAddNode(c.byref(node), graph, None, size(0), c.byref(NodeParams(10, (c.c_int * 3)(), alloc)))
    L.cuGraphDestroy(graph); return r
def captured(n):
    L.cuStreamBeginCapture_v2(stream, 2); r = L.cuMemAllocAsync(ref, size(n), stream)
    graph = c.c_void_p(); L.cuStreamEndCapture(stream, c.byref(graph)); return r
SIZED = {
    "cuMemAlloc_v2": lambda n: L.cuMemAlloc_v2(ref, size(n)),
    "cuMemAllocManaged": lambda n: L.cuMemAllocManaged(ref, size(n), 1),
    "cuMemAllocPitch_v2 width": lambda n: L.cuMemAllocPitch_v2(ref, c.byref(size()), size(n), size(4), 4),
    "cuMemAllocPitch_v2 height": lambda n: L.cuMemAllocPitch_v2(ref, c.byref(size()), size(4), size(n), 4),
    "cuMemAllocAsync": lambda n: L.cuMemAllocAsync(ref, size(n), stream),
    "cuMemAllocAsync_ptsz": lambda n: L.cuMemAllocAsync_ptsz(ref, size(n), stream),
    "cuMemAllocFromPoolAsync": lambda n: L.cuMemAllocFromPoolAsync(ref, size(n), pool, stream),
    "cuMemCreate": lambda n: L.cuMemCreate(ref, size(n), c.byref(prop), made(0)),
    "cuArrayCreate_v2": lambda n: L.cuArrayCreate_v2(c.byref(out), c.byref(Desc(n, 4, 0x20, 1))),
    "cuArrayCreate_v2 height": lambda n: L.cuArrayCreate_v2(c.byref(out), c.byref(Desc(1, n, 0x20, 1))),
    "cuArray3DCreate_v2": lambda n: L.cuArray3DCreate_v2(c.byref(out), c.byref(Desc3(4, 4, n, 0x20, 1, 0))),
    "cuMipmappedArrayCreate": lambda n: L.cuMipmappedArrayCreate(c.byref(out), c.byref(Desc3(n, 4, 0, 0x20, 1, 0)), 1),
    "cuGraphAddMemAllocNode": into_graph,
    "cuGraphAddNode": lambda n: into_graph(n, NodeParams),
    "captured cuMemAllocAsync": captured,
    "cuMemAlloc": lambda n: L.cuMemAlloc(c.byref(low), min(n, 0xFFFFFFFF)),
    "cuMemAllocPitch": lambda n: L.cuMemAllocPitch(c.byref(low), c.byref(c.c_uint()), min(n, 0xFFFFFFFF), 4, 4),
}
BIG = 12 << 20
BAD = {
    "cuMemAlloc_v2 NULL": lambda: L.cuMemAlloc_v2(None, size(BIG)),
    "cuMemAllocManaged NULL": lambda: L.cuMemAllocManaged(None, size(BIG), 1),
    "cuMemAllocManaged flags": lambda: L.cuMemAllocManaged(ref, size(BIG), 77),
    "cuMemAllocPitch_v2 NULL": lambda: L.cuMemAllocPitch_v2(None, c.byref(size()), size(BIG), size(4), 4),
    "cuMemAllocPitch_v2 pitch": lambda: L.cuMemAllocPitch_v2(ref, None, size(BIG), size(4), 4),
    "cuMemAllocPitch_v2 element": lambda: L.cuMemAllocPitch_v2(ref, c.byref(size()), size(BIG), size(4), 3),
    "cuMemAllocAsync NULL": lambda: L.cuMemAllocAsync(None, size(BIG), stream),
    "cuMemAllocFromPoolAsync NULL": lambda: L.cuMemAllocFromPoolAsync(None, size(BIG), pool, stream),
    "cuMemAllocFromPoolAsync pool": lambda: L.cuMemAllocFromPoolAsync(ref, size(BIG), None, stream),
    "cuMemCreate NULL": lambda: L.cuMemCreate(None, size(BIG), c.byref(prop), made(0)),
    "cuMemCreate prop": lambda: L.cuMemCreate(ref, size(BIG), None, made(0)),
    "cuMemCreate flags": lambda: L.cuMemCreate(ref, size(BIG), c.byref(prop), made(1)),
    "cuMemCreate device": lambda: L.cuMemCreate(ref, size(BIG), c.byref(Prop(1, 0, Location(1, 9))), made(0)),
    "cuArrayCreate_v2 NULL": lambda: L.cuArrayCreate_v2(None, c.byref(Desc(1 << 18, 12, 0x20, 1))),
    "cuArrayCreate_v2 desc": lambda: L.cuArrayCreate_v2(c.byref(out), None),
    "cuArrayCreate_v2 format": lambda: L.cuArrayCreate_v2(c.byref(out), c.byref(Desc(1 << 18, 12, 0x77, 1))),
    "cuArrayCreate_v2 channels": lambda: L.cuArrayCreate_v2(c.byref(out), c.byref(Desc(1 << 18, 12, 0x20, 3))),
    "cuArray3DCreate_v2 NULL": lambda: L.cuArray3DCreate_v2(None, c.byref(Desc3(1 << 18, 12, 0, 0x20, 1, 0))),
    "cuMipmappedArrayCreate NULL": lambda: L.cuMipmappedArrayCreate(None, c.byref(Desc3(9, 9, 0, 0x20, 1, 0)), 1),
    "cuMipmappedArrayCreate levels": lambda: L.cuMipmappedArrayCreate(
        c.byref(out), c.byref(Desc3(1 << 18, 12, 0, 0x20, 1, 0)), 0),
    "cuCtxCreate_v2 NULL": lambda: L.cuCtxCreate_v2(None, 0, 0),
    "cuCtxCreate_v2 device": lambda: L.cuCtxCreate_v2(c.byref(out), 0, 9),
    "cuDevicePrimaryCtxRetain NULL": lambda: L.cuDevicePrimaryCtxRetain(None, 0),
    "cuDevicePrimaryCtxRetain device": lambda: L.cuDevicePrimaryCtxRetain(c.byref(out), 9),
    "cuModuleLoadData NULL": lambda: L.cuModuleLoadData(None, PTX),
    "cuModuleLoadData image": lambda: L.cuModuleLoadData(c.byref(out), None),
    "cuModuleLoad path": lambda: L.cuModuleLoad(c.byref(out), b"/nowhere"),
    "cuModuleLoadDataEx NULL": lambda: L.cuModuleLoadDataEx(None, PTX, 0, None, None),
    "cuLibraryLoadData NULL": lambda: L.cuLibraryLoadData(None, PTX, None, None, 0, None, None, 0),
    "cuLibraryLoadFromFile path": lambda: L.cuLibraryLoadFromFile(
        c.byref(out), b"/nowhere", None, None, 0, None, None, 0),
    "cuCtxSetLimit limit": lambda: L.cuCtxSetLimit(99, size(BIG)),
    "cuMemFree_v2 of nobody": lambda: L.cuMemFree_v2(made(12345)),
    "cuMemRelease of nobody": lambda: L.cuMemRelease(made(12345)),
}
junk = c.create_string_buffer(b"no code at all"); bad_file = c.c_char_p(__FILE__)
libc = c.CDLL(None); libc.mmap.restype = c.c_void_p  # a text of two letters, with nothing mapped behind it
pages = libc.mmap(None, size(8192), 3, 0x22, -1, size(0)); libc.mprotect(c.c_void_p(pages + 4096), size(4096), 0)
c.memmove(pages + 4093, b"no" + bytes(1), 3); short = c.c_void_p(pages + 4093)
def async_in(stream): return L.cuMemAllocAsync(ref, size(BIG), c.c_void_p(stream))
def from_pool_in(pool, stream): return L.cuMemAllocFromPoolAsync(ref, size(BIG), c.c_void_p(pool), c.c_void_p(stream))
def create(kind=1, handles=0, where=1):
    return L.cuMemCreate(ref, size(6 * PAGE), c.byref(Prop(kind, handles, Location(where, 0))), made(0))
def array3d(w, h, d, flags): return L.cuArray3DCreate_v2(c.byref(out), c.byref(Desc3(w, h, d, 0x20, 1, flags)))
def mipmap(w, h, d, flags):
    return L.cuMipmappedArrayCreate(c.byref(out), c.byref(Desc3(w, h, d, 0x20, 1, flags)), 3)
def multicast(devices=1, n=PAGE, flags=0, kind=1):
    return L.cuMulticastCreate(ref, c.byref((c.c_uint64 * 4)(devices, n, kind, flags)))
def node(graph=None, deps=None, count=0, kind=1, handles=0, where=None, n=BIG):
    own, place = c.c_void_p(), c.c_void_p(); L.cuGraphCreate(c.byref(own), 0)
    alloc = AllocNode(PoolProps(kind, handles, Location(1, 0)), None, 0, n, 0)
    r = L.cuGraphAddMemAllocNode(c.byref(place) if where is None else None, own if graph is None else c.c_void_p(graph),
                                 deps, size(count), c.byref(alloc))
    L.cuGraphDestroy(own); return r
def imported():
    shown, fd, mine = c.c_void_p(), c.c_int(), c.c_void_p()
    props = PoolProps(1, 1, Location(1, 0)); L.cuMemPoolCreate(c.byref(shown), c.byref(props))
    L.cuMemPoolExportToShareableHandle(c.byref(fd), shown, 1, made(0))
    L.cuMemPoolImportFromShareableHandle(c.byref(mine), c.c_void_p(fd.value), 1, made(0))
    return mine.value
IMPORTED, UNMAPPED = imported(), 0xDEADBEEF0000
FULL = {
    "cuMemAllocAsync stream": lambda: async_in(77), "cuMemAllocAsync wild stream": lambda: async_in(UNMAPPED),
    "cuMemAllocAsync_ptsz stream": lambda: L.cuMemAllocAsync_ptsz(ref, size(BIG), c.c_void_p(77)),
    "cuMemAllocAsync stream of another kind": lambda: async_in(pool.value),
    "cuMemAllocFromPoolAsync stream": lambda: from_pool_in(pool.value, 77),
    "cuMemAllocFromPoolAsync small pool": lambda: from_pool_in(3, stream.value),
    "cuMemAllocFromPoolAsync wild pool": lambda: from_pool_in(UNMAPPED, stream.value),
    "cuMemAllocFromPoolAsync stream as pool": lambda: from_pool_in(stream.value, stream.value),
    "cuMemAllocFromPoolAsync imported pool": lambda: from_pool_in(IMPORTED, stream.value),
    "cuMemCreate type": lambda: create(kind=0), "cuMemCreate fabric": lambda: create(handles=8),
    "cuMemCreate handle type": lambda: create(handles=0x40), "cuMemCreate location": lambda: create(where=0),
    "cuMemCreate location 77": lambda: create(where=77), "cuMemCreate negative type": lambda: create(kind=-1),
    "cuArray3DCreate_v2 flags": lambda: array3d(1 << 18, 12, 0, 0x4000),
    "cuArray3DCreate_v2 no height": lambda: array3d(1 << 18, 0, 12, 0),
    "cuArray3DCreate_v2 cube": lambda: array3d(1 << 11, 1 << 11, 5, 4),
    "cuArray3DCreate_v2 oblong cube": lambda: array3d(1 << 11, 1 << 10, 6, 4),
    "cuArray3DCreate_v2 layers of a cube": lambda: array3d(1 << 10, 1 << 10, 7, 5),
    "cuArray3DCreate_v2 no layers": lambda: array3d(1 << 18, 12, 0, 1),
    "cuArray3DCreate_v2 gather": lambda: array3d(1 << 18, 12, 2, 8),
    "cuMipmappedArrayCreate flags": lambda: mipmap(1 << 18, 12, 0, 0x4000),
    "cuMipmappedArrayCreate cube": lambda: mipmap(1 << 11, 1 << 11, 5, 4),
    "cuMulticastCreate NULL": lambda: L.cuMulticastCreate(None, None),
    "cuMulticastCreate devices": lambda: multicast(devices=0), "cuMulticastCreate size": lambda: multicast(n=PAGE + 1),
    "cuMulticastCreate flags": lambda: multicast(flags=1), "cuMulticastCreate nothing": lambda: multicast(n=0),
    "cuCtxCreate_v2 flags": lambda: L.cuCtxCreate_v2(c.byref(out), 0x4000, 0),
    "cuCtxCreate_v2 scheduling": lambda: L.cuCtxCreate_v2(c.byref(out), 3, 0),
    "cuCtxCreate_v3 count": lambda: L.cuCtxCreate_v3(c.byref(out), None, 2, 0, 0),
    "cuCtxCreate_v3 negative": lambda: L.cuCtxCreate_v3(c.byref(out), None, -1, 0, 0),
    "cuCtxCreate_v4 flags": lambda: L.cuCtxCreate_v4(c.byref(out), None, 0x4000, 0),
    "cuGreenCtxCreate NULL": lambda: L.cuGreenCtxCreate(None, None, 0, 1),
    "cuGreenCtxCreate description": lambda: L.cuGreenCtxCreate(c.byref(out), None, 0, 1),
    "cuModuleLoadData text": lambda: L.cuModuleLoadData(c.byref(out), junk),
    "cuModuleLoadData short": lambda: L.cuModuleLoadData(c.byref(out), short),
    "cuModuleLoadDataEx text": lambda: L.cuModuleLoadDataEx(c.byref(out), junk, 0, None, None),
    "cuModuleLoadFatBinary text": lambda: L.cuModuleLoadFatBinary(c.byref(out), junk),
    "cuLibraryLoadData text": lambda: L.cuLibraryLoadData(c.byref(out), junk, None, None, 0, None, None, 0),
    "cuModuleLoad text": lambda: L.cuModuleLoad(c.byref(out), bad_file),
    "cuLibraryLoadFromFile text": lambda: L.cuLibraryLoadFromFile(
        c.byref(out), bad_file, None, None, 0, None, None, 0),
    "cuModuleGetFunction NULL": lambda: L.cuModuleGetFunction(None, MODULE, b"spin_ns"),
    "cuModuleGetFunction name": lambda: L.cuModuleGetFunction(c.byref(out), MODULE, None),
    "cuModuleGetGlobal_v2 name": lambda: L.cuModuleGetGlobal_v2(ref, None, MODULE, None),
    "cuModuleEnumerateFunctions NULL": lambda: L.cuModuleEnumerateFunctions(None, 1, MODULE),
    "cuCtxSetLimit stack": lambda: L.cuCtxSetLimit(0, size(MOST)),
    "cuCtxSetLimit heap": lambda: L.cuCtxSetLimit(2, size(MOST)),
    "cuCtxSetLimit printf": lambda: L.cuCtxSetLimit(1, size(1 << 50)),
    "cuGraphAddMemAllocNode NULL": lambda: node(where=0), "cuGraphAddMemAllocNode graph": lambda: node(graph=UNMAPPED),
    "cuGraphAddMemAllocNode no graph": lambda: node(graph=0),
    "cuGraphAddMemAllocNode dependencies": lambda: node(count=1),
    "cuGraphAddMemAllocNode dependency": lambda: node(deps=(c.c_uint64 * 1)(UNMAPPED), count=1),
    "cuGraphAddMemAllocNode type": lambda: node(kind=0), "cuGraphAddMemAllocNode handles": lambda: node(handles=1),
    "cuGraphAddMemAllocNode nothing": lambda: node(n=0),
}
MODULE = c.c_void_p(); L.cuModuleLoadData(c.byref(MODULE), PTX)
SIZES = [0, MOST, MOST - 511, HALF, HALF + 1, MOST // 4 * 3, (1 << 50) + 1, 1 << 50]
def answers():
    said = {f"{name} {n:#x}": call(n) for name, call in SIZED.items() for n in SIZES}
    for n in (1, PAGE - 1, PAGE + 1, PAGE + 512, 6 * PAGE + 4096): said[f"cuMemCreate {n:#x}"] = SIZED["cuMemCreate"](n)
    while L.cuMemAlloc_v2(ref, size(64 << 10)) == 0 and LIMITED: pass
    return said | {name: call() for name, call in (BAD | FULL).items()}
"""
)


def bare(scene, code: str) -> dict[str, int]:
    """What the driver itself answers."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("LD_")}
    env |= {"LD_LIBRARY_PATH": str(scene.machine.directory), "PYTHONPATH": str(HERE)}
    done = subprocess.run(
        [sys.executable, "-c", "from client import *\n" + code], env=env, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("limit_mib", [8, 4096])
@pytest.mark.parametrize("strict", [0, 1])
def test_what_is_invalid_is_answered_by_the_driver(tenant, limit_mib, strict):
    """Sizes of nothing, beyond any memory or unaligned, and other wrong arguments: with the hook as without it.

    With a limit of 8 MiB nothing more can be allocated when the other wrong arguments are tried.
    """
    scene = tenant(memory_mib=limit_mib, spec="h100", extra=(f"strict={strict}",))
    wanted = bare(scene, CALLS + "LIMITED = False; say(**answers())\n")
    program = scene.run(
        CALLS + f"LIMITED = {limit_mib < 100}; said = answers(); stats = cuda.stats(); say(said=said, stats=stats)\n"
    )
    facts = program.read()
    wrong = {name: (code, facts["said"][name]) for name, code in wanted.items() if facts["said"][name] != code}

    assert {} == wrong
    assert 0 == facts["stats"]["unbalanced"]


def test_a_context_without_a_place_for_its_handle_is_invalid_whatever_room_there_is(tenant):
    """NULL for the handle and wrong flags are CUDA_ERROR_INVALID_VALUE also where no context would fit."""
    scene = tenant(memory_mib=64, context_mib=300)
    program = scene.run(
        "L = Cuda(context=False).lib; out = ctypes.byref(ctypes.c_void_p())\n"
        "say(own=L.cuCtxCreate_v2(None, 0, 0), primary=L.cuDevicePrimaryCtxRetain(None, 0),"
        " green=L.cuGreenCtxCreate(out, None, 0, 1), flags=L.cuCtxCreate_v2(out, 0x4000, 0),"
        " scheduling=L.cuCtxCreate_v4(out, None, 3, 0), cores=L.cuCtxCreate_v3(out, None, 1, 0, 0),"
        " well=L.cuCtxCreate_v2(out, 0, 0))"
    )

    wrong = dict.fromkeys(("own", "primary", "green", "flags", "scheduling", "cores"), 1)
    assert {**wrong, "well": 2} == program.read()


def test_what_is_no_pool_is_charged_nothing(tenant):
    """An allocation from a stream, or from an address without a pool, is refused by the driver and leaves no charge."""
    scene = tenant(memory_mib=256)
    program = scene.run(
        PRELUDE + "held = cuda.stats()['reserved_bytes']; size = c.c_size_t(MIB)\n"
        "codes = [L.cuMemAllocFromPoolAsync(ref, size, c.c_void_p(bad), stream) for bad in (3, stream.value)]\n"
        "say(codes=codes, charged=cuda.stats()['reserved_bytes'] - held)"
    )

    assert {"codes": [1, 1], "charged": 0} == program.read()


def test_a_driver_without_a_fabric_says_so_under_the_hook(tenant):
    """Fabric handles are CUDA_ERROR_NOT_SUPPORTED, the attribute of the device is 0, and nothing stays charged."""
    scene = tenant(memory_mib=64, spec="h100")
    program = scene.run(
        PRELUDE + "fabric = 8; supported = c.c_int(9); room = (c.c_ubyte * 64)()\n"
        "L.cuDeviceGetAttribute(c.byref(supported), 128, 0)\n"
        "prop = Prop(1, fabric, Location(1, 0)); size, none = c.c_size_t(2 * MIB), c.c_uint64(0)\n"
        "made = [L.cuMemCreate(ref, size, c.byref(prop), none)]; prop.handles = 1 | fabric\n"
        "made.append(L.cuMemCreate(ref, size, c.byref(prop), none))\n"
        "pool = L.cuMemPoolCreate(c.byref(c.c_void_p()), c.byref(PoolProps(1, fabric, Location(1, 0))))\n"
        "vmm(2); shown = L.cuMemExportToShareableHandle(room, ptr, fabric, none); L.cuMemRelease(ptr)\n"
        "taken = L.cuMemImportFromShareableHandle(ref, room, fabric)\n"
        "say(supported=supported.value, made=made, pool=pool, shown=shown, taken=taken,"
        " held=cuda.stats()['reserved_bytes'])"
    )

    assert {"supported": 0, "made": [801, 801], "pool": 801, "shown": 801, "taken": 801, "held": 0} == program.read()
