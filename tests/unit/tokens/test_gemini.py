"""Turns as in Gemini: the order of KubeShare, and quotas that follow the bursts that are measured."""

import playing
import pytest

from aliquot.tokens import (
    MS,
    SECOND,
    GeminiPolicy,
    QuotaEstimate,
    TokenConfig,
    Turns,
)


def policy_of(**shares: tuple[int, int]) -> GeminiPolicy:
    """The policy that `gemini` names, with these tenants on one GPU."""
    policy = playing.policy_of(Turns.GEMINI, **shares)
    assert isinstance(policy, GeminiPolicy)
    return policy


def test_a_quota_moves_halfway_to_each_burst():
    """From the base quota of 100 ms, bursts of 60, 20 and 200 ms give 80, 50 and 125 ms."""
    estimate = QuotaEstimate(TokenConfig(), 1000)
    seen = [estimate.current_ns() // MS]
    for burst_ms in (60, 20, 200):
        estimate.learn(burst_ms * MS)
        seen.append(estimate.current_ns() // MS)

    assert [100, 80, 50, 125] == seen


@pytest.mark.parametrize(
    ("limit_milli", "burst_ns", "quota_ms"),
    [
        (1000, 1, 20),  # next to nothing has turns of the minimum
        (1000, 3600 * SECOND, 500),  # endless bursts have no grant that others would wait seconds for
        (30, 3600 * SECOND, 300),  # nor more than the limit
        (1, 3600 * SECOND, 20),
    ],
)
def test_a_quota_has_bounds(limit_milli: int, burst_ns: int, quota_ms: int):
    """It is 20 ms at least, and at most the limit's part of the window and a twentieth of it."""
    estimate = QuotaEstimate(TokenConfig(), limit_milli)
    for _ in range(20):
        estimate.learn(burst_ns)

    assert quota_ms * MS == estimate.current_ns()


def test_each_tenant_has_the_quota_of_its_own_bursts():
    """The burst that comes with a return or a drain sets the length of that tenant's next grant, and of no other's."""
    policy = policy_of(a=(500, 1000), b=(500, 1000))
    policy.want("a", 0)
    policy.tick(0)
    policy.returned("a", 10 * MS, burst_ns=40 * MS)
    policy.want("a", 10 * MS)

    (grant,) = policy.tick(10 * MS)

    assert 70 * MS == grant.quota_ns
    assert (70 * MS, 100 * MS) == (policy.quota_ns("a"), policy.quota_ns("b"))


@pytest.mark.parametrize(("tenants", "longest_ms"), [(1, 500), (2, 100), (8, 100)])
def test_a_turn_among_several_is_a_point_of_the_window(tenants: int, longest_ms: int):
    """However long its bursts, a tenant takes turns of a hundredth of the window while others are active."""
    names = [f"t{i}" for i in range(tenants)]
    policy = policy_of(**dict.fromkeys(names, (1000 // tenants, 1000)))
    for name in names:
        for _ in range(10):
            policy.want(name, 0, burst_ns=5 * SECOND)

    (grant,) = policy.tick(0)

    assert longest_ms * MS == grant.quota_ns


def test_gemini_the_first_turns_of_two_tenants():
    """The first second of two tenants of 0.3 and 0.7, with bursts of 60 and 200 ms, by turn: who, when, how long."""
    policy = policy_of(a=(300, 1000), b=(700, 1000))
    bursts = {"a": 60 * MS, "b": 200 * MS}
    for name in bursts:
        policy.want(name, 0)
    turns = [
        (grant.tenant, at_ns // MS, grant.quota_ns // MS) for at_ns, grant in playing.grants(policy, SECOND, bursts)
    ]

    assert [
        ("a", 0, 100), ("b", 100, 100), ("a", 394, 80), ("b", 474, 100), ("a", 671, 70), ("b", 741, 100),
        ("a", 841, 65), ("b", 906, 100),
    ] == turns  # fmt: skip
