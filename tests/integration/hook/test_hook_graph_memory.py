"""Memory of graphs: from a launch to its free, wherever that comes from, by the ledger of the device."""

from __future__ import annotations

import pytest

MIB = 1 << 20
GRAPHS = """
import ctypes as c
cuda = Cuda(); L = cuda.lib; MIB = 1 << 20; stream = c.c_void_p(); L.cuStreamCreate(c.byref(stream), 1)
class Pool(c.Structure):
    _fields_ = [('type', c.c_int), ('handles', c.c_int), ('where', c.c_int), ('id', c.c_int),
                ('win', c.c_void_p), ('max', c.c_size_t), ('rest', c.c_ubyte * 56)]
class Alloc(c.Structure):
    _fields_ = [('pool', Pool), ('access', c.c_void_p), ('n', c.c_size_t), ('bytes', c.c_size_t), ('p', c.c_uint64)]
AUTO_FREE = 1
def held(): return cuda.stats()["reserved_bytes"]
class Graph:
    def __init__(self, mib, own_free=False, flags=0, captured=False):
        self.graph, self.run, node, p = c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_uint64()
        if captured:
            L.cuStreamBeginCapture_v2(stream, 2)
            self.made = L.cuMemAllocAsync(c.byref(p), c.c_size_t(mib * MIB), stream)
            if own_free: L.cuMemFreeAsync(p, stream)
            L.cuStreamEndCapture(stream, c.byref(self.graph)); self.p = p
        else:
            L.cuGraphCreate(c.byref(self.graph), 0); alloc = Alloc(Pool(1, 0, 1, 0), None, 0, mib * MIB, 0)
            self.made = L.cuGraphAddMemAllocNode(c.byref(node), self.graph, None, c.c_size_t(0), c.byref(alloc))
            self.p = c.c_uint64(alloc.p)
            if own_free:
                L.cuGraphAddMemFreeNode(c.byref(c.c_void_p()), self.graph, c.byref(node), c.c_size_t(1), self.p)
        if not self.made: L.cuGraphInstantiateWithFlags(c.byref(self.run), self.graph, c.c_uint64(flags))
    def launch(self): r = L.cuGraphLaunch(self.run, stream); return r
    def destroy(self): return [self.run and L.cuGraphExecDestroy(self.run) or 0, L.cuGraphDestroy(self.graph)]
def sync(): return L.cuStreamSynchronize(stream)
def settle():
    end = time.monotonic() + 10
    while sync() == 0 and held() and time.monotonic() < end: time.sleep(0.005)
FREES = {"cuMemFree": lambda p: L.cuMemFree_v2(p), "cuMemFreeAsync": lambda p: L.cuMemFreeAsync(p, stream)}
"""


def start(tenant, code, *, limit_mib=512):
    """The scene, the program that has made its context, and what the context holds."""
    scene = tenant(memory_mib=limit_mib, auto_grant=True, extra=("strict=1",))
    program = scene.run(GRAPHS + "say(); wait_line()\n" + code)
    program.read()
    context_bytes = scene.device_bytes()
    program.go()
    return scene, program, context_bytes


@pytest.mark.parametrize("captured", [False, True], ids=["node", "captured"])
def test_what_a_destroyed_graph_has_allocated_and_nobody_freed_is_charged_on(tenant, captured):
    """Graphs that are launched and destroyed one after another, freeing nothing, do not pass the limit."""
    scene, program, context_bytes = start(
        tenant,
        "made = []\n"
        "for _ in range(8):\n"
        f"    graph = Graph(100, captured={captured}); made.append(graph.made)\n"
        "    if not graph.made: graph.launch()\n"
        "    sync(); graph.destroy()\n"
        "say(made=made); wait_line()",
    )

    assert {"made": [0, 0, 0, 0, 0, 2, 2, 2]} == program.read()
    assert 5 * 100 * MIB <= scene.device_bytes() - context_bytes <= 512 * MIB


@pytest.mark.parametrize("way", ["cuMemFree", "cuMemFreeAsync"])
def test_what_is_freed_outside_a_graph_that_is_gone_is_charged_no_more(tenant, way):
    """After its graph is destroyed the memory is given back by cuMemFree and cuMemFreeAsync, and can be had again."""
    scene, program, context_bytes = start(
        tenant,
        "graph = Graph(400); graph.launch(); sync(); graph.destroy(); sync(); lived = held()\n"
        f"freed = FREES[{way!r}](graph.p); settle(); gone = held(); p = c.c_uint64()\n"
        "again = L.cuMemAlloc_v2(c.byref(p), c.c_size_t(500 * MIB))\n"
        "say(lived=lived >> 20, freed=freed, gone=gone, again=again); wait_line()",
    )

    assert {"lived": 416, "freed": 0, "gone": 0, "again": 0} == program.read()
    assert 500 * MIB == scene.device_bytes() - context_bytes


def test_a_graph_that_frees_its_own_memory_is_charged_while_it_can_be_launched(tenant):
    """Fifty launches of it hold its memory once; destroyed it holds none, on the device and in the ledger."""
    scene, program, context_bytes = start(
        tenant,
        "graph = Graph(200, own_free=True); results = [graph.launch() for _ in range(50)]; sync(); lived = held()\n"
        "say(results=sum(results), lived=lived >> 20); wait_line()\n"
        "graph.destroy(); settle(); say(gone=held()); wait_line()",
    )
    lived = program.read()
    lent = scene.device_bytes() - context_bytes
    program.go()

    assert ({"results": 0, "lived": 224}, {"gone": 0}) == (lived, program.read())
    assert 224 * MIB == lent
    assert context_bytes == scene.device_bytes()


def test_a_graph_may_be_launched_again_once_its_memory_is_free(tenant):
    """A relaunch without a free is CUDA_ERROR_INVALID_VALUE; after a free, or freed by its flag, it holds no more."""
    scene, program, context_bytes = start(
        tenant,
        "plain, flagged = Graph(100), Graph(100, flags=AUTO_FREE)\n"
        "first = plain.launch(); again = plain.launch(); L.cuMemFreeAsync(plain.p, stream); freed = plain.launch()\n"
        "flags = [flagged.launch() for _ in range(20)]; sync()\n"
        "say(results=[first, again, freed, sum(flags)], lived=held() >> 20); wait_line()\n"
        "L.cuMemFree_v2(plain.p); L.cuMemFree_v2(flagged.p); plain.destroy(); flagged.destroy(); settle()\n"
        "say(gone=held()); wait_line()",
    )
    lived = program.read()
    lent = scene.device_bytes() - context_bytes
    program.go()

    assert {"results": [0, 1, 0, 0], "lived": 224} == lived
    assert 224 * MIB == lent
    assert {"gone": 0} == program.read()
    assert context_bytes == scene.device_bytes()


def test_memory_that_another_graph_frees_is_charged_until_then(tenant):
    """A graph with a free node for the memory of one that is destroyed ends its charge when it is launched."""
    scene, program, context_bytes = start(
        tenant,
        "graph = Graph(200); graph.launch(); sync(); graph.destroy(); sync(); lived = held()\n"
        "other, run = c.c_void_p(), c.c_void_p(); L.cuGraphCreate(c.byref(other), 0)\n"
        "L.cuGraphAddMemFreeNode(c.byref(c.c_void_p()), other, None, c.c_size_t(0), graph.p)\n"
        "L.cuGraphInstantiateWithFlags(c.byref(run), other, c.c_uint64(0)); sync(); waits = held()\n"
        "L.cuGraphLaunch(run, stream); settle(); say(lived=lived >> 20, waits=waits >> 20, gone=held()); wait_line()",
    )

    assert {"lived": 224, "waits": 224, "gone": 0} == program.read()
    assert context_bytes == scene.device_bytes()


def test_the_trim_of_the_device_gives_back_what_no_graph_uses(tenant):
    """cuDeviceGraphMemTrim leaves a living graph's charge, for it may be launched, and ends what is beyond it."""
    scene, program, context_bytes = start(
        tenant,
        "graph, other = Graph(100, own_free=True), Graph(100, own_free=True); graph.launch(); other.launch(); sync()\n"
        "other.destroy(); trimmed = L.cuDeviceGraphMemTrim(0); after = held(); again = graph.launch(); sync()\n"
        "graph.destroy(); settle(); say(trimmed=trimmed, after=after >> 20, again=again, gone=held()); wait_line()",
    )

    assert {"trimmed": 0, "after": 128, "again": 0, "gone": 0} == program.read()
    assert context_bytes == scene.device_bytes()


def test_a_context_that_is_destroyed_under_a_running_graph_leaves_nothing_charged(tenant):
    """A context ends while a graph with memory of its own runs in it, and the graph after it: all is given back."""
    scene, program, context_bytes = start(
        tenant,
        "codes = []\n"
        "for _ in range(12):\n"
        "    made, stream = c.c_void_p(), c.c_void_p(); L.cuCtxCreate_v2(c.byref(made), 0, 0)\n"
        "    L.cuStreamCreate(c.byref(stream), 1); graph = Graph(20, own_free=True)\n"
        "    codes += [graph.made, graph.launch(), cuda.launch(cuda.spin(), 20_000_000, stream)]\n"
        "    codes += [L.cuCtxDestroy_v2(made), L.cuCtxSetCurrent(cuda.ctx), *graph.destroy()]\n"
        "L.cuStreamCreate(c.byref(stream), 1); settle()\n"
        "say(codes=sorted(set(codes)), held=held(), unbalanced=cuda.stats()['unbalanced']); wait_line()",
        limit_mib=2048,
    )

    assert {"codes": [0], "held": 0, "unbalanced": 0} == program.read()
    assert scene.device_bytes() - context_bytes < MIB


MOVED = """
GRAPH, MOVE = 4, 1
class Child(c.Structure):
    _fields_ = [('type', c.c_int), ('reserved', c.c_int * 3), ('graph', c.c_void_p), ('how', c.c_int),
                ('rest', c.c_ubyte * 256)]
class Parent(Graph):
    def __init__(self, own_mib, *children, before=False):
        self.graph, self.run, self.codes = c.c_void_p(), c.c_void_p(), []
        if own_mib: super().__init__(own_mib, own_free=True); L.cuGraphExecDestroy(self.run)
        else: L.cuGraphCreate(c.byref(self.graph), 0)
        for child in children:
            if not before: L.cuGraphExecDestroy(child.run)
            params = Child(GRAPH, (c.c_int * 3)(), child.graph, MOVE)
            self.codes.append(L.cuGraphAddNode_v2(c.byref(c.c_void_p()), self.graph, None, None, c.c_size_t(0),
                                                  c.byref(params)))
            if before: L.cuGraphExecDestroy(child.run)
        self.codes.append(L.cuGraphInstantiateWithFlags(c.byref(self.run), self.graph, c.c_uint64(0)))
"""


@pytest.mark.parametrize("before", [False, True], ids=["not instantiated", "instantiated"])
@pytest.mark.parametrize("own_mib", [0, 64])
def test_a_child_that_was_moved_ends_with_its_parent(tenant, own_mib, before):
    """Memory of graphs that are moved into their parent is charged while it or its executable lives, and then free."""
    scene, program, context_bytes = start(
        tenant,
        MOVED + "rounds = []\n"
        "for _ in range(8):\n"
        f"    parent = Parent({own_mib}, Graph(96, own_free=True), Graph(96, own_free=True), before={before})\n"
        "    full = held() // MIB; launched = parent.launch(); sync()\n"
        "    rounds.append([full, launched, *parent.codes, L.cuGraphDestroy(parent.graph), held() // MIB,\n"
        "                   L.cuGraphExecDestroy(parent.run)])\n"
        "settle(); say(rounds=rounds, held=held(), left=cuda.stats()['ledger_entries'])\nwait_line()",
    )

    said = program.read()

    full = 192 + own_mib
    assert said == {"rounds": [[full, 0, 0, 0, 0, 0, full, 0]] * 8, "held": 0, "left": said["left"]}
    assert scene.device_bytes() == context_bytes
