"""The report's pictures: curves over time, waits, use of each GPU, and waits by the size of the cluster.

Where the lines, bands and ticks of small charts lie is here too; charts.html draws them, in the colours of report.css.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from aliquot.lib.arrays import FloatArray
from aliquot_lab.sim.figures import BINS
from aliquot_lab.sim.report.findings import ReportTable, finding, waiting
from aliquot_lab.sim.sizes import sentences
from aliquot_lab.sim.study import PolicyRuns, Study
from aliquot_lab.sim.wording import duration, number


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


Facts = Mapping[str, Any]
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
