"""How many idle vGPUs are kept, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.placement.pool_policy import BadPoolPolicy, PoolPolicy, pool_policy

IDLE = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0, 1000), max_size=8)


def test_on_demand_gives_back_at_once():
    """Whatever is idle goes, and nothing is made ahead."""
    policy = pool_policy("on-demand")

    assert ["b", "a"] == policy.surplus({"a": 0.0, "b": 3.0})
    assert 0 == policy.missing(idle=0, creating=0)


def test_reservation_keeps_so_many_ready():
    """Two are kept, the longest idle of more goes first, and what is missing is made, less what is under way."""
    policy = pool_policy("reservation:2")

    assert ["c"] == policy.surplus({"a": 1.0, "b": 2.0, "c": 3.0})
    assert [1, 0] == [policy.missing(idle=0, creating=1), policy.missing(idle=1, creating=1)]


def test_hybrid_keeps_an_idle_one_for_its_time():
    """After 300 s it goes; until then the policy says when to look again."""
    policy = pool_policy("hybrid:300")

    assert ["old"] == policy.surplus({"old": 300.0, "new": 299.0})
    assert 1.0 == policy.next_s({"old": 300.0, "new": 299.0})
    assert policy.next_s({}) is None


@given(IDLE, st.integers(0, 4), st.floats(0, 500))
def test_what_stays_is_what_the_policy_promises(idle: dict[str, float], ready: int, idle_s: float):
    """Nobody goes before its time, `ready` stay if there are so many, and no one that stays is due beyond them."""
    policy = PoolPolicy("any", ready, idle_s)
    gone = policy.surplus(idle)
    stays = {name: since for name, since in idle.items() if name not in gone}

    assert all(idle[name] >= idle_s for name in gone)
    assert len(stays) >= min(ready, len(idle))
    assert sum(since >= idle_s for since in stays.values()) <= ready


@pytest.mark.parametrize("text", ["", "on-demand:1", "reservation", "reservation:-1", "hybrid:soon", "greedy"])
def test_another_policy_is_refused(text: str):
    """What can be written is said."""
    with pytest.raises(BadPoolPolicy, match="write on-demand, reservation:2"):
        pool_policy(text)
