"""Who listens on a TCP port of this machine, for the message that it is taken."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_LISTENING: Final = "0A"
_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")


def listener(port: int) -> str:
    """The program that listens on a port, as `python3 (pid 42)`; empty where the kernel does not let us know."""
    wanted = {f"socket:[{inode}]" for table in _TABLES for inode in _inodes(Path(table), port)}
    for process in Path("/proc").iterdir() if wanted else ():
        if not process.name.isdecimal():
            continue
        try:
            descriptors = list((process / "fd").iterdir())
            held = any(os.readlink(descriptor) in wanted for descriptor in descriptors)  # noqa: PTH115 (no path)
            name = (process / "comm").read_text().strip() if held else ""
        except OSError:  # it has ended meanwhile, or is another user's
            continue
        if held:
            return f"{name} (pid {process.name})"
    return ""


def _inodes(table: Path, port: int) -> list[str]:
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []
    return [row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port]
