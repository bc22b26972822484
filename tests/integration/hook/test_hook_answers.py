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
SIZES = [0, MOST, MOST - 511, HALF, HALF + 1, MOST // 4 * 3, (1 << 50) + 1, 1 << 50]
def answers():
    said = {f"{name} {n:#x}": call(n) for name, call in SIZED.items() for n in SIZES}
    for n in (1, PAGE - 1, PAGE + 1, PAGE + 512, 6 * PAGE + 4096): said[f"cuMemCreate {n:#x}"] = SIZED["cuMemCreate"](n)
    while L.cuMemAlloc_v2(ref, size(64 << 10)) == 0 and LIMITED: pass
    return said | {name: call() for name, call in BAD.items()}
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
    """Sizes of nothing, beyond any memory or unaligned, and other wrong arguments: with the hook as without it."""
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
    """NULL for the handle is CUDA_ERROR_INVALID_VALUE also where no context would fit."""
    scene = tenant(memory_mib=64, context_mib=300)
    program = scene.run(
        "L = Cuda(context=False).lib\n"
        "say(own=L.cuCtxCreate_v2(None, 0, 0), primary=L.cuDevicePrimaryCtxRetain(None, 0))"
    )

    assert {"own": 1, "primary": 1} == program.read()


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
