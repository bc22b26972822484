"""Small charts as inline SVG: lines with bands, and a strip of shades. Colours come from the page's style sheet."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np

from aliquot.lib.arrays import FloatArray

COLOURS: Final = 9
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 44


@dataclass(frozen=True)
class ChartSize:
    """Width and height of a picture in its own units, about how many ticks it has, and where it is shown."""

    width: int
    height: int
    class_: str
    ticks: int


SIZES: Final = (ChartSize(1120, 300, "screen", 5), ChartSize(374, 260, "phone", 3))
"""Each picture is drawn for a screen and for a phone, and the style sheet shows one of them."""


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


def chart(lines: Sequence[ChartLine], x: Axis, y: Axis, label: str) -> str:
    """Lines in one frame; line n has the class `s{n}`, and colours repeat after the ninth."""
    return "".join(_chart(lines, x, y, label, size) for size in SIZES)


def _opening(size: ChartSize, height: int, label: str) -> str:
    named = escape(label, quote=True)
    return f'<svg class="{size.class_}" viewBox="0 0 {size.width} {height}" role="img" aria-label="{named}">'


def _chart(lines: Sequence[ChartLine], x: Axis, y: Axis, label: str, size: ChartSize) -> str:
    parts = [_opening(size, size.height, label), *_frame(x, y, size)]
    for number, line in enumerate(lines):
        if line.low is not None and line.high is not None:
            across = np.concatenate((line.x, line.x[::-1]))
            edge = np.concatenate((line.high, line.low[::-1]))
            parts.append(f'<polygon class="band s{number % COLOURS}" points="{_points(across, edge, x, y, size)}"/>')
    for number, line in enumerate(lines):
        points = _points(line.x, line.y, x, y, size)
        # Gaps through which equal lines that were drawn before are seen; the first line has none.
        gaps = f"{24 * (len(lines) - number) / len(lines):g} {24 * number / len(lines):g}"
        dashes = f' stroke-dasharray="{gaps}"' if number else ""
        parts.append(f'<polyline class="line s{number % COLOURS}"{dashes} points="{points}"/>')
    return "".join([*parts, "</svg>"])


def legend(names: Sequence[str]) -> str:
    """Which colour is which line, in words beside it."""
    items = "".join(f'<li><i class="s{number % COLOURS}"></i>{escape(name)}</li>' for number, name in enumerate(names))
    return f'<ul class="legend">{items}</ul>'


def _frame(x: Axis, y: Axis, size: ChartSize) -> list[str]:
    right, bottom = size.width - _RIGHT, size.height - _BOTTOM
    parts = []
    for value in y.ticks():
        height = _down(y.place(np.array([value])), size)[0]
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{height:.1f}" y2="{height:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{height + 4:.1f}" class="end">{escape(y.tell(value))}</text>')
    for value in x.ticks(size.ticks):
        across = _across(x.place(np.array([value])), size)[0]
        parts.append(f'<line class="tick" x1="{across:.1f}" x2="{across:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text x="{across:.1f}" y="{bottom + 18}" class="mid">{escape(x.tell(value))}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(
        f'<text x="{(_LEFT + right) / 2:.0f}" y="{size.height - 6}" class="mid title">{escape(x.title)}</text>'
    )
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text x="14" y="{middle:.0f}" class="mid title" transform="rotate(-90 14 {middle:.0f})">'
        f"{escape(y.title)}</text>"
    )
    return parts


def _across(place: FloatArray, size: ChartSize) -> FloatArray:
    return np.asarray(_LEFT + place * (size.width - _LEFT - _RIGHT))


def _down(place: FloatArray, size: ChartSize) -> FloatArray:
    return np.asarray(size.height - _BOTTOM - place * (size.height - _TOP - _BOTTOM))


def _points(across: FloatArray, values: FloatArray, x: Axis, y: Axis, size: ChartSize) -> str:
    pairs = zip(_across(np.clip(x.place(across), 0, 1), size), _down(np.clip(y.place(values), 0, 1), size), strict=True)
    return " ".join(f"{px:.1f},{py:.1f}" for px, py in pairs)


def strip(use: FloatArray, x: Axis, label: str) -> str:
    """A row per GPU, shaded by how much of it was given away (0..1), over the same time as the charts."""
    return "".join(_strip(use, x, label, size) for size in SIZES)


def _strip(use: FloatArray, x: Axis, label: str, size: ChartSize) -> str:
    rows = use.shape[0]
    tall = max(48, min(320, rows * 8))
    right, bottom = size.width - _RIGHT, _TOP + tall
    parts = [_opening(size, bottom + _BOTTOM, label)]
    parts.append(
        f'<image x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{tall}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="{png(use)}"/>'
    )
    parts.append(f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{tall}"/>')
    for value in x.ticks(size.ticks):
        across = _across(x.place(np.array([value])), size)[0]
        parts.append(f'<text x="{across:.1f}" y="{bottom + 18}" class="mid">{escape(x.tell(value))}</text>')
    parts.append(f'<text x="{_LEFT - 8}" y="{_TOP + 12}" class="end">GPU 0</text>')
    parts.append(f'<text x="{_LEFT - 8}" y="{bottom}" class="end">{rows - 1}</text>')
    parts.append(f'<text x="{(_LEFT + right) / 2:.0f}" y="{bottom + 38}" class="mid title">{escape(x.title)}</text>')
    return "".join([*parts, "</svg>"])


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
