"""A runtime directory of its own for each test, and short ways to run the command in it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import engine_lives
from waiting import eventually as eventually

import aliquot
from aliquot.driver.native import EMULATED_CUDA, EMULATED_NVML, HOOK, NativePartMissing, native_part

SOURCES = Path(aliquot.__file__).parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without the native parts there is nothing to inject; say so once per test."""
    try:
        for part in (HOOK, EMULATED_CUDA, EMULATED_NVML):
            native_part(part)
    except NativePartMissing as error:
        for item in items:
            if "integration/standalone" in str(item.path):
                item.add_marker(pytest.mark.skip(reason=str(error)))


class Aliquot:
    """The command, run in one runtime directory."""

    def __init__(self, runtime: Path) -> None:
        self.runtime = runtime
        path = os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH", "")]))
        self.env = os.environ | {"ALIQUOT_RUNTIME_DIR": str(runtime), "PYTHONPATH": path}

    def start(self, *words: str, **options) -> subprocess.Popen[str]:
        """Start it and go on."""
        command = [sys.executable, "-m", "aliquot.cli", *words]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, text=True, **({"env": self.env} | streams | options))

    def __call__(self, *words: str, **options) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        process = self.start(*words, **options)
        try:
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def run(self, *words: str, **options) -> subprocess.CompletedProcess[str]:
        """`aliquot run` on an emulated V100."""
        return self("run", "--emulate", "v100", *words, **options)

    @property
    def engine_is_up(self) -> bool:
        """Whether an engine's socket is there."""
        return (self.runtime / "engine.sock").exists()

    def wait_gone(self) -> None:
        """Wait until the engine of the last run has ended and left nothing of its tenants."""
        eventually(lambda: not self.engine_is_up and not (self.runtime / "tenants").exists(), "the engine has ended")


def sharepod(name: str, script: str, *, policy: str = "Never", **gpu: object) -> str:
    """A SharePod that runs a shell script."""
    spec = {
        "gpu": {"request": 0.2} | gpu,
        "template": {
            "spec": {"restartPolicy": policy, "containers": [{"name": "main", "command": ["sh", "-c", script]}]}
        },
    }
    return json.dumps(
        {"apiVersion": "aliquot.dev/v1alpha1", "kind": "SharePod", "metadata": {"name": name}, "spec": spec}
    )


class Cluster:
    """Short ways to use an engine."""

    def __init__(self, command: Aliquot, folder: Path) -> None:
        self.command = command
        self._file = folder / "pod.yaml"

    def apply(self, text: str, *flags: str):
        """Apply a text."""
        self._file.write_text(text)
        return self.command("apply", "-f", str(self._file), *flags)

    def pod(self, name: str) -> dict:
        """What `describe` says."""
        return json.loads(self.command("describe", name, "-o", "json").stdout)

    def wait_phase(self, name: str, phase: str) -> dict:
        """Wait until a SharePod is in a phase."""
        eventually(lambda: self.pod(name)["phase"] == phase, f"{name} is {phase}")
        return self.pod(name)


@pytest.fixture
def aliquot_cli() -> Iterator[Aliquot]:
    """The command in a runtime directory of this test's own; whatever engine it started is gone afterwards."""
    runtime = Path(tempfile.mkdtemp(prefix="alq-"))
    command = Aliquot(runtime)
    yield command
    eventually(lambda: not command.engine_is_up, "no engine is left")
    eventually(lambda: not engine_lives(runtime), "the engine has written its last")
    shutil.rmtree(runtime, ignore_errors=True)


@contextlib.contextmanager
def engine_of(command: Aliquot, spec: str, *words: str) -> Iterator[Aliquot]:
    """`aliquot up` on an emulated machine in the background, until the end of the block."""
    process = command.start("up", "--emulate", spec, "--window", "2", *words)
    try:
        assert process.stdout is not None
        lines = []
        while not lines or not lines[-1].startswith("ready"):
            lines.append(process.stdout.readline())
            assert lines[-1], (process.stderr.read() if process.stderr else "", lines)
        yield command
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.fixture
def engine(aliquot_cli: Aliquot) -> Iterator[Aliquot]:
    """The command with `aliquot up` on two emulated V100 in the background, without a dashboard."""
    with engine_of(aliquot_cli, "v100x2", "--no-web"):
        yield aliquot_cli


@pytest.fixture(scope="module")
def lasting() -> Iterator[Aliquot]:
    """The command beside one engine on an emulated V100 for a whole file, which a run joins and leaves as it was."""
    runtime = Path(tempfile.mkdtemp(prefix="alq-"))
    with engine_of(Aliquot(runtime), "v100", "--no-web") as command:
        yield command
    eventually(lambda: not engine_lives(runtime), "the engine has written its last")
    shutil.rmtree(runtime, ignore_errors=True)
