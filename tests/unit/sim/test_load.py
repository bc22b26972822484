"""The offered load of a trace on a cluster, and what is said about it."""

import pytest
from asking import asking

from aliquot_lab.sim.clusters import read_cluster
from aliquot_lab.sim.kernel import Job, Workload, us
from aliquot_lab.sim.load import because, left_out, offered, sentence


def jobs(*rows: tuple[float, float, float]) -> Workload:
    """Jobs of (arrival in s, duration in s, GPUs)."""
    return Workload(
        "made up",
        [
            Job(f"{number}", asking(whole=int(gpu), rest_milli=round(gpu % 1 * 1000)), us(at_s), us(ran_s))
            for number, (at_s, ran_s, gpu) in enumerate(rows)
        ],
    )


def test_the_load_is_gpu_time_asked_over_gpu_time_there():
    """Of 4 GPUs in 100 s of arrivals, 100 s of two GPUs and 200 s of a half ask for three quarters."""
    seen = offered(jobs((0, 100, 2), (100, 200, 0.5)), read_cluster("v100x4"))

    assert (75.0, 100.0, 4, False) == (seen.percent, seen.span_s, seen.gpus, seen.too_much)
    assert 300 / 3600 == pytest.approx(seen.gpu_hours)


def test_jobs_that_fit_on_no_node_are_left_out():
    """They never run, so they take nothing from the others."""
    seen = offered(jobs((0, 100, 2), (50, 1e6, 8), (100, 100, 2)), read_cluster("v100x4*2"))

    assert (50.0, 1, 3) == (seen.percent, seen.impossible, seen.jobs)
    assert 8e6 / 3600 == pytest.approx(seen.impossible_gpu_hours)


def test_what_a_job_asks_that_no_node_has_is_said():
    """Most frequent first: models, GPUs, CPUs and memory of the largest node."""
    asks = [
        asking(whole=1, models=("K80",)),
        asking(whole=8),
        asking(whole=1, cpu_milli=120_000),
        asking(whole=8),
        asking(whole=1),
    ]
    load = Workload("made up", [Job(f"{number}", ask, number, us(60)) for number, ask in enumerate(asks)])
    nodes = read_cluster("v100x4")

    assert (
        "4 of 5 jobs fit on no node even when it is empty; they are left out: "
        "2 ask for more than the 4 GPUs of the largest node, 1 asks for the model K80, which no node has, "
        "1 asks for more than the 48 CPUs of the largest node"
    ) == left_out(offered(load, nodes).facts())
    assert "1 asks for more than the 4 GPUs of the largest node" == because(offered(jobs((0, 60, 8)), nodes).why)
    assert "1 asks for more than the 1 GPU of the largest node" == because(
        offered(jobs((0, 60, 8)), read_cluster("v100")).why
    )


def test_jobs_that_arrive_at_once_offer_no_load():
    """Without a span of arrivals there is no rate to compare."""
    seen = offered(jobs((5, 100, 2), (5, 100, 2)), read_cluster("v100x4"))

    assert seen.percent is None
    assert "all jobs arrive together" in sentence(seen.facts())


def test_a_burst_that_fits_at_once_is_no_overload():
    """Jobs that never want more GPUs together than there are have nothing to wait for, however soon they arrive."""
    fits = offered(jobs((0, 1000, 2), (1, 1000, 1), (2, 998, 1), (1000, 5, 2)), read_cluster("v100x4"))
    more = offered(jobs((0, 9, 4), (9, 9, 4), (9, 9, 0.5)), read_cluster("v100x4"))

    assert (4.0, False) == (fits.peak_gpus, fits.too_much)
    assert (4.5, True) == (more.peak_gpus, more.too_much)
    burst = {"percent": 886.0, "gpu_hours": 3.4, "gpus": 48, "span_s": 47.0, "holds": True}
    assert sentence(burst).endswith("of arrivals, but never more GPUs at a time than there are")


def test_jobs_drawn_for_a_load_offer_that_load():
    """Those that stand there at the start are no arrivals."""
    assert 95.0 == offered(jobs((0, 1e6, 4), (100, 1, 1)), read_cluster("v100x4"), drawn=0.95).percent


@pytest.mark.parametrize(
    ("percent", "said"),
    [
        (117.4, "offered load 117 %: 240.0 GPU-hours asked of 48 GPUs in 5 h of arrivals; waits grow as long as "
                "jobs arrive"),
        (100.2, "offered load 100.2 %: 240.0 GPU-hours asked of 48 GPUs in 5 h of arrivals; waits grow as long "
                "as jobs arrive"),
        (88.2, "offered load 88 %: 240.0 GPU-hours asked of 48 GPUs in 5 h of arrivals"),
    ],
)  # fmt: skip
def test_a_load_above_the_whole_is_told_for_what_it_is(percent: float, said: str):
    """Above 100 % the sentence says that waits grow."""
    facts = {"percent": percent, "gpu_hours": 240.0, "gpus": 48, "span_s": 18_000.0, "holds": percent < 100}
    assert said == sentence(facts)
