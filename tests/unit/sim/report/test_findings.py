"""The sentences of a report: which policy waits least, and what overload does."""

from __future__ import annotations

from typing import Any

from aliquot.sim.report.findings import unfair, verdict, waiting


def row(policy: str, mean: float, seeds: tuple[float, ...] = (), **kinds: float) -> dict[str, Any]:
    """A policy's figures."""
    figures = {"wait_mean_s": mean, **{f"wait_mean_{kind}_s": wait for kind, wait in kinds.items()}}
    runs = [{"seed": number, "wait_mean_s": wait} for number, wait in enumerate(seeds or (mean,))]
    return {"policy": policy, "mean": figures, "runs": runs}


def facts(*rows: dict[str, Any], percent: float = 80.0) -> dict[str, Any]:
    """A summary with these policies."""
    offered = {"percent": percent, "gpu_hours": 100.0, "span_s": 3600.0, "impossible": 0, "jobs": 10,
               "holds": percent <= 100, "gpus": 8}  # fmt: skip
    return {"offered": offered, "cluster": {"gpus": 8}, "policies": list(rows)}


def test_the_policy_that_waits_least_is_named_with_by_how_much():
    """The difference is that to the next one."""
    said = waiting(facts(row("spread", 500), row("aliquot", 30), row("bestfit", 60)))

    assert "aliquot waits least in this trace: 30 s on average, 50 % less than bestfit (1 min)" == said


def test_a_difference_that_the_seeds_do_not_show_is_none():
    """Two policies whose seeds overlap are not ranked."""
    said = waiting(facts(row("aliquot", 30, (10, 50)), row("bestfit", 32, (52, 12))))

    assert "No policy clearly waits least in this trace: 30 s to 32 s on average" == said


def test_equal_waits_are_one_sentence():
    """Where every policy waits as long, none is ranked."""
    assert "Jobs wait 0 s on average under every policy" == waiting(facts(row("aliquot", 0), row("bestfit", 0)))


def test_overload_names_the_jobs_that_pay():
    """The class of jobs that waits many times as long as under another policy."""
    overloaded = facts(
        row("aliquot", 2212, fractional=590, one=1636, multi=6640),
        row("bestfit", 2083, fractional=10, one=146, multi=9299),
        percent=117,
    )

    said = unfair(overloaded)

    assert "jobs of part of a GPU wait 9 min 50 s on average under aliquot, 59 times as long as under bestfit" in said
    assert said in verdict(overloaded)


def test_a_cluster_that_holds_its_load_has_no_word_on_overload():
    """The verdict is the load and the policy."""
    assert 2 == len(
        verdict(facts(row("aliquot", 3, fractional=1, multi=90), row("bestfit", 9, fractional=50, multi=9)))
    )
