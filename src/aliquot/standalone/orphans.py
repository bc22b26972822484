"""Ends processes that outlive their tenant's program, found by the tenant's files mounted in their namespace.

A program starts in a mount namespace of its own, in which the loader's cache is a file of its tenant's folder (see
`driver.enter`). Its children are in that namespace too, whatever session they make, whatever signal they ignore and
whatever their parent is by now. So an engine can find the tenant of a process, also when the engine that started it was
killed. Where the kernel refuses such a namespace, the environment that a process was started with names the folder.
A container of a tenant shows a file of its folder too, at a path of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from aliquot.driver.injection import caches
from aliquot.driver.modules import PROC, driver_majors, has_driver_open
from aliquot.driver.mounts import SYSTEM_CACHE
from aliquot.model.ids import TenantName
from aliquot.standalone.wire import RunProcess
from aliquot.tenancy.folders import MARK

END_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.01
IN_CONTAINER: Final = Path("/run/aliquot.tenant")
"""Where a container shows the mark of its tenant's folder."""
_IDS: Final = re.compile(
    rb"(?:(docker|libpod|overlay|vfs|btrfs)(?:-|/|-containers/)|/containers/)([0-9a-f]{12})[0-9a-f]{52}"
)
"""A container's id in the name of its cgroup or of a folder of its files; docker's are in `containers` somewhere."""


def end_orphans(
    folders: Iterable[Path], *, container: str | None = None, grace_s: float = 0.0, on_gpu: bool = False
) -> list[int]:
    """End every process of the tenants with these folders, or of one container of theirs; returns those ended.

    With `on_gpu` only those that have a GPU open. They have `grace_s` to end by SIGTERM, then SIGKILL comes. A process
    that the kernel does not let go, as one that waits for a disk, is given up after `END_TIMEOUT_S`.
    """
    is_theirs = _membership(list(folders), container)
    majors = driver_majors() if on_gpu else frozenset()

    def belongs(pid: int) -> bool:
        return is_theirs(pid) and (not on_gpu or has_driver_open(PROC / str(pid), majors) is True)

    began_s = time.monotonic()
    signalled: set[int] = set()
    while living := [pid for pid in _pids() if pid != os.getpid() and belongs(pid)]:
        passed_s = time.monotonic() - began_s
        if passed_s > grace_s + END_TIMEOUT_S:
            break
        for pid in living:
            if passed_s >= grace_s:
                _signal(pid, signal.SIGKILL, belongs)
            elif pid not in signalled:
                _signal(pid, signal.SIGTERM, belongs)
        signalled |= set(living)
        time.sleep(_POLL_S)
    return sorted(signalled - set(living))


def pids_of(folder: Path) -> list[int]:
    """The processes of the tenant with this folder."""
    return list(filter(_membership([folder], None), _pids()))


def named_processes(
    folders: Mapping[TenantName, Path], among: Iterable[int] | None = None
) -> dict[str, list[RunProcess]]:
    """The processes of each tenant, by its folder, in the order of their ids, with their command lines.

    Of all processes, or of those `among` these.
    """
    pids = sorted(_pids() if among is None else among)
    seen = {pid: _seen_by(pid) for pid in pids}
    processes: dict[str, list[RunProcess]] = {}
    for tenant, folder in folders.items():
        processes[tenant] = []
        for pid in filter(_membership([folder], None, seen.get), pids):
            words: list[bytes] = []
            with contextlib.suppress(OSError):  # it is gone
                words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            command = shlex.join(word.decode(errors="replace") for word in words)
            processes[tenant].append(RunProcess(pid, command, _container_of(pid)))
    return processes


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 (for each process there is)


def _membership(
    folders: list[Path], container: str | None, seen_by: Callable[[int], set[tuple[int, int]] | None] | None = None
) -> Callable[[int], bool]:
    """Whether a process is one of these tenants', or of one container of theirs.

    `seen_by` says which files of tenants a process sees, if that is known already.
    """
    seen = seen_by or _seen_by
    files = [file for folder in folders for file in caches(folder, container)]
    marks = _identities([*files, *([] if container else (folder / MARK for folder in folders))])
    words: list[bytes] = []  # of the environment that a program without a namespace was given
    for folder in folders if container is None else ():
        report = folder / "injection"  # missing where programs may not write it, which are an account's
        with contextlib.suppress(OSError):
            if not report.exists() or report.read_text().startswith(("library-path", "preload")):
                words += [os.fsencode(folder / "lib") + end for end in (b":", b"\0", b"/")]

    def belongs(pid: int) -> bool:
        if marks and not marks.isdisjoint(seen(pid) or ()):
            return True
        if not words:
            return False
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return any(word in environment for word in words)

    return belongs


def _seen_by(pid: int) -> set[tuple[int, int]]:
    """Where a process sees what may be a tenant's; nothing for one that is gone or another user's."""
    return _identities([f"/proc/{pid}/root{SYSTEM_CACHE}", f"/proc/{pid}/root{IN_CONTAINER}"])


def _identities(files: Iterable[Path | str]) -> set[tuple[int, int]]:
    """Device and inode of each of the files that there are."""
    found: set[tuple[int, int]] = set()
    for file in files:
        with contextlib.suppress(OSError):
            status = os.stat(file)  # noqa: PTH116 (for each process there is)
            found.add((status.st_dev, status.st_ino))
    return found


def _container_of(pid: int) -> str:
    """The container that a process of a tenant is in, as `podman 0123456789ab`; empty where it is in none."""
    if not _identities([f"/proc/{pid}/root{IN_CONTAINER}"]):
        return ""
    facts = b""
    for file in ("cgroup", "mountinfo"):
        with contextlib.suppress(OSError):
            facts += Path(f"/proc/{pid}/{file}").read_bytes()
    return container_in(facts)


def container_in(facts: bytes) -> str:
    """The container that a process's `cgroup` and `mountinfo` name, as `podman 0123456789ab`; empty for none.

    A rootless container may have no cgroup of its own, but always files of its own that are mounted.
    """
    match = _IDS.search(facts)
    return f"{'docker' if match[1] in (b'docker', None) else 'podman'} {match[2].decode()}" if match else ""


def _signal(pid: int, number: int, belongs: Callable[[int], bool]) -> None:
    """By a descriptor, since the process may have ended meanwhile and another have its number."""
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            if belongs(pid):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
