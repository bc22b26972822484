"""Keeps the history of one program: sums readings, writes a minute at a time in a thread, and answers pages.

The last hour of every tenant is a ring in memory, so that its history needs neither a file nor another program: five
numbers a point, a point each `step_s` seconds. A tenant that left keeps its points until they fall out of the hour;
then its ring goes too. 4,000 tenants at 5 s take 58 MB. Points are kept by a monotonic clock, and shown by the wall
clock of that moment: where the wall's clock is put back, the hour is neither interrupted nor out of order.

Nothing waits for the disk but that thread and who asks for the history. Minutes that cannot be written are tried again
with the next one, a quarter of an hour of them at most; what does not come through is a gap, and pages say why.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from aliquot.status import Gpu, History, Hours, Range, Series, Timeline
from aliquot.status.history import NO_HOURS, QUARTER_S, Reading, Uses
from aliquot.web.history.file import HistoryFile, Limits, hours_of, timeline_of, uses_of
from aliquot.web.history.points import Minute, MinuteSums
from aliquot.web.log import defect, notice

T = TypeVar("T", Timeline, Hours, Uses)
WAITING: Final = 15
_STOP_S: Final = 10.0
METRICS: Final = ("usage_milli", "wait_ms", "quota_ms", "debt_ms", "memory_mib")
HOUR_S: Final = 3600.0


class HistoryRing:
    """The last hour of a set of GPUs. May be used from any thread."""

    def __init__(self, step_s: float = 5.0, span_s: float = HOUR_S) -> None:
        self.step_s = step_s
        self._length = max(2, round(span_s / step_s))
        self._at_s: deque[float] = deque(maxlen=self._length)
        self._count = 0
        self._rings: dict[str, dict[str, NDArray[np.float32]]] = {}
        """Of each GPU and tenant the metrics; the place of a point is its number modulo the length."""
        self._lock = threading.Lock()

    @property
    def due_s(self) -> float:
        """The moment from which on the next point is wanted."""
        return self._at_s[-1] + self.step_s if self._at_s else -math.inf

    def add(self, at_s: float, gpus: Iterable[Gpu]) -> None:
        """One point of every tenant on every GPU that is measured."""
        with self._lock:
            place = self._count % self._length
            for rings in self._rings.values():
                for points in rings.values():
                    points[:, place] = np.nan
            for gpu in (gpu for gpu in gpus if gpu.measured):
                rings = self._rings.setdefault(gpu.uuid, {})
                for share in gpu.shares:
                    if share.tenant not in rings:
                        rings[share.tenant] = np.full((len(METRICS), self._length), np.nan, np.float32)
                    point = (share.usage_milli, share.wait_ms, share.quota_ms, share.debt_ms, share.memory_used_mib)
                    rings[share.tenant][:, place] = point
            self._at_s.append(at_s)
            self._count += 1
            if self._count % 60 == 0:  # forget the tenants that left an hour ago
                for uuid, rings in list(self._rings.items()):
                    self._rings[uuid] = {name: points for name, points in rings.items() if not np.isnan(points).all()}
                    if not self._rings[uuid]:
                        del self._rings[uuid]

    def read(self, gpu: str, seconds: float, clock_offset_s: float = 0.0) -> History:
        """The last `seconds` of a GPU, current and former tenants, by name.

        `clock_offset_s` is the clock of the answer less the clock by which points were added.
        """
        with self._lock:
            at_s = [round(moment + clock_offset_s, 3) for moment in self._at_s]
            first_kept = self._count - len(at_s)
            wanted = min(len(at_s), max(1, math.ceil(seconds / self.step_s))) if at_s else 0
            first = self._count - wanted
            places = np.arange(first, self._count) % self._length
            found = {name: points[:, places] for name, points in sorted(self._rings.get(gpu, {}).items())}
            series = [
                Series(
                    name, *([None if math.isnan(value) else round(value, 2) for value in row] for row in kept.tolist())
                )
                for name, kept in found.items()
                if not np.isnan(kept).all()
            ]
            return History(gpu, self.step_s, at_s[first - first_kept :], series)


@dataclass
class LongHistory:
    """The history in a file; in memory, and of two hours only, where `path` is None. `close` ends it."""

    path: Path | None
    limits: Limits | None = None
    wall: Callable[[], float] = time.time
    _recorder: MinuteSums = field(init=False, default_factory=MinuteSums)
    _hour: HistoryRing = field(init=False, default_factory=HistoryRing)
    _file: HistoryFile | None = field(init=False, default=None)
    _why: str = field(init=False, default="")
    _opening: threading.Lock = field(init=False, default_factory=threading.Lock)
    _ended: queue.Queue[Minute | None] = field(init=False, default_factory=queue.Queue)
    _waiting: deque[Minute] = field(init=False, default_factory=lambda: deque(maxlen=WAITING))
    _thread: threading.Thread | None = field(init=False, default=None)

    def see(self, now_s: float, readings: Sequence[Reading]) -> None:
        """Add a reading; `now_s` is of a clock that only goes forward. One caller at a time."""
        if now_s >= self._hour.due_s:
            self._hour.add(now_s, (reading.gpu for reading in readings))
        ended = self._recorder.see(now_s, self.wall(), readings)
        if ended is not None:
            self._put(ended)

    def settle(self) -> None:
        """Wait until every minute that has ended was written, or could not be."""
        self._ended.join()

    def close(self) -> None:
        """Write what was read last and close the file."""
        last = self._recorder.end()
        if last is not None:
            self._put(last)
        if self._thread is not None:
            self._ended.put(None)
            self._thread.join(_STOP_S)
        if self._file is not None:
            self._file.close()

    def last_hour(self, gpu: str, seconds: float) -> History:
        """See `Recorder`; by the wall's clock of now."""
        return self._hour.read(gpu, seconds, self.wall() - time.monotonic())

    def timeline(self, gpu: str, span: Range) -> Timeline:
        """See `Past`."""
        nothing = Timeline(gpu, 0, 0, span.step_s, [], [], [])
        return self._read(lambda file: timeline_of(file, gpu, span, self.wall()), nothing)

    def hours(self, span: Range) -> Hours:
        """See `Past`."""
        until = -int(-self.wall() // QUARTER_S) * QUARTER_S
        nothing = Hours(until - span.seconds, until, 0.0, [], NO_HOURS)
        return self._read(lambda file: hours_of(file, span, self.wall()), nothing)

    def uses(self, span: Range) -> Uses:
        """See `Past`."""
        return self._read(lambda file: uses_of(file, span, self.wall()), Uses(0, 0, []))

    def _read(self, work: Callable[[HistoryFile], T], nothing: T) -> T:
        """What is found in the file; `nothing` where it cannot be read, with the reason."""
        try:
            file = self._opened()
            found, note = work(file), self._why or file.note
        except OSError as error:
            found, note = nothing, f"The history cannot be read: {error}"
        return msgspec.structs.replace(found, note=note)

    def _put(self, minute: Minute) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="web-history", daemon=True)
            self._thread.start()
        self._ended.put(minute)

    def _opened(self) -> HistoryFile:
        with self._opening:
            if self._file is None:
                self._file = HistoryFile(self.path, self.limits)
            return self._file

    def _write_all(self) -> None:
        while True:
            minute = self._ended.get()
            try:
                if minute is not None:
                    self._waiting.append(minute)
                file = self._opened()
                while self._waiting:
                    file.add(self._waiting[0])
                    self._waiting.popleft()
                if self._why:
                    self._why = ""
                    notice("the history is written again")
            except OSError as error:
                said = f"The history cannot be written: {error}"
                if said != self._why:
                    notice(said)
                self._why = said
            except Exception as error:
                self._waiting.clear()  # not again the one that it was
                defect("recording the history failed", error)
            finally:
                self._ended.task_done()
            if minute is None:
                return
