"""Memory: every entry point that allocates stays under the limit, and what is freed is given back to the byte."""

from __future__ import annotations

import re
import time
import tomllib
from pathlib import Path

import pytest

from aliquot.arbiter.abi import MessageType

SYMBOLS = Path(__file__).resolve().parents[3] / "native" / "symbols"
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
class Desc1(c.Structure):
    _fields_ = [("width", c.c_uint), ("height", c.c_uint), ("format", c.c_int), ("channels", c.c_uint)]
class Desc31(c.Structure):
    _fields_ = [("width", c.c_uint), ("height", c.c_uint), ("depth", c.c_uint), ("format", c.c_int),
                ("channels", c.c_uint), ("flags", c.c_uint)]
low = c.c_uint32()
def linear_v1(mib): return L.cuMemAlloc(c.byref(low), mib * MIB)
def free_v1(): return L.cuMemFree(low)
def pitch_v1(mib): return L.cuMemAllocPitch(c.byref(low), c.byref(c.c_uint()), 1 << 20, mib, 4)
def array_v1(mib): return L.cuArrayCreate(ref, c.byref(Desc1(1 << 18, mib, 0x20, 1)))
def array3d_v1(mib): return L.cuArray3DCreate(ref, c.byref(Desc31(1 << 18, mib, 0, 0x20, 1, 0)))
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
    ("linear_v1", "free_v1"),
    ("pitch_v1", "free_v1"),
    ("array_v1", "array_free"),
    ("array3d_v1", "array_free"),
]


@pytest.mark.parametrize("mode", ["library-path", "preload"])
@pytest.mark.parametrize(("allocate", "release"), ENTRY_POINTS)
def test_over_the_limit_is_out_of_memory_and_frees_are_exact(tenant, allocate, release, mode):
    """One granule over the limit is OUT_OF_MEMORY, the limit itself fits, and freeing leaves the ledger as it was."""
    scene = tenant(memory_mib=LIMIT_MIB, auto_grant=True)
    program = scene.run(
        PRELUDE + f"start = cuda.stats()['reserved_bytes']\n"
        f"over = {allocate}({LIMIT_MIB + 2}); within = {allocate}({LIMIT_MIB})\n"
        f"held = cuda.stats()['reserved_bytes']; freed = {release}(); end = cuda.stats()\n"
        "say(over=over, within=within, freed=freed, start=start, held=held, end=end)\n",
        mode=mode,
    )

    facts = program.read()

    assert (facts["over"], facts["within"], facts["freed"]) == (2, 0, 0)
    assert facts["held"] == LIMIT_MIB << 20
    assert facts["end"]["reserved_bytes"] == facts["start"] == 0
    assert facts["end"]["leased_bytes"] == facts["end"]["unused_bytes"] <= 128 << 20


RETAIN_AND_RESET = """
import threading
cuda = Cuda(context=False)
lib, end = cuda.lib, time.monotonic() + 1.5
def retain():
    context = ctypes.c_void_p()
    while time.monotonic() < end:
        if lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0:
            lib.cuDevicePrimaryCtxRelease_v2(0)
def reset():
    while time.monotonic() < end:
        lib.cuDevicePrimaryCtxReset_v2(0)
threads = [threading.Thread(target=work) for work in (retain, retain, retain, reset)]
for thread in threads: thread.start()
for thread in threads: thread.join()
lib.cuDevicePrimaryCtxReset_v2(0)
say(done=True); wait_line()
context = ctypes.c_void_p()
say(retained=lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)); wait_line()
"""


def test_a_context_is_charged_once_however_threads_retain_and_reset_it(tenant):
    """Threads that retain, release and reset the primary context at the same time leave nothing charged."""
    scene = tenant(memory_mib=4096, context_mib=300)
    program = scene.run(RETAIN_AND_RESET)
    program.read()
    deadline_s = time.monotonic() + 5
    while scene.arbiter.contexts[0] and time.monotonic() < deadline_s:
        time.sleep(0.01)  # RELEASE has no answer
    after = scene.arbiter.contexts[0]
    program.go()
    program.read()

    assert (0, 1) == (after, scene.arbiter.contexts[0])


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
        "L.cuMemGetInfo_v2(None, None); first = [c.c_uint(), c.c_uint(), c.c_uint()]\n"
        "L.cuMemGetInfo(c.byref(first[0]), c.byref(first[1])); L.cuDeviceTotalMem(c.byref(first[2]), 0)\n"
        "class Memory(c.Structure): _fields_ = [('total', c.c_uint64), ('free', c.c_uint64), ('used', c.c_uint64)]\n"
        "N = c.CDLL('libnvidia-ml.so.1'); N.nvmlInit_v2(); device = c.c_void_p(); memory = Memory()\n"
        "handle = N.nvmlDeviceGetHandleByIndex_v2(0, c.byref(device))\n"
        "N.nvmlDeviceGetMemoryInfo(device, c.byref(memory))\n"
        "say(free=free.value >> 20, total=total.value >> 20, whole=whole.value >> 20, handle=handle,\n"
        "    first=[v.value >> 20 for v in first],\n"
        "    nvml=[memory.total >> 20, memory.used >> 20], deny=N.nvmlDeviceSetComputeMode(device, 0))\n"
    )

    facts = program.read()

    assert (facts["total"], facts["whole"], facts["free"]) == (LIMIT_MIB, LIMIT_MIB, LIMIT_MIB - 116)
    assert facts["first"] == [LIMIT_MIB - 116, LIMIT_MIB, LIMIT_MIB]
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


OTHER_GPU = """
other = c.c_void_p(); L.cuDevicePrimaryCtxRetain(c.byref(other), 1)
there = c.c_void_p(); L.cuCtxSetCurrent(other); L.cuStreamCreate(c.byref(there), 1); L.cuCtxSetCurrent(cuda.ctx)
made = c.c_void_p(); L.cuMemPoolCreate(c.byref(made), c.byref(PoolProps(1, 0, Location(1, 1))))
default = c.c_void_p(); L.cuDeviceGetDefaultMemPool(c.byref(default), 1)
"""
WAYS_TO_ANOTHER_GPU = {
    "stream": "L.cuMemAllocAsync(ref, c.c_size_t(40 * MIB), there)",
    "made-pool": "L.cuMemAllocFromPoolAsync(ref, c.c_size_t(40 * MIB), made, there)",
    "default-pool": "L.cuMemAllocFromPoolAsync(ref, c.c_size_t(40 * MIB), default, there)",
    "handle": "L.cuMemCreate(ref, c.c_size_t(40 * MIB), c.byref(Prop(1, 0, Location(1, 1))), c.c_uint64(0))",
}


@pytest.mark.parametrize("way", WAYS_TO_ANOTHER_GPU)
def test_the_gpu_that_gives_the_memory_pays(tenant, way):
    """With GPU 0 current, memory of GPU 1 is charged to GPU 1; on a GPU of others there is none."""
    scene = tenant(spec="v100x2", memory_mib=LIMIT_MIB)
    program = scene.run(PRELUDE + OTHER_GPU + f"say(result={WAYS_TO_ANOTHER_GPU[way]}); wait_line()")

    assert program.read() == {"result": 0}
    scene.arbiter.wait_for(MessageType.RESERVE)
    assert scene.arbiter.leased[0] == 0
    assert scene.arbiter.leased[1] >= 40 << 20


@pytest.mark.parametrize("way", ["made-pool", "default-pool", "handle"])
def test_a_gpu_of_others_gives_no_memory_by_any_way(tenant, way):
    """A tenant of GPU 0 gets OUT_OF_MEMORY for memory of GPU 1, however it is asked for."""
    scene = tenant(spec="v100x2", owned=1, memory_mib=LIMIT_MIB)
    program = scene.run(PRELUDE + OTHER_GPU + f"there = stream; say(result={WAYS_TO_ANOTHER_GPU[way]}); wait_line()")

    assert program.read() == {"result": 2}


# Names that look like an allocation and are none: host memory, addresses without memory, handles of what is paid for by
# its owner, objects that the arbiter's measurement covers.
NOT_DEVICE_MEMORY = re.compile(
    r"Host|Granularity|Properties|Import|Ipc|GetParams|TensorMap|Event|Stream|TexObject|SurfObject|TexRef|UserObject|"
    r"Conditional|Semaphore|LoadingMode|IsLoaded|FuncLoad|LinkCreate|GraphCreate|RetainUserObject|LogicalEndpoint|VDPAU"
)
LOOKS_LIKE_ONE = re.compile(r"^cu.*(Alloc|Create(_v\d)?$|Load|CtxRetain|SetLimit|GraphAddNode)")


def test_every_function_that_allocates_is_intercepted():
    """Of all names in the driver's table that look like an allocation of device memory, each has a hook with a body."""
    hooks = tomllib.loads((SYMBOLS / "hooks.toml").read_text())
    rows = [line.split("\t") for line in (SYMBOLS / "cuda.tsv").read_text().splitlines()[1:] if line]
    symbols = {re.sub(r"_(ptsz|ptds)$", "", row[3]) for row in rows}
    wanted = {s for s in symbols if LOOKS_LIKE_ONE.search(s) and not NOT_DEVICE_MEMORY.search(s)}
    bodies = {name for name, hook in hooks.items() if hooks[hook.get("like", name)].get("kind") == "body"}

    assert len(wanted) > 30
    assert wanted - bodies == set()
