"""What a tenant is owed: how the balance fills, what it pays for, and what is forgiven."""

from aliquot.tokens import MS, SECOND
from aliquot.tokens.kubeshare import PromiseBalance


def balance_of(request_milli: int, *, waiting: bool = True) -> PromiseBalance:
    """A balance over a window of ten seconds, at time zero."""
    made = PromiseBalance(request_milli, 10 * SECOND, 0)
    if waiting:
        made.wait(0)
    return made


def test_waiting_is_owed_the_request():
    """Whoever wants the GPU for four seconds at 0.3 is owed 1.2 s of it."""
    assert balance_of(300).owed_ns(4 * SECOND) == 1200 * MS


def test_pauses_are_owed_nothing():
    """Staying away saves up no turns, however long it lasts."""
    assert balance_of(300, waiting=False).owed_ns(3600 * SECOND) == 0


def test_an_overrun_is_a_debt_until_it_is_made_up_for():
    """Work that ran 1.9 s past its grant is owed back at the request's rate, and reported as debt until then."""
    balance = balance_of(500)
    balance.begin(0)
    balance.charge(100 * MS, 100 * MS, overrun=False)
    balance.charge(2 * SECOND, 1900 * MS, overrun=True)
    balance.wait(2 * SECOND)

    assert balance.debt_ns(2 * SECOND) == 1 * SECOND
    assert balance.debt_ns(3 * SECOND) == 500 * MS
    assert balance.debt_ns(4 * SECOND) == 0


def test_a_kernel_of_any_length_is_paid_for_in_full():
    """After a kernel of an hour at a request of one half, an hour passes before anything is owed again."""
    balance = balance_of(500)
    balance.begin(0)
    balance.charge(3600 * SECOND, 3600 * SECOND, overrun=True)
    balance.wait(3600 * SECOND)

    assert balance.owed_ns(7200 * SECOND - 1) < 0
    assert balance.owed_ns(7200 * SECOND) == 0


def test_lent_time_is_forgiven_when_more_is_lent():
    """A turn that begins below zero was lent, so only its own length can be owed afterwards."""
    balance = balance_of(300)
    for turn in range(10):
        balance.begin(turn * SECOND)
        balance.charge((turn + 1) * SECOND, 1 * SECOND, overrun=False)

    assert balance.owed_ns(10 * SECOND) == -700 * MS
