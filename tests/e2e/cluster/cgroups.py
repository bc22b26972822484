"""The one cgroup of a cluster, in every hierarchy of the machine (v1, v2 or both)."""

import contextlib
import os
import signal
import time
from pathlib import Path

REMOVE_S = 5.0


def hierarchies() -> list[Path]:
    """Mount points of cgroup v1 controllers and of cgroup v2."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(mount) for _, mount, kind, *_ in lines if kind in ("cgroup", "cgroup2")]


def is_unified() -> bool:
    """Whether the machine has cgroup v2 only."""
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()


def create(name: str) -> None:
    """Makes the cgroup where kubelet expects its root: in every v1 controller, or in the one v2 hierarchy."""
    for place in hierarchies():
        if not is_unified() and (place / "cgroup.controllers").exists():
            continue
        if is_unified():
            for controller in (place / "cgroup.controllers").read_text().split():
                with contextlib.suppress(OSError):
                    (place / "cgroup.subtree_control").write_text(f"+{controller}")
        (place / name).mkdir(exist_ok=True)


def members(name: str) -> set[int]:
    """Processes in the cgroup and everything below it."""
    files = [file for place in hierarchies() for file in (place / name).rglob("cgroup.procs")]
    found: set[int] = set()
    for file in files:
        with contextlib.suppress(OSError):
            found.update(map(int, file.read_text().split()))
    return found


def remove(name: str) -> None:
    """Ends what is left inside and removes the cgroup from every hierarchy.

    Raises:
        TimeoutError: a process inside does not end, or the kernel keeps the cgroup.
    """
    deadline = time.monotonic() + REMOVE_S
    while True:
        for pid in members(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        left = [place / name for place in hierarchies() if (place / name).exists()]
        for top in left:
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        left = [path for path in left if path.exists()]
        if not left:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"cgroup {left[0]} does not go away; processes in it: {sorted(members(name))}")
        time.sleep(0.02)
