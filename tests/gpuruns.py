"""Unmodified GPU programs on an emulated machine: alone, or as tenants by `aliquot run` in one of three ways in."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from waiting import engine_lives, eventually

import aliquot
from aliquot.driver.emulation import EmulatedMachine, prepare

SOURCES = Path(aliquot.__file__).parents[1]
WAYS_IN = ("substitute", "library-path", "preload")
WAYS = ("alone", *WAYS_IN)
# A tenant that never uses its GPU: an engine ends with its last run.
KEPT = ("--gpu-request", ".01", "--gpu-mem", "600Mi")


class Run:
    """A program that runs; ended with its room."""

    def __init__(self, process: subprocess.Popen[str], sink: Path) -> None:
        self.process = process
        self.sink = sink

    @property
    def errors(self) -> str:
        """What it has written to its error stream."""
        return self.sink.read_text(errors="replace")

    def facts(self, timeout_s: float = 60) -> dict[str, Any]:
        """The JSON that it printed last; it has ended with status 0."""
        out, _ = self.process.communicate(timeout=timeout_s)
        assert 0 == self.process.returncode, f"status {self.process.returncode}\n{out[-2000:]}{self.errors[-4000:]}"
        return dict(json.loads(out.splitlines()[-1]))


class Room:
    """One emulated machine, a runtime directory for `aliquot run`, and what runs there."""

    def __init__(self, spec: str, extra: tuple[str, ...] = ()) -> None:
        self.spec = spec
        self.extra = extra
        # A socket's path is short, and pytest's folders are not.
        self.folder = Path(tempfile.mkdtemp(prefix="alq-"))
        self.runtime = self.folder / "run"
        self.machine: EmulatedMachine = prepare(self.folder / "gpu", spec, extra=extra)
        self.runs: list[Run] = []
        self.keeper: Run | None = None

    def start(self, way: str, argv: Sequence[str | Path], *, share: Sequence[str] = (), **environment: str) -> Run:
        """Start a program alone on the machine, or as a tenant with `share`, options of `aliquot run`."""
        if way != "alone" and self.keeper is None:
            self.keeper = self._start("library-path", ["sh", "-c", "echo up; exec sleep inf"], KEPT)
            assert self.keeper.process.stdout is not None
            assert "up\n" == self.keeper.process.stdout.readline(), self.keeper.errors
        return self._start(way, argv, share, **environment)

    def _start(self, way: str, argv: Sequence[str | Path], share: Sequence[str], **environment: str) -> Run:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "CUDA_VISIBLE"))} | environment
        words = [str(word) for word in argv]
        if way == "alone":
            env["LD_LIBRARY_PATH"] = str(self.machine.directory)
        else:
            # The command's own modules; the program gets what it was given.
            env |= {"ALIQUOT_RUNTIME_DIR": str(self.runtime)}
            words = [
                sys.executable,
                "-m",
                "aliquot.cli",
                "run",
                "--emulate",
                self.spec,
                "--inject",
                way,
                *share,
                "--",
                *words,
            ]
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SOURCES), env.get("PYTHONPATH")]))
        sink = self.folder / f"{len(self.runs)}.err"
        with sink.open("wb") as errors:
            pipe = subprocess.PIPE
            process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=env)
        run = Run(process, sink)
        self.runs.append(run)
        return run

    def close(self) -> None:
        """End what still runs, wait until the engine of the last tenant has gone, remove everything."""
        for run in self.runs:
            if run.process.poll() is None:
                run.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.communicate(timeout=20)
            if run.process.poll() is None:
                run.process.kill()
                run.process.communicate()
        eventually(lambda: not engine_lives(self.runtime), "the engine has ended")
        shutil.rmtree(self.folder, ignore_errors=True)
