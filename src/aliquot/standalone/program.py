"""Starts the programs of tenants, and gives them the driver's tools.

On emulated GPUs these come last on its PATH, where the machine has none of its own.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from aliquot import driver
from aliquot.driver.injection import Mode, TenantFolder, launch
from aliquot.standalone.accounts import Account

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
