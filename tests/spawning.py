"""Engines in this process in a folder of their own, and programs of their tenants."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aliquot.driver.injection import Mode
from aliquot.model.ids import TenantName
from aliquot.model.quantities import Memory
from aliquot.model.requests import Enforce, GpuRequest
from aliquot.standalone.engine import Engine
from aliquot.standalone.paths import RuntimeDir
from aliquot.standalone.program import start_program, with_tools
from aliquot.standalone.tenants import EngineTenant

END_TIMEOUT_S = 5.0


@contextlib.contextmanager
def engine_of(emulate: str | None, **options: Any) -> Iterator[Engine]:
    """An engine in a folder that is gone with it."""
    folder = Path(tempfile.mkdtemp(prefix="aliquot-"))
    try:
        with Engine.start(emulate, runtime=RuntimeDir(folder), **options) as engine:
            yield engine
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class TenantProgram:
    """A program under an engine, which has its share until it is seen to have ended."""

    def __init__(self, engine: Engine, tenant: EngineTenant, process: subprocess.Popen[bytes]) -> None:
        self.engine, self.tenant, self.process, self.pid = engine, tenant, process, process.pid
        self.terminate, self.kill = process.terminate, process.kill

    @property
    def injection(self) -> str:
        """How it came to load our library, once it has started."""
        return self.tenant.folder.injection()

    def poll(self) -> int | None:
        """The exit status (negative: killed by that signal), or None while it runs."""
        status = self.process.poll()
        if status is not None:
            self.engine.release(self.tenant)
        return status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, so many seconds at most."""
        status = self.process.wait(timeout)
        self.engine.release(self.tenant)
        return status

    def end(self) -> int:
        """Ask it to end, wait, kill if need be; its exit status."""
        with contextlib.suppress(ProcessLookupError):
            self.terminate()
        try:
            return self.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait()


def spawn(
    engine: Engine,
    name: str,
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    request_milli: int,
    limit_milli: int = 1000,
    memory_mib: int | None = None,
    gpu: int | str = 0,
    enforce: Enforce | None = None,
    wake_us: int = 0,
    injection: Mode = "auto",
) -> TenantProgram:
    """Start a program as a new tenant; it ends with the thread that calls, at the latest."""
    memory = None if memory_mib is None else Memory(mib=memory_mib)
    request = GpuRequest(request_milli, limit_milli, memory, gpu=str(gpu), enforce=enforce, wake_us=wake_us)
    tenant = engine.admit(TenantName(name), request)
    environment = with_tools(os.environ if env is None else env, engine.machine.libcuda) | tenant.variables
    try:
        process = start_program(tenant.folder, argv, environment, mode=injection, death_signal=signal.SIGKILL)
    except BaseException:
        engine.release(tenant)
        raise
    return TenantProgram(engine, tenant, process)
