"""The table of policies fits the sim_run."""

import csv
from typing import Any

import pytest

from aliquot_lab.cli import sim_run
from aliquot_lab.sim import parallel, runs, study
from aliquot_lab.sim.wording import number


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """Two policies with two seeds."""
    todo = runs.tasks(runs.Scenario("v100x4", "mix:jobs=60,rate=20"), ("bestfit", "clustering"), (1, 2))
    return study.summary(study.Study.of(todo, parallel.run_all(runs.run, todo, workers=1)))


@pytest.mark.parametrize("width", [60, 80, 110, 132, 160, 200])
def test_no_line_is_longer_than_the_terminal(facts: dict[str, Any], width: int):
    """Whole columns are left out; the mean wait is always there."""
    lines = sim_run.table(facts, width).splitlines()

    assert width >= max(map(len, lines))
    assert 1 == len({line.count("  ") > 0 for line in lines})
    assert "WAIT" in lines[0]
    assert "MEAN" in lines[1]


def test_a_wider_terminal_shows_more(facts: dict[str, Any]):
    """The less important columns come last; with 200 columns all are there."""
    titles = [set(sim_run.table(facts, width).splitlines()[0].split()) for width in (60, 80, 120, 200)]

    assert titles == sorted(titles, key=len)
    assert sim_run.table(facts) == sim_run.table(facts, 200)


def test_a_price_of_a_gpu_hour_gives_each_policy_a_cost():
    """All GPUs until the last job ends, in a line below the table and in the CSV; without a price in neither."""
    todo = runs.tasks(runs.Scenario("v100x4", "mix:jobs=60,rate=20"), ("bestfit", "clustering"), (1,))
    done = parallel.run_all(runs.run, todo, workers=1)
    priced, free = (study.summary(study.Study.of(todo, done, price)) for price in (2.5, None))
    hours = [4 * row["mean"]["makespan_s"] / 3600 for row in priced["policies"]]
    told = sim_run.cost(priced)
    rows = list(csv.DictReader(sim_run.csv_table(priced).splitlines()))

    assert told.startswith("cost of all GPUs until the last job ends, at 2.5 an hour: bestfit ")
    assert f", clustering {number(hours[1] * 2.5)}" in told
    assert [pytest.approx(each * 2.5, abs=0.01) for each in hours] == [float(row["cost"]) for row in rows]
    assert "" == sim_run.cost(free)
    assert "cost" not in sim_run.csv_table(free)


def test_csv_has_every_figure_in_seconds(facts: dict[str, Any]):
    """The means of `summary.json`, one line a policy."""
    rows = list(csv.DictReader(sim_run.csv_table(facts).splitlines()))

    assert [
        {name: float(row[name]) for name in group["mean"]} for row, group in zip(rows, facts["policies"], strict=True)
    ] == [group["mean"] for group in facts["policies"]]
