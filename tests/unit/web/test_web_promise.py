"""Whether promises were kept, window by window."""

from __future__ import annotations

import pytest

from aliquot.arbiter.records import TenantStatus
from aliquot.web.promise import MOST_WINDOWS, PromiseBook

S = 1_000_000_000


def status(charged_s: float, waited_s: float, *, request_milli: int = 500, usage: float = 0.0) -> TenantStatus:
    """A tenant whose counters stand at so many seconds."""
    return TenantStatus(
        name="a", request_milli=request_milli, limit_milli=1000, usage=usage, charged_ns=round(charged_s * S),
        memory_used_mib=0, memory_limit_mib=0, memory_context_mib=0, wait_ms_p50=0, debt_ms=0, quota_ms=0, handovers=0,
        processes=1, waiting=False, waited_ns=round(waited_s * S),
    )  # fmt: skip


def judged(*looks: TenantStatus, every_s: float = 10.0) -> tuple[float | None, int]:
    """Percent kept and windows counted after looks that are so far apart; windows are 10 s."""
    book = PromiseBook(10.0)
    for n, look in enumerate(looks):
        book.see("GPU-0", look, round(n * every_s * S))
    return book.kept("GPU-0", "a")


def test_a_tenant_that_got_its_request_was_kept_a_promise():
    """Half asked, half charged, the rest of the time waiting: kept."""
    assert (100.0, 1) == judged(status(0, 0), status(5, 5))


def test_a_tenant_that_wanted_and_did_not_get_was_not():
    """Half asked, three tenths charged, all else waiting: not kept."""
    assert (0.0, 1) == judged(status(0, 0), status(3, 7))


def test_a_tenant_that_wanted_less_than_its_request_does_not_count():
    """Charged and waiting together below the request: no promise was to be kept in that window."""
    assert (None, 0) == judged(status(0, 0), status(3, 1))


def test_the_slack_is_two_points():
    """0.48 for a request of 0.5 is kept, 0.47 is not."""
    assert (50.0, 2) == judged(status(0, 0), status(4.8, 5.2), status(9.5, 10.5))


def test_debts_that_are_paid_count_as_charged():
    """A tenant that pays for a kernel of the window before has what its account shows."""
    assert (100.0, 1) == judged(status(0, 0), status(1, 9, usage=0.5))


def test_windows_are_judged_back_to_back():
    """Looks within a window change nothing; the window ends with the first look after its length."""
    looks = [status(0.5 * n, 0.5 * n) for n in range(21)]

    assert (100.0, 2) == judged(*looks, every_s=1.0)


@pytest.mark.parametrize("later", [status(1, 9), status(9, 1)])
def test_counters_that_go_back_begin_anew(later: TenantStatus):
    """A new tenant of an old name is not judged by the counters of the old one."""
    assert (None, 0) == judged(status(5, 5), later)


def test_only_the_last_hour_counts():
    """Windows older than an hour do not count any more."""
    broken, kept = status(0, 10), [status(10 * n, 10 + 10 * n) for n in range(1, 362)]

    assert (100.0, 361) == judged(status(0, 0), broken, *kept)


def test_a_clock_that_creeps_fills_no_memory():
    """A node that says that next to no time has passed has no more windows than an honest one."""
    looks = [status(0.001 * n, 0.001 * n) for n in range(4000)]
    book = PromiseBook(0.001)
    for n, look in enumerate(looks):
        book.see("GPU-0", look, round(n * 0.001 * S))

    assert MOST_WINDOWS == book.kept("GPU-0", "a")[1]
