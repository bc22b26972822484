"""A simulation from what a person asked for: cluster and trace by name, policies, seeds, figures of each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from time import perf_counter_ns

from aliquot.model.errors import UserError
from aliquot.placement.cluster import NodeSpec
from aliquot_lab.sim.clusters import ranked, read_cluster
from aliquot_lab.sim.engine import SimSettings, Simulation
from aliquot_lab.sim.figures import RunFigures, measured
from aliquot_lab.sim.kernel import Workload, on_whole_gpus
from aliquot_lab.sim.load import Offered, because, offered
from aliquot_lab.sim.openb.trace import read_pods, workload_name
from aliquot_lab.sim.parallel import part_done
from aliquot_lab.sim.policies import made
from aliquot_lab.sim.tables import opened
from aliquot_lab.sim.workload import (
    Draws,
    TimedAsk,
    TraceReplay,
    drawn,
    generated,
    is_spec,
    read_jobs,
    replayed,
    timed,
    unread_columns,
)

OF_OPENB = "--services, --from-s, --gpu-only, --jitter-s and --compress"


@dataclass(frozen=True)
class Scenario:
    """Everything a run depends on but its policy and seed; what `--nodes`, `--trace` and the options say."""

    nodes: str
    trace: str
    settings: SimSettings = field(default_factory=SimSettings)
    replay: TraceReplay = field(default_factory=TraceReplay)
    draws: Draws | None = None
    services: str = ""
    whole: bool = False
    warmup: float = 0.0
    stop_at_last_arrival: bool = False
    timing: bool = False


@dataclass(frozen=True)
class RunTask:
    """One run to do."""

    scenario: Scenario
    policy: str
    seed: int


@lru_cache(maxsize=2)
def cluster_of(text: str) -> tuple[NodeSpec, ...]:
    """The nodes, read once, of equal ones the first preferred."""
    return tuple(ranked(read_cluster(text)))


read_pods_once = lru_cache(maxsize=4)(read_pods)
read_jobs_once = lru_cache(maxsize=4)(read_jobs)


def workload(scenario: Scenario, seed: int) -> Workload:
    """The jobs of one seed.

    Raises:
        UserError: the trace is broken, unknown, or lacks what the options want of it.
    """
    load = _jobs(scenario, seed)
    return on_whole_gpus(load) if scenario.whole else load


def _jobs(scenario: Scenario, seed: int) -> Workload:
    path = Path(scenario.trace)
    named = is_spec(scenario.trace)
    if named or not is_openb(path):
        if scenario.services or scenario.replay != TraceReplay():
            raise UserError(f"trace {path}: {OF_OPENB} need a trace with the columns num_gpu and gpu_milli")
        if named and scenario.draws:
            raise UserError(f"trace {path}: --load draws from a table of jobs; a generator has rate= instead")
        found = generated(scenario.trace, seed) if named else read_jobs_once(path, workload_name(path))
        if scenario.draws is None:
            return found
        tasks = [TimedAsk(job.ask, job.service_us / 1e6 or None) for job in found.jobs]
        return drawn(tasks, found.name, _gpus(scenario), seed, scenario.draws)
    name = workload_name(path)
    pods = read_pods_once(path)
    if scenario.draws is None:
        return replayed(pods, name, seed, scenario.replay)
    services = timed(read_pods_once(Path(scenario.services))) if scenario.services else None
    return drawn(timed(pods), name, _gpus(scenario), seed, scenario.draws, services=services)


def _gpus(scenario: Scenario) -> int:
    return sum(len(node.gpus) for node in cluster_of(scenario.nodes))


def offered_load(scenario: Scenario, seed: int) -> Offered:
    """What the jobs of one seed ask of the cluster."""
    drawn_for = scenario.draws.load if scenario.draws else None
    return offered(workload(scenario, seed), cluster_of(scenario.nodes), drawn_for)


def is_openb(path: Path) -> bool:
    """Whether a table is one of the openb trace, by its header."""
    with opened(path) as file:
        header = file.readline()
    return "num_gpu" in header and "gpu_milli" in header


def warnings(scenario: Scenario) -> list[str]:
    """What a person should know about the trace before the runs begin."""
    path = Path(scenario.trace)
    if is_spec(scenario.trace) or is_openb(path):
        return []
    unread = unread_columns(path)
    return [f"{path}: columns that are not read: {', '.join(unread)}"] if unread else []


def run(task: RunTask) -> RunFigures:
    """Do one run."""
    scenario = task.scenario
    nodes, load = cluster_of(scenario.nodes), workload(scenario, task.seed)
    settings = scenario.settings
    if scenario.stop_at_last_arrival:
        settings = replace(settings, until_us=load.jobs[-1].arrive_us)
    policy = made(task.policy, Counter(job.ask.shape for job in load.jobs))
    clock = perf_counter_ns if scenario.timing else None
    outcome = Simulation(
        nodes, load.jobs, policy, seed=task.seed, settings=settings, clock_ns=clock, tell_part=part_done
    ).run()
    return measured(outcome, nodes, int(len(load.jobs) * scenario.warmup))


def tasks(scenario: Scenario, policies: Sequence[str], seeds: Sequence[int]) -> list[RunTask]:
    """Every combination; cluster and trace are read once here, so that a broken one is reported before anything runs.

    Raises:
        UserError: something asked for cannot be.
    """
    cluster_of(scenario.nodes)
    asked = offered_load(scenario, seeds[0])
    if not asked.jobs:
        raise UserError(f"trace {scenario.trace}: has no job")
    if asked.impossible == asked.jobs:
        why = because(asked.why)
        raise UserError(f"--nodes {scenario.nodes}: no job of {scenario.trace} fits on a node: {why}")
    return [RunTask(scenario, name, seed) for name in policies for seed in seeds]
