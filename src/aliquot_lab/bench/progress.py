"""How far a client is, readable by others while it runs.

A client keeps its counts in a small memory-mapped file: one page of totals and, on request, a ring of the last
intervals (gate passed, work ended). Nothing is sent while a measurement runs, so measuring costs the client a few
stores. Times are CLOCK_MONOTONIC nanoseconds, the same clock in every process of the machine.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path
from typing import Final, NamedTuple

RING: Final = 8192
_HEADER: Final = struct.Struct("<QQQQQQ")
_INTERVAL: Final = struct.Struct("<QQQ")
_RING_AT: Final = 4096
_SIZE: Final = _RING_AT + RING * _INTERVAL.size


class ProgressTotals(NamedTuple):
    """What a client has done so far; `kernel_ns` is the GPU time of its completed kernels, by their definition."""

    at_ns: int
    ready_ns: int
    launched: int
    completed: int
    kernel_ns: int
    intervals: int


class Interval(NamedTuple):
    """One turn of a synchronous client: asked for the launch, launch returned, work seen finished."""

    asked_ns: int
    launched_ns: int
    ended_ns: int


class ProgressWriter:
    """The client's side. One writer per file."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(_SIZE)
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self.ready_ns = self.launched = self.completed = self.kernel_ns = self.intervals = 0

    def ready(self) -> None:
        """The first kernel has completed: from here on, counts mean something."""
        self.ready_ns = time.monotonic_ns()
        self.store()

    def store(self) -> None:
        """Make the present counts visible."""
        now_ns = time.monotonic_ns()
        counts = (now_ns, self.ready_ns, self.launched, self.completed, self.kernel_ns, self.intervals)
        self._map[: _HEADER.size] = _HEADER.pack(*counts)  # pack_into clears first, which a reader may see

    def interval(self, asked_ns: int, launched_ns: int, ended_ns: int) -> None:
        """Remember one turn in the ring."""
        at = _RING_AT + (self.intervals % RING) * _INTERVAL.size
        _INTERVAL.pack_into(self._map, at, asked_ns, launched_ns, ended_ns)
        self.intervals += 1


def read_totals(path: Path) -> ProgressTotals | None:
    """The counts in `path`, or None while the client has not completed its first kernel."""
    try:
        with path.open("rb") as file:
            raw = file.read(_HEADER.size)
    except FileNotFoundError:
        return None
    if len(raw) < _HEADER.size:
        return None
    totals = ProgressTotals(*_HEADER.unpack(raw))
    return totals if totals.ready_ns else None


def read_intervals(path: Path) -> list[Interval]:
    """The last `RING` turns of a client that has ended or rests, oldest first."""
    raw = path.read_bytes()
    count = ProgressTotals(*_HEADER.unpack_from(raw)).intervals
    first = max(0, count - RING)
    places = (_RING_AT + (index % RING) * _INTERVAL.size for index in range(first, count))
    return [Interval(*_INTERVAL.unpack_from(raw, place)) for place in places]
