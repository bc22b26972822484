"""The report's tables: policies side by side, waits by what was asked for and by user, GPU-hours and their price."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Final

from aliquot_lab.sim.report.findings import KINDS
from aliquot_lab.sim.report.svg import COLOURS
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
MAX_PHONE: Final = 4
"""So many columns fit on a phone side by side."""


def section(title: str, body: str) -> str:
    """A section with its title."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts, which scrolls on its own where it is wider than the page; a wide one is cards on a phone."""
    cards = ' class="cards"' if len(heads) > MAX_PHONE else ""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    lines = "".join(
        f"<tr><th>{escape(row[0])}</th>"
        + "".join(
            f'<td data-name="{escape(head)}">{escape(cell)}</td>' for head, cell in zip(heads[1:], row[1:], strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table{cards}><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'


def policies(facts: Facts) -> str:
    """Every policy with its figures; on a phone a card each."""
    rows = facts["policies"]
    shown = [column for column in COLUMNS if any(row["mean"].get(column[0]) for row in rows)]
    heads = "".join(f"<th>{escape(title)}</th>" for _, title, _ in shown)
    lines = []
    for at, row in enumerate(rows):
        cells = ""
        for name, title, tell in shown:
            deviation = f"<small> ±{escape(tell(row['sd'][name]))}</small>" if len(row["seeds"]) > 1 else ""
            cells += f'<td data-name="{escape(title)}">{escape(tell(row["mean"][name]))}{deviation}</td>'
        lines.append(f'<tr><th><i class="s{at % COLOURS}"></i>{escape(row["policy"])}</th>{cells}</tr>')
    return section(
        "The policies side by side",
        f'<div class="wide"><table class="cards"><thead><tr><th>policy</th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>",
    )


def waits_by_kind(facts: Facts) -> str:
    """Mean wait, and what 90 % wait at most, of each size of request."""
    rows = facts["policies"]
    shown = [(kind, title) for kind, title in KINDS if any(f"wait_mean_{kind}_s" in row["mean"] for row in rows)]
    cells = [
        [row["policy"], *(_two_waits(row["mean"].get(f"wait_mean_{kind}_s"), row["mean"].get(f"wait_p90_{kind}_s"))
                          for kind, _ in shown)]
        for row in rows
    ]  # fmt: skip
    note = '<p class="small">The mean, and in brackets what 90 % of these jobs wait at most.</p>'
    return section("Waits by what was asked for", table(["", *(title for _, title in shown)], cells) + note)


def _two_waits(mean_s: float | None, p90_s: float | None) -> str:
    return "" if mean_s is None or p90_s is None else f"{duration(mean_s)} ({duration(p90_s)})"


def waits_by_user(facts: Facts) -> str:
    """The users that asked for most GPU-hours; empty where the trace names none."""
    rows = facts["policies"]
    users = rows[0]["users"] if rows else {}
    if not users:
        return ""
    cells = [
        [user or "(no name)", f"{waits['jobs']:,}", number(waits["gpu_hours"]),
         *(_two_waits(row["users"][user]["mean_s"], row["users"][user]["p90_s"]) if user in row["users"] else ""
           for row in rows)]
        for user, waits in list(users.items())[:MAX_USERS]
    ]  # fmt: skip
    more = len(users) - MAX_USERS
    left = f" {more:,} more users are in summary.json." if more > 0 else ""
    note = f'<p class="small">By GPU-hours asked. The mean wait, and in brackets what 90 % wait at most.{left}</p>'
    heads = ["user", "jobs", "GPU-hours", *(row["policy"] for row in rows)]
    return section("Waits by user", table(heads, cells) + note)


def gpu_hours(facts: Facts) -> str:
    """GPU-hours asked for, those that the cluster stood there, and their price where one was given."""
    priced = facts["gpu_hour_price"] is not None
    cells = []
    for row in facts["policies"]:
        cost = row["cost"]
        asked, there = cost["asked_gpu_hours"], cost["cluster_gpu_hours"]
        price = [number(cost["cluster"]), number(cost["idle"])] if priced else []
        cells.append(
            [row["policy"], number(asked), number(there), f"{100 * asked / there:.0f} %" if there else "", *price]
        )
    heads = ["", "GPU-hours asked", "GPU-hours there", "asked of there", *(["cost", "of it idle"] if priced else [])]
    told = f" A GPU costs {facts['gpu_hour_price']:g} an hour." if priced else " --gpu-hour-price adds the cost."
    note = f'<p class="small">There: all GPUs of the cluster from the first arrival until the last job ends.{told}</p>'
    return section("GPU-hours" + (" and cost" if priced else ""), table(heads, cells) + note)


def decisions(times: Facts) -> str:
    """How long decisions took where the simulation ran."""
    rows = [
        [row["policy"], *(f"{row[name]:,}" for name in ("decisions", "mean_us", "p50_us", "p99_us", "max_us"))]
        for row in times["decision_time"]
    ]
    heads = ["µs", "decisions", "mean", "50 %", "99 %", "longest"]
    return section("Time of a decision on the machine that simulated", table(heads, rows))
