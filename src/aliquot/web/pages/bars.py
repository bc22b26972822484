"""Shares as widths: the parts of a GPU's bar, in thousandths of its length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aliquot.model.quantities import format_milli
from aliquot.status import Gpu

SHADES = 6
"""As many as `aliquot.css` has colours for tenants."""


class BarPart(NamedTuple):
    """A rectangle of a bar: from, how long, in which shade."""

    x: int
    width: int
    shade: int


class Bar(NamedTuple):
    """Two lanes: the promised and the used part, and the same in words."""

    promised: list[BarPart]
    used: list[BarPart]
    words: str


def compute_bar(gpu: Gpu) -> Bar:
    """Compute: 1000 is the whole GPU."""
    promised = _lane([share.request_milli for share in gpu.shares])
    used = _lane([share.usage_milli for share in gpu.shares] if gpu.measured else [])
    got = f"{gpu.busy_milli / 1000:.2f} used" if gpu.measured else "use not known"
    words = f"{format_milli(1000 - gpu.free_milli)} promised, {got}"
    return Bar(promised, used, words)


def memory_bar(gpu: Gpu) -> Bar:
    """Memory: 1000 is all of the device's."""
    size = max(1, gpu.memory_mib)
    promised = _lane([share.memory_mib * 1000 // size for share in gpu.shares])
    used = _lane([share.memory_used_mib * 1000 // size for share in gpu.shares] if gpu.measured else [])
    got = f"{gpu.memory_used_mib / 1024:.1f} GiB used" if gpu.measured else "use not known"
    words = f"{(gpu.memory_mib - gpu.free_mib) / 1024:.1f} GiB promised, {got}"
    return Bar(promised, used, words)


def with_bars(gpus: Iterable[Gpu]) -> list[tuple[Gpu, Bar, Bar]]:
    """Each GPU with its bars of compute and of memory."""
    return [(gpu, compute_bar(gpu), memory_bar(gpu)) for gpu in gpus]


def _lane(lengths: list[int]) -> list[BarPart]:
    """Parts end to end; what would exceed the end is cut off."""
    parts, at = [], 0
    for number, length in enumerate(lengths):
        width = min(length, 1000 - at)
        if width > 0:
            parts.append(BarPart(at, width, number % SHADES))
            at += width
    return parts
