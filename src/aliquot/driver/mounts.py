"""Where the loader searches for the driver's libraries on this machine, and a cache that makes it find ours first."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final

from aliquot.model.errors import AliquotError

CUDA: Final = "libcuda.so.1"
NVML: Final = "libnvidia-ml.so.1"
SYSTEM_CACHE: Final = Path("/etc/ld.so.cache")
_WHERE_DRIVERS_LIE: Final = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/lib/nvidia",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
)


class LinkerCacheError(AliquotError):
    """ldconfig is missing or failed, so programs cannot be led to our libraries by the loader's cache."""


def ldconfig() -> str:
    """Where ldconfig is.

    Raises:
        LinkerCacheError: nowhere.
    """
    found = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise LinkerCacheError("ldconfig was not found; use --inject library-path")
    return found


@lru_cache(maxsize=1)
def cached_libraries() -> dict[str, tuple[Path, ...]]:
    """Paths that the loader's cache knows for the driver's two libraries; none without ldconfig."""
    found: dict[str, list[Path]] = {CUDA: [], NVML: []}
    try:
        done = subprocess.run([ldconfig(), "-p"], capture_output=True, text=True, check=False)
    except AliquotError:
        return dict.fromkeys(found, ())
    for line in done.stdout.splitlines():
        name, _, path = line.partition(" => ")
        soname = name.split("(")[0].strip()
        if soname in found:
            found[soname].append(Path(path.strip()))
    return {name: tuple(paths) for name, paths in found.items()}


def candidates(name: str, first: Iterable[Path] = ()) -> list[Path]:
    """Existing files by that name where the loader looks, the folders of `first` before its own first choice."""
    folders = (Path(folder) for folder in _WHERE_DRIVERS_LIE)
    paths = [*(path / name for path in first), *cached_libraries()[name], *(path / name for path in folders)]
    existing = []
    for path in dict.fromkeys(paths):
        # A driver brings its 32-bit twin along, which is not ours to cover.
        with contextlib.suppress(OSError), path.open("rb") as library:
            if library.read(5) == b"\x7fELF\x02":
                existing.append(path)
    return existing


def driver_files(name: str, first: Iterable[Path] = ()) -> list[Path]:
    """The real files (links followed) of one of the driver's libraries on this machine, each once."""
    return list(dict.fromkeys(path.resolve() for path in candidates(name, first)))


def linker_cache(target: Path, first: Path) -> None:
    """Write a loader cache like the machine's, in which the libraries of `first` come before all others.

    Raises:
        LinkerCacheError: see there.
    """
    conf = target.with_suffix(".conf")
    conf.write_text(f"{first}\ninclude /etc/ld.so.conf\n")
    done = subprocess.run(
        [ldconfig(), "-X", "-C", str(target), "-f", str(conf)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0 or not target.exists():
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise LinkerCacheError(f"ldconfig could not write a cache ({reason[0]}); use --inject library-path")
