"""The arbiter put together: the loop, its local sockets, its memory across restarts, its side threads."""

from __future__ import annotations

import fcntl
import time
from typing import IO, Protocol

import msgspec

from aliquot.lib.files import read_plain, write_whole

from .channels import Channels
from .journal import Journal
from .leases import Leases
from .records import TenantRecord
from .report import status_of
from .server import Server
from .settings import Settings


class Closeable(Protocol):
    """Something that runs beside the loop and must be closed."""

    def close(self) -> None:
        """End it."""


class Program:
    """One running arbiter. Only one at a time in a runtime directory."""

    def __init__(self, settings: Settings, *, fresh: bool = False) -> None:
        """Open the sockets and take over what an earlier arbiter left.

        Raises:
            OSError: the directory is in use by another arbiter, or a socket or port cannot be opened.
        """
        settings.runtime_dir.mkdir(parents=True, exist_ok=True)
        self._lock = self._take_lock(settings)
        self._tenants_file = settings.runtime_dir / "tenants.json"
        self._journal_fault = ""
        self._journal = Journal(settings.runtime_dir / "journal", settings.journal_bytes)
        if fresh:
            self._tenants_file.unlink(missing_ok=True)
            self._journal.forget()
        leases_file = settings.runtime_dir / "leases"
        if fresh:
            leases_file.unlink(missing_ok=True)
        self._leases = Leases(leases_file, settings.leases_bytes)
        self.server = Server(settings, self._leases)
        if self._leases.fault:
            self.server.events.emit("leases-not-written", time.monotonic_ns(), why=self._leases.fault)
        self._restore()
        self._channels = Channels(self.server, self._save_tenants)
        self.server.housekeepers.append(self._write_journal)
        self._side_threads: list[Closeable] = []
        self._start_side_threads(settings)

    def run(self) -> None:
        """Serve until `stop`."""
        self.server.run()

    def stop(self) -> None:
        """End in order; safe to call from a signal handler, which also wakes the loop."""
        self.server.stop()

    def close(self) -> None:
        """Write down what is owed, close pages by the fail policy, unlink sockets."""
        for thread in self._side_threads:
            thread.close()
        self._write_journal(time.monotonic_ns())
        self._journal.close()
        self._leases.close()
        self._channels.close()
        self.server.close()
        self._lock.close()

    def _take_lock(self, settings: Settings) -> IO[str]:
        lock = (settings.runtime_dir / "arbiter.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise OSError(f"another arbiter serves {settings.runtime_dir}; stop it first") from error
        return lock

    def _save_tenants(self) -> None:
        records = [tenant.record for tenant in self.server.engine.tenants.values()]
        write_whole(self._tenants_file, msgspec.json.encode(records), synced=False)

    def _restore(self) -> None:
        """Bring back every tenant whose folder is still there, with its charges and debts."""
        if not self._tenants_file.exists():
            return
        now = time.monotonic_ns()
        try:
            records = msgspec.json.decode(read_plain(self._tenants_file), type=list[TenantRecord])
        except (msgspec.DecodeError, RecursionError):
            self.server.events.emit("tenants-file-unreadable", now)
            return
        for record in records:
            try:
                self.server.add_tenant(record)
            except (OSError, ValueError) as error:
                self.server.events.emit("tenant-lost", now, tenant=record.name, why=str(error))
        self.server.restore_leases()
        if not self._leases.whole and records:
            self._hold_by_nvml(now)
        self._journal.restore(self.server.engine.policy, self.server.settings.tokens.window_ns, now)

    def _hold_by_nvml(self, now_ns: int) -> None:
        """Charge by NVML's view what the file of leases may not say of the processes of an earlier arbiter."""
        from .measure import hold_unreported

        libnvml = self.server.settings.libnvml
        try:
            held_bytes = hold_unreported(self.server, libnvml) if libnvml is not None else 0
        except Exception as error:  # a driver that fails to answer does not keep the arbiter from its tenants
            self.server.events.emit("leases-lost", now_ns, why=str(error))
            return
        self.server.events.emit("leases-damaged", now_ns, held_mib=held_bytes >> 20)

    def _write_journal(self, now_ns: int) -> None:
        """With a full disk debts are lost at a restart; running tenants keep their grants."""
        try:
            self._journal.write(self.server.engine, now_ns)
        except OSError as error:
            if not self._journal_fault:
                self.server.events.emit("journal-not-written", now_ns, why=str(error))
            self._journal_fault = str(error)
        else:
            self._journal_fault = ""

    def _start_side_threads(self, settings: Settings) -> None:
        if settings.metrics_port:
            from .metrics import Metrics

            metrics = Metrics(settings.metrics_port)
            self._side_threads.append(metrics)
            self.server.housekeepers.append(
                lambda _now: metrics.publish(status_of(self.server.engine, settings, self.server.boot_id))
            )
        if settings.libnvml is not None:
            from .measure import MemoryMeasure

            measure = MemoryMeasure(settings.libnvml)
            self._side_threads.append(measure)
            self.server.housekeepers.append(lambda now: measure.apply(self.server.engine, self.server.events, now))
