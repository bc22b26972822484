"""Which processes have a GPU open: a device of the driver, or the state that all users of an emulated machine share.

A process chooses its own file names, also in a container; so a device is recognised by its number, and what was not
checked is not vouched for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from pathlib import Path
from typing import Final

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
                if _is_driver(Path(entry.path), majors):
                    return True
            unseen = next(entries, None) is not None or bool(majors and _STATX is None)
            return None if unseen else False
    except OSError:
        return None


def _is_driver(descriptor: Path, majors: frozenset[int]) -> bool:
    try:
        target = str(descriptor.readlink())
    except OSError:
        return False
    if target.startswith(f"/dev/{DRIVER}") or target.endswith(EMULATED):
        return True
    # A container may make the same device under another name.
    return bool(majors) and target.startswith("/") and _device_major(descriptor) in majors


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
