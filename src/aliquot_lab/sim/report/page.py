"""The page itself: the verdict, one table of all policies, and a finding above every picture (report.html).

What the figures say is put in sentences, such as the verdict, and in the rows of tables. The pictures are curves over
time, waits, use of each GPU, and waits by the size of the cluster. Where the lines, bands and ticks of small charts lie
is here too; charts.html draws them, in the colours of report.css.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from aliquot.lib.arrays import FloatArray
from aliquot_lab.sim import load
from aliquot_lab.sim.figures import BINS
from aliquot_lab.sim.sizes import sentences
from aliquot_lab.sim.study import Made, PolicyRuns, Study
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


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart: its name, points, and the edges of its band where it has one."""

    name: str
    x: FloatArray
    y: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None


@dataclass(frozen=True)
class Axis:
    """A title with its unit, its ends, the format of its numbers; `log` counts from 1, ticks are rounds of `unit`."""

    title: str
    end: float
    tell: Callable[[float], str] = lambda value: f"{value:g}"
    log: bool = False
    unit: float = 1.0
    start: float = 0.0

    def place(self, value: FloatArray) -> FloatArray:
        """0..1 along the axis."""
        if self.log:
            return np.log10(np.maximum(value, 1.0)) / max(math.log10(max(self.end, 10.0)), 1.0)
        return (value - self.start) / (self.end - self.start) if self.end > self.start else value * 0

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers along the axis, `about` so many."""
        if self.log:
            return [
                10.0**power
                for power in range(math.ceil(math.log10(max(self.end, 10.0))) + 1)
                if 10.0**power <= self.end
            ]
        step = nice((self.end - self.start) / self.unit / about) * self.unit
        return [step * at for at in range(math.ceil(self.start / step - 1e-9), int(self.end / step + 1e-9) + 1)]


def nice(rough: float) -> float:
    """The least of 1, 2, 2.5, 5 times a power of ten that is not below a number."""
    if rough <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough - 1e-12)


@dataclass(frozen=True)
class ChartSize:
    """Width and height of a picture in its own units, about how many ticks it has, and where it is shown."""

    width: int
    height: int
    class_: str
    ticks: int
    left: int = 64
    top: int = 12

    @property
    def right(self) -> int:
        """Where the plot ends."""
        return self.width - 16

    @property
    def bottom(self) -> int:
        """Where the plot ends and its axis begins."""
        return self.height - 44

    @property
    def middle(self) -> int:
        """Of the plot, from left to right."""
        return round((self.left + self.right) / 2)

    def of_rows(self, count: int) -> ChartSize:
        """The same for a picture of so many rows."""
        return replace(self, height=self.height - self.bottom + self.top + max(48, min(320, count * 8)))

    def across(self, x: Axis, values: FloatArray) -> FloatArray:
        """Where values of the lower axis lie."""
        return self.left + x.place(values) * (self.right - self.left)

    def down(self, y: Axis, values: FloatArray) -> FloatArray:
        """Where values of the other axis lie."""
        return self.bottom - y.place(values) * (self.bottom - self.top)

    def points(self, x: Axis, y: Axis, across: FloatArray, values: FloatArray) -> str:
        """The points of a line, those outside of the plot on its edge."""
        xs = np.clip(self.across(x, across), self.left, self.right)
        ys = np.clip(self.down(y, values), self.top, self.bottom)
        return " ".join(f"{px:.1f},{py:.1f}" for px, py in zip(xs, ys, strict=True))

    def band(self, x: Axis, y: Axis, line: ChartLine) -> str:
        """The outline of a line's band."""
        assert line.low is not None and line.high is not None
        edge = np.concatenate((line.high, line.low[::-1]))
        return self.points(x, y, np.concatenate((line.x, line.x[::-1])), edge)


SIZES: Final = (ChartSize(1120, 300, "screen", 5), ChartSize(374, 260, "phone", 3))


def png(use: FloatArray) -> str:
    """A picture as a data URI: one green, as opaque as the GPU is used, so that it suits light and dark."""
    rows, columns = use.shape
    pixels = np.zeros((rows, columns, 4), dtype=np.uint8)
    pixels[:, :, :3] = (27, 120, 55)
    pixels[:, :, 3] = np.rint(np.clip(use, 0, 1) * 255)
    raw = b"".join(b"\0" + pixels[row].tobytes() for row in range(rows))
    head = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return "data:image/png;base64," + base64.b64encode(data).decode()


MAX_ROWS: Final = 320
CLIPPED: Final = 0.98
"""An axis that ends before this part of the time has left out a tail worth a word."""
_CURVES: Final = (
    ("allocation_percent", "GPU allocated (%)", "allocation", "highest"),
    ("fragmentation_percent", "GPU fragmented (%)", "fragmentation", "lowest"),
    ("waiting_percent", "GPU demand waiting (%)", "demand that waits", "lowest"),
)


@dataclass(frozen=True)
class Picture:
    """A chart, what it shows in a sentence, and some of its numbers for readers who cannot see it."""

    said: str
    lines: Sequence[ChartLine]
    x: Axis
    y: Axis
    table: ReportTable
    note: str = ""


@dataclass(frozen=True)
class Heat:
    """How much of each GPU was given away (0..1), a row for each or, as `rows` says, for several."""

    said: str
    use: FloatArray
    x: Axis
    rows: str


def tail(study: Study) -> str:
    """Where charts over time end, if a few jobs run on after it."""
    if study.axis_s >= CLIPPED * study.end_s:
        return ""
    return (
        f" The axis ends after {duration(study.axis_s)}, when all jobs have arrived and 99 % have finished; "
        f"the last ends after {duration(study.end_s)}."
    )


def curves(study: Study, facts: Facts) -> list[Picture]:
    """Allocation, fragmentation and waiting over time."""
    several = any(len(group.seeds) > 1 for group in study.policies)
    pictures = []
    for curve, title, name, best in _CURVES:
        lines, top = [], 0.0
        for group in study.policies:
            band = group.band(curve, study.axis_s)
            top = max(top, float(band.high.max()))
            edges = (band.low, band.high) if len(group.seeds) > 1 else (None, None)
            lines.append(ChartLine(group.policy, (np.arange(BINS) + 0.5) / BINS * study.axis_s, band.mean, *edges))
        end = 100.0 if curve == "allocation_percent" else nice_end(max(top, 1.0))
        pictures.append(
            Picture(
                finding(facts, curve, name, best, lambda value: f"{number(value)} %"),
                lines,
                time_axis(study.axis_s),
                Axis(title, end),
                _points_table(lines),
                f"{title} over time.{' The band holds all seeds.' if several else ''}{tail(study)} "
                "All points: curves.csv.",
            )
        )
    return pictures


def nice_end(top: float) -> float:
    """A round end of an axis that holds a value."""
    step = nice(max(top, 1e-9) / 5)
    return step * int(np.ceil(max(top, 1e-9) / step))


def _points_table(lines: Sequence[ChartLine]) -> ReportTable:
    at = [BINS // 10 * part + BINS // 20 for part in range(10)]
    axis = time_axis(float(lines[0].x[-1]))
    heads = [axis.title, *(axis.tell(float(lines[0].x[point])) for point in at)]
    rows = [[line.name, *(number(float(line.y[point])) for point in at)] for line in lines]
    return ReportTable(heads, rows)


def waits(facts: Facts) -> Picture:
    """How many jobs waited how long at most."""
    rows = [(row["policy"], row["wait_quantiles_s"]) for row in facts["policies"]]
    percents = np.array([float(percent) for percent in rows[0][1]])
    longest = max(max(quantiles.values()) for _, quantiles in rows)
    lines = [ChartLine(policy, np.maximum(list(quantiles.values()), 1.0), percents) for policy, quantiles in rows]
    x = Axis("waited at most (s, logarithmic, 1 stands for less)", max(longest, 10.0), lambda v: f"{v:,.0f}", log=True)
    shown = ("50", "90", "99", "99.9", "100")
    cells = [[policy, *(duration(quantiles[at]) for at in shown)] for policy, quantiles in rows]
    table = ReportTable(["waited at most", *(f"{percent} %" for percent in shown)], cells)
    return Picture(waiting(facts), lines, x, Axis("part of the jobs (%)", 100.0), table)


def sizes(swept: Facts) -> Picture:
    """Waits against the size of the cluster, with the smallest that is enough."""
    at, price = swept["goal"]["at"], swept["goal"]["gpu_hour_price"]
    names = [answer["policy"] for answer in swept["answers"]]
    rows = {name: [row for row in swept["rows"] if row["policy"] == name] for name in names}
    lines = [
        ChartLine(name, _column(rows[name], "gpus"), np.maximum(_column(rows[name], f"wait_{at}_s"), 1.0))
        for name in names
    ]
    top = max(float(line.y.max()) for line in lines)
    x = Axis("GPUs", float(max(line.x.max() for line in lines)), start=float(min(line.x.min() for line in lines)))
    y = Axis("wait (s, logarithmic)", max(top, 10.0), lambda value: f"{value:,.0f}", log=True)
    cells = []
    for number_of, row in enumerate(rows[names[0]]):
        load = row["offered_load_percent"]
        theirs = [rows[name][number_of] if number_of < len(rows[name]) else None for name in names]
        cells.append(
            [str(row["gpus"]), "" if load is None else f"{load:.0f} %",
             *("" if each is None else duration(each[f"wait_{at}_s"]) for each in theirs),
             *([] if price is None else [number(row["cost"])])]
        )  # fmt: skip
    heads = ["GPUs", "offered load", *names, *([] if price is None else ["cost"])]
    told = "Mean wait" if at == "mean" else f"What {at.removeprefix('p')} % of the jobs wait at most"
    cost = "" if price is None else f" Cost: all GPUs until the last job ends under {names[0]}, at {price:g} an hour."
    note = f"{told}, by the size of the cluster.{cost} All rows: sizes.csv."
    return Picture(sentences(swept)[0], lines, x, y, ReportTable(heads, cells), note)


def _column(rows: Sequence[Facts], figure: str) -> FloatArray:
    return np.array([row[figure] for row in rows], dtype=np.float64)


def heat(study: Study, group: PolicyRuns) -> Heat:
    """Use of each GPU over time, in the run of the first seed."""
    run = group.runs[0]
    end_s = min(study.axis_s, run.end_s)
    shown = max(1, int(np.ceil(BINS * end_s / run.end_s))) if run.end_s else BINS
    use = _fewer_rows(run.gpu_use[:, :shown])
    given = number(run.figures["utilisation_percent"])
    said = (
        f"Under {group.policy} {given} % of the GPU time until the last job ends is allocated (seed {group.seeds[0]})"
    )
    rows = "one row per GPU" if len(use) == len(run.gpu_use) else f"one row per {-(-len(run.gpu_use) // len(use))} GPUs"
    return Heat(said, use, time_axis(run.end_s * shown / BINS), rows)


def _fewer_rows(use: FloatArray) -> FloatArray:
    """At most `MAX_ROWS` rows, each the mean of neighbours."""
    together = -(-len(use) // MAX_ROWS)
    if together <= 1:
        return use
    return np.array([use[start : start + together].mean(axis=0) for start in range(0, len(use), together)])


def time_axis(end_s: float) -> Axis:
    """Seconds, minutes, hours or days, whichever has few digits."""
    units = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
    unit, seconds = next((entry for entry in units if end_s >= 3 * entry[1]), units[-1])
    return Axis(f"time ({unit})", max(end_s, 1e-6), lambda value: f"{value / seconds:.4g}", unit=seconds)


TEMPLATES: Final = Environment(
    loader=PackageLoader("aliquot_lab.sim.report", "."),
    autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined,
)  # fmt: skip
TEMPLATES.globals |= {"sizes": SIZES, "png": png}


def page(study: Study, facts: dict[str, Any], times: dict[str, Any] | None, made: Made | None = None) -> str:
    """The whole report as HTML; every number in it is one of `summary.json` (or `timing.json`)."""
    rows = facts["policies"]
    load = f" at load {facts['load']:g}" if facts["load"] is not None else ""
    cluster = facts["cluster"]
    shown: dict[str, Any] = {
        "title": f"{facts['trace']}{load} on {cluster['gpus']:,} GPUs ({cluster['source']})",
        "verdict": verdict(facts),
        "seeds": sorted({seed for row in rows for seed in row["seeds"]}),
        "sizes_picture": sizes(facts["sizes"]) if "sizes" in facts else None,
        "decisions": times and decisions(times),
    }
    if rows:
        shown |= {
            "columns": [column for column in COLUMNS if any(row["mean"].get(column[0]) for row in rows)],
            "by_kind": by_kind(rows),
            "by_user": by_user(rows),
            "more_users": len(rows[0]["users"]) - MAX_USERS,
            "gpu_hours": gpu_hours(rows, priced=facts["gpu_hour_price"] is not None),
            "waits": waits(facts),
            "curves": curves(study, facts),
            "heats": [heat(study, group) for group in study.policies],
        }
    return TEMPLATES.get_template("report.html").render(shown, facts=facts, made=made)
