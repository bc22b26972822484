"""Memory of graphs: from a launch to its free, wherever that comes from, by the ledger of the device."""

import pytest
from kit.driver_calls import INVALID_VALUE, MIB, Graph, child_parameters
from kit.driver_process import DriverProcess
from waiting import eventually

AUTO_FREE_ON_LAUNCH = 1


@pytest.fixture
def start(tenant):
    """Makes a tenant and a process of it with a context."""

    def make(limit_mib=512):
        scene = tenant(memory_mib=limit_mib, auto_grant=True, extra=("strict=1",))
        return scene, scene.gpu()

    return make


def nothing_stays(scene, gpu: DriverProcess) -> None:
    """Neither charged nor lent by the device."""
    eventually(lambda: gpu.settle() == 0, "the ledger is empty", 10)
    assert 0 == scene.lent()


def test_a_graph_may_be_launched_again_once_its_memory_is_free(start):
    """A relaunch without a free is CUDA_ERROR_INVALID_VALUE; after a free, or freed by its flag, it holds no more."""
    scene, gpu = start()
    plain, flagged = gpu.graph(100 * MIB), gpu.graph(100 * MIB, flags=AUTO_FREE_ON_LAUNCH)
    codes = [plain.launch(), plain.launch(), gpu.free_async(plain.pointer), plain.launch()]
    codes += [flagged.launch() for _ in range(20)]
    gpu.sync()

    assert [0, INVALID_VALUE, 0, 0, *[0] * 20] == codes
    assert 224 * MIB == gpu.charged() == scene.lent()
    for graph in (plain, flagged):
        gpu.free("linear", graph.pointer)
        graph.destroy()
    nothing_stays(scene, gpu)


def test_memory_that_another_graph_frees_is_charged_until_then(start):
    """A graph with a free node for the memory of one that is destroyed ends its charge when it is launched."""
    scene, gpu = start()
    graph = gpu.graph(200 * MIB)
    graph.launch()
    gpu.sync()
    graph.destroy()
    other = gpu.new("cuGraphCreate", 0)
    gpu.new("cuGraphAddMemFreeNode", other, None, 0, graph.pointer)
    run = gpu.new("cuGraphInstantiateWithFlags", other, 0)

    assert 224 * MIB == gpu.settle()
    gpu.ok("cuGraphLaunch", run, gpu.stream)
    nothing_stays(scene, gpu)


def test_the_trim_of_the_device_gives_back_what_no_graph_uses(start):
    """cuDeviceGraphMemTrim leaves a living graph's charge, for it may be launched, and ends what is beyond it."""
    scene, gpu = start()
    graph, other = gpu.graph(100 * MIB, frees=True), gpu.graph(100 * MIB, frees=True)
    codes = [graph.launch(), other.launch(), gpu.sync(), *other.destroy(), gpu.code("cuDeviceGraphMemTrim", 0)]
    after = gpu.charged()
    codes += [graph.launch(), gpu.sync()]

    assert ({0}, 128 * MIB) == (set(codes), after)
    graph.destroy()
    nothing_stays(scene, gpu)


def test_a_context_that_is_destroyed_under_a_running_graph_leaves_nothing_charged(start):
    """A context ends while a graph with memory of its own runs in it, and the graph after it: all is given back."""
    scene, gpu = start(limit_mib=2048)
    primary = gpu.context, gpu.stream
    codes = []
    for _ in range(12):
        context = gpu.new("cuCtxCreate_v2", 0, 0)
        gpu.stream = gpu.new("cuStreamCreate", 1)
        graph = gpu.graph(20 * MIB, frees=True)
        codes += [graph.code, graph.launch(), gpu.launch(gpu.function(), 20_000_000, gpu.stream)]
        codes += [gpu.code("cuCtxDestroy_v2", context), gpu.code("cuCtxSetCurrent", primary[0]), *graph.destroy()]
        gpu.stream = primary[1]

    assert {0} == set(codes)
    nothing_stays(scene, gpu)
    assert 0 == gpu.counters()["unbalanced"]


def parent_of(gpu: DriverProcess, own: int, *children: Graph, before: bool) -> Graph:
    """A graph with memory of its own into which others are moved, instantiated `before` or not."""
    parent = gpu.graph(own, frees=True) if own else Graph(gpu, 0, gpu.new("cuGraphCreate", 0), 0, 0)
    if own:
        gpu.ok("cuGraphExecDestroy", parent.executable)
    for child in children:
        if not before:
            gpu.ok("cuGraphExecDestroy", child.executable)
        gpu.new("cuGraphAddNode_v2", parent.handle, None, None, 0, child_parameters(child.handle))
        if before:
            gpu.ok("cuGraphExecDestroy", child.executable)
    parent.executable = gpu.new("cuGraphInstantiateWithFlags", parent.handle, 0)
    return parent


@pytest.mark.parametrize("before", [False, True], ids=["not instantiated", "instantiated"])
@pytest.mark.parametrize("own_mib", [0, 64])
def test_a_child_that_was_moved_ends_with_its_parent(start, own_mib, before):
    """Memory of graphs that are moved into their parent is charged while it or its executable lives, and then free."""
    scene, gpu = start()
    rounds = []
    for _ in range(8):
        children = [gpu.graph(96 * MIB, frees=True) for _ in range(2)]
        parent = parent_of(gpu, own_mib * MIB, *children, before=before)
        full, launched, _ = gpu.charged() // MIB, parent.launch(), gpu.sync()
        graph_destroyed, kept = gpu.code("cuGraphDestroy", parent.handle), gpu.charged() // MIB
        rounds.append((full, launched, graph_destroyed, kept, gpu.code("cuGraphExecDestroy", parent.executable)))

    full = 192 + own_mib
    assert [(full, 0, 0, full, 0)] * 8 == rounds
    nothing_stays(scene, gpu)
