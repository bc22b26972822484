"""Memory that no allocation call names: code, limits of a context, multicast objects, what graphs leave."""

from __future__ import annotations

import pytest

MIB = 1 << 20
MODULE_MIB = 2

LOADERS = """
import ctypes as c, os
cuda = Cuda(); L = cuda.lib; MIB = 1 << 20
image = os.memfd_create("spin"); os.write(image, PTX); name = f"/proc/self/fd/{image}".encode()
none = (None, None, 0)
def held(): return cuda.stats()["reserved_bytes"]
def new(call, *a):
    handle = c.c_void_p(); return call(c.byref(handle), *a), handle
LOAD = {
    "cuModuleLoad": lambda: new(L.cuModuleLoad, name),
    "cuModuleLoadData": lambda: new(L.cuModuleLoadData, PTX),
    "cuModuleLoadFatBinary": lambda: new(L.cuModuleLoadFatBinary, PTX),
    "cuModuleLoadDataEx": lambda: new(L.cuModuleLoadDataEx, PTX, 0, None, None),
    "cuLibraryLoadData": lambda: new(L.cuLibraryLoadData, PTX, *none, *none),
    "cuLibraryLoadFromFile": lambda: new(L.cuLibraryLoadFromFile, name, *none, *none),
}
def unload(kind, handle): return (L.cuLibraryUnload if "Library" in kind else L.cuModuleUnload)(handle)
"""
EAGER = "import os; os.environ['CUDA_MODULE_LOADING'] = 'EAGER'\n"
LOADER_NAMES = [
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadFatBinary",
    "cuModuleLoadDataEx",
    "cuLibraryLoadData",
    "cuLibraryLoadFromFile",
]


@pytest.mark.parametrize("kind", LOADER_NAMES)
def test_code_is_charged_what_the_device_lost(tenant, kind):
    """Modules of 2 MiB, loaded at once, fill a limit of 8 MiB after four; the fifth leaves nothing behind."""
    scene = tenant(memory_mib=4 * MODULE_MIB, auto_grant=True, extra=(f"module_kib={MODULE_MIB << 10}",))
    program = scene.run(
        EAGER + LOADERS + f"kind = {kind!r}; empty = held(); say(); wait_line()\n"
        "loaded = [LOAD[kind]() for _ in range(5)]; full = held()\n"
        "say(results=[r for r, _ in loaded], full=full); wait_line()\n"
        "freed = [unload(kind, h) for r, h in loaded if r == 0]; say(freed=freed, empty=empty, end=held()); wait_line()"
    )
    program.read()
    context_bytes = scene.device_bytes()
    program.go()
    facts = program.read()

    assert facts == {"results": [0, 0, 0, 0, 2], "full": 4 * MODULE_MIB * MIB}
    assert scene.device_bytes() - context_bytes == 4 * MODULE_MIB * MIB
    program.go()
    assert program.read() == {"freed": [0, 0, 0, 0], "empty": 0, "end": 0}


def test_code_that_cannot_fit_never_reaches_the_driver(tenant):
    """An image larger than what is left of the limit is refused by its size before the driver loads it."""
    scene = tenant(memory_mib=1)
    program = scene.run(
        LOADERS + "handle = c.c_void_p(); big = PTX[:-1] + b' ' * (2 * MIB) + b'\\0'\n"
        "say(result=L.cuModuleLoadData(c.byref(handle), big), handle=handle.value, held=held())"
    )

    assert program.read() == {"result": 2, "handle": None, "held": 0}


SET_LIMIT = (
    LOADERS
    + """
def limit(which):
    value = c.c_size_t(); L.cuCtxGetLimit(c.byref(value), which); return value.value
def put(which, value): return L.cuCtxSetLimit(which, c.c_size_t(value))
"""
)


@pytest.mark.parametrize(
    ("which", "start", "unit"),
    [(0, 1024, 80 * 2048), (1, 1 << 20, 1), (2, 8 << 20, 1)],
    ids=["stack", "printf", "heap"],
)
def test_limits_of_a_context_are_memory(tenant, which, start, unit):
    """Stack, printf buffer and heap beyond the first setting are charged; over the limit they stay as they were."""
    scene = tenant(memory_mib=256, extra=("sms=80", "threads_per_sm=2048"))
    room = 256 * MIB // unit
    program = scene.run(
        SET_LIMIT + f"say(); wait_line()\nover = put({which}, {start + room + 16}); kept = limit({which})\n"
        f"within = put({which}, {start + room}); full = held(); say(over=over, kept=kept, within=within, full=full)\n"
        f"wait_line(); lower = put({which}, {start}); say(lower=lower, end=held()); wait_line()"
    )
    program.read()
    context_bytes = scene.device_bytes()
    program.go()
    facts = program.read()

    assert facts == {"over": 2, "kept": start, "within": 0, "full": room * unit}
    assert scene.device_bytes() - context_bytes == room * unit
    program.go()
    assert program.read() == {"lower": 0, "end": 0}


def test_a_context_takes_its_memory_along(tenant):
    """Destroying a context gives back what was allocated, loaded and set in it, and only that."""
    scene = tenant(memory_mib=256)
    program = scene.run(
        EAGER + SET_LIMIT + "p = c.c_uint64(); own = c.c_void_p(); a = c.c_void_p()\n"
        "L.cuMemAlloc_v2(c.byref(p), c.c_size_t(10 * MIB)); first = held()\n"
        "L.cuCtxCreate_v2(c.byref(own), 0, 0); L.cuMemAlloc_v2(c.byref(p), c.c_size_t(20 * MIB)); put(2, 16 << 20)\n"
        "LOAD['cuModuleLoadData'](); L.cuMemAllocManaged(c.byref(p), c.c_size_t(MIB), 1); inner = held()\n"
        "L.cuCtxDestroy_v2(own); after = held(); L.cuDevicePrimaryCtxReset_v2(0)\n"
        "say(first=first, inner=inner, after=after, end=held())"
    )

    assert program.read() == {
        "first": 10 * MIB,
        "inner": (10 + 20 + 8 + 2) * MIB + (64 << 10),  # managed memory takes a page
        "after": 10 * MIB,
        "end": 0,
    }


def test_a_multicast_object_is_charged_for_its_own_memory(tenant):
    """cuMulticastCreate costs what the device lost, is refused without room, and gives it back on release."""
    scene = tenant(memory_mib=64, spec="h100")
    program = scene.run(
        LOADERS + "class Prop(c.Structure):\n"
        "    _fields_ = [('devices', c.c_uint), ('size', c.c_size_t), ('types', c.c_uint64), ('flags', c.c_uint64)]\n"
        "prop = Prop(1, 32 * MIB, 0, 0); h = c.c_uint64(); p = c.c_uint64()\n"
        "first = L.cuMulticastCreate(c.byref(h), c.byref(prop)); cost = held()\n"
        "freed = L.cuMemRelease(h); end = held()\n"
        "L.cuMemAlloc_v2(c.byref(p), c.c_size_t(64 * MIB)); over = L.cuMulticastCreate(c.byref(h), c.byref(prop))\n"
        "say(first=first, cost=cost, freed=freed, end=end, over=over)"
    )

    assert program.read() == {"first": 0, "cost": 64 << 10, "freed": 0, "end": 0, "over": 2}


GRAPHS = (
    "class Pool(c.Structure):\n"
    "    _fields_ = [('type', c.c_int), ('handles', c.c_int), ('where', c.c_int), ('id', c.c_int),\n"
    "                ('win', c.c_void_p), ('max', c.c_size_t), ('rest', c.c_ubyte * 56)]\n"
    "class Alloc(c.Structure):\n"
    "    _fields_ = [('pool', Pool), ('access', c.c_void_p), ('n', c.c_size_t), ('bytes', c.c_size_t),\n"
    "                ('p', c.c_uint64)]\n"
)


def test_memory_of_destroyed_graphs_is_not_held_beside_the_limit(tenant):
    """A graph's memory that the driver would keep as a cache is trimmed, so what replaces it stays under the limit."""
    scene = tenant(memory_mib=256, auto_grant=True)
    program = scene.run(
        LOADERS + GRAPHS + "say(); wait_line()\n"
        "graph, node, run, p = c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_uint64()\n"
        "L.cuGraphCreate(c.byref(graph), 0)\n"
        "alloc = Alloc(Pool(1, 0, 1, 0), None, 0, 200 * MIB, 0)\n"
        "L.cuGraphAddMemAllocNode(c.byref(node), graph, None, c.c_size_t(0), c.byref(alloc))\n"
        "L.cuGraphInstantiateWithFlags(c.byref(run), graph, c.c_uint64(0)); L.cuGraphLaunch(run, None); cuda.sync()\n"
        "lived = held(); L.cuMemFree_v2(c.c_uint64(alloc.p)); L.cuGraphExecDestroy(run); L.cuGraphDestroy(graph)\n"
        "cuda.sync(); gone = held()\n"
        "again = L.cuMemAlloc_v2(c.byref(p), c.c_size_t(250 * MIB))\n"
        "say(lived=lived, gone=gone, again=again); wait_line()"
    )
    program.read()
    context_bytes = scene.device_bytes()
    program.go()

    assert program.read() == {"lived": 224 * MIB, "gone": 0, "again": 0}  # in steps of 32 MiB
    assert scene.device_bytes() - context_bytes == 250 * MIB


def test_memory_of_graphs_is_charged_in_steps_of_the_driver_and_refused(tenant):
    """Graphs are charged all that the driver reserves for them, one too many is refused, and nothing stays."""
    scene = tenant(memory_mib=512, auto_grant=True, extra=("strict=1",))
    program = scene.run(
        LOADERS + GRAPHS + "import time\n"
        "def add():\n"
        "    graph, node, run = c.c_void_p(), c.c_void_p(), c.c_void_p()\n"
        "    L.cuGraphCreate(c.byref(graph), 0)\n"
        "    alloc = Alloc(Pool(1, 0, 1, 0), None, 0, 35 * MIB, 0)\n"
        "    result = L.cuGraphAddMemAllocNode(c.byref(node), graph, None, c.c_size_t(0), c.byref(alloc))\n"
        "    if not result:\n"
        "        L.cuGraphInstantiateWithFlags(c.byref(run), graph, c.c_uint64(0)); L.cuGraphLaunch(run, None)\n"
        "    L.cuGraphDestroy(graph)\n"
        "    return result, run, c.c_uint64(alloc.p)\n"
        "def end(result, run, p):\n"
        "    if not result: L.cuMemFree_v2(p); L.cuGraphExecDestroy(run)\n"
        "say(); wait_line()\n"
        "runs = [add() for _ in range(14)]; cuda.sync(); cost = held(); say(); wait_line()\n"
        "end(*runs.pop()); end(*runs.pop()); runs.append(add())\n"
        "runs += [add() for _ in range(3)]\n"
        "made = [result for result, *_ in runs]\n"
        "for run in runs: end(*run)\n"
        "cuda.sync()\n"
        "say(made=made, cost=cost, end=held()); wait_line()"
    )
    program.read()
    context_bytes = scene.device_bytes()
    program.go()
    program.read()
    lent = scene.device_bytes() - context_bytes
    program.go()
    facts = program.read()

    assert ([0] * 14 + [2, 2], 0) == (facts["made"], facts["end"])
    assert 512 * MIB >= facts["cost"] >= lent >= 14 * 35 * MIB
    assert scene.device_bytes() == context_bytes
