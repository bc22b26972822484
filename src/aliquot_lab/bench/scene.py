"""Tenants on an engine, for as long as a measurement takes.

A scene starts clients under the engine, waits until they have launched, reads what the arbiter charged and what the
clients saw completed, and ends them in order. Every measurement of this package is made on a scene.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aliquot.driver.native import native_part
from aliquot.model.errors import AliquotError
from aliquot.model.ids import TenantName
from aliquot_lab.bench.fig6 import RequestedShare, Sample, Tenant
from aliquot_lab.bench.progress import Interval, ProgressTotals, read_intervals, read_totals

if TYPE_CHECKING:
    from aliquot.standalone.engine import Engine

START_TIMEOUT_S: Final = 60.0
END_TIMEOUT_S: Final = 20.0
SAMPLE_TRIES: Final = 20
MAX_LATE_NS: Final = 2_000_000
NATIVE_CLIENT: Final = "bench/aliquot-bench-client"
SPIN_PTX: Final = Path(str(files("aliquot_lab.bench").joinpath("spin.ptx")))
"""The kernels of known duration; the wheel is a folder on disk, so the file stays where it is."""


Program = Callable[[Path], list[str]]
"""The command of a client, by the file that its counts go to."""


class ClientFailed(AliquotError):
    """A client ended or stayed silent when it should have run."""


def python_client(*mode: str) -> Program:
    """A mode of `aliquot_lab.bench.client` and its options."""
    return lambda progress: [sys.executable, "-m", "aliquot_lab.bench.client", *mode, "--progress", str(progress)]


def native_client(mode: str, *options: str) -> Program:
    """A mode of native/bench/client.c with what follows the progress file."""
    program = native_part(NATIVE_CLIENT, "aliquot_lab")
    return lambda progress: [str(program), mode, str(SPIN_PTX), str(progress), *options]


class Client:
    """One tenant's program, started."""

    def __init__(self, tenant: Tenant, process: subprocess.Popen[bytes], progress: Path) -> None:
        self.tenant = tenant
        self._process = process
        self._progress = progress

    @property
    def pid(self) -> int:
        """The process id of its program."""
        return self._process.pid

    @property
    def totals(self) -> ProgressTotals | None:
        """Its counts so far, or None before its first kernel has completed."""
        return read_totals(self._progress)

    @property
    def intervals(self) -> list[Interval]:
        """Its last turns."""
        return read_intervals(self._progress)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return once the first kernel has completed.

        Raises:
            ClientFailed: it ended before, or the time is over.
        """
        until_s = time.monotonic() + timeout_s
        while self.totals is None:
            status = self._process.poll()
            if status is not None:
                raise ClientFailed(f"client {self.tenant} ended with status {status} before its first kernel")
            if time.monotonic() > until_s:
                raise ClientFailed(f"client {self.tenant} launched nothing in {timeout_s:.0f} s")
            time.sleep(0.02)

    def wait(self, timeout_s: float) -> int:
        """Let it end by itself; its exit status."""
        return self._process.wait(timeout_s)

    def end(self) -> None:
        """Ask it to end and wait; one that does not is killed."""
        self._process.terminate()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_TIMEOUT_S)


class Scene:
    """Clients under one engine, on its first GPU; `directory` is for its files."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self.engine = engine
        self.directory = directory
        self.clients: dict[Tenant, Client] = {}
        self.gpu, self.emulated = engine.gpus[0].model, engine.emulated

    def start(self, tenant: Tenant, ask: RequestedShare, mode: str, *options: str) -> Client:
        """Start one client in a mode of `aliquot_lab.bench.client` with further options.

        On an emulated GPU, where waiting takes no processor, it runs before other programs.
        """
        ahead = ("--real-time",) if self.emulated else ()
        return self.start_program(tenant, ask, python_client(mode, *ahead, *options))

    def start_program(self, tenant: Tenant, ask: RequestedShare, program: Program) -> Client:
        """Start one client by the command that `program` gives for its progress file."""
        progress = self.directory / f"{tenant}.progress"
        client = self.clients[tenant] = Client(tenant, self.spawn(tenant, ask, program(progress)), progress)
        return client

    def spawn(self, tenant: Tenant, ask: RequestedShare, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start another program as a tenant; it ends with this process."""
        from aliquot.standalone.program import start_program

        given = self.engine.admit(TenantName(tenant), ask.request)
        return start_program(given.folder, argv, {**os.environ, **given.variables}, death_signal=signal.SIGKILL)

    def resize(self, tenant: Tenant, ask: RequestedShare) -> None:
        """Give a client another share while it runs."""
        self.engine.resize(TenantName(tenant), ask.request)

    def run(self, tenant: Tenant, ask: RequestedShare, argv: Sequence[str], timeout_s: float) -> None:
        """Run another program as a tenant to its end.

        Raises:
            ClientFailed: it ended with another status than zero, or not in time.
        """
        process = self.spawn(tenant, ask, argv)
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ClientFailed(f"{argv[0]} did not end within {timeout_s:.0f} s") from None
        self.engine.release(self.engine.tenants[TenantName(tenant)])
        if status != 0:
            raise ClientFailed(f"{argv[0]} ended with status {status}")

    @property
    def about(self) -> dict[str, Any]:
        """The GPU that figures are of, as every measurement has it."""
        return {"gpu": self.gpu, "emulated": self.emulated}

    def sample(self) -> Sample:
        """The use of all tenants so far.

        The moment is the arbiter's; the clients' counts are read right after, well under a millisecond later. A busy
        machine may stop this process in between, while the clients go on: then it is taken again.
        """
        late_ns, found = self._sampled()
        for _ in range(SAMPLE_TRIES):
            if late_ns <= MAX_LATE_NS:
                break
            late_ns, found = min((late_ns, found), self._sampled(), key=lambda sampled: sampled[0])
        return found

    def _sampled(self) -> tuple[int, Sample]:
        """A sample, and how long after its moment the last client's count was read."""
        status = self.engine.arbiter.status()
        gpu = status.gpus[0]
        charged = {Tenant(tenant.name): int(tenant.charged_ns) for tenant in gpu.tenants}
        completed = {
            tenant: totals.kernel_ns for tenant, client in self.clients.items() if (totals := client.totals) is not None
        }
        return time.monotonic_ns() - status.now_ns, Sample(status.now_ns, charged, completed)

    def usage(self) -> dict[Tenant, float]:
        """Each tenant's usage of the window that ends now, as the arbiter sees it."""
        gpu = self.engine.arbiter.status().gpus[0]
        return {Tenant(tenant.name): float(tenant.usage) for tenant in gpu.tenants}

    def end(self, tenant: Tenant) -> Client:
        """End one client; what it counted stays readable."""
        client = self.clients.pop(tenant)
        client.end()
        self.engine.release(self.engine.tenants[TenantName(tenant)])
        return client

    def end_all(self) -> None:
        """End whatever still runs."""
        for tenant in list(self.clients):
            self.end(tenant)


@contextmanager
def scene(emulate: str | None, **options: Any) -> Iterator[Scene]:
    """A separate engine without tenants, torn down afterwards.

    `emulate` names a profile; None takes the GPU of this machine, and an emulated V100 if it has none. `options` are
    those of the engine.
    """
    from aliquot.standalone.engine import Engine
    from aliquot.standalone.paths import RuntimeDir

    with (
        tempfile.TemporaryDirectory(prefix="aliquot-bench-") as directory,
        Engine.start(emulate or default_emulation(), runtime=RuntimeDir(Path(directory, "e")), **options) as engine,
    ):
        stage = Scene(engine, Path(directory))
        try:
            yield stage
        finally:
            stage.end_all()


def default_emulation() -> str | None:
    """`v100` on a machine without an NVIDIA driver, else None."""
    from aliquot.driver.discovery import NoDriver, find_driver

    try:
        find_driver()
    except NoDriver:
        return "v100"
    return None


def start_all(stage: Scene, wanted: Sequence[tuple[Tenant, RequestedShare, Program]]) -> list[Client]:
    """Start several clients at once and return when each has launched."""
    started = [stage.start_program(tenant, ask, program) for tenant, ask, program in wanted]
    for client in started:
        client.wait_ready()
    return started


@contextmanager
def bare_clients(emulate: str | None, wanted: Sequence[tuple[Tenant, Program]]) -> Iterator[list[Client]]:
    """Clients on the driver itself, with no hook and no arbiter, each past its first kernel; ended afterwards.

    Where several run, nothing but the driver's own time slices is between them.
    """
    from aliquot.standalone.machine import find_machine

    with tempfile.TemporaryDirectory(prefix="aliquot-bench-") as name:
        directory = Path(name)
        machine = find_machine(emulate or default_emulation(), directory / "machine")
        env = dict(os.environ)
        if machine.emulated:
            env["LD_LIBRARY_PATH"] = str(machine.libcuda.parent)
        clients: list[Client] = []
        try:
            for tenant, program in wanted:
                progress = directory / f"{tenant}.progress"
                process = subprocess.Popen(program(progress), env=env, stdout=subprocess.DEVNULL)
                clients.append(Client(tenant, process, progress))
            for client in clients:
                client.wait_ready()
            yield clients
        finally:
            for client in clients:
                client.end()
