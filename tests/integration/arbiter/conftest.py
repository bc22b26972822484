"""A real arbiter process for each test, with builders for tenants and their processes."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest
from kit.arbiter import SOURCES, FakeProcess, RunningArbiter

from aliquot.arbiter.client import TenantGpu, TenantRecord

TESTS = Path(__file__).parents[2]


class Arbiter(RunningArbiter):
    """A running arbiter; `tenant` makes tenants, `process` connects to one."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.other_gpu = f"GPU-{uuid.uuid4()}"
        self._open: list[FakeProcess] = []
        self._children: list[subprocess.Popen] = []
        super().__init__(directory, f"GPU-{uuid.uuid4()}", *options)

    def stop(self) -> int:
        """End its tenants' processes first."""
        for child in self._children:
            child.kill()
            child.wait()
            child.stdout.close()
        for process in self._open:
            with contextlib.suppress(OSError, ValueError):
                process.close()
        return super().stop()

    def tenant(
        self, name="a", request=300, limit=1000, *, memory_mib=1000, context_mib=0, gpus=None, enforce="all"
    ) -> TenantRecord:
        record = TenantRecord(
            name,
            str(self.directory / f"{name}.sock"),
            [TenantGpu(g, request, limit, memory_mib, context_mib, enforce) for g in (gpus or [self.gpu])],
        )
        self.admin.add_tenant(record)
        return record

    def process(self, name="a", *, gpus=None, hello=True) -> FakeProcess:
        process = FakeProcess(str(self.directory / f"{name}.sock"), hello=hello)
        self._open.append(process)
        if hello:
            for gpu in [self.gpu] if gpus is None else gpus:
                process.attach(gpu)
        return process

    def program(self, name="a", *shares, **tenant) -> FakeProcess:
        """A process of a new tenant."""
        self.tenant(name, *shares, **tenant)
        return self.process(name)

    def programs(self, *names: str) -> list[FakeProcess]:
        """A process for each name, of new tenants."""
        for name in dict.fromkeys(names):
            self.tenant(name)
        return [self.process(name) for name in names]

    def holder(self, mib: int, name="a", code="") -> subprocess.Popen:
        """A process of its own that leases memory, does `code` with its connection `p`, and lives until it is ended."""
        attach = f"p = FakeProcess({str(self.directory / name)!r} + '.sock'); p.attach({self.gpu!r})"
        lines = [
            "import os, time",
            "from kit.arbiter import FakeProcess",
            attach,
            f"assert p.reserve({mib << 20})",
            code,
        ]
        script = "\n".join([*lines, "print('holds', flush=True)", "time.sleep(1000)"])
        environment = {**os.environ, "PYTHONPATH": f"{SOURCES}:{TESTS}"}
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
        self._children.append(child)
        assert child.stdout.readline() == "holds\n"
        return child


@pytest.fixture
def start_arbiter():
    """Start arbiters with options; each is stopped in order at the end."""
    running: list[Arbiter] = []
    folders: list[str] = []

    def start(*options: str) -> Arbiter:
        folders.append(tempfile.mkdtemp(prefix="alq-"))  # short: a socket's path has 108 bytes
        running.append(Arbiter(Path(folders[-1]), *options))
        return running[-1]

    yield start
    for arbiter in running:
        arbiter.stop()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def arbiter(start_arbiter):
    """An arbiter with default settings."""
    return start_arbiter()
