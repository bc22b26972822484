"""The line through the points of Fig. 5."""

import pytest

from aliquot_lab.bench.inference import line


def test_points_on_a_line_fit_perfectly():
    """Slope and intercept come out, with r squared 1."""
    assert (pytest.approx(0.005), pytest.approx(0.01), pytest.approx(1)) == line(
        [(x, 0.005 * x + 0.01) for x in (1, 5, 9)]
    )


def test_points_off_the_line_fit_worse():
    """A use that saturates is told from one that grows."""
    assert line([(10, 0.1), (20, 0.2), (30, 0.2), (40, 0.2)])[2] < 0.8
