"""Many runs of the benchmark: every trace under every policy with every seed, on all cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter

import numpy as np

from aliquot_lab.sim.jobs import CLASSES, job_class
from aliquot_lab.sim.openb.columns import columns
from aliquot_lab.sim.openb.replay import replay
from aliquot_lab.sim.openb.results import RunColumns, RunKey, sc_policy
from aliquot_lab.sim.openb.trace import PodRow, TraceNode, read_nodes, read_pods, workload_name
from aliquot_lab.sim.parallel import Finished, part_done, run_all


@dataclass(frozen=True)
class BatchTask:
    """One run to do."""

    nodes: Path
    trace: Path
    policy: str
    seed: int
    tune: float


@dataclass(frozen=True)
class RunDone:
    """One run's rows, the failed pods by kind until as much arrived as the cluster has, and how long it took."""

    columns: RunColumns
    failed: dict[str, int]
    seconds: float


read_nodes_once = lru_cache(maxsize=2)(read_nodes)
read_pods_once = lru_cache(maxsize=2)(read_pods)


def tasks(
    nodes: Path, traces: Sequence[Path], policies: Sequence[str], seeds: Sequence[int], tune: float
) -> list[BatchTask]:
    """Every combination; all files are read once here, so that a broken one is reported before anything runs.

    Raises:
        BadTable: a file is broken.
    """
    read_nodes_once(nodes)
    for trace in traces:
        read_pods_once(trace)
    return [BatchTask(nodes, trace, name, seed, tune) for trace in traces for name in policies for seed in seeds]


def run(task: BatchTask) -> RunDone:
    """Do one run."""
    nodes: list[TraceNode] = read_nodes_once(task.nodes)
    pods: list[PodRow] = read_pods_once(task.trace)
    start = perf_counter()
    seen = replay(nodes, pods, task.policy, task.seed, task.tune, part_done)
    seconds = perf_counter() - start
    key = RunKey(workload_name(task.trace), sc_policy(task.policy), task.seed)
    failed = dict.fromkeys(CLASSES, 0)
    full = int(np.searchsorted(seen.events.arrived_milli, seen.events.gpus * 1000, side="right"))
    for pod, placed in zip(seen.pods[:full], seen.placed[:full], strict=True):
        failed[job_class(pod.shape())] += not placed
    return RunDone(RunColumns(key, task.tune, seen.events.gpus, columns(seen.events)), failed, seconds)


def run_batch(todo: Sequence[BatchTask], workers: int | None = None) -> Finished[BatchTask, RunDone]:
    """All runs; whatever was finished when Ctrl-C came is returned."""
    return run_all(run, todo, workers=workers, title="openb")
