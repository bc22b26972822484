"""The longest launch lately, as each process reports it of itself: no more than a kernel and the events around it."""

from typing import Any

import pytest
from waiting import eventually

from aliquot.arbiter.abi import MessageType

# The threads that play the GPU need a processor in time: where they get it late, a kernel does run longer.
pytestmark = pytest.mark.real_time

MS_NS = 1_000_000
EVENTS_NS = 5_000  # each event that a program records takes the GPU a moment
ONE_KERNEL = "cuda = Cuda(); spin = cuda.spin(); cuda.launch(spin, {ns}); say(); cuda.sync(); say(); wait_line()"
SYNCHRONOUS = """
cuda = Cuda(); spin = cuda.spin(); say()
while True:
    cuda.launch(spin, {ns}); cuda.sync(); time.sleep({pause_s})
"""
AHEAD = """
cuda = Cuda(); spin = cuda.spin(); L = cuda.lib; events = []; say()
for _ in range(4):
    event = ctypes.c_void_p(); L.cuEventCreate(ctypes.byref(event), 2); events.append(event)
for event in events:
    cuda.launch(spin, {ns}); L.cuEventRecord(event, None)
while True:
    event = events.pop(0); L.cuEventSynchronize(event); cuda.launch(spin, {ns}); L.cuEventRecord(event, None)
    events.append(event)
"""
MIXED = """
cuda = Cuda(); spin = cuda.spin(); say()
while True:
    for length in [20_000] * 40 + [{ns}]: cuda.launch(spin, length)
    cuda.sync()
"""


def reported(scene: Any) -> list[int]:
    """The lengths that were reported so far, in nanoseconds."""
    return [one.c for one in scene.arbiter.heard if one.type == MessageType.REPORT and one.c]


def test_a_kernel_in_flight_counts_as_what_it_has_run_so_far(tenant):
    """A kernel of 3 s is reported while it runs, also after its turn has ended, and never as longer than it is."""
    scene = tenant(auto_grant=True)
    program = scene.run(ONE_KERNEL.format(ns=3000 * MS_NS))
    program.read()
    scene.arbiter.revoke()
    eventually(lambda: max(reported(scene), default=0) > 1000 * MS_NS, "it has run for a second")
    assert not any(one.type in (MessageType.DRAINED, MessageType.RETURN) for one in scene.arbiter.heard)
    program.read()

    assert 3000 * MS_NS >= max(reported(scene))


@pytest.mark.parametrize(
    ("code", "ns", "company"),
    [
        (SYNCHRONOUS.format(ns=5 * MS_NS, pause_s=0), 5 * MS_NS, False),
        (SYNCHRONOUS.format(ns=5 * MS_NS, pause_s=0.011), 5 * MS_NS, True),
        pytest.param(AHEAD.format(ns=5 * MS_NS), 5 * MS_NS, False, marks=pytest.mark.slow),
        (AHEAD.format(ns=MS_NS), MS_NS, True),
        (MIXED.format(ns=5 * MS_NS), 5 * MS_NS, True),
    ],
    ids=["synchronous", "with pauses", "ahead", "short ahead", "mixed"],
)
def test_a_length_holds_no_wait(tenant, code: str, ns: int, company: bool):
    """A kernel is reported as no longer than it runs, whenever its end is seen and whatever is queued before it, and
    soon as nearly as long."""
    scene = tenant(auto_grant=True)
    if company:
        scene.arbiter.crowd()
    scene.run(code).read()
    eventually(lambda: max(reported(scene), default=0) > ns * 8 // 10, f"reported: {reported(scene)}")

    assert ns + EVENTS_NS >= max(reported(scene))


def test_a_short_kernel_whose_end_is_seen_late_is_no_longer_for_it(tenant):
    """Kernels of half a millisecond, each seen to have ended 31 ms later, are reported as no longer, if at all."""
    scene = tenant(auto_grant=True)
    scene.arbiter.crowd()
    code = SYNCHRONOUS.format(ns=MS_NS // 2, pause_s=0.031).replace("while True", "for _ in range(60)")
    program = scene.run(code + "say(); wait_line()")
    program.read()
    program.read()

    assert MS_NS // 2 >= max(reported(scene), default=0)
