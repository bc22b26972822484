"""Who is next, for how long, and what ends a grant."""

import pytest

from aliquot.tokens import (
    MS,
    SECOND,
    FluidPolicy,
    GeminiPolicy,
    Grant,
    Handover,
    Renew,
    Revoke,
    Share,
    TokenConfig,
    UnknownTenant,
)


def policy_of(config: TokenConfig | None = None, **shares: tuple[int, int]) -> GeminiPolicy:
    policy = GeminiPolicy(config)
    for name, (request, limit) in shares.items():
        policy.add_tenant(name, {"g0": Share(request, limit)}, 0)
    return policy


def two_halves(config: TokenConfig | None = None) -> GeminiPolicy:
    """Two tenants of a half that both want the GPU, of which `a` has just got it."""
    policy = policy_of(config, a=(500, 1000), b=(500, 1000))
    policy.want("a", 0)
    policy.want("b", 0)
    policy.tick(0)
    return policy


def test_lone_requester_is_renewed_in_place():
    """A tenant nobody waits behind goes on without being revoked."""
    policy = policy_of(a=(300, 1000))
    policy.want("a", 0)
    (grant,) = policy.tick(0)

    actions = policy.tick(grant.deadline_ns - 1 * MS)

    assert [type(action) for action in actions] == [Renew]
    assert actions[0].deadline_ns > grant.deadline_ns


def test_waiter_ends_lent_time_at_the_minimum_quota():
    """Time lent to a renewed tenant ends when a waiter comes, once the minimum quota has run."""
    policy = policy_of(a=(300, 1000), b=(300, 1000))
    policy.want("a", 0)
    policy.tick(0)
    (renewal,) = policy.tick(98 * MS)
    policy.want("b", 105 * MS)
    assert policy.tick(105 * MS) == []

    actions = policy.tick(118 * MS)

    assert isinstance(renewal, Renew)
    assert [type(action) for action in actions] == [Revoke]
    assert actions[0].tenant == "a"


def test_waiter_does_not_cut_a_first_turn_of_its_equal():
    """A tenant in its own turn keeps its quota although another waits."""
    policy = policy_of(a=(500, 1000), b=(500, 1000))
    policy.want("a", 0)
    policy.want("b", 0)
    (grant,) = policy.tick(0)

    assert policy.tick(50 * MS) == []
    assert grant.quota_ns == 100 * MS


def test_idle_return_gives_the_gpu_to_the_waiter_at_once():
    """When the holder returns, the waiter is granted in the same tick."""
    policy = two_halves()
    policy.returned("a", 5 * MS)

    (grant,) = policy.tick(5 * MS)

    assert isinstance(grant, Grant)
    assert grant.tenant == "b"


def test_dead_holder_gives_way_at_once():
    """A holder that died is charged to now and the waiter is granted in the same tick."""
    policy = two_halves()
    policy.dead("a", 7 * MS)

    (grant,) = policy.tick(7 * MS)

    assert grant.tenant == "b"
    assert policy.account("a", "g0").window.total_ns == 7 * MS


def test_drain_keeps_the_gpu_until_the_work_has_ended():
    """Under `drain` nobody is granted while residual work runs, and that work is charged to its owner alone."""
    policy = two_halves(TokenConfig(handover=Handover.DRAIN))
    assert isinstance(policy.tick(100 * MS)[0], Revoke)
    assert policy.tick(1 * SECOND) == []
    policy.drained("a", "g0", 2 * SECOND)

    (grant,) = policy.tick(2 * SECOND)

    assert grant.tenant == "b"
    assert policy.account("a", "g0").window.total_ns == 2 * SECOND
    assert policy.account("a", "g0").promise.debt_ns(2 * SECOND) == 1 * SECOND


def test_overlap_grants_at_once_and_divides_the_time():
    """Under `overlap` the next tenant starts at once; overlapped time is divided between the two."""
    policy = two_halves(TokenConfig(handover=Handover.OVERLAP))
    actions = policy.tick(100 * MS)
    policy.drained("a", "g0", 140 * MS)

    assert [type(action) for action in actions] == [Revoke, Grant]
    assert policy.account("a", "g0").window.total_ns == 120 * MS
    policy.tick(140 * MS)
    assert policy.account("b", "g0").window.total_ns == 20 * MS


def test_whoever_is_at_its_limit_is_out():
    """A tenant at its limit is not granted although the GPU is free, and the policy says when it will be."""
    policy = policy_of(a=(300, 300))
    policy.want("a", 0)
    (grant,) = policy.tick(0)
    policy.want("a", grant.deadline_ns)
    policy.tick(grant.deadline_ns)
    policy.drained("a", "g0", grant.deadline_ns)

    assert policy.tick(grant.deadline_ns) == []
    opens = policy.account("a", "g0").bucket.open_at_ns(grant.deadline_ns)
    now, actions = grant.deadline_ns, []
    while not actions:
        now = policy.next_wake_ns()
        assert now <= opens
        actions = policy.tick(now)
    assert [type(action) for action in actions] == [Grant]


def test_the_request_goes_before_the_limit():
    """A tenant far below its request is granted although its limit's bucket is empty."""
    policy = policy_of(a=(300, 300))
    account = policy.account("a", "g0")
    policy.want("a", 0)
    account.bucket.pay(10 * SECOND)

    assert account.missing_ns(10 * SECOND) > 1 * SECOND
    assert [type(action) for action in policy.tick(10 * SECOND)] == [Grant]


def test_equal_tenants_go_in_the_order_they_came():
    """Tenants with equal accounts are ordered by who was added first."""
    policy = policy_of(z=(300, 600), a=(300, 600))
    policy.want("a", 0)
    policy.want("z", 0)

    assert policy.tick(0)[0].tenant == "z"


def test_gang_gets_all_gpus_or_none():
    """A tenant with two GPUs waits until both are free and gets them in one grant."""
    policy = policy_of(a=(500, 1000))
    policy.add_tenant("gang", {"g0": Share(500, 1000), "g1": Share(500, 1000)}, 0)
    policy.want("a", 0)
    policy.tick(0)
    policy.want("gang", 1 * MS)
    assert policy.tick(1 * MS) == []
    policy.returned("a", 2 * MS)

    (grant,) = policy.tick(2 * MS)

    assert grant.gpus == ("g0", "g1")


def test_turns_of_the_fluid_end_in_time_without_a_message():
    """Between two halves that always want the GPU no turn lasts for 70 ms, though no message comes during it."""
    policy = FluidPolicy()
    for name in "ab":
        policy.add_tenant(name, {"g0": Share(500, 1000)}, 0)
        policy.want(name, 0)
    now, began, turns = 0, 0, []
    while len(turns) < 12:
        for action in policy.tick(now):
            if isinstance(action, Grant):
                began = now
            elif isinstance(action, Revoke):
                turns.append(now - began)
                policy.want(action.tenant, now + MS)
                policy.drained(action.tenant, "g0", now + MS)
                now += MS
        now = now if policy.holder("g0") is None else policy.next_wake_ns()

    assert max(turns[6:]) < 70 * MS


def test_unknown_tenant_has_a_name_for_it():
    """Asking about a tenant that was never added raises UnknownTenant."""
    with pytest.raises(UnknownTenant):
        GeminiPolicy().want("nobody", 0)


@pytest.mark.parametrize(("request_milli", "limit_milli"), [(600, 300), (0, 0), (300, 1001), (-1, 5)])
def test_share_that_cannot_be_kept_is_refused(request_milli, limit_milli):
    """A share outside 0 <= request <= limit <= 1000 is refused with a sentence."""
    with pytest.raises(ValueError, match="request"):
        Share(request_milli, limit_milli)


def test_a_restored_ledger_counts_like_an_earned_one():
    """What a journal says was charged decides the next turn as if this policy had charged it."""
    policy = policy_of(a=(300, 1000), b=(300, 1000))
    policy.restore("a", "g0", used_ns=5 * SECOND, debt_ns=2 * SECOND, total_ns=9 * SECOND, now_ns=20 * SECOND)
    policy.want("a", 20 * SECOND)
    policy.want("b", 20 * SECOND)

    assert policy.tick(20 * SECOND)[0].tenant == "b"
    assert policy.account("a", "g0").window.used_ns(20 * SECOND) == 5 * SECOND
    assert policy.account("a", "g0").promise.debt_ns(20 * SECOND) == 2 * SECOND
    assert policy.account("a", "g0").window.total_ns == 9 * SECOND
