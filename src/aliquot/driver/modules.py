"""The kernel's side of the driver: its modules, and the device nodes by which programs reach them.

After a boot without a display server `nvidia-uvm` is not loaded and has no device node; then `cuInit` fails with
999 in every program. NVIDIA's setuid program `nvidia-modprobe` does both, and is asked to where it is installed.

Sources: NVIDIA driver README, "Frequently Asked Questions" (device files) and "Using the /proc file system interface";
nvidia-modprobe(1).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

MODULES: Final = ("nvidia", "nvidia_uvm")
NEEDED_NODES: Final = ("nvidiactl", "nvidia-uvm")
CONTROL_NODES: Final = (*NEEDED_NODES, "nvidia-uvm-tools")
MAKE_NODES: Final = "nvidia-modprobe -u -c=0"
GPUS: Final = Path("/proc/driver/nvidia/gpus")
_MINOR: Final = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
_PROGRAM: Final = "nvidia-modprobe"
_TIMEOUT_S: Final = 60


def loaded(listed: Path = Path("/proc/modules")) -> frozenset[str]:
    """Which of the driver's modules the kernel has."""
    try:
        names = {line.partition(" ")[0] for line in listed.read_text().splitlines()}
    except OSError:
        return frozenset()
    return frozenset(names.intersection(MODULES))


def minors(gpus: Path = GPUS) -> Mapping[str, int]:
    """The minor number of every GPU that the kernel module drives, by its PCI address."""
    found = {}
    for file in sorted(gpus.glob("*/information")):
        try:
            match = _MINOR.search(file.read_text())
        except OSError:
            continue
        if match:
            found[file.parent.name] = int(match.group(1))
    return found


def node_name(minor: int) -> str:
    """The name of the device node of a GPU."""
    return f"nvidia{minor}"


def missing_nodes(devices: Path, gpus: Collection[int]) -> list[Path]:
    """The device nodes that programs need on GPUs of these minor numbers and that are not in `devices`."""
    names = (*NEEDED_NODES, *map(node_name, sorted(gpus)))
    return [devices / name for name in names if not (devices / name).exists()]


def make_nodes(devices: Path, gpus: Collection[int] = ()) -> list[Path]:
    """Have `nvidia-modprobe` load the modules and make what is missing; what is missing still.

    `devices` is the folder `dev` of this machine, or of another root that is seen from here.
    """
    missing = missing_nodes(devices, gpus)
    root = devices.parent
    if not missing or not _installed(root):
        return missing
    numbers = [minor for minor in sorted(gpus) if devices / node_name(minor) in missing]
    prefix = [] if root == Path("/") else ["chroot", str(root)]
    for arguments in (["-u", "-c=0"], *([f"-c={number}"] for number in numbers)):
        try:
            subprocess.run([*prefix, _PROGRAM, *arguments], capture_output=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            break  # what is missing is said
    return missing_nodes(devices, gpus)


def _installed(root: Path) -> bool:
    if root == Path("/"):
        return shutil.which(_PROGRAM) is not None
    return any(os.access(root / folder / _PROGRAM, os.X_OK) for folder in ("usr/bin", "usr/sbin", "bin"))
