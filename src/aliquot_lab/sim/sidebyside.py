"""Two result folders side by side, policy by policy: each figure in both, and the difference.

With the same seeds in both, the difference is paired: it comes with the standard error over the seeds, which says
whether it means anything.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from aliquot.model.errors import UserError
from aliquot_lab.sim.load import sentence


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
