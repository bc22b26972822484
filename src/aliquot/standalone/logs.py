"""What a container prints, kept in a file that never grows past a bound.

The program writes into a pipe and a thread copies: a program can print for months, and its log holds the last
megabytes. Two files alternate; the newer continues the older. Output that a full disk does not take is lost, and the
log says so as soon as it can: a full disk never stops a program.
"""

from __future__ import annotations

import errno
import io
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aliquot.model.errors import UserError, in_words
from aliquot.standalone.wire import LogCut

HALF_BYTES: Final = 4 << 20
FOLLOW_POLL_S: Final = 0.2
MARK_EVERY_S: Final = 0.1
MARKS_KEPT: Final = 100_000
ALL: Final = LogCut()
_CHUNK_BYTES: Final = 65536


class NoPreviousRun(UserError):
    """The container has not run before."""


class ContainerLog:
    """One container's log; `path` is the newer half and `path.1` the older.

    Positions count from the first byte that was ever kept. When it was written is known to `MARK_EVERY_S`; what lay
    there before counts as written when the file last changed.
    """

    def __init__(self, path: Path, *, half_bytes: int = HALF_BYTES) -> None:
        self.path = path
        self.older = path.with_name(path.name + ".1")
        self._half_bytes = half_bytes
        self._lock = threading.Lock()
        self._lost_bytes, self._why = 0, ""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._start = 0
        self._marks: deque[tuple[float, int]] = deque(maxlen=MARKS_KEPT)
        self._runs: deque[int] = deque(maxlen=2)
        if path.exists():
            self._marks.append((path.stat().st_mtime, 0))

    def append(self, data: bytes) -> None:
        """Append; the oldest part is dropped when there is too much."""
        with self._lock:
            now_s = time.time()
            if not self._marks or now_s - self._marks[-1][0] >= MARK_EVERY_S:
                self._marks.append((now_s, self._end()))
            text = data
            if self._lost_bytes:
                text = f"aliquot: {self._lost_bytes} bytes were not kept: {self._why}\n".encode() + data
            try:
                size = self.path.stat().st_size if self.path.exists() else 0
                if size and size + len(text) > self._half_bytes:
                    if self.older.exists():
                        self._start += self.older.stat().st_size
                    self.path.replace(self.older)
                    size = 0
                with self.path.open("ab", buffering=0) as log:
                    if log.write(text) != len(text):  # all of it or nothing
                        log.truncate(size)
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._lost_bytes = 0
            except OSError as error:
                self._lost_bytes += len(data)
                self._why = in_words(error)

    def begin_run(self) -> None:
        """The program starts: what comes now is another run's output."""
        with self._lock:
            self._runs.append(self._end())

    def copy_from(self, descriptor: int) -> threading.Thread:
        """Copy a pipe into the log until its last writer is gone; closes the descriptor."""

        def copy() -> None:
            try:
                while data := os.read(descriptor, _CHUNK_BYTES):
                    self.append(data)
            finally:
                os.close(descriptor)

        thread = threading.Thread(target=copy, name=f"log-{self.path.name}", daemon=True)
        thread.start()
        return thread

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self.path.unlink(missing_ok=True)
            self.older.unlink(missing_ok=True)
            self._start = 0
            self._marks.clear()
            self._runs.clear()

    def text(self, cut: LogCut = ALL) -> bytes:
        """All that is kept, or a part of it.

        Raises:
            NoPreviousRun: the previous run is wanted, and there was none.
        """
        return self._text_and_position(cut)[0]

    def follow(self, cut: LogCut = ALL) -> Iterator[bytes]:
        """What is kept, or a part of it, then new output; an empty piece whenever nothing new arrived for a moment."""
        text, (inode, at) = self._text_and_position(cut)
        yield text
        while True:
            time.sleep(FOLLOW_POLL_S)
            new_inode, size = self._position()
            if new_inode != inode:  # turned over: the rest of what was the newer half, then the new one
                rest = self._read(self.older, at)
                inode, at = new_inode, 0
                yield rest
            elif size > at:
                piece = self._read(self.path, at)
                at += len(piece)
                yield piece
            else:
                yield b""

    def _end(self) -> int:
        return self._start + sum(path.stat().st_size for path in (self.older, self.path) if path.exists())

    def _text_and_position(self, cut: LogCut) -> tuple[bytes, tuple[int, int]]:
        """Both of one moment, so that new output is neither missed nor repeated."""
        with self._lock:
            text = b"".join(path.read_bytes() for path in (self.older, self.path) if path.exists())
            first, last = self._start, self._end()
            if cut.previous:
                began = self._runs[-1] if self._runs else first
                if began <= first:
                    raise NoPreviousRun(
                        "the container has not run before, or nothing of it is kept; leave --previous out"
                    )
                first, last = max(first, self._runs[0]) if len(self._runs) > 1 else first, began
            if cut.since_s is not None:
                oldest_s = time.time() - cut.since_s
                first = max(first, next((position for when_s, position in self._marks if when_s >= oldest_s), last))
            last = max(first, last)
            part = text[first - self._start : last - self._start]
            if cut.tail is not None:
                part = b"".join(deque(io.BytesIO(part), maxlen=cut.tail))  # the last lines
            return part, self._position()

    def _position(self) -> tuple[int, int]:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_ino, status.st_size

    def _read(self, path: Path, at: int) -> bytes:
        if not path.exists():
            return b""
        with path.open("rb") as log:
            log.seek(at)
            return log.read()
