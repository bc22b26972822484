"""Kills amid a park and amid a return: nothing is lost, given twice or kept, and the program works on."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import engine_lives, eventually

from .stage import alive, children_of, end
from .test_machine_engine import PYTHON, Machine, accounts_cannot_start
from .test_park import NOTEBOOK, compute, said

pytestmark = pytest.mark.skipif(accounts_cannot_start(), reason="needs root, and the Python of the machine's engine")

STOPPING = Path(__file__).with_name("programs") / "stopping.py"
DEVICE = Path(__file__).with_name("programs") / "device.py"
PARK = ("revoke", "drain", "lock", "checkpoint", "release")
RETURN = ("reserve", "restore", "unlock", "go on")
GPU_MIB, HELD_MIB = 16 * 1024, 10 * 1024


class Steps(Machine):
    """The machine's engine with a notebook on a GPU, to be stopped after any step."""

    def __init__(self, folder: Path, gpus: str, *options: str) -> None:
        super().__init__(folder)
        self.folder = folder
        self.options = options
        self.words[self.words.index("v100x2")] = gpus
        self.root.env["STEPS_DIR"] = str(folder)
        self.number = 0
        self.run: subprocess.Popen[str] | None = None

    def up(self, *words: str) -> None:
        """Start an engine that stops where it is told."""
        start = self.root.start
        self.root.start = lambda *words, **options: self.root.program(PYTHON, str(STOPPING), *words, **options)  # type: ignore[method-assign]
        try:
            super().up(*words)
        finally:
            self.root.start = start  # type: ignore[method-assign]

    @property
    def engine(self) -> int:
        """Its process."""
        assert self.process is not None
        return self.process.pid

    def notebook(self) -> None:
        """Start a run that holds 10 GiB."""
        self.number += 1
        self.name = f"nb{self.number}"
        self.cells = self.folder / f"{self.name}.cells"
        self.cells.write_text("0")
        self.run = self.root.start(
            "run", "--gpu-request", ".2", "--gpu-mem", "10Gi", "--name", self.name, *self.options, "--",
            sys.executable, str(NOTEBOOK), str(self.cells), "8",
        )  # fmt: skip
        eventually(lambda: said(self.cells) == "held", "the notebook has its memory", 60)

    def need(self) -> None:
        """The notebook has something to compute."""
        self.cells.write_text(str(int(self.cells.read_text()) + 1))

    def stop_at(self, step: str) -> None:
        """Have the engine stop after this step; the one that is under way goes on."""
        (self.folder / "stopped").unlink(missing_ok=True)
        (self.folder / "at.new").write_text(step)
        (self.folder / "at.new").rename(self.folder / "at")

    def wait_stopped(self, step: str) -> None:
        """Until it has."""
        eventually(lambda: (self.folder / "stopped").exists(), f"the engine stops after {step}", 60)

    def victim(self, kind: str) -> int:
        """A process to kill."""
        assert self.run is not None
        if kind == "tenant":
            return children_of(self.run.pid, NOTEBOOK.name)[-1]  # the one before listens for signals
        words = {"arbiter": "aliquot.arbiter", "helper": "driver.checkpoints"}
        return self.engine if kind == "engine" else next(iter(children_of(self.engine, words[kind])), 0)

    def kill(self, kind: str) -> None:
        """Kill it; an engine is started again once the file names no step."""
        if pid := self.victim(kind):
            os.kill(pid, signal.SIGKILL)
        if kind == "engine":
            assert self.process is not None
            self.process.communicate(timeout=60)
        self.stop_at("")
        if kind == "engine":
            self.up()

    def used_mib(self) -> dict[str, int]:
        """Of each GPU, as that itself says."""
        library = self.runtime / "emulated" / "libnvidia-ml.so.1"
        done = subprocess.run([sys.executable, DEVICE, library], capture_output=True, text=True, check=True)
        return {uuid: used_mib for uuid, (used_mib, _) in json.loads(done.stdout).items()}

    def agrees(self) -> bool:
        """Whether ledger and devices have the same: the notebook's memory is on its GPU, and all others are free."""
        listed, used_mib = self.root.facts("get", "tenants"), self.used_mib()
        for gpu in self.root.facts("get", "gpus"):
            here = [tenant for tenant in listed if gpu["index"] in tenant["gpus"] and not tenant.get("parked")]
            used = used_mib[gpu["uuid"]]
            if gpu["free_mib"] != GPU_MIB - HELD_MIB * len(here) or not (
                8192 < used <= HELD_MIB if here else used == 0
            ):
                return False
        return True

    def check(self) -> None:
        """The notebook works on, or has ended and left nothing; it can be parked and comes back."""
        assert self.run is not None
        eventually(self.agrees, "ledger and device agree", 60)
        if self.run.poll() is None:
            compute(self.cells)
            eventually(self.agrees, "they agree while it is awake", 60)


@pytest.fixture
def steps() -> Iterator[Steps]:
    """An engine with one GPU and a notebook."""
    yield from steps_of("v100")


def steps_of(gpus: str, *options: str) -> Iterator[Steps]:
    """An engine with a notebook that is started with these options."""
    folder = Path(tempfile.mkdtemp(prefix="alq-", dir="/tmp"))
    folder.chmod(0o755)
    machine = Steps(folder, gpus, *options)
    machine.stop_at("")
    machine.up()
    try:
        machine.notebook()
        yield machine
    finally:
        machine.stop_at("")
        for process in filter(None, (machine.run, machine.process)):
            end(process, signal.SIGINT)
        eventually(lambda: not engine_lives(machine.runtime), "the engine has written its last")
        shutil.rmtree(folder)


@pytest.mark.parametrize("victim", ["engine", "arbiter", "helper", "tenant"])
@pytest.mark.timeout(600)
def test_a_kill_after_any_step_loses_nothing(steps: Steps, victim: str):
    """Whatever is killed after whichever step, the memory is on the GPU or free for others, and the program works."""
    for step in (*PARK, *RETURN):
        compute(steps.cells)
        if step in RETURN:
            eventually(lambda: steps.root("park", steps.name).returncode == 0, "it is parked", 60)
        steps.stop_at(step)
        command = None
        if step in RETURN:
            steps.need()
        else:
            command = begin_park(steps)
        steps.wait_stopped(step)
        steps.kill(victim)
        if command is not None:
            command.communicate(timeout=90)
        if victim == "tenant":
            assert steps.run is not None
            steps.run.communicate(timeout=60)
            steps.check()
            steps.notebook()
        elif step in RETURN:
            done = f"{steps.cells.read_text()} as it was"
            eventually(lambda done=done: said(steps.cells) == done, f"it computes after a kill at {step}", 60)  # type: ignore[misc]
        steps.check()


def begin_park(steps: Steps) -> subprocess.Popen[str]:
    """A command that parks the notebook; what has just computed is idle a moment later, and refused until then."""
    while True:
        command = steps.root.start("park", steps.name)
        ended = command.poll
        eventually(lambda ended=ended: ended() is not None or (steps.folder / "stopped").exists(), "it begins", 60)  # type: ignore[misc]
        if (steps.folder / "stopped").exists():
            return command
        _, errors = command.communicate()
        assert "busy" in errors or "needs the GPU" in errors, errors


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_kills_at_any_moment_lose_nothing(steps: Steps, kills: int):
    """The same at random: parks and returns under way, and anything killed at any moment."""
    seed = int(os.environ.get("CHAOS_SEED") or time.time_ns() % 1_000_000)
    print(f"CHAOS_SEED={seed}")
    chance = random.Random(seed)
    for _ in range(kills):
        with contextlib.ExitStack() as commands:
            for _ in range(chance.randrange(1, 3)):
                word = chance.choice(["park", "unpark", "need"])
                if word == "need":
                    steps.need()
                else:
                    command = steps.root.start(word, steps.name)
                    commands.callback(command.communicate, timeout=90)
                time.sleep(chance.uniform(0.0, 0.8))
            victim = chance.choice(["engine", "arbiter", "helper", "helper"])
            print(f"kill {victim}")
            steps.kill(victim)
        assert steps.run is not None and alive(steps.run.pid)
        steps.check()
