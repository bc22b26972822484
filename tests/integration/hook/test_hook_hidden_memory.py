"""Memory that no allocation call names: limits of a context, multicast objects, what graphs leave."""

import struct

import pytest
from kit.driver_calls import MIB, OUT_OF_MEMORY, PTX, Graph, Out

HEAP = 2


@pytest.mark.parametrize(
    ("which", "start", "unit"),
    [(0, 1024, 80 * 2048), (1, 1 << 20, 1), (2, 8 << 20, 1)],
    ids=["stack", "printf", "heap"],
)
def test_limits_of_a_context_are_memory(tenant, which, start, unit):
    """Stack, printf buffer and heap beyond the first setting are charged; over the limit they stay as they were."""
    scene = tenant(memory_mib=256, extra=("sms=80", "threads_per_sm=2048"))
    gpu, room = scene.gpu(), 256 * MIB // unit
    over, kept = gpu.code("cuCtxSetLimit", which, start + room + 16), gpu.call("cuCtxGetLimit", Out(), which).value
    within = gpu.code("cuCtxSetLimit", which, start + room)

    assert (OUT_OF_MEMORY, start, 0) == (over, kept, within)
    assert room * unit == gpu.charged() == scene.lent()
    gpu.ok("cuCtxSetLimit", which, start)
    assert 0 == gpu.charged()


def test_a_context_takes_its_memory_along(tenant):
    """Destroying a context gives back what was allocated, loaded and set in it, and only that."""
    gpu = tenant(memory_mib=256).gpu(CUDA_MODULE_LOADING="EAGER")
    gpu.allocate("linear", 10 * MIB)
    charged = [gpu.charged()]
    context = gpu.new("cuCtxCreate_v2", 0, 0)
    gpu.allocate("linear", 20 * MIB)
    gpu.ok("cuCtxSetLimit", HEAP, 16 * MIB)
    gpu.new("cuModuleLoadData", PTX)
    gpu.allocate("managed", MIB)
    charged.append(gpu.charged())
    gpu.ok("cuCtxDestroy_v2", context)
    charged.append(gpu.charged())
    gpu.ok("cuDevicePrimaryCtxReset_v2", 0)

    inner = (10 + 20 + 8 + 2) * MIB + (64 << 10)  # managed memory takes a page
    assert [10 * MIB, inner, 10 * MIB, 0] == [*charged, gpu.charged()]


def test_a_multicast_object_is_charged_for_its_own_memory(tenant):
    """cuMulticastCreate costs what the device lost, is refused without room, and gives it back on release."""
    gpu = tenant(memory_mib=64, spec="h100").gpu()
    properties = struct.pack("IxxxxQQQ", 1, 32 * MIB, 0, 0)
    handle = gpu.new("cuMulticastCreate", properties)
    cost = gpu.charged()
    gpu.ok("cuMemRelease", handle)
    end = gpu.charged()
    gpu.allocate("linear", 64 * MIB)

    assert (64 << 10, 0) == (cost, end)
    assert OUT_OF_MEMORY == gpu.code("cuMulticastCreate", Out(), properties)


def test_memory_of_destroyed_graphs_is_not_held_beside_the_limit(tenant):
    """A graph's memory that the driver would keep as a cache is trimmed, so what replaces it stays under the limit."""
    scene = tenant(memory_mib=256, auto_grant=True)
    gpu = scene.gpu()
    graph = gpu.graph(200 * MIB)
    codes = [graph.launch(), gpu.sync()]
    lived = gpu.charged()
    codes += [gpu.free("linear", graph.pointer), *graph.destroy(), gpu.sync()]
    gone = gpu.charged()

    assert ({0}, 224 * MIB, 0) == (set(codes), lived, gone)  # in steps of 32 MiB
    assert (0, 250 * MIB) == (gpu.allocate("linear", 250 * MIB).code, scene.lent())


def test_memory_of_graphs_is_charged_in_steps_of_the_driver_and_refused(tenant):
    """Graphs are charged all that the driver reserves for them, one too many is refused, and nothing stays."""
    scene = tenant(memory_mib=512, auto_grant=True, extra=("strict=1",))
    gpu = scene.gpu()

    def add() -> Graph:
        """One that has allocated, and is destroyed but for its executable."""
        graph = gpu.graph(35 * MIB)
        assert graph.code or graph.launch() == 0
        gpu.ok("cuGraphDestroy", graph.handle)
        return graph

    def end(graph: Graph) -> None:
        if not graph.code:
            gpu.ok("cuMemFree_v2", graph.pointer)
            gpu.ok("cuGraphExecDestroy", graph.executable)

    runs = [add() for _ in range(14)]
    gpu.sync()
    cost, lent = gpu.charged(), scene.lent()
    for _ in range(2):
        end(runs.pop())
    runs += [add() for _ in range(4)]
    codes = [graph.code for graph in runs]
    for graph in runs:
        end(graph)

    assert [0] * 14 + [OUT_OF_MEMORY] * 2 == codes
    assert 512 * MIB >= cost >= lent >= 14 * 35 * MIB
    assert (0, 0) == (gpu.settle(), scene.lent())
