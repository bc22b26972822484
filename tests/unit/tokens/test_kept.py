"""Whether the promise was kept, window by window."""

import pytest

from aliquot.tokens import MS, SECOND, Grant, Revoke, Share, TokenConfig, Turns, token_policy
from aliquot.tokens.account import LOOKS, AccountSnapshot, Kept

W = 10 * SECOND


def judged(request_milli: int, *shares: tuple[float, float, float], debt: float = 0.0) -> Kept:
    """Windows one after the other, each by what was charged, wanted and given as parts of it; owing `debt` before."""
    kept = Kept(request_milli, W)
    ledger = AccountSnapshot(0, 0, 0, 0, round(debt * W))
    for charged, wanted, given in shares:
        for look in range(LOOKS + 1):
            part = W * look // LOOKS
            kept.look(
                AccountSnapshot(
                    ledger.at_ns + part,
                    ledger.charged_ns + round(charged * part),
                    ledger.wanted_ns + round(wanted * part),
                    ledger.given_ns + round(given * part),
                    ledger.debt_ns,
                )
            )
        kept.forget()
    return kept


@pytest.mark.parametrize(
    ("charged", "wanted", "is_kept"),
    [(0.5, 1, 1), (0.48, 1, 1), (0.47, 1, 0), (0.25, 0.5, 1), (0.23, 0.5, 1), (0.22, 0.5, 0), (0, 0.04, 1)],
)
def test_a_tenant_gets_its_request_for_the_time_it_wants_the_gpu(charged: float, wanted: float, is_kept: int):
    """Half of the time it wanted the GPU, within 0.02 of the window."""
    assert (1, is_kept) == (judged(500, (charged, wanted, 0)).windows, judged(500, (charged, wanted, 0)).kept)


def test_a_window_in_which_nothing_was_wanted_is_not_counted():
    """A tenant at rest is promised nothing."""
    assert 0 == judged(500, (0, 0, 0)).windows


def test_only_a_tenant_that_always_wants_the_gpu_is_promised_its_whole_request():
    """Of three windows, two are busy all the time, and in one of these the request was missed."""
    kept = judged(500, (0.5, 1, 0.5), (0.4, 1, 0.5), (0.4, 0.8, 0.4))

    assert (3, 2, 2, 1) == (kept.windows, kept.kept, kept.busy_windows, kept.busy_kept)


def test_what_a_tenant_owes_for_long_kernels_it_has_had():
    """After a kernel of 5 s at the neighbours' cost, half a window without the GPU breaks no promise."""
    assert 1 == judged(500, (0.0, 1, 0.5), debt=0.5).kept
    assert 0 == judged(500, (0.0, 1, 0.5), debt=0.4).kept


def test_the_error_is_the_distance_from_the_fluid():
    """The last, the worst, and that of 95 of 100 windows, to a thousandth; too much counts as too little."""
    kept = judged(500, *[(0.5, 1, 0.505)] * 97, (0.55, 1, 0.5), (0.46, 1, 0.5), (0.5, 1, 0.5))

    assert 0.0 == pytest.approx(kept.error, abs=1e-9)
    assert 0.05 == pytest.approx(kept.error_worst)
    assert 0.006 == pytest.approx(kept.error_p95(), abs=1e-9)


def test_a_window_ends_at_every_fortieth_of_it():
    """Looks that come more often change nothing, and the first window ends when the tenant has been here for one."""
    kept = Kept(500, W)
    for at_ns in range(0, 2 * W, 50 * MS):
        kept.look(AccountSnapshot(at_ns, at_ns // 2, at_ns, at_ns // 2, 0))

    assert (LOOKS, LOOKS) == (kept.windows, kept.kept)


@pytest.mark.parametrize("turns", list(Turns))
def test_every_policy_keeps_the_ledger(turns: Turns):
    """Two greedy tenants of 0.3 and 0.7 wanted the GPU all the time, got their requests, and are near the fluid."""
    policy = token_policy(TokenConfig(turns=turns))
    for name, request in (("a", 300), ("b", 700)):
        policy.add_tenant(name, {"g": Share(request, 1000)}, 0)
        policy.want(name, 0)
    now = 0
    while now < 3 * W:
        for action in policy.tick(now):
            if isinstance(action, Revoke):
                policy.want(action.tenant, now)
                policy.drained(action.tenant, "g", now)
        policy.judge(now)
        wake = policy.next_wake_ns()
        now = min(now if policy.holder("g") is None else wake or now, now + 100 * MS)
    for name in ("a", "b"):
        account = policy.account(name, "g")
        assert now - 100 * MS <= account.lag.wanted_ns <= now
        assert account.kept.busy_windows == account.kept.busy_kept == account.kept.kept == account.kept.windows > 60
        assert account.kept.error_worst < 0.015


def test_no_window_has_time_in_which_nothing_was_decided():
    """After a stop of the arbiter, windows begin anew."""
    policy = token_policy(TokenConfig())
    policy.add_tenant("a", {"g": Share(300, 1000)}, 0)
    policy.want("a", 0)
    assert [Grant] == [type(action) for action in policy.tick(0)]
    for second in range(9):
        policy.judge(second * SECOND)
    policy.skip(20 * SECOND)
    policy.judge(20 * SECOND)

    assert 0 == policy.account("a", "g").kept.windows
    assert 8 * SECOND == policy.account("a", "g").lag.wanted_ns
