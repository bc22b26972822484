"""Runs of several policies and seeds, put together: the folder with `summary.json`, tables and report; and two such.

Equal inputs give equal files to the byte; wall-clock times appear only when timing was asked for, in `timing.json`. Of
two folders each figure is given in both, and the difference. With the same seeds in both, the difference is paired: it
comes with the standard error over the seeds, which says whether it means anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

import numpy as np

from aliquot.lib.arrays import FloatArray
from aliquot.model.errors import UserError
from aliquot_lab.sim.figures import BINS, CURVES, RunFigures, UserWaits
from aliquot_lab.sim.load import sentence
from aliquot_lab.sim.parallel import Finished
from aliquot_lab.sim.runs import RunTask, Scenario, cluster_of, offered_load
from aliquot_lab.sim.tables import csv_text, write_whole

OF_SOME: Final = frozenset(("sizes.csv", "timing.json"))
"""Files that a study has or has not, as it was asked."""
WAIT_PERCENTS: Final = (*range(0, 100, 2), 99, 99.5, 99.9, 100)


@dataclass(frozen=True)
class Band:
    """A curve over the seeds of one policy: mean, least and most at each point of the common time."""

    mean: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True)
class PolicyRuns:
    """All runs of one policy."""

    policy: str
    seeds: list[int]
    runs: list[RunFigures]

    def mean(self, figure: str) -> float:
        """The mean of a figure over the seeds, a run without it left out."""
        return round(float(np.mean(self._values(figure))), 4)

    def sd(self, figure: str) -> float:
        """The standard deviation of a figure over the seeds."""
        return round(float(np.std(self._values(figure))), 4)

    def figures(self) -> list[str]:
        """The names of all figures, in order."""
        return list(dict.fromkeys(name for run in self.runs for name in run.figures))

    def band(self, curve: str, end_s: float) -> Band:
        """A curve on the common time, 0 to `end_s` in `BINS` parts; a run that has ended counts as 0."""
        centres = (np.arange(BINS) + 0.5) / BINS
        rows = np.array(
            [np.interp(centres * end_s, centres * run.end_s, run.curves[curve], right=0.0) for run in self.runs]
        )
        return Band(rows.mean(axis=0), rows.min(axis=0), rows.max(axis=0))

    def wait_quantiles(self) -> FloatArray:
        """Seconds waited at most by the percents of the jobs in `WAIT_PERCENTS`, all seeds together."""
        waits = np.concatenate([run.waits_s for run in self.runs])
        return np.round(np.percentile(waits, WAIT_PERCENTS), 4) if len(waits) else np.zeros(len(WAIT_PERCENTS))

    def users(self) -> dict[str, UserWaits]:
        """The users of the jobs, means over the seeds."""
        names = dict.fromkeys(user for run in self.runs for user in run.users)
        means = {}
        for user in names:
            runs = [run.users[user] for run in self.runs if user in run.users]
            figures = np.mean([[run.gpu_hours, run.mean_s, run.p90_s] for run in runs], axis=0)
            means[user] = UserWaits(runs[0].jobs, *(round(float(mean), 4) for mean in figures))
        return means

    def _values(self, figure: str) -> list[float]:
        return [run.figures[figure] for run in self.runs if figure in run.figures]


@dataclass(frozen=True)
class Made:
    """How a report came about; what differs from run to run is here and nowhere else."""

    command: str
    date: str
    version: str


@dataclass(frozen=True)
class Study:
    """What was asked and what came of it; `sizes` are the facts of a sweep over sizes of the cluster."""

    scenario: Scenario
    policies: list[PolicyRuns]
    complete: bool
    missing: list[tuple[str, int]]
    gpu_hour_price: float | None = None
    sizes: dict[str, Any] | None = None

    @property
    def end_s(self) -> float:
        """When the longest run ended."""
        return max((run.end_s for group in self.policies for run in group.runs), default=0.0)

    @property
    def axis_s(self) -> float:
        """Where charts over time end: all jobs have arrived and 99 % have finished, under each policy."""
        return max((run.axis_s for group in self.policies for run in group.runs), default=0.0)

    @classmethod
    def of(
        cls, asked: Sequence[RunTask], done: Finished[RunTask, RunFigures], gpu_hour_price: float | None = None,
        sizes: dict[str, Any] | None = None,
    ) -> Study:  # fmt: skip
        """Group finished runs by policy; runs of other scenarios than the asked one are passed over."""
        groups: dict[str, PolicyRuns] = {}
        for task in asked:
            run = done.results.get(task)
            if run is None:
                continue
            group = groups.setdefault(task.policy, PolicyRuns(task.policy, [], []))
            group.seeds.append(task.seed)
            group.runs.append(run)
        missing = [(task.policy, task.seed) for task in asked if task not in done.results]
        complete = done.complete and not missing
        return cls(asked[0].scenario, list(groups.values()), complete, missing, gpu_hour_price, sizes)


def summary(study: Study) -> dict[str, Any]:
    """The facts of a study, as `summary.json` has them."""
    nodes = cluster_of(study.scenario.nodes)
    scenario = study.scenario
    seed = study.policies[0].seeds[0] if study.policies else 0
    load = offered_load(scenario, seed)
    facts: dict[str, Any] = {
        "complete": study.complete,
        "missing": [{"policy": policy, "seed": seed} for policy, seed in study.missing],
        "cluster": {"source": Path(scenario.nodes).name, "nodes": len(nodes), "gpus": load.gpus},
        "trace": Path(scenario.trace).name,
        "queue": scenario.settings.queue.value,
        "pool": scenario.settings.pool.policy.name,
        "moves_allowed": scenario.settings.moves,
        "load": scenario.draws.load if scenario.draws else None,
        "warmup": scenario.warmup,
        "offered": load.facts(),
        "gpu_hour_price": study.gpu_hour_price,
        "policies": [
            {
                "policy": group.policy,
                "seeds": group.seeds,
                "mean": {name: group.mean(name) for name in group.figures()},
                "sd": {name: group.sd(name) for name in group.figures()},
                "wait_quantiles_s": {
                    f"{percent:g}": wait
                    for percent, wait in zip(WAIT_PERCENTS, group.wait_quantiles().tolist(), strict=True)
                },
                "users": {user: asdict(waits) for user, waits in group.users().items()},
                "cost": _cost(load.gpu_hours, load.gpus, group.mean("makespan_s"), study.gpu_hour_price),
                "runs": [{"seed": seed, **run.figures} for seed, run in zip(group.seeds, group.runs, strict=True)],
            }
            for group in study.policies
        ],
    }
    return facts if study.sizes is None else facts | {"sizes": study.sizes}


def _cost(asked_hours: float, gpus: int, makespan_s: float, price: float | None) -> dict[str, float]:
    """GPU-hours that jobs asked for and that the cluster stood there until the last had ended, with their price."""
    hours = gpus * makespan_s / 3600
    facts = {"asked_gpu_hours": round(asked_hours, 4), "cluster_gpu_hours": round(hours, 4)}
    return facts if price is None else facts | {"cluster": round(hours * price, 2), "idle": round(
        max(0.0, hours - asked_hours) * price, 2)}  # fmt: skip


def timing(study: Study) -> dict[str, Any]:
    """Microseconds of wall-clock time that decisions took on this machine, by policy."""
    rows = []
    for group in study.policies:
        took = np.concatenate([run.decision_us for run in group.runs])
        if len(took):
            p50, p99 = np.percentile(took, (50, 99))
            rows.append(
                {"policy": group.policy, "decisions": len(took), "mean_us": round(float(took.mean()), 1),
                 "p50_us": round(float(p50), 1), "p99_us": round(float(p99), 1), "max_us": round(float(took.max()), 1)}
            )  # fmt: skip
    return {"decision_time": rows}


Page = Callable[[Study, dict[str, Any], dict[str, Any] | None, Made | None], str]
"""Draws the report (`report.page`)."""


def write_study(folder: Path, study: Study, page: Page, made: Made | None = None) -> dict[str, Any]:
    """Write `summary.json`, `runs.csv`, `curves.csv`, `waits.csv`, `report.html` by `page` and others; the facts.

    What only some studies have and this one has not goes away, so that nothing in the folder is of an earlier study.
    """
    facts = summary(study)
    times = timing(study) if study.scenario.timing else None
    names = list(dict.fromkeys(name for group in study.policies for name in group.figures()))
    runs, curves, waits = [], [], []
    for group in study.policies:
        for seed, run in zip(group.seeds, group.runs, strict=True):
            runs.append([group.policy, seed, *(run.figures.get(name, "") for name in names)])
        bands = [group.band(curve, study.end_s) for curve in CURVES]
        for at in range(BINS):
            cells = [f"{row[at]:.4f}" for band in bands for row in (band.mean, band.low, band.high)]
            curves.append([group.policy, f"{study.end_s * (at + 0.5) / BINS:.3f}", *cells])
        waits.append([group.policy, *group.wait_quantiles().tolist()])
    parts = [f"{curve}_{part}" for curve in CURVES for part in ("mean", "low", "high")]
    files = {
        "runs.csv": csv_text(["policy", "seed", *names], runs),
        "curves.csv": csv_text(["policy", "time_s", *parts], curves),
        "waits.csv": csv_text(["policy", *(f"p{percent:g}_s" for percent in WAIT_PERCENTS)], waits),
    }
    if times is not None:
        files["timing.json"] = json.dumps(times, indent=2) + "\n"
    if study.sizes is not None:
        rows = study.sizes["rows"]
        files["sizes.csv"] = csv_text(list(rows[0]), [list(row.values()) for row in rows])
    files["report.html"] = page(study, facts, times, made)
    files["summary.json"] = json.dumps(facts, indent=2) + "\n"
    for name in OF_SOME - files.keys():
        (folder / name).unlink(missing_ok=True)
    for name, content in files.items():
        write_whole(folder / name, content)
    return facts


def compare(first: Path, second: Path) -> dict[str, Any]:
    """The facts of both folders, for the policies of either.

    A policy that only one folder has is set against the only policy of the other, when that has one alone.

    Raises:
        UserError: a folder has no summary of `aliquot sim run`, or nothing can be compared.
    """
    sides = [_summary(folder) for folder in (first, second)]
    by_name = [{row["policy"]: row for row in side["policies"]} for side in sides]
    pairs = [(name, name) for name in by_name[0] if name in by_name[1]]
    if not pairs and len(by_name[0]) == 1 and len(by_name[1]) == 1:
        pairs = [(next(iter(by_name[0])), next(iter(by_name[1])))]
    if not pairs:
        names = " and ".join(", ".join(rows) or "none" for rows in by_name)
        raise UserError(f"{first} and {second} have no policy in common ({names}); compare folders with the same ones")
    return {
        "first": str(first),
        "second": str(second),
        "offered": [side.get("offered") and {**side["offered"], "gpus": side["cluster"]["gpus"]} for side in sides],
        "policies": [_pair(by_name[0][one], by_name[1][other]) for one, other in pairs],
    }


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    try:
        facts: dict[str, Any] = json.loads(path.read_text())
        if not all("runs" in row and "policy" in row for row in facts["policies"]):
            raise ValueError("it has no runs")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); name a folder that sim run wrote") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: is not a summary of sim run ({error})") from None
    return facts


def _pair(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    seeds = [seed for seed in one["seeds"] if seed in other["seeds"]]
    runs = [{run["seed"]: run for run in row["runs"]} for row in (one, other)]
    figures = {}
    for name in one["mean"]:
        if name not in other["mean"]:
            continue
        paired = [runs[1][seed][name] - runs[0][seed][name] for seed in seeds if all(name in r[seed] for r in runs)]
        error = stdev(paired) / math.sqrt(len(paired)) if len(paired) > 1 else None
        difference = fmean(paired) if paired else other["mean"][name] - one["mean"][name]
        figures[name] = {
            "first": one["mean"][name],
            "second": other["mean"][name],
            "difference": round(difference, 4),
            "standard_error": None if error is None else round(error, 4),
        }
    return {"first": one["policy"], "second": other["policy"], "seeds_in_common": len(seeds), "figures": figures}


def table(facts: dict[str, Any]) -> str:
    """The comparison as lines for a terminal."""
    lines = [
        f"{folder}: {sentence(load)}"
        for folder, load in zip((facts["first"], facts["second"]), facts["offered"], strict=True)
        if load is not None
    ]
    for pair in facts["policies"]:
        lines.append(f"{pair['first']} in {facts['first']}, {pair['second']} in {facts['second']}"
                     f" ({pair['seeds_in_common']} seeds in common)")  # fmt: skip
        lines.append(f"  {'FIGURE':26}{'FIRST':>14}{'SECOND':>14}{'DIFFERENCE':>14}")
        for name, row in pair["figures"].items():
            error = row["standard_error"]
            doubt = "" if error is None else f" ± {error:,.2f}"
            lines.append(f"  {name:26}{row['first']:14,.2f}{row['second']:14,.2f}{row['difference']:+14,.2f}{doubt}")
    return "\n".join(lines)
