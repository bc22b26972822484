"""Work that outlives its grant: who waits for it, how long, and what its owner may do meanwhile."""

from itertools import pairwise

import pytest

from aliquot.tokens import (
    MS,
    SECOND,
    FluidPolicy,
    GeminiPolicy,
    Grant,
    Handover,
    Revoke,
    Share,
    TokenConfig,
    TokenPolicy,
)

TURN = 100 * MS
PATIENCE = 50 * MS


def revoked(handover: Handover = Handover.AUTO, *, gpus: tuple[str, ...] = ("g0",), wants: bool = True) -> TokenPolicy:
    """Tenant a has just been revoked with work left on its GPUs; b waits for g0. Both have half of it."""
    policy = GeminiPolicy(TokenConfig(handover=handover))
    policy.add_tenant("a", dict.fromkeys(gpus, Share(500, 1000)), 0)
    policy.add_tenant("b", {"g0": Share(500, 1000)}, 0)
    policy.want("a", 0)
    policy.tick(0)
    policy.want("b", 0)
    (revoke,) = policy.tick(TURN)
    assert isinstance(revoke, Revoke)
    if wants:
        policy.want("a", TURN)
    return policy


def next_actions(policy: TokenPolicy) -> tuple[int, list]:
    """Go on to the next moment at which the policy does something."""
    for _ in range(1000):
        now = policy.next_wake_ns()
        if actions := policy.tick(now):
            return now, actions
    raise AssertionError("nothing happens")


def end_of_turn(policy: TokenPolicy) -> int:
    """Go on to the next revocation; returns its time."""
    while True:
        now, actions = next_actions(policy)
        if any(isinstance(action, Revoke) for action in actions):
            return now


def rounds(policy: TokenPolicy, name: str, count: int, residual_ns: int, now: int) -> int:
    """So many turns of one tenant that drains after `residual_ns`; returns the time."""
    for _ in range(count):
        policy.want(name, now)
        while not any(isinstance(a, Grant) and a.tenant == name for a in policy.tick(now)):
            now = policy.next_wake_ns()
        policy.stop(name, now + TURN)
        policy.tick(now + TURN)
        now += TURN + residual_ns
        policy.drained(name, "g0", now)
    return now


def test_auto_waits_fifty_milliseconds_for_work_of_unknown_length():
    """Under `auto` the next tenant starts 50 ms after the turn when what is left of it has not ended."""
    at, actions = next_actions(revoked(wants=False))

    assert TURN + PATIENCE == at
    assert [("b", Grant)] == [(action.tenant, type(action)) for action in actions]


def test_what_was_queued_ends_before_its_owner_is_resumed():
    """The GPU goes from a tenant that always wants it to the waiter as soon as 4 ms of queued work have ended."""
    policy = revoked()
    ended = TURN + 4 * MS
    while (now := policy.next_wake_ns()) < ended:
        assert [] == policy.tick(now)
    policy.drained("a", "g0", ended)

    assert ["b"] == [action.tenant for action in policy.tick(ended) if isinstance(action, Grant)]


@pytest.mark.parametrize(
    ("turns", "usual_ms"),
    [
        ([("a", 20, 400), ("b", 20, 0)], 400),  # kernels of 400 ms are waited for, whatever the neighbour's take
        ([("a", 9, 1), ("a", 1, 1200)] * 5, 1),  # five stops of a second among fifty hand-overs teach no patience
    ],
)
def test_auto_waits_as_long_as_work_of_this_tenant_usually_takes(turns: list[tuple[str, int, int]], usual_ms: int):
    """Under `auto` work is waited for as long as that of its tenant usually takes once that is known, and for 50 ms."""
    policy, now = GeminiPolicy(TokenConfig(handover=Handover.AUTO)), 0
    for name in ("a", "b"):
        policy.add_tenant(name, {"g0": Share(500, 1000)}, 0)
    for name, count, residual_ms in turns:
        now = rounds(policy, name, count, residual_ms * MS, now)
    policy.want("a", now)
    policy.tick(now)
    policy.want("b", now)
    ended = end_of_turn(policy)

    at, _ = next_actions(policy)

    assert usual_ms * MS + PATIENCE == at - ended


def test_owner_of_overdue_work_is_resumed_before_the_next_tenant_starts():
    """What is left may wait for what its owner has yet to launch, so the owner goes on within milliseconds."""
    at, actions = next_actions(revoked())

    assert at - TURN <= 5 * MS
    assert [("a", Grant)] == [(action.tenant, type(action)) for action in actions]


def test_resumed_owner_stops_as_soon_as_its_old_work_has_ended():
    """The moment at which all parts of a tenant are at the same step ends the resumption, and b starts."""
    policy = revoked()
    at, _ = next_actions(policy)
    policy.caught_up("a", "g0", at + 2 * MS)

    (revoke,) = policy.tick(at + 2 * MS)
    policy.drained("a", "g0", at + 3 * MS)
    (grant,) = policy.tick(at + 3 * MS)

    assert isinstance(revoke, Revoke)
    assert "b" == grant.tenant
    assert policy.account("a", "g0").residuals.usual_ns == 0  # nothing is learned from work that waited


def test_work_that_never_ends_delays_the_neighbour_by_the_patience_and_costs_its_owner():
    """With work that never drains the neighbour starts within 70 ms, both go on, and the owner pays for its part."""
    policy = revoked()
    first: dict[str, int] = {}
    now, turns, actions = TURN, 0, []
    while now < 20 * SECOND:
        if not actions:
            now, actions = next_actions(policy)
        for action in actions:
            if isinstance(action, Revoke):
                policy.want(action.tenant, now)
                turns += 1
                if action.tenant == "b":
                    policy.drained("b", "g0", now)
            else:
                first.setdefault(action.tenant, now)
        actions = policy.tick(now)
    charged = {name: policy.account(name, "g0").window.total_ns for name in ("a", "b")}

    assert first["b"] - TURN <= 70 * MS
    assert sum(charged.values()) == pytest.approx(20 * SECOND, rel=0.02)
    assert charged["b"] == pytest.approx(10 * SECOND, rel=0.05)
    assert turns > 20


def test_overdue_owner_alone_goes_on_at_once():
    """Without a neighbour, work that waits for its own tenant costs milliseconds, past a limit too."""
    policy = GeminiPolicy()
    policy.add_tenant("a", {"g0": Share(300, 500)}, 0)
    policy.want("a", 0)
    policy.tick(0)
    at, (revoke,) = next_actions(policy)
    policy.want("a", at)

    again, (grant,) = next_actions(policy)

    assert isinstance(revoke, Revoke)
    assert isinstance(grant, Grant)
    assert again - at <= 5 * MS


def test_work_taken_over_by_a_new_grant_is_settled_once():
    """Charges add up to the time that passed, whatever drains late or twice."""
    policy = revoked()
    at, _ = next_actions(policy)
    policy.drained("a", "g0", at + 1 * MS)
    policy.caught_up("a", "g0", at + 2 * MS)
    policy.caught_up("a", "g0", at + 2 * MS)
    policy.tick(at + 2 * MS)
    policy.drained("a", "g0", at + 4 * MS)
    policy.tick(at + 4 * MS)
    policy.drained("a", "g0", at + 5 * MS)
    policy.tick(at + 5 * MS)

    charged = {name: policy.account(name, "g0").window.total_ns for name in ("a", "b")}
    assert {"a": at + 4 * MS, "b": 1 * MS} == charged


def test_long_kernels_are_given_time_to_end_by_themselves():
    """A tenant whose kernel of 300 ms is followed by others is resumed a few times at most before it is let end."""
    policy = GeminiPolicy()
    policy.add_tenant("a", {"g0": Share(300, 500)}, 0)
    policy.want("a", 0)
    policy.tick(0)
    now, grants, drains_at = 0, 0, None
    while drains_at is None or now < drains_at:
        now, actions = next_actions(policy) if drains_at is None else (policy.next_wake_ns(), [])
        if drains_at is not None and now < drains_at:
            actions = policy.tick(now)
        for action in actions:
            grants += isinstance(action, Grant)
            if isinstance(action, Revoke):
                policy.want("a", now)
                drains_at = now + 300 * MS
            elif isinstance(action, Grant):
                drains_at = None

    assert grants < 12


def test_a_gang_gives_its_gpus_back_together():
    """The GPU on which a gang has drained is kept while its other one may soon: the gang may be resumed on both."""
    policy = revoked(gpus=("g0", "g1"))
    policy.add_tenant("c", {"g1": Share(500, 1000)}, TURN)
    policy.want("c", TURN)
    policy.drained("a", "g1", TURN)
    policy.tick(TURN)

    _, (grant,) = next_actions(policy)

    assert ("a", ("g0", "g1")) == (grant.tenant, grant.gpus)


def test_a_gang_keeps_no_gpu_longer_than_the_patience():
    """When the other GPU does not drain, the drained one is free with the patience's end, and charged until then."""
    policy = revoked(gpus=("g0", "g1"), wants=False)
    policy.add_tenant("c", {"g1": Share(500, 1000)}, TURN)
    policy.want("c", TURN)
    policy.drained("a", "g1", TURN)
    policy.tick(TURN)

    at, actions = next_actions(policy)

    assert TURN + PATIENCE == at
    assert {"b", "c"} == {action.tenant for action in actions}
    assert TURN + PATIENCE == policy.account("a", "g1").window.total_ns


def test_under_drain_nobody_goes_past_the_one_who_waits():
    """Under `drain` the owner of long work is not granted again before the tenant that waits for it to end."""
    policy = revoked(Handover.DRAIN, wants=False)
    policy.tick(TURN + PATIENCE)
    policy.want("a", 10 * SECOND)
    assert not [a for a in policy.tick(10 * SECOND) if isinstance(a, Grant) and a.quota_ns >= 20 * MS]


@pytest.mark.parametrize("kernel_ms", [1, 20])
def test_work_that_waits_for_its_owner_again_and_again_is_never_far_from_its_next_step(kernel_ms: int):
    """An owner whose work ends each time that it can launch is resumed within 150 ms, beside long kernels, too."""
    policy = FluidPolicy()
    for name in ("b", "a"):
        policy.add_tenant(name, {"g0": Share(500, 1000)}, 0)
    policy.want("a", 0)
    policy.want("b", 0)
    now, steps, ends = 0, [], {}
    while now < 10 * SECOND:
        for name in [name for name, at in ends.items() if at <= now]:
            del ends[name]
            policy.caught_up(name, "g0", now)
            if name == "b":
                policy.drained("b", "g0", now)
        while actions := policy.tick(now):
            for action in actions:
                if isinstance(action, Revoke):
                    policy.want(action.tenant, now)
                    if action.tenant == "b":
                        ends["b"] = now + kernel_ms * MS
                elif action.tenant == "a":
                    steps.append(now)
                    ends["a"] = now + 2 * MS
        now = min(
            [at for at in (policy.next_wake_ns(), *ends.values()) if at is not None and at > now], default=now + MS
        )

    assert max(later - step for step, later in pairwise(steps)) <= 150 * MS
