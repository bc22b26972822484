"""When a turn ends under the policy that follows the fluid."""

from itertools import pairwise

import pytest

from aliquot.tokens import MS, FluidPolicy, Grant, Revoke, Share
from aliquot.tokens.actions import Turns
from aliquot_lab.sim.turns.mixes import SECOND, Member, Mix, loop
from aliquot_lab.sim.turns.study import case_of, play


def policy_of(*names: str) -> FluidPolicy:
    """Tenants of half a GPU each that want it from 0 on."""
    policy = FluidPolicy()
    for name in names:
        policy.add_tenant(name, {"g": Share(500, 1000)}, 0)
        policy.want(name, 0)
    return policy


def test_a_turn_ends_when_the_waiter_is_a_quantum_farther_behind():
    """Of two equal tenants the first runs for 30 ms, although nothing happens meanwhile."""
    policy = policy_of("a", "b")
    assert [("a", Grant)] == [(action.tenant, type(action)) for action in policy.tick(0)]

    while not (actions := policy.tick(now := policy.next_wake_ns())):
        assert now < 30 * MS
    assert (30 * MS, [("a", Revoke)]) == (now, [(action.tenant, type(action)) for action in actions])


def test_later_turns_are_as_long_as_the_gap_there_and_back():
    """A tenant that waited for a quantum runs until the other one has: 60 ms."""
    policy = policy_of("a", "b")
    now, turns = 0, []
    for _ in range(40):
        for action in policy.tick(now):
            if isinstance(action, Grant):
                turns.append(now)
            elif isinstance(action, Revoke):
                policy.want(action.tenant, now)
                policy.drained(action.tenant, "g", now)
        now = now if policy.holder("g") is None else policy.next_wake_ns()
    spans_ms = [(later - early) // MS for early, later in pairwise(turns[3:])]

    assert spans_ms
    assert {60} == set(spans_ms)


def test_a_tenant_alone_is_not_interrupted():
    """Without a waiter the turn is renewed."""
    policy = policy_of("a")
    policy.tick(0)
    assert not any(isinstance(a, Revoke) for at in range(0, 1000, 10) for a in policy.tick(at * MS))


def test_a_tenant_that_has_had_a_whole_turn_no_longer_goes_first():
    """A tenant that woke and then had the GPU for a whole turn is interrupted at once by another one that wakes."""
    policy = policy_of("a")
    policy.add_tenant("b", {"g": Share(500, 1000)}, 0)
    for at_ms in range(0, 200, 5):
        policy.tick(at_ms * MS)
    policy.want("b", 200 * MS)

    assert [Revoke("a", ("g",))] == policy.tick(200 * MS)


def woken_beside(rested_ms: int, pause_ms: int) -> bool:
    """Whether a tenant that wakes interrupts at once another one that rested, had 200 ms, and has just paused."""
    policy = policy_of("a")
    policy.add_tenant("b", {"g": Share(500, 1000)}, 0)
    policy.tick(0)
    policy.returned("a", MS)
    policy.tick(MS)
    policy.want("a", rested_ms * MS)
    for at_ms in range(rested_ms, rested_ms + 200, 5):
        policy.tick(at_ms * MS)
    end_ms = rested_ms + 200
    policy.returned("a", end_ms * MS)
    policy.tick(end_ms * MS)
    policy.want("a", (end_ms + pause_ms) * MS)
    policy.tick((end_ms + pause_ms) * MS)
    policy.want("b", (end_ms + 10) * MS)
    return any(isinstance(action, Revoke) for action in policy.tick((end_ms + 10) * MS))


def test_a_pause_of_a_moment_is_no_rest():
    """A tenant that returned the GPU and asks again within a millisecond, as one that lacks processor time, is not put
    first; one that rested for longer is."""
    assert woken_beside(rested_ms=1000, pause_ms=1)
    assert not woken_beside(rested_ms=1000, pause_ms=5)


def test_a_tenant_that_has_had_its_request_wakes_without_a_lead():
    """A tenant that has used its request of the window is interrupted at once by one that wakes below its own."""
    assert woken_beside(rested_ms=20, pause_ms=5)


def half_beside_kernels_of_5_s(pause_ms: int) -> float:
    """What a tenant gets that pauses after every 500 kernels of a millisecond, beside one with kernels of 5 s."""
    short, huge = loop(500, MS, pause_ms * MS), loop(1, 5 * SECOND)
    mix = Mix("pauses", "", (Member("short", 500, 1000, short), Member("huge", 500, 1000, huge)), clocked=False)
    found = case_of(play(mix, Turns.FLUID, 1, 125.0), Turns.FLUID, 1)
    return next(tenant["got"] for tenant in found["tenants"] if tenant["name"] == "short")


@pytest.mark.parametrize("pause_ms", [2, 30])
def test_a_pause_does_not_cost_a_tenant_that_is_owed_time_a_long_kernel_of_another(pause_ms: int):
    """A GPU that is free for a pause is kept from kernels a hundred times as long."""
    assert half_beside_kernels_of_5_s(pause_ms) > 0.45


def test_a_rest_longer_than_that_frees_the_gpu():
    """Beside kernels of 5 s a rest of 100 ms costs the GPU 50 ms, and then one of them begins."""
    assert half_beside_kernels_of_5_s(100) < 0.3
