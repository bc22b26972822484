"""Turns as in KubeShare: its three steps over a sliding window, and grants of one length."""

import playing
import pytest

from aliquot.tokens import (
    MS,
    SECOND,
    Grant,
    KubeSharePolicy,
    Turns,
)


def policy_of(**shares: tuple[int, int]) -> KubeSharePolicy:
    """The policy that `kubeshare` names, with these tenants on one GPU."""
    policy = playing.policy_of(Turns.KUBESHARE, **shares)
    assert type(policy) is KubeSharePolicy
    return policy


def used(policy: KubeSharePolicy, now_ns: int, **used_ms: int) -> None:
    """Let each tenant have been charged so much of the window before now, and want the GPU."""
    for name, amount_ms in used_ms.items():
        policy.restore(name, "g0", used_ns=amount_ms * MS, debt_ns=0, total_ns=0, now_ns=now_ns)
        policy.want(name, now_ns)


def chosen(policy: KubeSharePolicy, now_ns: int) -> list[str]:
    return [action.tenant for action in policy.tick(now_ns) if isinstance(action, Grant)]


def test_step_1_whoever_is_at_its_limit_is_out():
    """A tenant that has run to its limit is passed over for one that has used more and has no limit."""
    policy = policy_of(capped=(0, 100), free=(0, 1000))
    policy.want("capped", 0)
    (grant,) = policy.tick(0)
    policy.want("capped", grant.deadline_ns)
    policy.tick(grant.deadline_ns)
    policy.drained("capped", "g0", grant.deadline_ns)
    used(policy, grant.deadline_ns, free=9000)

    assert ["free"] == chosen(policy, grant.deadline_ns)


def test_step_2_of_those_below_their_request_the_farthest_below_goes_first():
    """0.2 with nothing for 100 ms misses 20 ms, 0.7 misses 70: the larger goes first, whoever came first."""
    policy = policy_of(small=(200, 1000), large=(700, 1000), holder=(100, 1000))
    policy.want("holder", 0)
    policy.tick(0)
    policy.want("small", 0)
    policy.want("large", 0)
    policy.returned("holder", 100 * MS)

    assert ["large"] == chosen(policy, 100 * MS)


def test_step_2_a_tenant_below_its_request_goes_before_one_that_has_used_less():
    """Whoever has its request waits for whoever has not, whatever they have used of the window."""
    policy = policy_of(heavy=(500, 1000), light=(0, 1000), holder=(0, 1000))
    policy.want("holder", 20 * SECOND)
    policy.tick(20 * SECOND)
    used(policy, 20 * SECOND, light=100, heavy=4000)
    policy.returned("holder", 20 * SECOND + 50 * MS)

    assert ["heavy"] == chosen(policy, 20 * SECOND + 50 * MS)


def test_step_3_else_the_lowest_usage_goes_first():
    """Of tenants that have their requests, the one that has used least of the window is next."""
    policy = policy_of(more=(0, 1000), less=(0, 1000))
    used(policy, 20 * SECOND, more=3000, less=2000)

    assert ["less"] == chosen(policy, 20 * SECOND)


@pytest.mark.parametrize("burst_ns", [0, 1, 10 * MS, 5 * SECOND])
def test_every_grant_is_of_one_length(burst_ns: int):
    """Whatever bursts are measured, the quota stays."""
    policy = policy_of(a=(500, 1000), b=(500, 1000))
    policy.want("a", 0, burst_ns)

    (grant,) = policy.tick(0)

    assert 100 * MS == grant.quota_ns == policy.quota_ns("a") == policy.quota_ns("b")


@pytest.mark.parametrize(
    ("took_ns", "before_ns"),
    [(0, 0), (200_000, 200_000), (400_000, 400_000), (30 * MS, MS // 2)],
)
def test_a_turn_is_ended_before_its_deadline_by_what_it_takes_to_end_it(took_ns: int, before_ns: int):
    """Its tenant launches until the gate closes, and at most half a millisecond of the turn is lost."""
    policy = policy_of(a=(500, 1000), b=(500, 1000))
    policy.want("a", 0)
    policy.tick(0)
    policy.want("b", 0)
    for _ in range(100):
        policy.note_carried_out(took_ns)
    ended_ns, now_ns = None, 0
    while ended_ns is None:
        now_ns = policy.next_wake_ns() or 0
        ended_ns = now_ns if policy.tick(now_ns) else None

    assert 100 * MS - before_ns == pytest.approx(ended_ns, abs=200)


def test_kubeshare_the_first_turns_of_three_tenants():
    """The first 1.5 s of 0.2, 0.3 and 0.5, who all always want the GPU, by turn: who and when.

    At 997 ms the last one would be chosen again, so its turn is renewed.
    """
    policy = policy_of(a=(200, 1000), b=(300, 1000), c=(500, 1000))
    for name in "abc":
        policy.want(name, 0)
    turns = [(grant.tenant, at_ns // MS) for at_ns, grant in playing.grants(policy, 1500 * MS)]

    assert [
        ("a", 0), ("c", 100), ("b", 200), ("c", 300), ("b", 400), ("c", 500), ("a", 600), ("c", 700), ("b", 800),
        ("c", 900), ("b", 1097), ("a", 1197), ("c", 1297), ("b", 1397), ("c", 1497),
    ] == turns  # fmt: skip
