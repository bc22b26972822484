"""Where the native parts are: inside the installed package, never by the path of a source file.

An editable install keeps Python sources in the checkout and the libraries in site-packages; importlib.resources knows
both places.
"""

from __future__ import annotations

import os
import platform
import sysconfig
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Final

HOOK: Final = "libaliquot.so"
"""The hook as it is preloaded; beside it lie the files of `STANDS_FOR`."""
STANDS_FOR: Final = MappingProxyType({"libcuda.so.1": "libaliquot_cuda.so", "libnvidia-ml.so.1": "libaliquot_nvml.so"})
"""Which of our files stands for which of the driver's; each has that name as its soname."""
EMULATED_CUDA: Final = "emulator/libcuda.so.1"
EMULATED_NVML: Final = "emulator/libnvidia-ml.so.1"
KERNELS: Final = "libaliquot_kernels.so"
HANDOVER: Final = "libaliquot_handover.so"
"""The arbiter's loop for hand-overs."""


PROCESSORS: Final = ("x86_64", "AMD64")


class NativePartMissing(FileNotFoundError):
    """A native library is not where the installation should have put it."""


def wrong_processor(part: str) -> str:
    """Why a part cannot exist on this machine, as a sentence; empty where it can. The kernels run everywhere."""
    machine = platform.machine()
    if part == KERNELS or machine in PROCESSORS:
        return ""
    return f"Aliquot's hook and emulated driver are written for x86-64, this machine is {machine}"


def native_part(name: str, package: str = "aliquot") -> Path:
    """The absolute path of one native library or program of an installed package, such as `HOOK`.

    `ALIQUOT_NATIVE_DIR` names another folder, for those who work on the C code.

    Raises:
        NativePartMissing: the installation is incomplete.
    """
    override = os.environ.get("ALIQUOT_NATIVE_DIR")
    if override and not Path(override).is_dir():
        raise NativePartMissing(f"ALIQUOT_NATIVE_DIR is {override}, where no folder is; give the whole path of one")
    roots = [Path(override)] if override else []
    installed = files(package)
    candidates = getattr(installed, "_paths", None) or [Path(str(installed))]
    roots += [Path(str(root)) / "native" for root in candidates]
    if package != "aliquot":  # an editable install that has programs alone, no libraries, does not name their folder
        roots.append(Path(sysconfig.get_path("platlib")) / package / "native")
    for root in roots:
        path = root / name
        if path.exists():
            return path.resolve()
    reason = wrong_processor(name)
    if reason:
        raise NativePartMissing(f"{reason}; share GPUs on an x86-64 machine, aliquot sim works here")
    raise NativePartMissing(f"native part {name} not found under {', '.join(map(str, roots))}; run make setup")
