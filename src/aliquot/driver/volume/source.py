"""Where the driver's files are: this machine, NVIDIA's driver container in its own root, or an emulated driver.

Everything below a root is looked up inside that root: a link to /usr/lib/... in a driver container means the
container's /usr/lib, never the node's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aliquot.driver.volume import names as catalog
from aliquot.driver.volume.loader import BadCache, NotElf, read_cache, read_library
from aliquot.model.errors import AliquotError

# Where NVIDIA's driver container shows its root on the node. Source: NVIDIA GPU Operator, "driver root".
DRIVER_CONTAINER: Final = Path("/run/nvidia/driver")
_VERSION: Final = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)*)$")
_LINKS_MOST: Final = 40
_CACHE_MOST: Final = 64 << 20
# What the loaded kernel module says of itself; a library of another version is refused by it.
# Source: NVIDIA driver README, "Using the /proc file system interface".
LOADED: Final = Path("/proc/driver/nvidia/version")
_MODULE: Final = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)\s")


class NoDriverFiles(AliquotError):
    """No driver to mirror was found."""


@dataclass(frozen=True)
class DriverLibrary:
    """One library of the driver: the real file, its word size and the name it gives itself."""

    file: Path
    bits: int
    soname: str


@dataclass(frozen=True)
class DriverSource:
    """A driver's files, each real file once; `in_place` where it only works from its own folder (an emulated one).

    `root` is the one below which the driver lies: the machine's, or that of a driver container.
    """

    libraries: tuple[DriverLibrary, ...]
    programs: tuple[Path, ...]
    version: str
    in_place: bool = False
    root: Path = Path("/")
    files: tuple[tuple[Path, Path], ...] = ()
    """Further files: where they lie below the root, and so in containers, and the real file."""

    @property
    def fingerprint(self) -> str:
        """A fingerprint that changes with any file: 12 hex digits over version, names, sizes, inodes and times.

        Raises:
            OSError: a file has just gone.
        """
        facts = [self.version]
        libraries, files = (each.file for each in self.libraries), (real for _, real in self.files)
        for file in (*libraries, *self.programs, *files):
            seen = file.stat()
            facts.append(f"{file}:{seen.st_size}:{seen.st_ino}:{seen.st_mtime_ns}")
        return hashlib.sha256("\n".join(sorted(facts)).encode()).hexdigest()[:12]

    def library(self, name: str) -> DriverLibrary:
        """The 64-bit library of a name such as `libcuda.so`.

        Raises:
            NoDriverFiles: the driver has none.
        """
        for each in self.libraries:
            if each.bits == 64 and catalog.stem(each.file.name) == name:
                return each
        raise NoDriverFiles(f"the driver has no 64-bit {name}; is it installed whole?")


def from_root(root: Path = Path("/"), libraries: Collection[str] = catalog.LIBRARIES) -> DriverSource:
    """The driver of a root: of these libraries those that its loader's cache knows, or that lie where drivers put them.

    Raises:
        NoDriverFiles: no libcuda, or no libnvidia-ml; the two are what a share needs.
    """
    files: dict[Path, DriverLibrary] = {}
    names: set[tuple[int, str]] = set()
    for path in _candidates(root, libraries):
        real = within(root, path)
        if real is None or real in files:
            continue
        try:
            library = read_library(real)
        except (OSError, NotElf):
            continue
        if (library.bits, real.name) not in names:  # one of that name in a later folder is never loaded
            names.add((library.bits, real.name))
            files[real] = DriverLibrary(real, library.bits, library.soname or path.name)
    programs = []
    for name in catalog.BINARIES:
        places = (within(root, Path(folder) / name) for folder in catalog.PROGRAM_FOLDERS)
        program = next((real for real in places if real is not None and os.access(real, os.X_OK)), None)
        programs += [program] if program is not None else []
    # The version is that of the files' own names, libcuda's first, then as they were found.
    ordered = sorted(
        files,
        key=lambda file: catalog.LIBRARIES.index(catalog.stem(file.name)) if catalog.is_drivers(file.name) else 99,
    )
    versions = [match.group(1) for file in ordered if (match := _VERSION.search(file.name))]
    shown = [(Path(file), within(root, file)) for file in catalog.GRAPHICS_FILES if catalog.GLX[0] in libraries]
    source = DriverSource(
        tuple(files.values()),
        tuple(programs),
        versions[0] if versions else "unknown",
        root=root,
        files=tuple((path, real) for path, real in shown if real is not None),
    )
    try:
        for name in catalog.SUBSTITUTED:
            source.library(name)
    except NoDriverFiles as error:
        raise NoDriverFiles(f"no NVIDIA driver below {root}: {error}") from None
    return source


def from_libraries(libcuda: Path, libnvml: Path, version: str) -> DriverSource:
    """An emulated driver: two libraries that stay where they are.

    Raises:
        NoDriverFiles: one of them does not exist, or is not a library.
    """
    try:
        found = [DriverLibrary(path.resolve(), read_library(path).bits, path.name) for path in (libcuda, libnvml)]
    except (OSError, NotElf) as error:
        raise NoDriverFiles(f"the emulated driver cannot be read: {error}") from None
    return DriverSource(tuple(found), (), version, in_place=True)


def find_source(
    root: Path = Path("/"), container: Path = DRIVER_CONTAINER, libraries: Collection[str] = catalog.LIBRARIES
) -> DriverSource:
    """The driver container's driver if it exists, otherwise that of the root.

    Raises:
        NoDriverFiles: neither has a driver.
    """
    if (container / "usr").is_dir():
        try:
            return from_root(container, libraries)
        except NoDriverFiles:
            pass  # the container is about to come or to go
    return from_root(root, libraries)


def loaded_version(told: Path = LOADED) -> str:
    """The version of the driver's kernel module; empty where none is loaded."""
    try:
        match = _MODULE.search(told.read_text())
    except OSError:
        return ""
    return match.group(1) if match else ""


def within(root: Path, path: str | Path) -> Path | None:
    """The real file of a path inside a root, absolute links read as the root's own; None where there is none."""
    try:
        found = _resolved(root, Path(path))
        return found if found is not None and found.is_file() else None
    except OSError:
        return None  # it was removed meanwhile, or may not be read


def _resolved(root: Path, path: Path) -> Path | None:
    """Where a path inside a root leads; None for links in a circle.

    Raises:
        OSError: a link went while it was followed, or may not be seen.
    """
    left = [part for part in path.parts if part != "/"]
    at = root
    links = 0
    while left:
        part = left.pop(0)
        if part == "..":
            at = at.parent if at != root else root
            continue
        step = at / part
        if step.is_symlink():
            links += 1
            if links > _LINKS_MOST:
                return None
            target = step.readlink()
            left = [each for each in target.parts if each != "/"] + left
            at = root if target.is_absolute() else at
            continue
        at = step
    return at


def _candidates(root: Path, libraries: Collection[str]) -> Iterator[Path]:
    """Paths of these libraries below a root: those of its loader's cache, then those where drivers put them."""
    file = within(root, "etc/ld.so.cache")
    with contextlib.suppress(OSError, BadCache):  # the folders are looked at in any case
        if file is not None and file.stat().st_size <= _CACHE_MOST:
            for entry in read_cache(file.read_bytes()):
                if catalog.is_drivers(entry.name, libraries) and not entry.special:
                    yield Path(entry.path)
    for folder in catalog.LIBRARY_FOLDERS:
        try:
            real = _resolved(root, Path(folder))
            names = sorted(path.name for path in real.iterdir()) if real is not None else []
        except OSError:
            continue
        yield from (Path(folder) / name for name in names if catalog.is_drivers(name, libraries))
