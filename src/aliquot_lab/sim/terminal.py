"""The table of policies for a terminal: as many columns as it is wide, the less important ones left out first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aliquot_lab.sim.tables import csv_text
from aliquot_lab.sim.wording import duration, number

ALL_COLUMNS: Final = 10_000
GAP: Final = 2


@dataclass(frozen=True)
class Column:
    """A figure with its title in two lines; of two columns the one with the higher `rank` is left out first."""

    figure: str
    title: tuple[str, str]
    rank: int
    tell: Callable[[float], str]


COLUMNS: Final = (
    Column("wait_mean_s", ("WAIT", "MEAN"), 1, duration),
    Column("wait_p90_s", ("WAIT", "90 %"), 2, duration),
    Column("wait_p99_s", ("WAIT", "99 %"), 4, duration),
    Column("completion_mean_s", ("ARRIVAL TO END", "MEAN"), 6, duration),
    Column("makespan_s", ("MAKESPAN", ""), 5, duration),
    Column("allocation_percent", ("ALLOC %", "ARRIVALS"), 7, "{:,.2f}".format),
    Column("utilisation_percent", ("ALLOC %", "MAKESPAN"), 3, "{:,.2f}".format),
    Column("fragmentation_percent", ("FRAG %", "ARRIVALS"), 8, "{:,.2f}".format),
    Column("active_gpus", ("ACTIVE", "GPUS"), 11, "{:,.2f}".format),
    Column("throughput_per_min", ("JOBS", "A MINUTE"), 10, "{:,.2f}".format),
    Column("waiting_at_end", ("WAITING", "AT END"), 9, "{:,.0f}".format),
)


def table(facts: Mapping[str, Any], width: int = ALL_COLUMNS) -> str:
    """The means over the seeds, no line longer than `width` where that is wide enough for two columns."""
    rows = facts["policies"]
    names = [["POLICY", "", *(row["policy"] for row in rows)]]
    if any(len(row["seeds"]) > 1 for row in rows):
        names.append(["SEEDS", "", *(str(len(row["seeds"])) for row in rows)])
    shown = {
        column: [*column.title, *(column.tell(row["mean"][column.figure]) for row in rows)]
        for column in COLUMNS
    }  # fmt: skip
    left = width - sum(_wide(cells) + GAP for cells in names) + GAP
    kept: set[Column] = set()
    for column in sorted(COLUMNS, key=lambda column: column.rank):
        left -= _wide(shown[column]) + GAP
        if left < 0 and len(kept) > 1:
            break
        kept.add(column)
    columns = [cells for column, cells in shown.items() if column in kept]
    lines = []
    for row in range(len(rows) + 2):
        head = [cells[row].ljust(_wide(cells)) for cells in names]
        lines.append((" " * GAP).join([*head, *(cells[row].rjust(_wide(cells)) for cells in columns)]).rstrip())
    return "\n".join(lines)


def _wide(cells: Sequence[str]) -> int:
    return max(len(cell) for cell in cells)


def cost(facts: Mapping[str, Any]) -> str:
    """What the cluster costs under each policy; empty where no price was given."""
    price = facts["gpu_hour_price"]
    if price is None:
        return ""
    told = ", ".join(f"{row['policy']} {number(row['cost']['cluster'])}" for row in facts["policies"])
    return f"cost of all GPUs until the last job ends, at {price:g} an hour: {told}"


def csv_table(facts: Mapping[str, Any]) -> str:
    """Every mean of every policy, in seconds, as CSV; the cost too, where a price was given."""
    rows = facts["policies"]
    names = list(dict.fromkeys(name for row in rows for name in row["mean"]))
    priced = facts["gpu_hour_price"] is not None
    cells = [
        [row["policy"], len(row["seeds"]), *(row["mean"].get(name, "") for name in names),
         *([row["cost"]["cluster"]] if priced else [])]
        for row in rows
    ]  # fmt: skip
    return csv_text(["policy", "seeds", *names, *(["cost"] if priced else [])], cells).rstrip("\n")
