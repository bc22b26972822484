"""Tenants that are taken away and made anew."""

import pytest

from aliquot.tokens import MS, SECOND, FluidPolicy, Share


def made_anew(gone: str, again: str, away_ns: int = 0) -> FluidPolicy:
    """A tenant `a` ran alone for a second beside `b`, who waits; one of them is removed, and comes again as `again`."""
    policy = FluidPolicy()
    for name in ("a", "b"):
        policy.add_tenant(name, {"g": Share(500, 1000)}, 0)
        policy.want(name, 0)
    policy.tick(0)
    policy.tick(SECOND)
    policy.remove_tenant(gone, SECOND)
    policy.add_tenant(again, {"g": Share(500, 1000)}, SECOND + away_ns)
    policy.want(again, SECOND + away_ns)
    return policy


@pytest.mark.parametrize(
    ("again", "away_ms", "owed_ms"),
    [
        ("a", 0, 500),  # as if it had not been removed
        ("a", 400, 300),  # 0.2 s are worked off while it is away
        ("a", 1000, 0),
        ("a", 60_000, 0),  # never less than nothing
        ("c", 0, 0),  # another name is another tenant
    ],
)
def test_a_tenant_that_is_made_anew_owes_what_it_owed(again: str, away_ms: int, owed_ms: int):
    """After a second of work for half a GPU it owes half a second, and what is owed is worked off while it is away."""
    policy = made_anew("a", again, away_ms * MS)

    assert owed_ms * MS == policy.account(again, "g").debt_ns(SECOND + away_ms * MS)


def test_what_is_owed_to_a_tenant_that_is_removed_goes_to_the_others():
    """A tenant that was behind and comes again begins as anybody does."""
    policy = made_anew("b", "b")

    assert [0, 0] == [policy.account(name, "g").debt_ns(SECOND) for name in ("a", "b")]
