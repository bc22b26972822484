"""Where jobs come from: replayed traces, draws at a load, tables of one's own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aliquot.model.errors import UserError
from aliquot_lab.sim.openb.trace import PodRow
from aliquot_lab.sim.runs import Scenario, workload
from aliquot_lab.sim.workload import (
    Draws,
    KubeShareJobs,
    MixJobs,
    TraceReplay,
    drawn,
    kubeshare,
    mix,
    read_jobs,
    replayed,
    timed,
)


def pod(name: str, milli: int = 500, created=None, scheduled=None, deleted=None) -> PodRow:
    return PodRow(name, 1000, 1024, 1 if milli else 0, milli, (), created, scheduled, deleted)


def test_a_trace_is_replayed_at_its_own_times():
    """Tasks arrive when they were created, the first at 0, and run as long as they did once scheduled."""
    pods = [pod("b", 500, 130.0, 140.0, 150.0), pod("a", 1000, 100.0, 100.0, 160.0), pod("c", 0, 90.0, 90.0, 99.0)]

    jobs = replayed(pods, "trace", 42, TraceReplay(gpu_only=True)).jobs

    assert [(0, 60_000_000, 1000), (30_000_000, 10_000_000, 500)] == [
        (job.arrive_us, job.service_us, job.ask.milli) for job in jobs
    ]


def test_a_task_that_was_never_scheduled_runs_from_its_creation():
    """Without a scheduled time the service is from creation to deletion; without deletion the task is left out."""
    jobs = replayed([pod("a", 500, 10.0, None, 30.0), pod("b", 500, 10.0, 11.0, None)], "trace", 42, TraceReplay()).jobs

    assert [20_000_000] == [job.service_us for job in jobs]


OPENB = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time
a,1,1,1,300,,0,5,0
"""


@pytest.mark.parametrize(
    "trace", ["kubeshare:jobs=1,rate=1,mean=30,sd=1", "own.csv", "openb.csv"], ids=["generator", "table", "openb"]
)
def test_whole_gpus_instead_of_parts(tmp_path: Path, trace: str):
    """With `whole`, a part of a GPU becomes a whole one wherever jobs come from, as in a cluster without sharing."""
    (tmp_path / "own.csv").write_text("name,arrival_s,duration_s,gpu\na,0,5,0.3\n")
    (tmp_path / "openb.csv").write_text(OPENB)
    scenario = Scenario("v100", trace if ":" in trace else str(tmp_path / trace))
    before, after = (workload(how, 42).jobs[0] for how in (scenario, replace(scenario, whole=True)))

    assert (0, 1, 0) == (before.ask.whole, after.ask.whole, after.ask.rest_milli)
    assert (before.arrive_us, before.service_us) == (after.arrive_us, after.service_us)


@pytest.mark.parametrize("how", [{"replay": TraceReplay(compress=2.0)}, {"services": "x.csv"}])
def test_an_option_that_would_change_nothing_is_refused(how):
    """What only the openb trace has a meaning for is not passed over in silence."""
    with pytest.raises(UserError, match="need a trace with the columns num_gpu and gpu_milli"):
        workload(Scenario("v100", "mix:jobs=5", **how), 42)


def test_jobs_are_drawn_from_a_table_that_was_imported(tmp_path):
    """`--load` takes the table that `sim import` writes: its requests and times, at the load asked for."""
    table = tmp_path / "jobs.csv"
    table.write_text("name,arrival_s,duration_s,gpu\na,0,100,1\nb,10,50,0.5\n")
    jobs = workload(Scenario("v100x4", str(table), draws=Draws(0.5, 400)), 42).jobs
    arriving = [job for job in jobs if not job.name.startswith("start")]
    work_s = sum(job.ask.request.request_milli / 1000 * job.service_us / 1e6 for job in arriving)

    assert {(1000, 100_000_000), (500, 50_000_000)} == {(j.ask.request.request_milli, j.service_us) for j in arriving}
    assert 0.5 == pytest.approx(work_s / (arriving[-1].arrive_us / 1e6 * 4), rel=0.15)


def test_a_load_needs_a_table_with_gpus(tmp_path):
    """Neither a generator nor a table without a GPU can be drawn from; each is one sentence."""
    table = tmp_path / "jobs.csv"
    table.write_text("name,arrival_s,duration_s,gpu\na,0,100,0\n")
    with pytest.raises(UserError, match="no job asks for a GPU"):
        workload(Scenario("v100", str(table), draws=Draws(0.9, 10)), 42)
    with pytest.raises(UserError, match="a generator has rate= instead"):
        workload(Scenario("v100", "mix:jobs=5", draws=Draws(0.9, 10)), 42)


def test_a_trace_without_times_says_what_to_do():
    """A trace without creation times cannot be replayed; the sentence names the other way."""
    with pytest.raises(UserError, match="--load"):
        replayed([pod("a")], "trace", 42, TraceReplay())
    with pytest.raises(UserError, match="--service-s"):
        drawn(timed([pod("a")]), "trace", 8, 42, Draws(0.9, 10))


TIMED = [pod(f"p{n}", 100 + 100 * (n % 5), 0.0, 0.0, float(10 ** (n % 4) + n)) for n in range(40)]
TIMELESS = [pod(f"q{n}", 100 + 100 * (n % 5)) for n in range(40)]


@pytest.mark.parametrize(
    ("pods", "how", "services"),
    [
        (TIMED, Draws(0.8, 6000), None),
        (TIMELESS, Draws(0.8, 6000), TIMED),
        (TIMELESS, Draws(0.8, 6000, mean_service_s=300.0), None),
    ],
    ids=["own times", "times of others", "exponential"],
)
def test_draws_offer_the_load_from_the_start(pods, how: Draws, services):
    """With room for everybody, the GPUs in use are the load asked for, at the start and at any later moment."""
    jobs = drawn(timed(pods), "trace", 1000, 42, how, services=timed(services or [])).jobs
    arrive = np.array([job.arrive_us for job in jobs])
    end = arrive + np.array([job.service_us for job in jobs])
    milli = np.array([job.ask.milli for job in jobs])
    last = arrive[-1]

    for part in (0.0, 0.05, 0.2, 0.5, 0.9):
        used = milli[(arrive <= part * last) & (end > part * last)].sum()
        assert used / 1e6 == pytest.approx(0.8, abs=0.08)


def test_equal_seeds_give_equal_jobs():
    """A workload depends on its seed alone."""
    for make in (lambda seed: kubeshare(KubeShareJobs(jobs=50), seed), lambda seed: mix(MixJobs(jobs=50), seed)):
        assert make(1).jobs == make(1).jobs
        assert make(1).jobs != make(2).jobs


def test_kubeshares_jobs_have_its_demand():
    """Demands are normally distributed around the mean, cut to a GPU; arrivals come at the rate."""
    jobs = kubeshare(KubeShareJobs(jobs=4000, per_min=120, mean_milli=300, sd_milli=100), 42).jobs
    milli = np.array([job.ask.milli for job in jobs])

    assert 300 == pytest.approx(milli.mean(), abs=6)
    assert 100 == pytest.approx(milli.std(), abs=5)
    assert 2000 == pytest.approx(jobs[-1].arrive_us / 1e6, rel=0.06)
    assert 1 <= milli.min() <= milli.max() <= 1000


def test_a_table_of_ones_own(tmp_path):
    """Every documented column arrives in the job; jobs come in the order of their arrival."""
    (tmp_path / "jobs.csv").write_text(
        "name,arrival_s,duration_s,gpu,gpu_memory_mib,gpu_model,cpu_milli,priority,anti_affinity\n"
        "late,9.5,60,2.5,4096,V100|A100,3000,2,noisy\n"
        "early,1,5,0.3,,,,,\n"
    )

    early, late = read_jobs(tmp_path / "jobs.csv", "mine").jobs

    assert ("early", 1_000_000, 300) == (early.name, early.arrive_us, early.ask.milli)
    assert (2, 500, 4096, ("A100", "V100")) == (
        late.ask.whole, late.ask.rest_milli, late.ask.gpu_mib, late.ask.models,
    )  # fmt: skip
    assert (3000, 2, "noisy") == (late.ask.cpu_milli, late.ask.priority, late.ask.labels.anti_affinity)
