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

from aliquot.driver.volume.names import LOADER_FOLDERS
from aliquot.driver.volume.source import BadCache, read_cache
from aliquot.model.errors import AliquotError

CUDA: Final = "libcuda.so.1"
NVML: Final = "libnvidia-ml.so.1"
SYSTEM_CACHE: Final = Path("/etc/ld.so.cache")


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
    """Paths that the loader's cache knows for the driver's two libraries; none without a cache."""
    try:
        entries = read_cache(SYSTEM_CACHE.read_bytes())
    except (OSError, BadCache):
        entries = ()
    return {name: tuple(Path(entry.path) for entry in entries if entry.name == name) for name in (CUDA, NVML)}


def candidates(name: str, first: Iterable[Path] = ()) -> list[Path]:
    """Existing files by that name where the loader looks, the folders of `first` before its own first choice."""
    folders = (Path(folder) for folder in LOADER_FOLDERS)
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
