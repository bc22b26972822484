"""Tenants that are taken away and made anew."""

import pytest

from aliquot.tokens import MS, SECOND, FluidPolicy, Share


def debt_after(away_ns: int, *, again: str = "a", ran_ns: int = SECOND) -> int:
    """What a tenant owes that ran alone for so long beside a waiter, was removed, and came again after so long."""
    policy = FluidPolicy()
    for name in ("a", "b"):
        policy.add_tenant(name, {"g": Share(500, 1000)}, 0)
        policy.want(name, 0)
    policy.tick(0)
    policy.tick(ran_ns)
    policy.remove_tenant("a", ran_ns)
    policy.add_tenant(again, {"g": Share(500, 1000)}, ran_ns + away_ns)
    policy.want(again, ran_ns + away_ns)
    return policy.account(again, "g").debt_ns(ran_ns + away_ns)


def test_a_tenant_that_is_made_anew_owes_what_it_owed():
    """After a second of work for half a GPU it owes half a second, also when it was removed in between."""
    assert 500 * MS == debt_after(0)


@pytest.mark.parametrize(("away_ms", "owed_ms"), [(400, 300), (1000, 0), (60_000, 0)])
def test_what_is_owed_is_worked_off_while_it_is_away(away_ms: int, owed_ms: int):
    """A tenant of 0.5 that is away for 0.4 s owes 0.2 s less, and never less than nothing."""
    assert owed_ms * MS == debt_after(away_ms * MS)


def test_another_name_is_another_tenant():
    """A tenant that comes under a name that was not there owes nothing."""
    assert 0 == debt_after(0, again="c")


def test_what_is_owed_to_a_tenant_that_is_removed_goes_to_the_others():
    """A tenant that was behind and comes again begins as anybody does."""
    policy = FluidPolicy()
    for name in ("a", "b"):
        policy.add_tenant(name, {"g": Share(500, 1000)}, 0)
        policy.want(name, 0)
    policy.tick(0)
    policy.tick(SECOND)
    policy.remove_tenant("b", SECOND)
    policy.add_tenant("b", {"g": Share(500, 1000)}, SECOND)

    assert 0 == policy.account("b", "g").debt_ns(SECOND)
    assert 0 == policy.account("a", "g").debt_ns(SECOND)
