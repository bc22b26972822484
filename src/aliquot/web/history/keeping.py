"""Keeps the history of one program: sums readings, writes a minute at a time in a thread, and answers pages.

Nothing waits for the disk but that thread and who asks for the history. Minutes that cannot be written are tried again
with the next one, a quarter of an hour of them at most; what does not come through is a gap, and pages say why.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from aliquot.status import History, HourLine, Hours, Range, Timeline
from aliquot.status.history import Reading
from aliquot.web.history.file import QUARTER_S, HistoryFile, Limits
from aliquot.web.history.reading import hours_of, timeline_of
from aliquot.web.history.recorder import Minute, MinuteSums
from aliquot.web.history.ring import HistoryRing
from aliquot.web.log import defect, notice

WAITING: Final = 15
_STOP_S: Final = 10.0


class LongHistory:
    """The history in a file; in memory, and of two hours only, where `path` is None. `close` ends it."""

    def __init__(
        self,
        path: Path | None,
        limits: Limits | None = None,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._limits = limits
        self._wall = wall
        self._recorder = MinuteSums()
        self._hour = HistoryRing()
        self._file: HistoryFile | None = None
        self._why = ""
        self._opening = threading.Lock()
        self._ended: queue.Queue[Minute | None] = queue.Queue()
        self._waiting: deque[Minute] = deque(maxlen=WAITING)
        self._thread: threading.Thread | None = None

    def see(self, now_s: float, readings: Sequence[Reading]) -> None:
        """Add a reading; `now_s` is of a clock that only goes forward. One caller at a time."""
        if now_s >= self._hour.due_s:
            self._hour.add(now_s, (reading.gpu for reading in readings))
        ended = self._recorder.see(now_s, self._wall(), readings)
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
        return self._hour.read(gpu, seconds, self._wall() - time.monotonic())

    def timeline(self, gpu: str, span: Range) -> Timeline:
        """See `Past`."""
        try:
            file = self._opened()
            found = timeline_of(file, gpu, span, self._wall())
        except OSError as error:
            return Timeline(gpu, 0, 0, span.step_s, [], [], [], f"The history cannot be read: {error}")
        return msgspec.structs.replace(found, note=self._why or file.note)

    def hours(self, span: Range) -> Hours:
        """See `Past`."""
        try:
            file = self._opened()
            found = hours_of(file, span, self._wall())
        except OSError as error:
            until = -int(-self._wall() // QUARTER_S) * QUARTER_S
            nothing = HourLine("", "", "", 0, 0, 0, 0, 0, 0)
            return Hours(until - span.seconds, until, 0.0, [], nothing, f"The history cannot be read: {error}")
        return msgspec.structs.replace(found, note=self._why or file.note)

    def _put(self, minute: Minute) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="web-history", daemon=True)
            self._thread.start()
        self._ended.put(minute)

    def _opened(self) -> HistoryFile:
        with self._opening:
            if self._file is None:
                self._file = HistoryFile(self._path, self._limits)
            return self._file

    def _write_all(self) -> None:
        while True:
            minute = self._ended.get()
            try:
                if minute is not None:
                    self._waiting.append(minute)
                self._write()
            except OSError as error:
                self._failed(str(error))
            except Exception as error:
                self._waiting.clear()  # not again the one that it was
                defect("recording the history failed", error)
            finally:
                self._ended.task_done()
            if minute is None:
                return

    def _write(self) -> None:
        file = self._opened()
        while self._waiting:
            file.add(self._waiting[0])
            self._waiting.popleft()
        if self._why:
            self._why = ""
            notice("the history is written again")

    def _failed(self, why: str) -> None:
        said = f"The history cannot be written: {why}"
        if said != self._why:
            notice(said)
        self._why = said
