"""Numbers from samples."""

import pytest

from aliquot_lab.bench.figures import handovers, overlap, percentile, slowdown_percent, worst_error
from aliquot_lab.bench.progress import Interval


def test_a_percentile_is_a_value_that_was_seen():
    """Nearest rank, never an interpolation."""
    assert percentile(range(1, 101), 50) == 50
    assert percentile(range(1, 101), 99) == 99
    assert percentile([7], 99) == 7


def test_a_handover_runs_from_the_last_end_to_the_next_launch():
    """Only changes of tenant count, and idle is their part of the whole."""
    turns = {"a": [Interval(0, 10, 100), Interval(100, 105, 200)], "b": [Interval(0, 230, 310)]}

    seen = handovers(turns)

    assert seen.gaps_ns == (30,)
    assert pytest.approx(10.0) == seen.idle_percent


def test_overlapping_work_leaves_no_gap():
    """A tenant that launches before the other ends hands over in no time."""
    assert handovers({"a": [Interval(0, 0, 100)], "b": [Interval(0, 90, 200)]}).gaps_ns == (0,)


def test_only_common_time_counts():
    """Turns before the last tenant began or after the first ended are left out."""
    turns = {"a": [Interval(0, 0, 10), Interval(50, 50, 60), Interval(90, 90, 99)], "b": [Interval(0, 40, 80)]}

    assert [Interval(50, 50, 60)] == overlap(turns)["a"]


def test_the_worst_error_is_in_points():
    """0.53 where 0.5 was due is three points."""
    assert pytest.approx(3.0) == worst_error({"a": 0.5}, [{"a": 0.51}, {"a": 0.53}])


def test_half_the_rate_is_fifty_percent_slower():
    """Slowdown compares rates."""
    assert slowdown_percent(10, 5) == 50
