"""A tenant that was promised to wake in time goes first when it wakes within its request."""

import pytest

from aliquot.tokens import MS, SECOND, FluidPolicy, Grant, Revoke, Share, TokenConfig, TokenPolicy, Turns, token_policy

PROMISED = Share(300, 1000, 5 * MS)


def scene(policy: TokenPolicy | None = None, server: Share = PROMISED) -> TokenPolicy:
    """A GPU that `training` has held for a second; `server` rests."""
    made = policy or FluidPolicy()
    made.add_tenant("training", {"g": Share(700, 1000)}, 0)
    made.add_tenant("server", {"g": server}, 0)
    made.want("training", 0, 0)
    assert ["training"] == [action.tenant for action in made.tick(0)]
    return made


def hand_over(policy: TokenPolicy, now_ns: int) -> list[str]:
    """Who is granted when the holder's work has ended."""
    holder = policy.holder("g") or "training"
    policy.drained(holder, "g", now_ns, 0)
    return [action.tenant for action in policy.tick(now_ns) if isinstance(action, Grant)]


def test_it_ends_a_turn_that_has_just_begun():
    """Not even the least slice is waited for."""
    policy = scene()
    policy.want("server", MS // 2, 0)

    assert [Revoke("training", ("g",))] == policy.tick(MS // 2)
    assert ["server"] == hand_over(policy, MS)


def test_without_a_promise_a_turn_that_has_just_begun_goes_on():
    """A tenant that woke and was promised nothing does not interrupt another one that has just woken."""
    policy = scene(server=Share(300, 1000))
    policy.want("server", MS // 2, 0)

    assert [] == policy.tick(MS // 2) == policy.tick(5 * MS)


def test_it_goes_before_one_that_is_owed_more():
    """What others are owed counts only after its first turn."""
    policy = scene()
    policy.add_tenant("late", {"g": Share(0, 1000)}, 0)
    policy.restore("late", "g", used_ns=0, debt_ns=-900 * MS, total_ns=0, now_ns=0)
    policy.want("late", MS, 0)
    policy.want("server", MS, 0)
    policy.tick(MS)

    assert ["server"] == hand_over(policy, 2 * MS)


def test_beyond_its_request_it_is_a_tenant_like_others():
    """One that is ahead of the fluid by more than a fiftieth of the window does not interrupt."""
    policy = scene()
    policy.restore("server", "g", used_ns=0, debt_ns=SECOND, total_ns=0, now_ns=0)
    policy.want("server", 5 * MS, 0)

    assert [] == policy.tick(5 * MS)


def test_after_a_turn_was_taken_from_it_it_waits_like_others():
    """The promise is for the first kernel after a rest; one that never rests gains nothing by it."""
    policy = scene()
    policy.want("server", MS, 0)
    policy.tick(MS)
    hand_over(policy, 2 * MS)
    policy.want("training", 2 * MS, 0)
    now_ns = 2 * MS
    while not (actions := [a for a in policy.tick(now_ns) if isinstance(a, Revoke)]):
        now_ns += MS
    assert [Revoke("server", ("g",))] == actions
    policy.want("server", now_ns, 0)

    policy.drained("server", "g", now_ns, 0)
    assert ["training"] == [action.tenant for action in policy.tick(now_ns) if isinstance(action, Grant)]
    assert [] == policy.tick(now_ns + MS)


def test_two_of_them_take_turns_of_the_least_slice():
    """One that has just woken is interrupted by another only after 2 ms."""
    policy = scene()
    policy.add_tenant("second", {"g": PROMISED}, 0)
    policy.want("server", MS, 0)
    policy.tick(MS)
    hand_over(policy, MS)
    policy.want("second", MS, 0)

    assert [] == policy.tick(2 * MS)
    assert [Revoke("server", ("g",))] == policy.tick(3 * MS)


@pytest.mark.parametrize("turns", [Turns.KUBESHARE, Turns.GEMINI])
def test_other_orders_of_turns_know_no_promise(turns: Turns):
    """Under the papers' orders nothing is urgent."""
    policy = scene(token_policy(TokenConfig(turns=turns)))
    policy.want("server", MS, 0)

    assert not policy.account("server", "g").is_urgent(MS)
