"""Emulated machines and the clients that run on them, each client in its own process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.driver_process import DriverProcess

from aliquot.driver.emulation import EmulatedMachine, prepare
from aliquot.driver.native import NativePartMissing

PRELUDE = Path(__file__).with_name("client_prelude.py").read_text("utf-8")


class Clients:
    """Starts client programs on one machine and ends those still running."""

    def __init__(self, machine: EmulatedMachine) -> None:
        self.machine = machine
        self.children: list[subprocess.Popen[str]] = []
        self.drivers: list[DriverProcess] = []

    def driver(self, **env: str) -> DriverProcess:
        """A process whose calls the test makes."""
        self.drivers.append(DriverProcess(self.environment(**env)))
        return self.drivers[-1]

    def gpu(self, **env: str) -> DriverProcess:
        """Such a process with the primary context of the first GPU."""
        driver = self.driver(**env)
        assert driver.open() == 0
        return driver

    def environment(self, **env: str) -> dict[str, str]:
        """That of a program which finds the machine's driver."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.machine.directory), **env}

    def start(self, code: str, **env: str) -> subprocess.Popen[str]:
        """A process that runs `code` after the prelude (see client_prelude.py)."""
        return self.launch(sys.executable, "-c", PRELUDE + "\n" + code, **env)

    def launch(self, *argv: str | Path, **env: str) -> subprocess.Popen[str]:
        """A process of any program."""
        pipe, variables = subprocess.PIPE, self.environment(**env)
        child = subprocess.Popen(argv, env=variables, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.children.append(child)
        return child

    def execute(self, *argv: str | Path, timeout_s: float = 60.0) -> tuple[int, str, str]:
        """Any program to its end: its status, and what it wrote to stdout and stderr."""
        child = self.launch(*argv)
        out, err = child.communicate(timeout=timeout_s)
        return child.returncode, out, err

    def run(self, code: str, **env: str) -> Any:
        """The JSON value that `code` handed to `answer()`; fails with the client's error text."""
        return self.answer(self.start(code, **env))

    def answer(self, child: subprocess.Popen[str]) -> Any:
        """Waits for a started client's answer."""
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
        return json.loads(out.splitlines()[-1])


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Callable[..., Clients]]:
    """Builds a machine from a specification and hands out its `Clients`."""
    made: list[Clients] = []

    def build(spec: str = "a100x2", *extra: str) -> Clients:
        try:
            made.append(Clients(prepare(tmp_path / f"machine{len(made)}", spec, extra=extra)))
        except NativePartMissing as reason:
            pytest.skip(f"the emulator is not built: {reason}")
        return made[-1]

    yield build
    for each in made:
        for driver in each.drivers:
            driver.kill()
        for child in each.children:
            if child.poll() is None:
                child.kill()
            child.communicate()
