"""The driver volume of a node: one generation for each driver seen, the newest for new containers.

A generation is created beside the others under a temporary name and renamed when complete and on disk, so a crash
leaves none that is half made. An upgrade of the driver creates another; the old one stays while a container has it.
The link `current` points to the one for new containers.

A generation has two trees: `origin`, the driver as it is, and `shared`, where our library stands for libcuda and
libnvidia-ml. Each has `lib64`, `lib` (32 bit) and `bin`. Files are hard links where the file system allows it, else
copies, so that what a running container has mapped stays when the driver on the node is replaced. Beside each file
stand the names by which programs ask for it, as ldconfig would have made them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aliquot.driver.cdi import Edits, Mount
from aliquot.driver.native import STANDS_FOR
from aliquot.driver.volume.names import GLX, SUBSTITUTED, stem
from aliquot.driver.volume.source import DriverLibrary, DriverSource
from aliquot.lib.files import on_disk
from aliquot.model.errors import AliquotError

# Where glibc searches by default: Debian's directory, and that of Red Hat and most others; musl looks at neither.
LOADER_FOLDERS: Final = (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"))
# Where images made for CUDA point LD_LIBRARY_PATH and PATH. Source: NVIDIA's CUDA base images.
CUDA_IMAGE_FOLDER: Final = Path("/usr/local/nvidia")
PROGRAM_FOLDER: Final = Path("/usr/bin")
ORIGIN: Final = "origin"
SHARED: Final = "shared"
FILES: Final = "files"
"""Beside the trees: files that are shown where they lie in the driver's root."""
_NO_LINK: Final = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES)
_FACTS: Final = "driver.json"
_MAKING: Final = ".making-"
CURRENT: Final = "current"


class VolumeError(AliquotError):
    """The driver volume cannot be made."""


@dataclass(frozen=True)
class Generation:
    """One driver's two trees; `libcuda` and `libnvml` are what the hook opens behind itself."""

    folder: Path
    version: str
    libcuda: Path
    libnvml: Path

    @property
    def name(self) -> str:
        """The container records that keep it from being pruned."""
        return self.folder.name

    @property
    def origin(self) -> Path:
        """The unmodified driver."""
        return self.folder / ORIGIN

    @property
    def shared(self) -> Path:
        """The driver with our library before it."""
        return self.folder / SHARED

    def edits(self, ours: Path | None) -> Edits:
        """What a tenant's container gets of the driver; the folder `ours` has the tenant's own libcuda and NVML.

        None leaves the driver's own two, for a tenant that is not enforced.

        Files are mounted one by one into the loader's own folders, for images without LD_LIBRARY_PATH, and the whole
        tree where images made for CUDA look; the origin stands at its path on the node, where the hook opens it.
        """
        mounts = [Mount(self.origin, self.origin), Mount(self.shared, CUDA_IMAGE_FOLDER)]
        for file in sorted((self.shared / "lib64").iterdir()):
            substituted = stem(file.name) in SUBSTITUTED
            host = file.resolve()
            if substituted:
                drivers = self.libcuda if stem(file.name) == SUBSTITUTED[0] else self.libnvml
                host = ours / f"{stem(file.name)}.1" if ours is not None else drivers
                mounts.append(Mount(host, CUDA_IMAGE_FOLDER / "lib64" / file.name))
            mounts += [Mount(host, folder / file.name) for folder in LOADER_FOLDERS]
        programs = sorted((self.shared / "bin").iterdir())
        mounts += [Mount(program, PROGRAM_FOLDER / program.name) for program in programs]
        files = self.folder / FILES
        mounts += [Mount(each, Path("/") / each.relative_to(files)) for each in sorted(files.rglob("*.json"))]
        return Edits(mounts=tuple(mounts))


class DriverVolume:
    """All generations below one folder. Its methods block; one thread at a time."""

    def __init__(self, folder: Path, hook: Path) -> None:
        """Read what is there; `hook` is the library that stands for libcuda and libnvidia-ml."""
        self._folder = folder
        self._hook = hook
        self.current: Generation | None = None

    @property
    def link(self) -> Path:
        """Always leads to the current generation, for programs that outlive it."""
        return self._folder / CURRENT

    def refresh(self, source: DriverSource) -> Generation:
        """The generation of this driver, made now if there is none; it becomes the current one.

        Raises:
            VolumeError: it cannot be made; the current one stays.
        """
        try:
            hook = self._hook.stat()
            fingerprint = f"{hook.st_ino ^ hook.st_mtime_ns ^ hook.st_size:x}"[-8:]
            name = f"{source.version}-{source.fingerprint}-{fingerprint}"
            generation = self.generation(name) or self._make(name, source)
            self.use(generation)
        except OSError as error:
            where = error.filename2 or error.filename or self._folder  # of a copy the target: it is what lacks room
            raise VolumeError(
                f"the driver volume: {where}: {error.strerror}; is there room in {self._folder}?"
            ) from None
        return generation

    def use(self, generation: Generation) -> None:
        """Make a generation the current one.

        Raises:
            OSError: the link has to be made anew and could not be; the current one stays.
        """
        if not (self.link.is_symlink() and self.link.readlink() == Path(generation.name)):
            fresh = self._folder / f"{_MAKING}{CURRENT}"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(generation.name)
            fresh.replace(self.link)
        self.current = generation

    def generation(self, name: str) -> Generation | None:
        """The generation with that name; None unless it is complete."""
        folder = self._folder / name
        if not name or folder.is_symlink() or name.startswith(_MAKING):
            return None
        try:
            return read_generation(folder)
        except (OSError, ValueError, KeyError):
            return None

    def generations(self) -> list[Generation]:
        """All that are whole, oldest first."""
        if not self._folder.is_dir():
            return []
        found = (self.generation(path.name) for path in self._folder.iterdir())
        whole = [each for each in found if each is not None]
        return sorted(whole, key=lambda each: (each.folder / _FACTS).stat().st_mtime_ns)

    def prune(self, used: Collection[str]) -> list[str]:
        """Remove generations that are neither current nor used, and leftovers of a crash; returns the names removed."""
        kept = {*used, self.current.name if self.current else "", CURRENT}
        gone = [path for path in self._folder.iterdir() if path.name not in kept] if self._folder.is_dir() else []
        for path in gone:
            _remove(path)
        return sorted(path.name for path in gone)

    def _make(self, name: str, source: DriverSource) -> Generation:
        for left in self._folder.glob(f"{_MAKING}*"):
            _remove(left)  # a crash left it, and it may be what fills the disk
        making = self._folder / f"{_MAKING}{name}"
        making.mkdir(parents=True)
        try:
            mirror(source, making, self._hook)
            files = [source.library(substituted).file for substituted in SUBSTITUTED]
            libcuda, libnvml = (str(file) if source.in_place else file.name for file in files)
            facts = {"version": source.version, "libcuda": libcuda, "libnvml": libnvml}
            (making / _FACTS).write_text(json.dumps(facts))
            on_disk(making / _FACTS)
            shutil.rmtree(self._folder / name, ignore_errors=True)  # one of that name that is not whole
            making.rename(self._folder / name)
            on_disk(self._folder)
        except OSError:
            with contextlib.suppress(OSError):
                shutil.rmtree(making)
            raise
        return read_generation(self._folder / name)


def read_generation(folder: Path) -> Generation:
    """A generation from disk.

    Raises:
        OSError: it does not exist.
        ValueError, KeyError: its facts are damaged.
    """
    facts = json.loads((folder / _FACTS).read_text())
    origin = folder / ORIGIN / "lib64"
    # Joined to a path that is absolute already, the origin drops out: a driver that stays in place.
    return Generation(folder, facts["version"], origin / facts["libcuda"], origin / facts["libnvml"])


def _remove(path: Path) -> None:
    """A generation, a half of one, or a link that a crash left; what cannot be removed now is left for next time."""
    with contextlib.suppress(OSError):
        if path.is_symlink() or path.is_file():
            path.unlink()
            return
        # First its facts: a removal that is cut short leaves nothing that looks whole.
        (path / _FACTS).unlink(missing_ok=True)
        shutil.rmtree(path)


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
        place = "lib64" if library.bits == 64 else "lib"
        _with_names(library, folder / ORIGIN / place)
        if stem(library.file.name) not in SUBSTITUTED:
            _with_names(library, folder / SHARED / place)
    for tree in (ORIGIN, SHARED):
        for place in ("lib64", "lib"):
            # The name by which a libGL that knows of no vendor finds the driver's GLX.
            for glx in sorted((folder / tree / place).glob(f"{GLX[0]}.[0-9]*.*"))[:1]:
                (folder / tree / place / GLX[1]).symlink_to(glx.name)
    for path, file in source.files:
        target = folder / FILES / path
        target.parent.mkdir(parents=True, exist_ok=True)
        clone(file, target)
    shared = folder / SHARED / "lib64"
    for name in SUBSTITUTED:
        for each in substitute_names(source, name):
            clone(hook.with_name(STANDS_FOR[f"{name}.1"]), shared / each)


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
