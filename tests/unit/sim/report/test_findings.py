"""The sentences of a report: which policy waits least, and what overload does."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytest

from aliquot_lab.sim.report.page import unfair, verdict, waiting


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


@pytest.mark.parametrize(
    ("said", "rows"),
    [
        (
            "The mean wait is lowest under aliquot, 30 s, and highest under spread, 8 min 20 s",
            [row("spread", 500), row("aliquot", 30), row("bestfit", 60)],
        ),
        (
            "The mean wait is lowest under aliquot and bestfit, 30 s to 31 s, and highest under spread, 1 min 30 s",
            [row("aliquot", 30), row("bestfit", 31), row("spread", 90)],
        ),
        (
            "No clear difference in the mean wait: 30 s to 32 s",
            [row("aliquot", 30, (10, 50)), row("bestfit", 32, (52, 12))],
        ),
        ("The mean wait is 0 s under every policy", [row("aliquot", 0), row("bestfit", 0)]),
    ],
    ids=["clear", "level with the first", "seeds that overlap", "equal"],
)
def test_the_policies_that_wait_least_and_most_are_named(said: str, rows: list[dict[str, Any]]):
    """Each with its mean wait, those not clearly behind the first with it, and none where the seeds show nothing."""
    assert said == waiting(facts(*rows))


@pytest.mark.parametrize(
    ("ours", "theirs", "ranked"),
    [
        ((70.60,), (70.57,), False),  # one seed does not say what another would change
        ((2.74,), (2.80,), False),
        ((30,), (60,), True),
        ((2.74, 2.74, 2.74), (2.80, 2.80, 2.80), False),  # nor do seeds that change nothing
        ((10, 11), (12, 15), False),  # differences of 2 and 4: a third seed may give none
        ((95.1, 95.3, 95.2, 95.0), (92.8, 93.1, 92.9, 92.9), True),
    ],
)
def test_only_what_another_seed_would_not_turn_is_ranked(ours: Sequence[float], theirs: Sequence[float], ranked: bool):
    """With one seed a fifth of the figure, with several Student's t of the differences seed by seed."""
    said = waiting(facts(row("aliquot", fmean(ours), tuple(ours)), row("bestfit", fmean(theirs), tuple(theirs))))

    assert ranked == (" is lowest under " in said), said


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


def test_overload_that_is_the_same_under_all_policies_names_none():
    """Where every policy lets a class of jobs wait as long, the difference between classes is no policy's."""
    said = unfair(facts(row("aliquot", 9, fractional=1815, one=4080), row("bestfit", 9, fractional=1815, one=4080)))

    assert (
        "jobs of one GPU wait 1 h 8 min on average under every policy, "
        "jobs of part of a GPU 30 min 15 s under every policy."
    ) == said.partition(": ")[2]


def test_a_cluster_that_holds_its_load_has_no_word_on_overload():
    """The verdict is the load and the policy."""
    assert 2 == len(
        verdict(facts(row("aliquot", 3, fractional=1, multi=90), row("bestfit", 9, fractional=50, multi=9)))
    )
