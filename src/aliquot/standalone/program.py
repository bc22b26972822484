"""One started program of a tenant, and the driver's tools that it finds.

On emulated GPUs these come last on its PATH, where the machine has none of its own.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from aliquot import driver
from aliquot.driver.injection import Mode, TenantFolder, launch
from aliquot.model.ids import TenantName
from aliquot.standalone.accounts import Account

END_TIMEOUT_S: Final = 5.0
NVIDIA_SMI: Final = "nvidia-smi"


def install_tools(machine: Path) -> None:
    """Put the tools into the folder of an emulated machine."""
    folder = machine / "bin"
    folder.mkdir(mode=0o755, exist_ok=True)
    command = folder / NVIDIA_SMI
    program = Path(driver.__file__).with_name("nvidia_smi.py")
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I {shlex.quote(str(program))} "$@"\n')
    command.chmod(0o755)


def with_tools(env: Mapping[str, str], libcuda: Path) -> dict[str, str]:
    """The environment of a program on the machine of this driver: an emulated one's tools come last on its PATH.

    A real nvidia-smi is never hidden: where PATH has one, nothing is added.
    """
    tools, path = libcuda.parent / "bin", env.get("PATH", "")
    if not (tools / NVIDIA_SMI).exists() or not path or shutil.which(NVIDIA_SMI, path=path):
        return dict(env)
    return dict(env) | {"PATH": f"{path}:{tools}"}


def start_program(
    folder: TenantFolder,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    mode: Mode = "auto",
    cwd: Path | None = None,
    death_signal: int = 0,
    output: IO[bytes] | int | None = None,
    new_session: bool = False,
    container: str = "",
    owner: Account | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command from a tenant's folder; `output` takes both of its streams. It runs as its owner's account."""
    account = None if owner is None or owner.is_master else (owner.uid, owner.gid, list(owner.groups))
    ready = launch(
        folder, argv, env, mode=mode, cwd=cwd, death_signal=death_signal, container=container, account=account
    )
    errors = None if output is None else subprocess.STDOUT
    stdin = None if output is None else subprocess.DEVNULL
    # The child becomes the program by exec, so its process id is the program's. Its environment travels in the file.
    return subprocess.Popen(
        ready.argv, env=ready.env, stdin=stdin, stdout=output, stderr=errors, start_new_session=new_session
    )


class TenantProgram:
    """A program under an engine; behaves like its `process` where that is all a caller needs."""

    def __init__(
        self, name: TenantName, process: subprocess.Popen[bytes], folder: TenantFolder, on_end: Callable[[], None]
    ) -> None:
        self.name = name
        self.process = process
        self.folder = folder
        self._on_end = on_end

    @property
    def pid(self) -> int:
        """Process id of the program."""
        return self.process.pid

    @property
    def injection(self) -> str:
        """How it came to load our library, once it has started."""
        return self.folder.injection()

    def poll(self) -> int | None:
        """The exit status (negative: killed by that signal), or None while it runs."""
        status = self.process.poll()
        if status is not None:
            self._on_end()
        return status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; seconds.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        status = self.process.wait(timeout)
        self._on_end()
        return status

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Ask it to end, wait, kill if need be; its exit status."""
        with contextlib.suppress(ProcessLookupError):
            self.terminate()
        try:
            return self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait()
