"""The rows of the report's tables: waits by what was asked for and by user, GPU-hours and their price, decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aliquot_lab.sim.report.findings import KINDS
from aliquot_lab.sim.wording import duration, number

Facts = Mapping[str, Any]
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
