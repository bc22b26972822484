"""One emulated GPU, a tenant's folder, a scripted arbiter, and programs that run under the hook."""

import ctypes
import json
import os
import select
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aliquot.driver.emulation import prepare
from aliquot.driver.injection import Mode, TenantConf, TenantFolder, launch, provision
from aliquot.driver.native import HOOK, native_part

from .driver_process import DriverProcess
from .scripted_arbiter import ScriptedArbiter

TESTS = Path(__file__).parents[1]
CLIENTS = TESTS / "integration" / "hook"


def device_bytes(libnvml: Path) -> int:
    """Bytes in use of the first GPU by anybody, contexts included."""
    nvml, device = ctypes.CDLL(str(libnvml)), ctypes.c_void_p()
    total_free_used = (ctypes.c_uint64 * 3)()
    assert nvml.nvmlInit_v2() == nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, total_free_used) == 0
    return total_free_used[2]


@dataclass
class Program:
    """A running test program."""

    process: subprocess.Popen[str]

    def read(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """The next line it says."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise AssertionError(f"the program said nothing for {timeout_s} s")
        line = self.process.stdout.readline()
        if not line:
            _, errors = self.process.communicate(timeout=10)
            raise AssertionError(f"the program ended with {self.process.returncode}: {errors}")
        return dict(json.loads(line))

    def go(self, text: str = "go") -> None:
        """Lets it go on from wait_line()."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Waits for the end; the exit status."""
        self.process.communicate(timeout=20)
        return self.process.returncode


class Tenant:
    """Builder: a machine, an arbiter and programs that run under the hook."""

    def __init__(self, directory: Path, **arbiter: Any) -> None:
        spec = arbiter.pop("spec", "v100")
        owned = arbiter.pop("owned", None)
        cpus = arbiter.pop("cpus", "")
        self.machine = prepare(directory / "emulated", spec, extra=arbiter.pop("extra", ()))
        uuids = self.machine.uuids if owned is None else self.machine.uuids[:owned]
        self.arbiter = ScriptedArbiter(directory / "s", uuids, **arbiter)
        self.arbiter.start()
        conf = TenantConf("t", directory / "s", self.machine.libcuda, self.machine.libnvml, cpus)
        self.folder: TenantFolder = provision(directory / "tenant", conf, native_part(HOOK))
        self.programs: list[Program] = []
        self.drivers: list[DriverProcess] = []
        self.context_bytes = 0

    def environment(self, mode: str) -> dict[str, str]:
        """The environment of a way in: `library-path` or `preload`."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("LD_")}
        env["PYTHONPATH"] = f"{CLIENTS}:{TESTS}"
        if mode == "preload":
            env["LD_PRELOAD"] = str(self.folder.lib / "libaliquot.so")
            env["LD_LIBRARY_PATH"] = str(self.machine.directory)
        else:
            env["LD_LIBRARY_PATH"] = str(self.folder.lib)
        return env

    def run(self, code: str, *, mode: str = "library-path") -> Program:
        """Starts a program; client.py is imported already."""
        return self.start([sys.executable, "-c", "from client import *\n" + textwrap.dedent(code)], mode=mode)

    def start(self, argv: list[str], *, mode: str = "library-path") -> Program:
        """Starts a command of the tenant's."""
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(mode),
        )
        program = Program(process)
        self.programs.append(program)
        return program

    def driver(self, *, mode: str = "library-path", **environment: str) -> DriverProcess:
        """A process of the tenant's whose calls the test makes."""
        return self._opened({**self.environment(mode), **environment})

    def gpu(self, *, mode: str = "library-path", **environment: str) -> DriverProcess:
        """Such a process with the primary context of the first GPU."""
        driver = self.driver(mode=mode, **environment)
        assert driver.open() == 0
        self.context_bytes = self.device_bytes()
        return driver

    def lent(self) -> int:
        """Bytes that the device lends beyond what it did when the context of the last `gpu` was there."""
        return self.device_bytes() - self.context_bytes

    def bare(self, **environment: str) -> DriverProcess:
        """A process that has the driver itself, without the hook."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
        return self._opened({**plain, "LD_LIBRARY_PATH": str(self.machine.directory), **environment})

    def _opened(self, environment: dict[str, str]) -> DriverProcess:
        self.drivers.append(DriverProcess(environment))
        return self.drivers[-1]

    def execute(self, argv: list[str], *, mode: Mode) -> subprocess.CompletedProcess[str]:
        """Runs a command of the tenant's to its end, by any way of injection; fails with what it wrote to stderr."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
        ready = launch(self.folder, argv, env, mode=mode)
        done = subprocess.run(ready.argv, env=ready.env, capture_output=True, text=True, timeout=60, check=False)
        if "substitution is not possible" in done.stderr:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done.stderr
        return done

    def device_bytes(self) -> int:
        """What is in use of the first GPU in truth, by whomever, contexts included."""
        return device_bytes(self.machine.libnvml)

    def close(self) -> None:
        """Ends what still runs."""
        for driver in self.drivers:
            driver.kill()
        for program in self.programs:
            if program.process.poll() is None:
                program.process.kill()
            program.process.communicate()
        self.arbiter.stop()
