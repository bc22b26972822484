"""Tenants over an arbiter and a disk that fail at a chosen step, for what the engine and the node agent have in common.

A *fault* is named for one call of the arbiter or for one making of a folder. A crash is a fault as well: from then on
the program that crashed reaches neither arbiter nor disk, so nothing of it cleans up.
"""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from unittest import mock

from aliquot.arbiter.client import ArbiterError, NoArbiter, Unanswered
from aliquot.arbiter.records import GpuStatus, Status, TenantRecord, TenantStatus
from aliquot.driver.injection import CONF_MARK, TenantFolder
from aliquot.driver.native import HOOK, STANDS_FOR
from aliquot.tenancy import folders, lifecycle

AtArbiter = Literal[
    "", "away", "unanswered", "restarts", "forgets", "refuses", "no descriptors", "crash before", "crash after"
]
OnDisk = Literal["", "full", "full at the mark", "crash before", "crash half", "crash after"]
AT_ARBITER: tuple[str, ...] = get_args(AtArbiter)
ON_DISK: tuple[str, ...] = get_args(OnDisk)


class Crash(BaseException):
    """The program was killed here."""


class FakeArbiter:
    """Keeps tenants as the arbiter does. `faults` are for its next calls; without one a call goes well."""

    def __init__(self) -> None:
        self.boot_id = 1
        self.tenants: dict[str, TenantRecord] = {}
        self.faults: deque[str] = deque()
        self.calls: list[str] = []
        self.pending_mib: dict[str, int] = {}
        self.crashed = False

    @contextlib.contextmanager
    def connect(self) -> Iterator[FakeArbiter]:
        self._alive()
        yield self

    def status(self, *, admin: bool = False) -> Status:
        with self._call("status"):
            return self.now()

    def add_tenant(self, record: TenantRecord) -> None:
        with self._call(f"add {record.name}"):
            known = self.tenants.get(record.name)
            if known is not None and known != record:
                raise ArbiterError(f"tenant {record.name!r} exists with another share; remove it first")
            if known is None:
                self._open(record)

    def resize_tenant(self, record: TenantRecord) -> None:
        with self._call(f"resize {record.name}"):
            known = self.tenants.get(record.name)
            if known is None or known.socket != record.socket:
                raise ArbiterError(f"there is no tenant {record.name!r}")
            self.tenants[record.name] = record

    def remove_tenant(self, name: str, *, end: bool = False) -> None:
        with self._call(f"remove {name}"):
            if name not in self.tenants:
                raise ArbiterError(f"there is no tenant {name!r}")
            Path(self.tenants.pop(name).socket).unlink(missing_ok=True)

    def restart(self, *, forget: bool = False) -> None:
        """A new arbiter, which knows the tenants whose folders it finds, or none."""
        known, self.tenants = self.tenants, {}
        self.boot_id += 1
        for record in known.values():
            if not forget and Path(record.socket).parent.is_dir():
                self._open(record)

    def now(self) -> Status:
        gpus: dict[str, GpuStatus] = {}
        for record in self.tenants.values():
            for gpu in record.gpus:
                status = gpus.setdefault(gpu.uuid, GpuStatus(gpu.uuid, None, 0.0, []))
                limits = (gpu.request_milli, gpu.limit_milli, 0, 0, 0, gpu.memory_mib)
                pending_mib = self.pending_mib.get(record.name, 0)
                status.tenants.append(
                    TenantStatus(record.name, *limits, 0, 0, 0, 0, 0, 0, False, memory_pending_mib=pending_mib)
                )
        return Status(0, self.boot_id, 1, 10_000, "fluid", 100, "auto", "pace", 0, list(gpus.values()))

    def _open(self, record: TenantRecord) -> None:
        try:
            Path(record.socket).touch()
        except OSError as error:
            raise ArbiterError(f"{record.socket}: {error.strerror}") from None
        self.tenants[record.name] = record

    def _alive(self) -> None:
        if self.crashed:
            raise Crash

    @contextlib.contextmanager
    def _call(self, what: str) -> Iterator[None]:
        self._alive()
        self.calls.append(what)
        fault = self.faults.popleft() if self.faults else ""
        match fault:
            case "away":
                raise NoArbiter("no arbiter at admin.sock: Connection refused")
            case "no descriptors":
                raise OSError(errno.EMFILE, "Too many open files")
            case "restarts" | "forgets":
                self.restart(forget=fault == "forgets")
            case "refuses" if what.startswith("add"):
                raise ArbiterError("No space left on device: tenants.json")
            case "crash before":
                self.crashed = True
                raise Crash
        try:
            yield
        finally:
            if fault == "unanswered":
                raise Unanswered("the arbiter at admin.sock does not answer") from None
            if fault == "crash after":
                self.crashed = True
                raise Crash from None


@dataclass
class FakeDisk:
    """Makes tenants' folders as they are made, but for the next ones' `faults`."""

    arbiter: FakeArbiter
    faults: deque[str]

    def __post_init__(self) -> None:
        self._make, self._write, self._remove = lifecycle.make_folder, folders.write_whole, TenantFolder.remove

    def make(self, folder: TenantFolder, hook: Path, purpose: str) -> None:
        self.arbiter._alive()
        fault = self.faults.popleft() if self.faults else ""
        if fault == "crash before":
            self._crash()
        fails = {"full": "provision", "full at the mark": "write_whole", "crash half": "write_whole"}.get(fault)
        with mock.patch.object(folders, fails, self._fail(fault)) if fails else contextlib.nullcontext():
            self._make(folder, hook, purpose)
        if fault == "crash after":
            self._crash()

    def remove(self, folder: TenantFolder) -> None:
        self.arbiter._alive()
        self._remove(folder)

    def _fail(self, fault: str) -> Any:
        def failing(path: Path, *_: object, **__: object) -> None:
            if fault.startswith("crash"):
                self._crash()
            if fault == "full":  # of several files the first have room
                path.mkdir(parents=True)
                (path / "lib").mkdir()
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

        return failing

    def _crash(self) -> None:
        self.arbiter.crashed = True
        raise Crash


@contextlib.contextmanager
def faulty(arbiter: FakeArbiter) -> Iterator[FakeDisk]:
    """The disk under the tenants of this arbiter."""
    disk = FakeDisk(arbiter, deque())
    with (
        mock.patch.object(lifecycle, "make_folder", disk.make),
        mock.patch.object(TenantFolder, "remove", lambda folder: disk.remove(folder)),
    ):
        yield disk


def fake_hook(folder: Path) -> Path:
    """Files that are like the hook where provisioning looks at them."""
    slot = (CONF_MARK + b"/etc/aliquot/tenant.conf").ljust(512, b"\0")
    for part in (HOOK, *STANDS_FOR.values()):
        (folder / part).write_bytes(slot)
    return folder / HOOK


def whole_folders(parent: Path, torn: Collection[str] = ()) -> set[str]:
    """The folders that are there, all of which have to be whole but the `torn` ones."""
    found = {path.name for path in parent.iterdir()}
    assert {name for name in found if folders.made_for(parent / name) is None} <= {*torn}
    return found
