"""What a container prints, kept in a file that never grows past a bound.

The program writes into a pipe and a thread copies: a program can then print for months, and its log holds the last
megabytes. Two files take turns, the newer one continues the older. What a disk does not take is lost, and the log says
so as soon as it can: a full disk never stops a program.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aliquot.model.errors import in_words

HALF_BYTES: Final = 4 << 20
FOLLOW_POLL_S: Final = 0.2
_CHUNK_BYTES: Final = 65536


class ContainerLog:
    """One container's log; `path` is the newer half and `path.1` the older."""

    def __init__(self, path: Path, *, half_bytes: int = HALF_BYTES) -> None:
        self.path = path
        self.older = path.with_name(path.name + ".1")
        self._half_bytes = half_bytes
        self._lock = threading.Lock()
        self._lost_bytes, self._why = 0, ""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    def append(self, data: bytes) -> None:
        """Append; the oldest part is dropped when there is too much."""
        with self._lock:
            lost = (
                f"aliquot: {self._lost_bytes} bytes were not kept: {self._why}\n".encode() if self._lost_bytes else b""
            )
            try:
                self._write(lost + data)
                self._lost_bytes = 0
            except OSError as error:
                self._lost_bytes += len(data)
                self._why = in_words(error)

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

    def text(self) -> bytes:
        """All that is kept."""
        return self._text_and_position()[0]

    def follow(self) -> Iterator[bytes]:
        """All that is kept, then new output; an empty piece whenever nothing new arrived for a moment."""
        text, (inode, at) = self._text_and_position()
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

    def _write(self, data: bytes) -> None:
        """All of it or nothing."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size and size + len(data) > self._half_bytes:
            self.path.replace(self.older)
            size = 0
        with self.path.open("ab", buffering=0) as log:
            if log.write(data) != len(data):
                log.truncate(size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _text_and_position(self) -> tuple[bytes, tuple[int, int]]:
        """Both of one moment, so that new output is neither missed nor repeated."""
        with self._lock:
            text = b"".join(path.read_bytes() for path in (self.older, self.path) if path.exists())
            return text, self._position()

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
