"""A tenant of the engine; and the runs of the machine's, in a file from which the next engine takes them over.

A run's program is a child of its `aliquot run`, not of the engine, and goes on without one. The next engine takes over
those whose `aliquot run` still lives, by its process id and start time, with the shares that they have; what the others
left is ended. Shares by name, whose programs are children of docker and podman, live until they are deleted and are
taken over as runs are. SharePods are children of the engine, end with it and are not here.

No other engine may have the GPUs while such runs go on, nor in the moment in which the machine's engine is restarted,
but the lock of an engine ends with it: so another process has that engine's lock as well, this module as a program.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from aliquot.arbiter.linux import start_ticks
from aliquot.arbiter.records import TenantRecord
from aliquot.driver.cdi import Edits
from aliquot.driver.gpu import Gpu, cuda_variables
from aliquot.driver.gpu_lock import GpuLock
from aliquot.driver.injection import TenantConf, TenantFolder
from aliquot.lib.decoding import decode_json
from aliquot.lib.files import read_plain, write_whole
from aliquot.lib.log import Logger
from aliquot.model.errors import in_words
from aliquot.model.ids import GpuUuid, TenantName
from aliquot.model.requests import Enforce, GpuRequest, Plan, Slice
from aliquot.standalone.accounts import Account, own_account
from aliquot.standalone.paths import RuntimeDir
from aliquot.standalone.wire import RunLease, fraction_of

KEEPER_LOOK_S: Final = 0.5
KEEPER_RETRY_S: Final = 5.0
RESTART_S: Final = 60.0
"""How long runs wait for the next engine, which finds its GPUs within that time."""
log = Logger("standalone")


class InContainers(msgspec.Struct, frozen=True):
    """A tenant whose programs are in containers: a run, or where it has a CDI `device`, a share by name.

    `rm` is whether that ends with its container.
    """

    device: str = ""
    rm: bool = False


class RunRecord(msgspec.Struct, frozen=True):
    """One run or share, its folder, its account with the process that holds or made it, and when that started."""

    name: str
    directory: str
    request: GpuRequest
    slices: list[Slice]
    enforce: Enforce
    cpus: str
    uid: int
    gid: int
    groups: list[int]
    pid: int
    started: int
    container: InContainers | None = None
    earlier: list[str] = []
    """The GPUs that it has left."""

    @classmethod
    def of(
        cls, name: str, directory: Path, request: GpuRequest, plan: Plan, enforce: Enforce, cpus: str, owner: Account,
        container: InContainers | None = None,
    ) -> RunRecord:  # fmt: skip
        """That of a run or share which comes now."""
        return cls(
            name, str(directory), request, list(plan.slices), enforce, cpus, owner.uid, owner.gid, list(owner.groups),
            owner.pid, start_ticks(owner.pid), container,
        )  # fmt: skip

    @property
    def owner(self) -> Account:
        """Its account."""
        return Account(self.uid, self.gid, tuple(self.groups), self.pid)

    @property
    def is_share(self) -> bool:
        """Whether it is a share by name, which no process holds."""
        return self.container is not None and bool(self.container.device)

    @property
    def lives(self) -> bool:
        """Whether the `aliquot run` that holds it is there; a share lives until it is deleted."""
        return self.is_share or (self.started > 0 and start_ticks(self.pid) == self.started)


@dataclass(frozen=True)
class EngineTenant:
    """A tenant of the engine: what it was given, and the folder that its programs start from."""

    name: TenantName
    plan: Plan
    folder: TenantFolder
    enforce: Enforce
    record: TenantRecord = field(repr=False)
    cpus: str = ""
    """The cores that its programs are bound to; empty for all."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """CUDA's, for its programs."""

    owner: Account = field(default_factory=own_account)
    """The account whose programs they are."""

    run: RunRecord | None = None
    """What the next engine has to know of a run or share of the machine's engine to take it over."""

    edits: Edits | None = field(default=None, repr=False)
    """What a container needs to be its; None for a tenant without containers."""

    generation: str = ""
    """That of the driver's files which its containers are shown."""

    @property
    def key(self) -> TenantName:
        """Its name, under which the ledger has it."""
        return self.name

    def moved(self, gpu: GpuUuid, seen: Sequence[Gpu]) -> EngineTenant:
        """The same on another GPU of those that its programs see, in place of its only one."""
        plan = Plan((msgspec.structs.replace(self.plan.slices[0], gpu=gpu),))
        earlier = list(dict.fromkeys([*self.record.earlier, *self.plan.uuids]))
        gpus = [msgspec.structs.replace(self.record.gpus[0], gpu=gpu)]
        return replace(
            self, plan=plan, variables=cuda_variables([gpu], seen),
            folder=replace(self.folder, conf=moved_conf(self.folder.conf, earlier, gpu, seen)),
            record=msgspec.structs.replace(self.record, gpus=gpus, earlier=earlier),
            run=self.run and msgspec.structs.replace(self.run, slices=list(plan.slices), earlier=earlier),
        )  # fmt: skip

    def lease(self) -> RunLease:
        """What a runner outside this process needs of it."""
        conf = self.folder.conf
        return RunLease(
            self.name, str(self.folder.directory), str(conf.socket), str(conf.libcuda), str(conf.libnvml),
            ",".join(self.plan.uuids), self.enforce, dict(self.variables), resumes=self.run is not None,
            options=self.edits.options() if self.edits is not None else [],
        )  # fmt: skip


def moved_conf(conf: TenantConf, earlier: Sequence[str], now: str, seen: Sequence[Gpu]) -> TenantConf:
    """What the hook has to know for programs that name a GPU which the tenant has left."""
    visible = [cuda_variables([gpu], seen)["CUDA_VISIBLE_DEVICES"] for gpu in (*earlier, now)]
    return replace(conf, visible=visible[-1], moved=tuple(visible[:-1]))


def write_runs(file: Path, runs: Iterable[RunRecord]) -> None:
    """Replace the file. Where that fails, the log says so, and runs since then end with the engine."""
    try:
        write_whole(file, msgspec.json.encode(list(runs), enc_hook=str), synced=False)
    except OSError as error:
        log.warning("which runs there are cannot be written down: %s", in_words(error))


def living_runs(file: Path) -> list[RunRecord]:
    """The runs of an earlier engine that go on."""
    try:
        runs = decode_json(read_plain(file), list[RunRecord], fraction_of)
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        why = in_words(error) if isinstance(error, OSError) else str(error)
        log.warning("%s cannot be read (%s); the runs of the engine before are ended", file, why)
        return []
    return [run for run in runs if run.lives]


class LockKeeper:
    """The process that keeps the lock of the machine's engine for the next one, which has it end."""

    def __init__(self, runtime: RuntimeDir, lock: GpuLock) -> None:
        self._runtime = runtime
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None
        self._retry_s = 0.0
        self.keep()

    def keep(self) -> None:
        """Start it for the machine's engine, unless it is there or was tried a moment ago."""
        lives = self._process is not None and self._process.poll() is None
        if not self._runtime.shared or lives or time.monotonic() < self._retry_s:
            return
        self._retry_s = time.monotonic() + KEEPER_RETRY_S
        lock, engine, runs = self._lock.descriptor, os.getpid(), self._runtime.runs
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(lock), str(engine), str(runs), str(RESTART_S)], pass_fds=[lock],
                cwd="/", start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            pid = self._process.pid
            write_whole(self._runtime.keeper, f"{pid} {start_ticks(pid)}".encode(), synced=False)
        except OSError as error:
            log.warning("nothing keeps the GPUs for the next engine: %s", in_words(error))
            if self._process is not None:
                self._process.kill()  # the next engine could not end it

    def end(self) -> None:
        """End it, if it is there."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._runtime.keeper.unlink(missing_ok=True)


def end_keeper(runtime: RuntimeDir) -> bool:
    """End the keeper of an engine that was in this folder before; whether there was one."""
    with contextlib.suppress(OSError, ValueError):
        pid, started = map(int, read_plain(runtime.keeper).split())
        pidfd = os.pidfd_open(pid)
        try:
            if start_ticks(pid) == started:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                select.select([pidfd], [], [])
                return True
        finally:
            os.close(pidfd)
    return False


def _keep_lock() -> None:
    """Go on, with the lock's descriptor open, while the engine lives, may be restarted, or runs of it live."""
    engine, runs, restart_s = int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
    seen_s = time.monotonic()
    while time.monotonic() < seen_s + restart_s or living_runs(runs):
        time.sleep(KEEPER_LOOK_S)
        if os.getppid() == engine:
            seen_s = time.monotonic()


if __name__ == "__main__":
    _keep_lock()
