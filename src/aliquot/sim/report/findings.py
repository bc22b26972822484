"""What the figures say, in sentences: the verdict at the top of a report and the titles of its sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from aliquot.sim import load
from aliquot.sim.sizes import sentences
from aliquot.sim.wording import duration, number

KINDS: Final = (("cpu", "no GPU"), ("fractional", "part of a GPU"), ("one", "one GPU"), ("multi", "several GPUs"))
UNFAIR: Final = 2.0
"""A class that waits so many times as long as under another policy is named."""
LEAST_WAIT_S: Final = 1.0

Facts = Mapping[str, Any]


def verdict(facts: Facts) -> list[str]:
    """The answer in a few sentences: load, which policy waits least, who pays for it, and how many GPUs are enough."""
    offered = facts["offered"]
    told = [f"{line[0].upper()}{line[1:]}." for line in load.sentences(offered)]
    if facts["policies"]:
        told.append(f"{waiting(facts)}.")
    if not offered["holds"] and facts["policies"]:
        told.append(unfair(facts))
    if "sizes" in facts:
        told += [f"{line}." for line in sentences(facts["sizes"])]
    return told


def waiting(facts: Facts) -> str:
    """Which policy waits least in this trace, and by how much."""
    rows = sorted(facts["policies"], key=lambda row: row["mean"]["wait_mean_s"])
    first, last = rows[0], rows[-1]
    waits = [row["mean"]["wait_mean_s"] for row in rows]
    if len(rows) == 1:
        return f"Under {first['policy']} jobs wait {duration(waits[0])} on average"
    if duration(waits[0]) == duration(waits[-1]):
        return f"Jobs wait {duration(waits[0])} on average under every policy"
    if not apart(first, last, "wait_mean_s"):
        return f"No policy clearly waits least in this trace: {duration(waits[0])} to {duration(waits[-1])} on average"
    second = rows[1]
    if not apart(first, second, "wait_mean_s") or duration(waits[0]) == duration(waits[1]):
        return (
            f"{first['policy']} and {second['policy']} wait least in this trace, {duration(waits[0])} and "
            f"{duration(waits[1])} on average; {last['policy']} waits {duration(waits[-1])}"
        )
    less = 100 * (1 - waits[0] / waits[1])
    return (
        f"{first['policy']} waits least in this trace: {duration(waits[0])} on average, {less:.0f} % less than "
        f"{second['policy']} ({duration(waits[1])})"
    )


def unfair(facts: Facts) -> str:
    """In overload a policy only decides which jobs wait: the class that pays most for it."""
    rows = facts["policies"]
    intro = "More is asked than there is, so a policy only decides which jobs wait"
    found = []
    for kind, title in KINDS:
        waits = [(row["mean"][f"wait_mean_{kind}_s"], row["policy"]) for row in rows
                 if f"wait_mean_{kind}_s" in row["mean"]]  # fmt: skip
        if len(waits) > 1 and (most := max(waits))[0] >= LEAST_WAIT_S:
            least = min(waits)
            found.append((most[0] / max(least[0], LEAST_WAIT_S), title, most, least))
    found = [entry for entry in found if entry[0] >= UNFAIR]
    if found:
        times, title, most, least = max(found)
        return (
            f"{intro}: jobs of {title} wait {duration(most[0])} on average under {most[1]}, "
            f"{times:.0f} times as long as under {least[1]} ({duration(least[0])})."
        )
    inside = [(row["mean"][f"wait_mean_{kind}_s"], title, row["policy"]) for row in rows for kind, title in KINDS
              if f"wait_mean_{kind}_s" in row["mean"]]  # fmt: skip
    if len(inside) > 1:
        longest, shortest = max(inside), min(inside)
        return (
            f"{intro}: jobs of {longest[1]} wait {duration(longest[0])} on average under {longest[2]}, "
            f"jobs of {shortest[1]} {duration(shortest[0])} under {shortest[2]}."
        )
    return f"{intro}."


def finding(facts: Facts, figure: str, verb: str, best: str, unit: str) -> str:
    """The policies' order in one sentence; no order where the seeds do not show one."""
    rows = sorted(facts["policies"], key=lambda row: row["mean"][figure], reverse=best == "most")
    if not rows:
        return "No run was finished"
    first, last = rows[0], rows[-1]
    ends = [number(row["mean"][figure]) for row in (first, last)]
    if len(rows) == 1 or ends[0] == ends[1]:
        return f"{first['policy'] if len(rows) == 1 else 'Every policy'} {verb} {ends[0]} {unit}"
    if not apart(first, last, figure):
        return f"No policy clearly {verb} {best}: {ends[0]} {unit} to {ends[1]} {unit}"
    return f"{first['policy']} {verb} {best}: {ends[0]} {unit}, {last['policy']} {ends[1]} {unit}"


def apart(one: Facts, other: Facts, figure: str) -> bool:
    """Whether two policies differ by more than two standard errors of their difference, seed by seed."""
    theirs = {run["seed"]: run[figure] for run in other["runs"]}
    paired = [run[figure] - theirs[run["seed"]] for run in one["runs"] if run["seed"] in theirs]
    if len(paired) < 2:
        return True
    return bool(abs(np.mean(paired)) > 2 * np.std(paired, ddof=1) / np.sqrt(len(paired)))
