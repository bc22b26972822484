"""The report's charts: where their axes begin, and lines that lie on each other."""

import re

import numpy as np
import pytest

from aliquot_lab.sim.report.page import SIZES, TEMPLATES, Axis, ChartLine


@pytest.mark.parametrize(("start", "end", "ticks"), [(40.0, 72.0, [40, 50, 60, 70]), (0.0, 10.0, [0, 2, 4, 6, 8, 10])])
def test_an_axis_begins_at_its_start(start: float, end: float, ticks: list[float]):
    """Clusters of 40 to 72 GPUs take the whole width, and round numbers between them are marked."""
    axis = Axis("GPUs", end, start=start)

    assert [0.0, 1.0] == axis.place(np.array([start, end])).tolist()
    assert ticks == axis.ticks()


def test_equal_lines_are_all_seen():
    """Each line but the first has gaps, and none covers all of one that was drawn before it."""
    across = np.array([0.0, 1.0])
    lines = [ChartLine(name, across, across) for name in ("first", "second", "third")]

    picture = TEMPLATES.get_template("charts.html").module.chart(lines, Axis("x", 1.0), Axis("y", 1.0), "equal lines")
    drawn = re.findall(r'class="line s\d"(?: stroke-dasharray="([\d.]+) [\d.]+")? points', picture)

    assert ["", "16", "8"] * len(SIZES) == drawn
