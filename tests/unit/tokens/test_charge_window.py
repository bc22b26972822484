"""The sliding window of charged time, and the bucket that paces a limit."""

from aliquot.tokens import MS, SECOND, ChargeWindow, LimitBucket


def test_charge_leaves_the_window_after_its_length():
    """A charge counts for exactly one window, then is forgotten."""
    window = ChargeWindow(10 * SECOND)
    window.charge(0, 1 * SECOND, 1 * SECOND)

    assert window.used_ns(9 * SECOND) == 1 * SECOND
    assert window.used_ns(10 * SECOND + 500 * MS) == 500 * MS
    assert window.used_ns(11 * SECOND + 20 * MS) == 0


def test_overlapped_time_counts_as_what_was_charged():
    """Two tenants that overlapped for a second are charged half a second each."""
    window = ChargeWindow(10 * SECOND)
    window.charge(0, 1 * SECOND, 500 * MS)

    assert window.used_ns(1 * SECOND) == 500 * MS
    assert window.total_ns == 500 * MS


def test_charge_longer_than_the_window_counts_its_last_part():
    """Of a charge of 25 s in a window of 10 s, ten seconds count and the rest is in the total."""
    window = ChargeWindow(10 * SECOND)
    window.charge(0, 25 * SECOND, 25 * SECOND)

    assert abs(window.used_ns(25 * SECOND) - 10 * SECOND) <= 20 * MS
    assert window.total_ns == 25 * SECOND


def test_bucket_names_the_moment_it_opens():
    """An exhausted bucket opens when a grant of the resume length fits, and not a nanosecond before."""
    bucket = LimitBucket(600, resume_ns=50 * MS, cap_ns=100 * MS, now_ns=0)
    bucket.advance(50 * MS, 50 * MS)

    opens = bucket.open_at_ns(50 * MS)
    bucket.advance(opens)

    assert opens > 50 * MS
    assert bucket.runway_ns(opens) >= 50 * MS
    assert bucket.open_at_ns(opens) <= opens


def test_bucket_remembers_an_overrun_for_as_long_as_it_takes():
    """After 25 s too many at a limit of one half, fifty seconds pass before the next grant."""
    bucket = LimitBucket(500, resume_ns=50 * MS, cap_ns=100 * MS, now_ns=0)
    bucket.advance(0, 25 * SECOND)

    assert abs(bucket.open_at_ns(0) - 50 * SECOND) < 100 * MS


def test_no_limit_never_closes():
    """A limit of the whole GPU is no limit, whatever was charged."""
    bucket = LimitBucket(1000, resume_ns=50 * MS, cap_ns=100 * MS, now_ns=0)
    bucket.advance(1, 25 * SECOND)

    assert bucket.open_at_ns(1) == 1
    assert bucket.runway_ns(1) is None
