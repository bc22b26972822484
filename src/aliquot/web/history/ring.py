"""One hour of every tenant in memory: a ring of fixed size, so that history needs no other program.

Five numbers a point, a point each `step_s` seconds. A tenant that left keeps its points until they fall out of the
hour; then its ring goes too. 4,000 tenants at 5 s take 58 MB.

Points are kept by a monotonic clock, and shown by the wall clock of that moment: where the wall's clock is put
back, the hour is neither interrupted nor out of order.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections import deque
from collections.abc import Iterable
from typing import Final

from aliquot.status import Gpu, History, Series, Share

METRICS: Final = ("usage_milli", "wait_ms", "quota_ms", "debt_ms", "memory_mib")
HOUR_S: Final = 3600.0
_NAN: Final = math.nan


class _Ring:
    """One tenant's points; the slot of a point is its number modulo the length."""

    __slots__ = ("columns", "last")

    def __init__(self, length: int) -> None:
        self.columns = [array("f", [_NAN]) * length for _ in METRICS]
        self.last = -1

    def put(self, number: int, values: Iterable[float]) -> None:
        length = len(self.columns[0])
        for gap in range(max(self.last + 1, number - length + 1), number):
            for column in self.columns:
                column[gap % length] = _NAN
        for column, value in zip(self.columns, values, strict=True):
            column[number % length] = value
        self.last = number

    def get(self, metric: int, first: int, end: int) -> list[float | None]:
        column = self.columns[metric]
        length = len(column)
        return [
            None if n > self.last or math.isnan(value := column[n % length]) else round(value, 2)
            for n in range(first, end)
        ]


class HistoryRing:
    """The last hour of a set of GPUs. May be used from any thread."""

    def __init__(self, step_s: float = 5.0, span_s: float = HOUR_S) -> None:
        self.step_s = step_s
        self._length = max(2, round(span_s / step_s))
        self._at_s: deque[float] = deque(maxlen=self._length)
        self._count = 0
        self._rings: dict[str, dict[str, _Ring]] = {}
        self._lock = threading.Lock()

    @property
    def due_s(self) -> float:
        """The moment from which on the next point is wanted."""
        return self._at_s[-1] + self.step_s if self._at_s else -math.inf

    def add(self, at_s: float, gpus: Iterable[Gpu]) -> None:
        """One point of every tenant on every GPU that is measured."""
        with self._lock:
            self._add(at_s, gpus)

    def read(self, gpu: str, seconds: float, clock_offset_s: float = 0.0) -> History:
        """The last `seconds` of a GPU, current and former tenants, by name.

        `clock_offset_s` is the clock of the answer less the clock by which points were added.
        """
        with self._lock:
            at_s = [round(moment + clock_offset_s, 3) for moment in self._at_s]
            first_kept = self._count - len(at_s)
            wanted = min(len(at_s), max(1, math.ceil(seconds / self.step_s))) if at_s else 0
            first = self._count - wanted
            series = [
                Series(name, *(ring.get(metric, first, self._count) for metric in range(len(METRICS))))
                for name, ring in sorted(self._rings.get(gpu, {}).items())
                if ring.last >= first
            ]
            return History(gpu, self.step_s, at_s[first - first_kept :], series)

    def _add(self, at_s: float, gpus: Iterable[Gpu]) -> None:
        number = self._count
        for gpu in gpus:
            if not gpu.measured:
                continue
            rings = self._rings.setdefault(gpu.uuid, {})
            for share in gpu.shares:
                ring = rings.get(share.tenant)
                if ring is None:
                    ring = rings[share.tenant] = _Ring(self._length)
                ring.put(number, _values(share))
        self._at_s.append(at_s)
        self._count += 1
        if self._count % 60 == 0:
            self._forget()

    def _forget(self) -> None:
        oldest = self._count - self._length
        left = {
            gpu: {name: ring for name, ring in rings.items() if ring.last >= oldest}
            for gpu, rings in self._rings.items()
        }
        self._rings = {gpu: rings for gpu, rings in left.items() if rings}


def _values(share: Share) -> tuple[float, ...]:
    return (share.usage_milli, share.wait_ms, share.quota_ms, share.debt_ms, share.memory_used_mib)
