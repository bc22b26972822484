"""Where the lines, bands and ticks of small charts lie; charts.html draws them, in the colours of report.css."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from aliquot.lib.arrays import FloatArray


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
