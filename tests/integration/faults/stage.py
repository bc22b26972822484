"""An arbiter that a test starts and kills, an emulated GPU, and unmodified CUDA programs under the real hook."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from kit.arbiter import SOURCES, RunningArbiter
from kit.driver_process import DriverProcess
from waiting import eventually

from aliquot.arbiter.client import TenantGpu, TenantRecord
from aliquot.driver.emulation import EmulatedMachine, prepare
from aliquot.driver.injection import TenantConf, TenantFolder, provision
from aliquot.driver.native import HOOK, native_part
from aliquot_lab.bench.progress import ProgressTotals, read_totals

TESTS = Path(__file__).parents[2]
WINDOW_S = 2.0
COUNT_TRIES = 50
COUNTED_NS = 2_000_000
"""The clients have real-time priority and go on while a busy machine lets their reader wait."""


@dataclass
class Client:
    """One running program; `totals` is what it has completed by its own count."""

    name: str
    process: subprocess.Popen[bytes]
    progress: Path
    errors: Path

    @property
    def totals(self) -> ProgressTotals:
        totals = read_totals(self.progress)
        assert totals is not None, self.said
        return totals

    @property
    def said(self) -> str:
        """What it wrote to its error stream."""
        return self.errors.read_text()

    def wait_ready(self) -> Client:
        """Return once its first kernel has completed."""
        eventually(lambda: read_totals(self.progress) or self.process.poll() is not None, f"{self.name} launches", 40)
        assert self.process.poll() is None, self.said
        return self

    def end(self) -> int:
        """Ask it to end; its exit status."""
        self.process.terminate()
        return self.process.wait(20)


def counts(clients: list[Client]) -> tuple[int, list[int]]:
    """A moment and each client's completed kernel time then; again where a busy machine stopped this in between."""
    for _ in range(COUNT_TRIES):
        began_ns = time.monotonic_ns()
        found = [client.totals.kernel_ns for client in clients]
        if time.monotonic_ns() - began_ns <= COUNTED_NS:
            break
    return began_ns, found


class Stage(RunningArbiter):
    """One arbiter, emulated GPUs; `client` starts programs, `kill` and `start` are the fault."""

    def __init__(
        self,
        fail_policy: str = "pace",
        *,
        gpus: str = "v100",
        arbiter_env: dict[str, str] | None = None,
        arbiter_options: tuple[str, ...] = (),
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="alq-"))
        self.machine: EmulatedMachine = prepare(self.directory / "gpu", gpus)
        self.clients: list[Client] = []
        self.drivers: list[DriverProcess] = []
        options = ("--window-ms", str(int(WINDOW_S * 1000)), "--fail-policy", fail_policy, *arbiter_options)
        super().__init__(self.directory / "run", self.machine.uuids[0], *options, env=arbiter_env)

    def tenant(
        self, name: str, request: int, limit: int = 1000, *, memory_mib: int = 2048, gpus: int | None = None
    ) -> TenantFolder:
        """Make a tenant known to the arbiter, on the first so many GPUs, and its folder."""
        socket = self.directory / f"{name}.sock"
        granted = [TenantGpu(uuid, request, limit, memory_mib) for uuid in self.machine.uuids[:gpus]]
        self.admin.add_tenant(TenantRecord(name, str(socket), granted))
        conf = TenantConf(name, socket, self.machine.libcuda, self.machine.libnvml)
        return provision(self.directory / name, conf, native_part(HOOK))

    def environment(self, folder: TenantFolder) -> dict[str, str]:
        """That of a tenant's programs."""
        plain = {k: v for k, v in os.environ.items() if not k.startswith("LD_")}
        return {**plain, "PYTHONPATH": f"{SOURCES}:{TESTS}", "LD_LIBRARY_PATH": str(folder.lib)}

    def driver(self, folder: TenantFolder) -> DriverProcess:
        """A process of a tenant's whose calls the test makes, with the primary context of the first GPU."""
        self.drivers.append(DriverProcess(self.environment(folder)))
        assert self.drivers[-1].open() == 0
        return self.drivers[-1]

    def program(
        self,
        folder: TenantFolder,
        argv: list[str],
        name: str,
        *,
        stdin: int | None = None,
        env: dict[str, str] | None = None,
    ) -> Client:
        """Start any program in a tenant's folder, with `env` added to its environment."""
        environment = self.environment(folder) | (env or {})
        errors = self.directory / f"{name}.err"
        with errors.open("wb") as sink:
            process = subprocess.Popen(argv, env=environment, stdin=stdin, stdout=sink, stderr=sink)
        client = Client(name, process, self.directory / f"{name}.progress", errors)
        self.clients.append(client)
        return client

    def client(self, name: str, request: int, limit: int = 1000, mode: str = "steady", *options: str) -> Client:
        """Start a CUDA program (see `aliquot_lab.bench.client`) as a tenant of its own."""
        folder = self.tenant(name, request, limit, gpus=1)
        argv = [sys.executable, "-m", "aliquot_lab.bench.client", mode, *(("--real-time",) if mode != "memory" else ())]
        argv += ["--progress", str(self.directory / f"{name}.progress"), *options]
        return self.program(folder, argv, name)

    def shares(self, clients: list[Client], seconds: float = WINDOW_S) -> list[float]:
        """Each client's completed kernel time from now on, as a part of the time that passes."""
        start_ns, before = counts(clients)
        time.sleep(seconds)
        end_ns, after = counts(clients)
        return [(late - early) / (end_ns - start_ns) for early, late in zip(before, after, strict=True)]

    def charged(self, clients: list[Client], seconds: float = WINDOW_S) -> list[float]:
        """What each is charged from now on, as a part of the time that passes: exact however busy the machine is."""
        before = self.admin.status()
        time.sleep(seconds)
        after = self.admin.status()
        then, now = ({t.name: t.charged_ns for t in status.gpus[0].tenants} for status in (before, after))
        return [(now[c.name] - then[c.name]) / (after.now_ns - before.now_ns) for c in clients]

    def close(self) -> None:
        """End everything and remove the directory."""
        for driver in self.drivers:
            driver.kill()
        for client in self.clients:
            if client.process.poll() is None:
                client.process.kill()
            client.process.wait()
            if client.process.stdin is not None:
                client.process.stdin.close()
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
