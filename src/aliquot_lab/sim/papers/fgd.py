"""FGD's experiment, whole: every trace of a folder under the published policies and ours, beside the published columns.

Source: Weng et al. (FGD, USENIX ATC'23), Fig. 7 and 9 to 14, and the result files of its artifact.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np

import aliquot
from aliquot.lib.arrays import FloatArray
from aliquot.model.errors import UserError
from aliquot_lab.sim.openb.replay import TUNE
from aliquot_lab.sim.openb.results import (
    FILES,
    SC_POLICY,
    BatchTask,
    Published,
    RunDone,
    compare,
    grouped,
    run_batch,
    summary,
    tasks,
    write_batch,
)
from aliquot_lab.sim.parallel import Finished

POLICIES: Final = tuple(SC_POLICY)
NODES: Final = "openb_node_list_gpu_node.csv"
SOURCE: Final = "https://github.com/alibaba/clusterdata (cluster-trace-gpu-v2023/csv)"


def data_folder(given: Path | None) -> Path:
    """The folder of the trace: the one given, or the one beside the sources of a checkout.

    Raises:
        UserError: the folder does not exist, or has no table of nodes.
    """
    folder = given or Path(aliquot.__file__).resolve().parents[2] / "tests" / "data" / "openb"
    if not (folder / NODES).is_file():
        raise UserError(f"{folder}: has no {NODES}; get the trace from {SOURCE} and name its folder with --data")
    return folder


def traces(folder: Path) -> list[Path]:
    """The task lists of a folder, by name.

    Raises:
        UserError: it does not exist.
    """
    found = sorted(path for path in folder.glob("openb_pod_list_*") if path.name.endswith((".csv", ".csv.gz")))
    if not found:
        raise UserError(f"{folder}: has no openb_pod_list_*.csv")
    return found


def todo(folder: Path, policies: Sequence[str], seeds: Sequence[int]) -> list[BatchTask]:
    """Every trace of the folder under every policy with every seed.

    Raises:
        UserError: a file is missing or broken.
    """
    return tasks(folder / NODES, traces(folder), policies, seeds, TUNE)


def reproduce(
    folder: Path, asked: Sequence[BatchTask], out: Path | None = None, workers: int | None = None
) -> dict[str, Any]:
    """Do all runs; the facts, with the published allocation and whether all columns are equal."""
    done = run_batch(asked, workers)
    facts = write_batch(out, done, len(asked)) if out else summary(done, len(asked))
    expected = folder / "expected_results"
    published = Published(expected) if expected.is_dir() else None
    return {"paper": "FGD (USENIX ATC 2023)", **facts, "results": _rows(done, facts, published)}


def _rows(
    done: Finished[BatchTask, RunDone], facts: dict[str, Any], published: Published | None
) -> list[dict[str, Any]]:
    rows = []
    for row, runs in zip(facts["results"], grouped(done.results.values()).values(), strict=True):
        theirs: dict[str, Any] = {"theirs_100_percent": None, "columns_equal": None}
        if published is not None:
            at_full = [published.row(FILES[0], run.columns.key) for run in runs]
            verdict = compare([run.columns for run in runs], published)
            if verdict.compared:
                mean = fmean(float(values[100]) for values in at_full if values is not None)
                worst = max(
                    float(np.nanmax(np.abs(run.columns.columns.allocation - values)))
                    for run, values in zip(runs, at_full, strict=True)
                    if values is not None
                )
                theirs = {
                    "theirs_100_percent": round(mean, 4),
                    "columns_equal": verdict.equal,
                    "largest_difference": round(worst, 4),
                    "mean_difference_100": round(row["allocation_percent"]["100"] - mean, 4),
                    "standard_error_100": round(_standard_error(runs, at_full), 4),
                }
        rows.append({**row, **theirs})
    return rows


def _standard_error(runs: Sequence[RunDone], theirs: Sequence[FloatArray | None]) -> float:
    """Of the difference of the two means at 100 % arrived, the draws of both taken as independent."""
    ours = [float(run.columns.columns.allocation[100]) for run in runs]
    published = [float(values[100]) for values in theirs if values is not None]
    return float(np.sqrt(sum(np.var(values) / max(len(values) - 1, 1) for values in (ours, published))))


def beyond(facts: dict[str, Any], points: float) -> list[str]:
    """The workloads and policies whose mean at 100 % arrived is farther from the published one than that.

    For a policy that draws, two standard errors are allowed where they are more: the published runs drew differently.
    """
    return [
        f"{row['workload']}, {row['sc_policy']}: {row['mean_difference_100']:+.2f}"
        for row in facts["results"]
        if abs(row.get("mean_difference_100", 0.0)) > max(points, 2 * row.get("standard_error_100", 0.0))
    ]


def text(facts: dict[str, Any]) -> str:
    """Allocation at 100 % arrived, ours beside theirs."""
    lines = [f"{facts['paper']}: GPU allocated (%) when as much has arrived as the cluster has, mean of the seeds"]
    lines.append(f"  {'WORKLOAD':28}{'POLICY':18}{'SEEDS':>5}{'OURS':>9}{'THEIRS':>9}  ALL COLUMNS")
    for row in facts["results"]:
        ours, theirs = row["allocation_percent"]["100"], row["theirs_100_percent"]
        verdict = {None: "not published", True: "equal", False: f"differ by up to {row.get('largest_difference')}"}
        shown = "" if theirs is None else f"{theirs:.2f}"
        lines.append(
            f"  {row['workload']:28}{row['sc_policy']:18}{len(row['seeds']):5}{ours:9.2f}{shown:>9}"
            f"  {verdict[row['columns_equal']]}"
        )
    return "\n".join(lines)
