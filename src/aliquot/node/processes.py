"""Processes of this node: read from /proc, and ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

from aliquot.node.audit import Program

PROC: Final = Path("/proc")
DEVICES: Final = "/dev/nvidia"
EMULATED: Final = "/engine.shm"
MOST_FILES: Final = 4096


def read_program(pid: int, proc: Path = PROC) -> Program | None:
    """The process of that number in this pid namespace; None if there is none, or it ends just now."""
    folder = proc / str(pid)
    try:
        head, _, rest = (folder / "stat").read_text(errors="replace").rpartition(")")
        fields = rest.split()
        cgroup = (folder / "cgroup").read_text(errors="replace")
    except (OSError, ValueError):
        return None
    # The program chose its name, and people read it in a log.
    name = "".join(sign if sign.isprintable() else "?" for sign in head.partition("(")[2])
    if fields[0] in ("Z", "X"):
        return None
    return Program(pid, fields[19], name, cgroup, _drives(folder), fields[0] in ("T", "t"))


def end_program(program: Program) -> bool:
    """KILL exactly this process, never one that has its number since; whether it was there to be killed."""
    try:
        descriptor = os.pidfd_open(program.pid)
    except OSError:
        return False
    try:
        now = read_program(program.pid)
        if now is None or now.began != program.began:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _drives(folder: Path) -> bool | None:
    """Whether it has a device of the driver open, or the shared state of an emulated machine.

    None where we may not look, which needs CAP_SYS_PTRACE or no more capabilities on its side than on ours.
    """
    try:
        with os.scandir(folder / "fd") as entries:
            return any(_is_driver(Path(entry.path)) for _, entry in zip(range(MOST_FILES), entries, strict=False))
    except OSError:
        return None


def _is_driver(descriptor: Path) -> bool:
    try:
        target = str(descriptor.readlink())
    except OSError:
        return False
    return target.startswith(DEVICES) or target.endswith(EMULATED)
