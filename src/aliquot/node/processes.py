"""Reads processes of this node from /proc, and ends them.

A process chooses its own name, also in a container.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aliquot.driver.modules import PROC, driver_majors, has_driver_open

_POD: Final = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_CONTAINER: Final = re.compile(r"([0-9a-f]{64})")


@dataclass(frozen=True)
class GpuProgram:
    """A running process of the node; `began` distinguishes it from a later process with the same number."""

    pid: int
    began: str
    name: str = ""
    cgroup: str = ""
    drives: bool | None = None
    """Whether it has a driver's device open; None without permission to check."""
    stopped: bool = False


def read_program(pid: int, proc: Path = PROC) -> GpuProgram | None:
    """The process of that number in this pid namespace; None if it does not exist, or is ending."""
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
    drives = has_driver_open(folder, driver_majors(proc))
    return GpuProgram(pid, fields[19], name, cgroup, drives, fields[0] in ("T", "t"))


def pods_with_processes(proc: Path = PROC) -> set[str]:
    """The uids of the pods of which a process runs on this node, as far as this pid namespace shows it."""
    found = set()
    for cgroup in proc.glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):  # it has ended
            found.add(pod_of(cgroup.read_text(errors="replace"))[0])
    return found - {""}


def end_program(program: GpuProgram) -> bool:
    """Send SIGKILL to exactly this process, never to a later one with its pid; returns whether it existed."""
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


def pod_of(cgroup: str) -> tuple[str, str]:
    """The pod's uid and the container's id in a cgroup's path, as kubelet's drivers cgroupfs and systemd write it.

    Both empty where there is none, as for a process of the node itself.
    """
    pod = _POD.search(cgroup)
    if pod is None:
        return "", ""
    container = _CONTAINER.search(cgroup, pod.end())
    return pod.group(1).replace("_", "-"), container.group(1) if container else ""
