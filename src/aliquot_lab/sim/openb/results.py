"""Many runs of the benchmark on all cores, their three result files, and the comparison with published ones.

The files are in the artifact's own columns. Each table has a value for each percent of GPU request that has arrived, 0
to 130. An event is a pod's arrival, CPU-only pods and pods that fail included. Column k is the mean over the events at
which the GPU request arrived so far, rounded to a whole percent of the cluster (half to even), is k; where there is
none, over those at most one percent away.

Source: FGD (USENIX ATC'23) artifact, analysis of `analysis_allo`, `analysis_frag` and `analysis_frag_ratio`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean, pstdev
from time import perf_counter
from typing import Any, Final

import numpy as np

from aliquot.lib.arrays import FloatArray, IntArray
from aliquot.model.errors import UserError
from aliquot_lab.sim.kernel import CLASSES, job_class
from aliquot_lab.sim.openb.replay import TaskEvents, replay
from aliquot_lab.sim.openb.trace import PodRow, TraceNode, read_nodes, read_pods, workload_name
from aliquot_lab.sim.parallel import Finished, part_done, run_all
from aliquot_lab.sim.tables import BadTable, csv_text, read_rows, write_whole

LAST_COLUMN: Final = 130


@dataclass(frozen=True)
class ResultColumns:
    """Values 0..130 of one run; NaN where no event is near."""

    allocation: FloatArray
    frag: FloatArray
    frag_ratio: FloatArray


def columns(events: TaskEvents) -> ResultColumns:
    """The three rows of one run."""
    arrived = np.rint(events.arrived_milli / events.gpus / 10).astype(np.int64)
    allocated: FloatArray = np.asarray(np.round(events.used_milli / events.gpus / 10, 2), dtype=np.float64)
    exact = events.frag_numerator / events.frag_denominator
    frag_milli = np.round(exact, 2)
    idle = events.gpus * 1000 - events.used_milli
    ratio = np.round(np.divide(100 * exact, idle, out=np.zeros(len(idle)), where=idle > 0), 2)
    return ResultColumns(
        np.round(_means(arrived, allocated), 2),
        np.round(100 * _means(arrived, np.asarray(frag_milli, dtype=np.float64)) / 1000 / events.gpus, 2),
        _means(arrived, np.asarray(ratio, dtype=np.float64)),
    )


def _means(arrived: IntArray, values: FloatArray) -> FloatArray:
    out = np.full(LAST_COLUMN + 1, np.nan)
    for column in range(LAST_COLUMN + 1):
        at = arrived == column
        if not at.any():
            at = np.abs(arrived - column) <= 1
        if at.any():
            out[column] = values[at].mean()
    return out


# The number orders the published tables; a policy of yours comes after them.
SC_POLICY: Final = {
    "random": "01-Random",
    "dotprod": "02-DotProd",
    "clustering": "03-GpuClustering",
    "packing": "04-GpuPacking",
    "bestfit": "05-BestFit",
    "fgd": "06-FGD",
    "aliquot": "07-aliquot",
}
FILES: Final = ("analysis_allo_discrete", "analysis_frag_discrete", "analysis_frag_ratio_discrete")
ROUNDED: Final = ".rounded4"


@dataclass(frozen=True, order=True)
class RunKey:
    """One run: workload and policy as the tables name them, and the seed."""

    workload: str
    sc_policy: str
    seed: int


@dataclass(frozen=True)
class RunColumns:
    """One run's rows, with what the artifact writes beside them."""

    key: RunKey
    tune: float
    gpus: int
    columns: ResultColumns

    def row(self, file: str) -> FloatArray:
        """The values of one of the three files."""
        by_file = dict(zip(FILES, (self.columns.allocation, self.columns.frag, self.columns.frag_ratio), strict=True))
        return by_file[file]


def sc_policy(name: str) -> str:
    """The policy's name in the tables."""
    return SC_POLICY.get(name, f"08-{name}")


def write_results(folder: Path, runs: Iterable[RunColumns]) -> None:
    """Write the three files, rows in order of workload, policy and seed."""
    ordered = sorted(runs, key=lambda run: run.key)
    for file in FILES:
        total = ["total_gpus"] if file == FILES[0] else []
        header = ["workload", "sc_policy", "tune", "seed", *total, *map(str, range(LAST_COLUMN + 1))]
        rows = [
            [
                run.key.workload,
                run.key.sc_policy,
                run.tune,
                run.key.seed,
                *([run.gpus] if total else []),
                *("" if math.isnan(value) else repr(float(value)) for value in run.row(file)),
            ]
            for run in ordered
        ]
        write_whole(folder / f"{file}.csv", csv_text(header, rows))


class Published:
    """The result files of a folder, by run."""

    def __init__(self, folder: Path) -> None:
        """Read the three files; each may be compressed, and the ratio may be rounded to four digits.

        Raises:
            UserError: the folder has not all three.
        """
        self.rounded: dict[str, bool] = {}
        self._rows: dict[str, dict[RunKey, FloatArray]] = {}
        for file in FILES:
            names = [f"{file}{middle}.csv{end}" for middle in ("", ROUNDED) for end in ("", ".gz")]
            path = next((folder / name for name in names if (folder / name).is_file()), None)
            if path is None:
                raise UserError(f"{folder}: has no {names[0]} (or {', '.join(names[1:])}) to compare with")
            self.rounded[file] = ROUNDED in path.name
            self._rows[file] = dict(_read(path))

    def row(self, file: str, key: RunKey) -> FloatArray | None:
        """The values of a run; None where there is no such run."""
        return self._rows[file].get(key)


def _read(path: Path) -> Iterable[tuple[RunKey, FloatArray]]:
    columns = [str(column) for column in range(LAST_COLUMN + 1)]
    for row in read_rows(path, ("workload", "sc_policy", "seed", *columns)):
        try:
            key = RunKey(row.text("workload"), row.text("sc_policy"), int(row.text("seed")))
            yield key, np.array([float(row.text(column) or "nan") for column in columns])
        except ValueError as error:
            raise BadTable(f"{path} line {row.line}: is not a row of results ({error})") from None


@dataclass(frozen=True)
class Comparison:
    """What a comparison with published rows gave."""

    compared: int
    without_row: int
    differing: int
    first: str

    @property
    def equal(self) -> bool:
        """Whether nothing that was compared differs anywhere."""
        return self.differing == 0


def compare(runs: Sequence[RunColumns], published: Published) -> Comparison:
    """Every column of every file, with no tolerance (the ratio in as many digits as the published file has)."""
    compared = without = differing = 0
    first = ""
    for run in sorted(runs, key=lambda run: run.key):
        found = {file: published.row(file, run.key) for file in FILES}
        if any(row is None for row in found.values()):
            without += 1
            continue
        compared += 1
        faults = [
            fault
            for file, theirs in found.items()
            if theirs is not None and (fault := _differ(run, file, theirs, published))
        ]
        differing += bool(faults)
        first = first or next(iter(faults), "")
    return Comparison(compared, without, differing, first)


def _differ(run: RunColumns, file: str, theirs: FloatArray, published: Published) -> str:
    """The first column in which a run differs, as a sentence; empty when it does not."""
    ours = np.round(run.row(file), 4) if published.rounded[file] else run.row(file)
    different = np.flatnonzero((ours != theirs) & ~(np.isnan(ours) & np.isnan(theirs)))
    if not len(different):
        return ""
    column, key = int(different[0]), run.key
    return (
        f"{file}: {key.workload}, {key.sc_policy}, seed {key.seed}, column {column}: "
        f"{ours[column]:g} here, {theirs[column]:g} published ({len(different)} of {LAST_COLUMN + 1} columns differ)"
    )


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
