"""Tools of the driver that programs on emulated GPUs find on their PATH, where the machine has none of its own."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aliquot import driver

NVIDIA_SMI: Final = "nvidia-smi"
_PROGRAM: Final = Path(driver.__file__).with_name("nvidia_smi.py")


def install_tools(machine: Path) -> None:
    """Put the tools into the folder of an emulated machine."""
    folder = machine / "bin"
    folder.mkdir(mode=0o755, exist_ok=True)
    command = folder / NVIDIA_SMI
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I {shlex.quote(str(_PROGRAM))} "$@"\n')
    command.chmod(0o755)


def with_tools(env: Mapping[str, str], libcuda: Path) -> dict[str, str]:
    """The environment of a program on the machine of this driver: an emulated one's tools come last on its PATH.

    A real nvidia-smi is never hidden: where PATH has one, nothing is added.
    """
    tools, path = libcuda.parent / "bin", env.get("PATH", "")
    if not (tools / NVIDIA_SMI).exists() or not path or shutil.which(NVIDIA_SMI, path=path):
        return dict(env)
    return dict(env) | {"PATH": f"{path}:{tools}"}
