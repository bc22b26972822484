"""Memory: every entry point that allocates stays under the limit, and what is freed is given back to the byte."""

from __future__ import annotations

import time

import pytest

from aliquot.arbiter.abi import MessageType

LIMIT_MIB = 256

PRELUDE = """
import ctypes as c
cuda = Cuda(); L = cuda.lib; MIB = 1 << 20; stream = c.c_void_p(); L.cuStreamCreate(c.byref(stream), 0)
class Location(c.Structure): _fields_ = [("type", c.c_int), ("id", c.c_int)]
class Prop(c.Structure):
    _fields_ = [("type", c.c_int), ("handles", c.c_int), ("location", Location),
                ("win", c.c_void_p), ("flags", c.c_ubyte * 8)]
class Desc(c.Structure):
    _fields_ = [("width", c.c_size_t), ("height", c.c_size_t), ("format", c.c_int), ("channels", c.c_uint)]
class Desc3(c.Structure):
    _fields_ = [("width", c.c_size_t), ("height", c.c_size_t), ("depth", c.c_size_t), ("format", c.c_int),
                ("channels", c.c_uint), ("flags", c.c_uint)]
class PoolProps(c.Structure):
    _fields_ = [("type", c.c_int), ("handles", c.c_int), ("location", Location), ("win", c.c_void_p),
                ("max", c.c_size_t), ("reserved", c.c_ubyte * 56)]
class AllocNode(c.Structure):
    _fields_ = [("pool", PoolProps), ("access", c.c_void_p), ("count", c.c_size_t), ("bytes", c.c_size_t),
                ("ptr", c.c_uint64)]
class NodeParams(c.Structure):
    _fields_ = [("type", c.c_int), ("reserved", c.c_int * 3), ("alloc", AllocNode), ("rest", c.c_ubyte * 256)]
POOL = PoolProps(1, 0, Location(1, 0))
ptr = c.c_uint64(); ref = c.byref(ptr)
def linear(mib): return L.cuMemAlloc_v2(ref, c.c_size_t(mib * MIB))
def free(): return L.cuMemFree_v2(ptr)
def managed(mib): return L.cuMemAllocManaged(ref, c.c_size_t(mib * MIB), 1)
def pitch(mib): return L.cuMemAllocPitch_v2(ref, c.byref(c.c_size_t()), c.c_size_t(1 << 20), c.c_size_t(mib), 4)
def asynchronous(mib): return L.cuMemAllocAsync(ref, c.c_size_t(mib * MIB), stream)
def asynchronous_ptsz(mib): return L.cuMemAllocAsync_ptsz(ref, c.c_size_t(mib * MIB), stream)
def free_async():
    r = L.cuMemFreeAsync(ptr, stream); L.cuStreamSynchronize(stream); return r
pool = c.c_void_p()
def from_pool(mib):
    if not pool: L.cuMemPoolCreate(c.byref(pool), c.byref(POOL))
    return L.cuMemAllocFromPoolAsync(ref, c.c_size_t(mib * MIB), pool, stream)
def vmm(mib): return L.cuMemCreate(ref, c.c_size_t(mib * MIB), c.byref(Prop(1, 0, Location(1, 0))), c.c_uint64(0))
def vmm_free(): return L.cuMemRelease(ptr)
def array(mib): return L.cuArrayCreate_v2(ref, c.byref(Desc(1 << 18, mib, 0x20, 1)))
def array3d(mib): return L.cuArray3DCreate_v2(ref, c.byref(Desc3(1 << 18, mib, 0, 0x20, 1, 0)))
def array_free(): return L.cuArrayDestroy(ptr)
def mipmap(mib): return L.cuMipmappedArrayCreate(ref, c.byref(Desc3(1 << 18, mib, 0, 0x20, 1, 0)), 1)
def mipmap_free(): return L.cuMipmappedArrayDestroy(ptr)
graph = c.c_void_p(); node = c.c_void_p()
def graph_alloc(mib):
    if not graph: L.cuGraphCreate(c.byref(graph), 0)
    params = AllocNode(POOL, None, 0, mib * MIB, 0)
    return L.cuGraphAddMemAllocNode(c.byref(node), graph, None, c.c_size_t(0), c.byref(params))
def graph_node(mib):
    if not graph: L.cuGraphCreate(c.byref(graph), 0)
    params = NodeParams(10, (c.c_int * 3)(), AllocNode(POOL, None, 0, mib * MIB, 0))
    return L.cuGraphAddNode(c.byref(node), graph, None, c.c_size_t(0), c.byref(params))
def graph_free(): return L.cuGraphDestroy(graph)
"""

ENTRY_POINTS = [
    ("linear", "free"),
    ("managed", "free"),
    ("pitch", "free"),
    ("asynchronous", "free_async"),
    ("asynchronous_ptsz", "free_async"),
    ("from_pool", "free_async"),
    ("vmm", "vmm_free"),
    ("array", "array_free"),
    ("array3d", "array_free"),
    ("mipmap", "mipmap_free"),
    ("graph_alloc", "graph_free"),
    ("graph_node", "graph_free"),
]
NOT_SUPPORTED = 801


@pytest.mark.parametrize("mode", ["library-path", "preload"])
@pytest.mark.parametrize(("allocate", "release"), ENTRY_POINTS)
def test_over_the_limit_is_out_of_memory_and_frees_are_exact(tenant, allocate, release, mode):
    """One granule over the limit is OUT_OF_MEMORY, the limit itself fits, and freeing leaves the books as they were."""
    scene = tenant(memory_mib=LIMIT_MIB, auto_grant=True)
    program = scene.run(
        PRELUDE + f"start = cuda.stats()['reserved_bytes']\n"
        f"over = {allocate}({LIMIT_MIB + 2}); within = {allocate}({LIMIT_MIB})\n"
        f"held = cuda.stats()['reserved_bytes']; freed = {release}(); end = cuda.stats()\n"
        "say(over=over, within=within, freed=freed, start=start, held=held, end=end)\n",
        mode=mode,
    )

    facts = program.read()

    if facts["within"] == NOT_SUPPORTED:
        pytest.skip(f"the emulated driver has no {allocate}")
    assert (facts["over"], facts["within"], facts["freed"]) == (2, 0, 0)
    assert facts["held"] == LIMIT_MIB << 20
    assert facts["end"]["reserved_bytes"] == facts["start"] == 0
    assert facts["end"]["leased_bytes"] == facts["end"]["unused_bytes"] <= 128 << 20


def test_a_context_over_the_limit_is_out_of_memory(tenant):
    """A context whose allowance does not fit is refused as OUT_OF_MEMORY."""
    scene = tenant(memory_mib=64, context_mib=300)
    program = scene.run("say(retained=Cuda().retained)")

    assert program.read()["retained"] == 2


def test_contexts_are_charged_and_given_back(tenant):
    """A context costs its allowance once and gives it back when the last reference goes."""
    scene = tenant(memory_mib=1024, context_mib=300)
    program = scene.run(
        "cuda = Cuda(); again = ctypes.c_void_p(); cuda.lib.cuDevicePrimaryCtxRetain(ctypes.byref(again), 0)\n"
        "say(); wait_line(); cuda.lib.cuDevicePrimaryCtxRelease_v2(0); cuda.lib.cuDevicePrimaryCtxRelease_v2(0)\n"
        "say(); wait_line()"
    )
    program.read()
    charged = scene.arbiter.contexts[0]
    program.go()
    program.read()
    scene.arbiter.wait_for(MessageType.RELEASE)

    assert (charged, scene.arbiter.contexts[0]) == (1, 0)


def test_a_gpu_of_others_has_no_memory(tenant):
    """On a GPU that the tenant was not given, a context fails with OUT_OF_MEMORY."""
    scene = tenant(spec="v100x2", owned=1)
    program = scene.run("say(own=Cuda(device=0).retained, other=Cuda(device=1).retained)")

    assert program.read() == {"own": 0, "other": 2}


def test_the_tenant_sees_its_own_memory(tenant):
    """cuMemGetInfo, cuDeviceTotalMem and NVML show the limit and what is left of it."""
    scene = tenant(memory_mib=LIMIT_MIB, context_mib=16)
    program = scene.run(
        PRELUDE + "linear(100)\n"
        "free, total, whole = c.c_size_t(), c.c_size_t(), c.c_size_t()\n"
        "L.cuMemGetInfo_v2(c.byref(free), c.byref(total)); L.cuDeviceTotalMem_v2(c.byref(whole), 0)\n"
        "L.cuMemGetInfo_v2(None, None)\n"
        "class Memory(c.Structure): _fields_ = [('total', c.c_uint64), ('free', c.c_uint64), ('used', c.c_uint64)]\n"
        "N = c.CDLL('libnvidia-ml.so.1'); N.nvmlInit_v2(); device = c.c_void_p(); memory = Memory()\n"
        "handle = N.nvmlDeviceGetHandleByIndex_v2(0, c.byref(device))\n"
        "N.nvmlDeviceGetMemoryInfo(device, c.byref(memory))\n"
        "say(free=free.value >> 20, total=total.value >> 20, whole=whole.value >> 20, handle=handle,\n"
        "    nvml=[memory.total >> 20, memory.used >> 20], deny=N.nvmlDeviceSetComputeMode(device, 0))\n"
    )

    facts = program.read()

    assert (facts["total"], facts["whole"], facts["free"]) == (LIMIT_MIB, LIMIT_MIB, LIMIT_MIB - 116)
    assert facts["deny"] == 4
    if facts["handle"] == 0:
        assert facts["nvml"] == [LIMIT_MIB, 116]


def test_books_survive_a_restart_of_the_arbiter(tenant):
    """After the arbiter came back the process tells it what it holds; the program sees no error."""
    scene = tenant(memory_mib=LIMIT_MIB)
    program = scene.run(PRELUDE + "say(r=linear(100)); wait_line(); say(r=linear(50)); wait_line()")
    program.read()
    scene.arbiter.stop()
    time.sleep(0.1)
    restarted = len(scene.arbiter.heard)
    scene.arbiter.start()

    program.go()

    assert program.read()["r"] == 0
    scene.arbiter.wait_for(MessageType.RESERVE, since=restarted)
    time.sleep(0.1)
    assert scene.arbiter.leased[0] >= 150 << 20
