"""How many GPUs are enough: ranges of sizes, waits by size, and the answer for each policy."""

from pathlib import Path
from typing import Any

import pytest

from aliquot.model.errors import UserError
from aliquot_lab.sim import parallel, runs, sizes, study
from aliquot_lab.sim.report.page import verdict


def test_a_range_stands_for_every_size_in_it():
    """The other parts of the cluster stay as they are."""
    assert ["t4*10,v100x8*6,a100*2", "t4*10,v100x8*7,a100*2"] == sizes.sizes_of("t4*10,v100x8*6..7,a100*2")
    assert ["v100x8*6"] == sizes.sizes_of("v100x8*6")
    assert ["nodes..csv"] == sizes.sizes_of("nodes..csv")


@pytest.mark.parametrize("nodes", ["v100*6..3", "v100*0..3", "v100*1..500", "v100*1..2,t4*1..2"])
def test_a_range_that_is_none_is_refused(nodes: str):
    """It starts at 1, runs upwards, has at most 100 sizes, and is the only one."""
    with pytest.raises(UserError, match=r"--nodes v100\*"):
        sizes.sizes_of(nodes)


def swept(wait_s: float, at: str = "p90", price: float | None = None, rate: int = 1) -> dict[str, Any]:
    """Clusters of 2 to 6 GPUs under a load that, at one job a minute, four of them hold."""
    scenario = runs.Scenario("v100x2*1..3", f"mix:jobs=200,rate={rate},service=120")
    clusters = sizes.scenarios(scenario, sizes.sizes_of(scenario.nodes))
    todo = [task for each in clusters for task in runs.tasks(each, ["bestfit", "spread"], [1, 2])]
    return sizes.size_facts(parallel.run_all(runs.run, todo, workers=1).results, sizes.Goal(wait_s, at, price))


def test_the_answer_is_the_smallest_size_from_which_on_waits_are_short_enough():
    """All larger sizes keep the wait too, and the next smaller one does not."""
    facts = swept(wait_s=60)
    answer = next(answer for answer in facts["answers"] if answer["policy"] == "bestfit")
    rows = [row for row in facts["rows"] if row["policy"] == "bestfit"]

    assert answer["holds"]
    assert sizes.sentences(facts)[0].startswith(f"Policy bestfit: {answer['gpus']} GPUs ({answer['nodes']}) are enough")
    assert [row["gpus"] >= answer["gpus"] for row in rows] == [row["wait_p90_s"] <= 60 for row in rows]
    assert [2, 4, 6] == [row["gpus"] for row in rows]
    assert sorted((row["offered_load_percent"] for row in rows), reverse=True) == [
        row["offered_load_percent"] for row in rows
    ]


def test_a_goal_that_no_size_keeps_is_told_with_what_the_largest_does():
    """The report then shows the largest."""
    facts = swept(wait_s=0, at="p99", rate=4)

    assert [False, False] == [answer["holds"] for answer in facts["answers"]]
    assert "v100x2*3" == sizes.chosen_size(facts)
    assert sizes.sentences(facts)[0].startswith(
        "Policy bestfit: none of these sizes is enough for the 197 jobs that fit on a node: with 6 GPUs 99 % "
    )


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (
            "v100x2*2..3",
            "Policy bestfit: 4 GPUs (v100x2*2) are enough for the 3 jobs that fit on a node: 90 % of them wait at most "
            "0 s, within 1 min; 2 of 5 jobs (12.00 of 15.00 GPU-hours) can never run; if jobs kept arriving at this "
            "rate, a load of 54000 %, waits would grow",
        ),
        (
            "v100x2*1..1",
            "Policy bestfit: none of these sizes is enough for the 3 jobs that fit on a node: with 2 GPUs 90 % of them "
            "wait at most 48 min, wanted are 1 min; 2 of 5 jobs (12.00 of 15.00 GPU-hours) can never run",
        ),
    ],
)
def test_jobs_that_can_never_run_are_part_of_the_answer(tmp_path: Path, nodes: str, said: str):
    """A size is enough for the jobs that fit on a node; the others are counted in jobs and in GPU-hours."""
    rows = ["a,0,3600,1", "b,0,3600,1", "c,0,3600,1", "large-1,0,3600,4", "large-2,5,3600,8"]
    trace = tmp_path / "jobs.csv"
    trace.write_text("\n".join(["name,arrival_s,duration_s,gpu", *rows, ""]))
    clusters = sizes.scenarios(runs.Scenario(nodes, str(trace)), sizes.sizes_of(nodes))
    todo = [task for each in clusters for task in runs.tasks(each, ["bestfit"], [1])]
    done = parallel.run_all(runs.run, todo, workers=1).results

    assert [said] == sizes.sentences(sizes.size_facts(done, sizes.Goal(60, "p90")))


def test_a_size_that_is_enough_is_not_said_to_be_too_small(tmp_path: Path):
    """Where the load is above 100 % a size is enough for this trace only, and no sentence beside that denies it."""
    trace = tmp_path / "jobs.csv"
    trace.write_text("name,arrival_s,duration_s,gpu\nA,0,100,1\nB,10,50,1\nC,20,30,0.5\nD,30,40,0.5\n")
    scenario = runs.Scenario("v100*1..6", str(trace))
    clusters = sizes.scenarios(scenario, sizes.sizes_of(scenario.nodes))
    todo = [task for each in clusters for task in runs.tasks(each, ["bestfit"], [1])]
    done = parallel.run_all(runs.run, todo, workers=1)
    swept = sizes.size_facts(done.results, sizes.Goal(60, "p90"))
    shown = [task for task in todo if task.scenario.nodes == sizes.chosen_size(swept)]

    said = verdict(study.summary(study.Study.of(shown, done, sizes=swept)))

    assert [
        "Offered load 308 %: 0.1 GPU-hours asked of 2 GPUs in 30 s of arrivals; waits grow as long as jobs arrive.",
        "Policy bestfit: 2 GPUs (v100*2) are enough for this trace: 90 % of the jobs wait at most 37 s, within 1 min; "
        "if jobs kept arriving at this rate, a load of 308 %, waits would grow.",
    ] == [said[0], said[-1]]


def test_a_price_gives_each_size_its_cost():
    """All GPUs of the cluster until the last job ends, at the price of an hour."""
    row = swept(wait_s=60, price=2.5)["rows"][0]

    assert row["gpus"] * row["makespan_s"] / 3600 * 2.5 == pytest.approx(row["cost"], abs=0.02)
