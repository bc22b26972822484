"""Many runs of the benchmark: every trace, policy and seed on all cores; their means and deviations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean, pstdev
from time import perf_counter
from typing import Any, Final

import numpy as np

from aliquot_lab.sim.jobs import CLASSES, job_class
from aliquot_lab.sim.openb.replay import replay
from aliquot_lab.sim.openb.results import RunColumns, RunKey, columns, sc_policy, write_results
from aliquot_lab.sim.openb.trace import PodRow, TraceNode, read_nodes, read_pods, workload_name
from aliquot_lab.sim.parallel import Finished, part_done, run_all
from aliquot_lab.sim.tables import write_whole

SHOWN: Final = (90, 95, 100, 110, 130)
"""Percent of the cluster's GPUs arrived at which allocation is reported."""


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


def grouped(runs: Iterable[RunDone]) -> dict[tuple[str, str], list[RunDone]]:
    """Runs by workload and policy, in order."""
    groups: dict[tuple[str, str], list[RunDone]] = {}
    for run in sorted(runs, key=lambda run: run.columns.key):
        key = run.columns.key
        groups.setdefault((key.workload, key.sc_policy), []).append(run)
    return groups


def summary(done: Finished[BatchTask, RunDone], asked: int) -> dict[str, Any]:
    """The facts of a batch; `complete` is False when runs are missing."""
    rows = []
    for (workload, policy), runs in grouped(done.results.values()).items():
        allocation = {str(at): _mean([float(run.columns.columns.allocation[at]) for run in runs]) for at in SHOWN}
        at_full = [float(run.columns.columns.allocation[100]) for run in runs]
        rows.append(
            {
                "workload": workload,
                "sc_policy": policy,
                "seeds": [run.columns.key.seed for run in runs],
                "allocation_percent": allocation,
                "allocation_100_sd": round(pstdev(at_full), 4),
                "frag_100_percent": _mean([float(run.columns.columns.frag[100]) for run in runs]),
                "failed_until_100": {kind: _mean([run.failed[kind] for run in runs]) for kind in runs[0].failed},
            }
        )
    return {"complete": done.complete and len(done.results) == asked, "runs": len(done.results), "asked": asked,
            "results": rows}  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    return round(fmean(values), 4)


def write_batch(folder: Path, done: Finished[BatchTask, RunDone], asked: int) -> dict[str, Any]:
    """Write the three result files and `summary.json`; the summary."""
    facts = summary(done, asked)
    write_results(folder, [run.columns for run in done.results.values()])
    write_whole(folder / "summary.json", json.dumps(facts, indent=2) + "\n")
    return facts


def table(facts: dict[str, Any], seconds: dict[tuple[str, str], float]) -> str:
    """The summary as lines: allocation in percent by arrived load, and seconds a run."""
    lines = [f"{'WORKLOAD':28}{'POLICY':18}{'SEEDS':>5}" + "".join(f"{f'@{at}':>8}" for at in SHOWN) + "    S/RUN"]
    for row in facts["results"]:
        cells = "".join(f"{row['allocation_percent'][str(at)]:8.2f}" for at in SHOWN)
        took = seconds.get((row["workload"], row["sc_policy"]), 0.0)
        lines.append(f"{row['workload']:28}{row['sc_policy']:18}{len(row['seeds']):5}{cells}{took:9.2f}")
    return "\n".join(lines)
