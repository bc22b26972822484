"""The kernel's side of the driver: its modules, the device nodes by which programs reach them, and who has one open.

After a boot without a display server `nvidia-uvm` is not loaded and has no device node; then `cuInit` fails with
999 in every program. NVIDIA's setuid program `nvidia-modprobe` does both, and is asked to where it is installed.

A process chooses its own file names, also in a container; so a device is recognised by its number, and what was not
checked is not vouched for. All users of an emulated machine have the state open that they share.

Sources: NVIDIA driver README, "Frequently Asked Questions" (device files) and "Using the /proc file system interface";
nvidia-modprobe(1).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import stat
import struct
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
PROC: Final = Path("/proc")
DRIVER: Final = "nvidia"
"""How the names of the driver's devices begin, below /dev and in /proc/devices."""
EMULATED: Final = "/engine.shm"
MAX_FILES: Final = 4096
# Source: Linux, include/uapi/linux/stat.h and fcntl.h.
_STATX_BYTES: Final = 256
_STATX_MODE: Final = 28
_STATX_RDEV_MAJOR: Final = 128
_TYPE: Final = 1
_HERE: Final = -100
_STATX: Final = getattr(ctypes.CDLL(None), "statx", None)
_DONT_SYNC: Final = 0x4000


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
    folders = (root / folder for folder in ("usr/bin", "usr/sbin", "bin"))
    here = root == Path("/") and shutil.which(_PROGRAM) is not None
    installed = here or (root != Path("/") and any(os.access(folder / _PROGRAM, os.X_OK) for folder in folders))
    if not missing or not installed:
        return missing
    numbers = [minor for minor in sorted(gpus) if devices / node_name(minor) in missing]
    prefix = [] if root == Path("/") else ["chroot", str(root)]
    for arguments in (["-u", "-c=0"], *([f"-c={number}"] for number in numbers)):
        try:
            subprocess.run([*prefix, _PROGRAM, *arguments], capture_output=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            break  # what is missing is said
    return missing_nodes(devices, gpus)


def driver_majors(proc: Path = PROC) -> frozenset[int]:
    """The numbers of the driver's character devices; none where it is not loaded."""
    with contextlib.suppress(OSError):
        characters = (proc / "devices").read_text().partition("Block devices:")[0]
        lines = [line.split() for line in characters.splitlines()]
        return frozenset(int(line[0]) for line in lines if len(line) == 2 and line[1].startswith(DRIVER))
    return frozenset()


def has_driver_open(folder: Path, majors: frozenset[int]) -> bool | None:
    """Whether the process of this folder of /proc has a device of the driver open, or an emulated machine's state.

    None without permission, which needs CAP_SYS_PTRACE or no more capabilities on its side than on ours; where it
    has more open than is looked through; and where the C library cannot tell a device's number (glibc before 2.28).
    """
    try:
        with os.scandir(folder / "fd") as entries:
            for _, entry in zip(range(MAX_FILES), entries, strict=False):
                descriptor = Path(entry.path)
                try:
                    target = str(descriptor.readlink())
                except OSError:
                    continue
                if target.startswith(f"/dev/{DRIVER}") or target.endswith(EMULATED):
                    return True
                # A container may make the same device under another name.
                if majors and target.startswith("/") and _device_major(descriptor) in majors:
                    return True
            unseen = next(entries, None) is not None or bool(majors and _STATX is None)
            return None if unseen else False
    except OSError:
        return None


def _device_major(path: Path) -> int | None:
    """The number of a character device's driver; None for any other file.

    Uses AT_STATX_DONT_SYNC, which os.stat cannot: a file system of a tenant, or one whose server is down,
    would otherwise block the audit forever.
    """
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if _STATX is None or _STATX(_HERE, os.fsencode(path), _DONT_SYNC, _TYPE, found) != 0:
        return None
    (mode,) = struct.unpack_from("=H", found, _STATX_MODE)
    (major,) = struct.unpack_from("=I", found, _STATX_RDEV_MAJOR)
    return int(major) if stat.S_ISCHR(mode) else None
