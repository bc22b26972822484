"""`python -m aliquot.arbiter`: the process that hands out GPU time and memory on this machine.

Its loop is `Server`. Here are its options, and what is beside the loop: the local sockets, what is kept across restarts
and the threads that measure and that show metrics.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import sys
import time
from pathlib import Path

import click
import msgspec

from aliquot.driver.native import HANDOVER, NativePartMissing, native_part
from aliquot.lib.decoding import decode_json
from aliquot.lib.files import open_plain, read_plain, write_whole
from aliquot.model.errors import in_words
from aliquot.tokens import MS, Handover, TokenConfig, Turns

from .abi import FailPolicy
from .channels import Channels
from .journal import Journal
from .leases import Leases
from .records import TenantRecord
from .report import status_of
from .server import MIN_DESCRIPTORS, Server, Settings


class Program:
    """One running arbiter. Only one at a time in a runtime directory."""

    def __init__(self, settings: Settings, *, fresh: bool = False) -> None:
        """Open the sockets and take over what an earlier arbiter left, unless `fresh` says to forget it.

        Raises:
            OSError: the directory is in use by another arbiter, or a socket or port cannot be opened.
        """
        directory = settings.runtime_dir
        directory.mkdir(parents=True, exist_ok=True)
        # Who can open the file can keep the next arbiter from starting: flock works on a descriptor that may only read,
        # and a read lock of fcntl keeps a writer out too. So it is its owner's alone, also where it was not before.
        self._lock = open_plain(directory / "arbiter.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            os.fchmod(self._lock, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise OSError(f"another arbiter serves {directory}; stop it first") from error
        self._tenants_file = directory / "tenants.json"
        for name in ("tenants.json", "journal", "leases") if fresh else ():
            (directory / name).unlink(missing_ok=True)
        self._journal = Journal(directory / "journal", settings.journal_bytes)
        self._journal_fault = ""
        self._leases = Leases(directory / "leases", settings.leases_bytes)
        self.server = Server(settings, self._leases)
        if self._leases.fault:
            self.server.events.emit("leases-not-written", time.monotonic_ns(), why=self._leases.fault)
        self._restore()
        self._channels = Channels(self.server, self._save_tenants)
        self.server.housekeepers.append(self._write_journal)
        self._threads = contextlib.ExitStack()
        if settings.metrics_port:
            from .metrics import Metrics

            metrics = Metrics(settings.metrics_port)
            self._threads.callback(metrics.close)
            self.server.housekeepers.append(lambda _now: metrics.publish(status_of(self.server)))
        if settings.libnvml is not None:
            from .measure import MemoryMeasure

            measure = MemoryMeasure(settings.libnvml)
            self._threads.callback(measure.close)
            self.server.housekeepers.append(lambda now: measure.apply(self.server.engine, self.server.events, now))

    def close(self) -> None:
        """Write down what is owed, close pages by the fail policy, unlink sockets."""
        self._threads.close()
        self._write_journal(time.monotonic_ns())
        self._journal.close()
        self._leases.close()
        self._channels.close()
        self.server.close()
        os.close(self._lock)

    def _save_tenants(self) -> None:
        records = [tenant.record for tenant in self.server.engine.tenants.values()]
        write_whole(self._tenants_file, msgspec.json.encode(records), synced=False)

    def _restore(self) -> None:
        """Bring back every tenant whose folder is still there, with its charges and debts."""
        if not self._tenants_file.exists():
            return
        emit, now = self.server.events.emit, time.monotonic_ns()
        try:
            records = decode_json(read_plain(self._tenants_file), list[TenantRecord])
        except (msgspec.DecodeError, RecursionError):
            emit("tenants-file-unreadable", now)
            return
        for record in records:
            try:
                self.server.add_tenant(record)
            except (OSError, ValueError) as error:
                emit("tenant-lost", now, tenant=record.name, why=str(error))
        self.server.restore_leases()
        if not self._leases.whole and records:
            # NVML's view is charged for what the file may not say of the processes of an earlier arbiter.
            from .measure import hold_unreported

            libnvml = self.server.settings.libnvml
            try:
                held_bytes = hold_unreported(self.server, libnvml) if libnvml is not None else 0
            except Exception as error:  # a driver that fails to answer does not keep the arbiter from its tenants
                emit("leases-lost", now, why=str(error))
            else:
                emit("leases-damaged", now, held_mib=held_bytes >> 20)
        self._journal.restore(self.server.engine.policy, self.server.settings.tokens.window_ns, now)

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


@click.command()
@click.option(
    "--runtime-dir", type=click.Path(file_okay=False, path_type=Path), required=True, help="Sockets, journal."
)
@click.option("--libnvml", type=click.Path(path_type=Path), help="Measure memory by this libnvidia-ml.so.1.")
@click.option("--window-ms", type=click.IntRange(100), default=10_000, show_default=True)
@click.option("--turns", type=click.Choice([t.value for t in Turns]), default="fluid", show_default=True)
@click.option(
    "--quota-ms", type=click.IntRange(1), default=100, show_default=True, help="Longest turn; of kubeshare each."
)
@click.option("--min-quota-ms", type=click.IntRange(1), default=20, show_default=True)
@click.option("--handover", type=click.Choice([h.value for h in Handover]), default="auto", show_default=True)
@click.option("--fail-policy", type=click.Choice(["pace", "open", "closed"]), default="pace", show_default=True)
@click.option("--drain-timeout-ms", type=click.IntRange(10), default=30_000, show_default=True)
@click.option("--metrics-port", type=click.IntRange(0, 65535), default=0, help="Prometheus on 127.0.0.1; 0 is off.")
@click.option(
    "--native-handover/--no-native-handover",
    default=True,
    show_default=True,
    help="Hand over in a native thread where the policy has already chosen the next tenant.",
)
@click.option("--fresh", is_flag=True, help="Forget the tenants and debts of an earlier arbiter.")
def main(
    runtime_dir: Path,
    libnvml: Path | None,
    window_ms: int,
    turns: str,
    quota_ms: int,
    min_quota_ms: int,
    handover: str,
    fail_policy: str,
    drain_timeout_ms: int,
    metrics_port: int,
    native_handover: bool,
    fresh: bool,
) -> None:
    """Arbitrate GPU time and memory between the tenants of this machine."""
    try:
        tokens = TokenConfig(
            window_ns=window_ms * MS,
            turns=Turns(turns),
            quota_ns=quota_ms * MS,
            min_quota_ns=min(min_quota_ms, quota_ms) * MS,
            handover=Handover(handover),
            drain_timeout_ns=drain_timeout_ms * MS,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    libhandover = None
    if native_handover:
        with contextlib.suppress(NativePartMissing):  # it was not built: the arbiter does without
            libhandover = native_part(HANDOVER)
    settings = Settings(
        runtime_dir,
        tokens=tokens,
        fail_policy=FailPolicy[fail_policy.upper()],
        libnvml=libnvml,
        libhandover=libhandover,
        metrics_port=metrics_port,
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if 0 <= hard < MIN_DESCRIPTORS:
        raise click.ClickException(f"the limit of open files, {hard}, is below {MIN_DESCRIPTORS}; raise it: ulimit -n")
    sys.setswitchinterval(0.0002)
    _go_before_the_tenants()
    try:
        program = Program(settings, fresh=fresh)
    except OSError as error:
        raise click.ClickException(in_words(error)) from error
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: program.server.stop())
    click.echo("ready")
    try:
        program.server.run()
    finally:
        program.close()


def _go_before_the_tenants() -> None:
    """Let the kernel run the arbiter as soon as it wakes: a GPU waits for it at every hand-over.

    Real-time round-robin where the rights are there, else the best niceness, else as it is. The kernel keeps 5 % of
    each core from real-time programs, and every message costs a bounded time, so tenants cannot use this against it.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        return
    with contextlib.suppress(OSError):
        os.nice(-20)


if __name__ == "__main__":
    main(prog_name="aliquot arbiter")
