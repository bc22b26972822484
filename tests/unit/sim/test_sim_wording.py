"""Durations for people."""

import pytest

from aliquot_lab.sim.wording import duration


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("0 s", 0), ("0.4 s", 0.4), ("39 s", 39), ("1 min", 59.7), ("3 min 20 s", 200), ("14 h 14 min", 51_268),
     ("1 h", 3_599.6), ("1 d", 86_390), ("3 d 4 h", 273_600), ("59 min 50 s", 3_590), ("10 s", 9.97)],
)  # fmt: skip
def test_a_duration_has_two_units_at_most(told: str, seconds: float):
    """The larger units that it has, rounded to the smaller of them."""
    assert told == duration(seconds)
