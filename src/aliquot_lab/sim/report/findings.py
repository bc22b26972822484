"""What the figures say: in sentences, such as the verdict at the top of a report, and in the rows of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from aliquot_lab.sim import load
from aliquot_lab.sim.sizes import sentences
from aliquot_lab.sim.wording import duration, number

KINDS: Final = (("cpu", "no GPU"), ("fractional", "part of a GPU"), ("one", "one GPU"), ("multi", "several GPUs"))
UNFAIR: Final = 2.0
"""A class that waits so many times as long as under another policy is named."""
LEAST_WAIT_S: Final = 1.0
ONE_SEED: Final = 0.2
"""The part of the larger figure by which policies have to differ to be ranked with one seed.

Measured in 2026-11 on three generated workloads with four policies: of ten seeds up to four turned a difference of 5 %
in waits or fragmentation, up to two one of 10 %, and up to one a difference of 20 %.
"""
T_95: Final = {1: 12.7, 2: 4.3, 3: 3.2, 4: 2.8, 5: 2.6}
"""Student's t, two-sided with 95 %, by degrees of freedom; 2.5 and less beyond."""

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
    """Which policies wait least in this trace."""
    return finding(facts, "wait_mean_s", "mean wait", "lowest", duration)


def unfair(facts: Facts) -> str:
    """In overload a policy only decides which jobs wait: the class that pays most for it."""
    rows = facts["policies"]
    intro = "More is asked than there is, so a policy only decides which jobs wait"
    waits = {
        title: [(row["mean"][figure], row["policy"]) for row in rows if figure in row["mean"]]
        for title, figure in ((title, f"wait_mean_{kind}_s") for kind, title in KINDS)
    }
    found, inside = [], []
    for title, of_policies in waits.items():
        if len(of_policies) > 1 and (most := max(of_policies))[0] >= LEAST_WAIT_S:
            least = min(of_policies)
            found.append((most[0] / max(least[0], LEAST_WAIT_S), title, most, least))
        same = len(of_policies) > 1 and len({duration(wait_s) for wait_s, _ in of_policies}) == 1
        inside += [(wait_s, title, "every policy" if same else policy) for wait_s, policy in of_policies]
    found = [entry for entry in found if entry[0] >= UNFAIR]
    if found:
        times, title, most, least = max(found)
        return (
            f"{intro}: jobs of {title} wait {duration(most[0])} on average under {most[1]}, "
            f"{times:.0f} times as long as under {least[1]} ({duration(least[0])})."
        )
    if len(inside) > 1:
        longest, shortest = max(inside), min(inside)
        return (
            f"{intro}: jobs of {longest[1]} wait {duration(longest[0])} on average under {longest[2]}, "
            f"jobs of {shortest[1]} {duration(shortest[0])} under {shortest[2]}."
        )
    return f"{intro}."


def finding(facts: Facts, figure: str, title: str, best: str, tell: Callable[[float], str]) -> str:
    """Under which policies a figure is `best` (lowest or highest); no order where the runs do not show one."""
    rows = sorted(facts["policies"], key=lambda row: row["mean"][figure], reverse=best == "highest")
    if not rows:
        return "No run was finished"
    if len({tell(row["mean"][figure]) for row in rows}) == 1:
        under = rows[0]["policy"] if len(rows) == 1 else "every policy"
        return f"The {title} is {_span(rows, figure, tell)} under {under}"
    behind = [row for row in rows if apart(rows[0], row, figure)]
    if not behind:
        return f"No clear difference in the {title}: {_span(rows, figure, tell)}"
    leaders = [row for row in rows if row not in behind]
    worst = "highest" if best == "lowest" else "lowest"
    names = " and ".join(row["policy"] for row in leaders)
    return (
        f"The {title} is {best} under {names}, {_span(leaders, figure, tell)}, "
        f"and {worst} under {behind[-1]['policy']}, {_span(behind[-1:], figure, tell)}"
    )


def _span(rows: Sequence[Facts], figure: str, tell: Callable[[float], str]) -> str:
    values = [row["mean"][figure] for row in rows]
    return " to ".join(dict.fromkeys((tell(min(values)), tell(max(values)))))


def apart(one: Facts, other: Facts, figure: str) -> bool:
    """Whether two policies differ by more than another seed may change, by the differences seed by seed.

    Student's t with 95 % decides. With one seed, or seeds that change nothing, the difference has to be `ONE_SEED`.
    """
    theirs = {run["seed"]: run[figure] for run in other["runs"]}
    paired = [run[figure] - theirs[run["seed"]] for run in one["runs"] if run["seed"] in theirs]
    error = np.std(paired, ddof=1) / np.sqrt(len(paired)) if len(paired) > 1 else 0.0
    if not error:
        means = [row["mean"][figure] for row in (one, other)]
        return bool(abs(means[0] - means[1]) >= ONE_SEED * max(map(abs, means)))
    return bool(abs(np.mean(paired)) > T_95.get(len(paired) - 1, 2.5) * error)


Tell = Callable[[float], str]
COLUMNS: Final[tuple[tuple[str, str, Tell], ...]] = (
    ("wait_mean_s", "mean wait", duration), ("wait_p90_s", "90 % wait at most", duration),
    ("wait_p99_s", "99 % wait at most", duration), ("completion_mean_s", "mean time from arrival to end", duration),
    ("makespan_s", "makespan", duration), ("allocation_percent", "allocated, % until the last arrival", number),
    ("utilisation_percent", "allocated, % of the makespan", number),
    ("fragmentation_percent", "fragmented (%)", number),
    ("active_gpus", "active GPUs", number), ("throughput_per_min", "jobs a minute", number),
    ("waiting_at_end", "waiting at the end", number), ("moves", "moves", number),
)  # fmt: skip
MAX_USERS: Final = 15


class ReportTable(NamedTuple):
    """A table of texts; a wide one is cards on a phone."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def by_kind(rows: Sequence[Facts]) -> ReportTable:
    """Mean wait, and what 90 % wait at most, of each size of request."""
    shown = [(kind, title) for kind, title in KINDS if any(f"wait_mean_{kind}_s" in row["mean"] for row in rows)]
    cells = [
        [row["policy"], *(_two_waits(row["mean"].get(f"wait_mean_{kind}_s"), row["mean"].get(f"wait_p90_{kind}_s"))
                          for kind, _ in shown)]
        for row in rows
    ]  # fmt: skip
    return ReportTable(["", *(title for _, title in shown)], cells)


def _two_waits(mean_s: float | None, p90_s: float | None) -> str:
    return "" if mean_s is None or p90_s is None else f"{duration(mean_s)} ({duration(p90_s)})"


def by_user(rows: Sequence[Facts]) -> ReportTable:
    """The users that asked for most GPU-hours; without rows where the trace names none."""
    cells = [
        [user or "(no name)", f"{waits['jobs']:,}", number(waits["gpu_hours"]),
         *(_two_waits(row["users"][user]["mean_s"], row["users"][user]["p90_s"]) if user in row["users"] else ""
           for row in rows)]
        for user, waits in list(rows[0]["users"].items())[:MAX_USERS]
    ]  # fmt: skip
    return ReportTable(["user", "jobs", "GPU-hours", *(row["policy"] for row in rows)], cells)


def gpu_hours(rows: Sequence[Facts], *, priced: bool) -> ReportTable:
    """GPU-hours asked for, those that the cluster stood there, and their price where one was given."""
    cells = []
    for row in rows:
        cost = row["cost"]
        asked, there = cost["asked_gpu_hours"], cost["cluster_gpu_hours"]
        price = [number(cost["cluster"]), number(cost["idle"])] if priced else []
        cells.append(
            [row["policy"], number(asked), number(there), f"{100 * asked / there:.0f} %" if there else "", *price]
        )
    heads = ["", "GPU-hours asked", "GPU-hours there", "asked of there", *(["cost", "of it idle"] if priced else [])]
    return ReportTable(heads, cells)


def decisions(times: Facts) -> ReportTable:
    """How long decisions took where the simulation ran."""
    rows = [
        [row["policy"], *(f"{row[name]:,}" for name in ("decisions", "mean_us", "p50_us", "p99_us", "max_us"))]
        for row in times["decision_time"]
    ]
    return ReportTable(["µs", "decisions", "mean", "50 %", "99 %", "longest"], rows)
