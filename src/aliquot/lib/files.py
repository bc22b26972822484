"""State files of programs: read without ever blocking on a FIFO, and written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 64 << 20
UNFINISHED: Final = ".new"
"""How the name of a file ends while `write_whole` fills it."""


def open_plain(path: Path, flags: int, mode: int = 0o600) -> int:
    """A descriptor of a plain file or character device; a FIFO is refused without blocking on it.

    Raises:
        OSError: it cannot be opened, or is not a plain file.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    kind = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISCHR(kind)):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return descriptor


def read_plain(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """All of a plain file.

    Raises:
        OSError: it cannot be read, is not a plain file, or is longer than `max_bytes`.
    """
    with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"longer than {max_bytes} bytes", str(path))
    return data


def write_whole(path: Path, data: bytes, *, synced: bool, mode: int = 0o600) -> None:
    """Replace a file's content, so that readers, also after a crash, see either the old or the new content.

    `synced`: when this returns the data also survives a power cut; without it only the death of this process. Of two
    processes that write one file at once, one may fail. The file's folder is made, for its owner alone, where it is
    missing.

    Raises:
        OSError: it cannot be written, and names the file; the old content is unchanged.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(path.name + UNFINISHED)
    try:
        with os.fdopen(open_plain(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        error.filename = error.filename or str(path)  # a failed write names no file
        raise
    if synced:
        on_disk(path.parent)


def on_disk(path: Path) -> None:
    """Wait until a file's or folder's content survives a power cut.

    Raises:
        OSError: it cannot be written.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
