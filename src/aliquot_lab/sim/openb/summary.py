"""What a batch of benchmark runs says in a few numbers: means and deviations over the seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Final

from aliquot_lab.sim.openb.batch import BatchTask, RunDone
from aliquot_lab.sim.openb.results import write_results
from aliquot_lab.sim.parallel import Finished
from aliquot_lab.sim.tables import write_whole

SHOWN: Final = (90, 95, 100, 110, 130)
"""Percent of the cluster's GPUs arrived at which allocation is reported."""


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
