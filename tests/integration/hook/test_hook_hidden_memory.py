"""Memory that no allocation call names: limits of a context, multicast objects, what graphs leave."""

import struct

import pytest
from kit.driver_calls import MIB, OUT_OF_MEMORY, Out


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
