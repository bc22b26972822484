"""The two trees of a driver: `origin` as it is, and `shared`, where our library stands for libcuda and libnvidia-ml.

Each has `lib64`, `lib` (32 bit) and `bin`. Files are hard links where the file system allows it, else copies, so that
what a running container has mapped stays when the driver on the node is replaced. Beside each file stand the names by
which programs ask for it, as ldconfig would have made them.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Final

from aliquot.driver.native import STANDS_FOR
from aliquot.lib.files import on_disk
from aliquot.node.volume.names import GLX, SUBSTITUTED, stem
from aliquot.node.volume.source import DriverLibrary, DriverSource

ORIGIN: Final = "origin"
SHARED: Final = "shared"
FILES: Final = "files"
"""Beside the trees: files that are shown where they lie in the driver's root."""
_NO_LINK: Final = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES)


def library_folder(bits: int) -> str:
    """Where libraries of a word size lie in a tree."""
    return "lib64" if bits == 64 else "lib"


def mirror(source: DriverSource, folder: Path, hook: Path) -> None:
    """Make both trees in an empty folder.

    Raises:
        OSError: a file could not be linked nor copied.
    """
    for tree in (ORIGIN, SHARED):
        for name in ("lib64", "lib", "bin"):
            (folder / tree / name).mkdir(parents=True, exist_ok=True)
        for program in source.programs:
            clone(program, folder / tree / "bin" / program.name)
    for library in source.libraries:
        place = library_folder(library.bits)
        _with_names(library, folder / ORIGIN / place)
        if stem(library.file.name) not in SUBSTITUTED:
            _with_names(library, folder / SHARED / place)
    for tree in (ORIGIN, SHARED):
        _glx_indirect(folder / tree)
    for path, file in source.files:
        target = folder / FILES / path
        target.parent.mkdir(parents=True, exist_ok=True)
        clone(file, target)
    shared = folder / SHARED / "lib64"
    for name in SUBSTITUTED:
        for each in substitute_names(source, name):
            clone(hook.with_name(STANDS_FOR[f"{name}.1"]), shared / each)


def _glx_indirect(tree: Path) -> None:
    """The name by which a libGL that knows of no vendor finds the driver's GLX."""
    for folder in (tree / "lib64", tree / "lib"):
        for found in sorted(folder.glob(f"{GLX[0]}.[0-9]*.*"))[:1]:
            (folder / GLX[1]).symlink_to(found.name)


def substitute_names(source: DriverSource, name: str) -> tuple[str, ...]:
    """All names by which programs may ask for one of the two: bare, with its soname, with its version.

    The 32-bit one is left out of the shared tree: we have no 32-bit hook, so a 32-bit program finds no driver there
    rather than one whose use is not counted.
    """
    library = source.library(name)
    return tuple(dict.fromkeys((library.soname, name, library.file.name)))


def clone(file: Path, target: Path) -> None:
    """A hard link, or a copy where there can be none; what stands there is replaced.

    Raises:
        OSError: neither could be made.
    """
    target.unlink(missing_ok=True)
    try:
        os.link(file, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        shutil.copy2(file, target)
        on_disk(target)


def _with_names(library: DriverLibrary, folder: Path) -> None:
    name = library.file.name
    clone(library.file, folder / name)
    for other in {library.soname, stem(name)} - {name}:
        link = folder / other
        if not link.is_symlink() and not link.exists():
            link.symlink_to(name)
