"""Where the driver's files are: this machine, NVIDIA's driver container in its own root, or an emulated driver.

Everything below a root is looked up inside that root: a link to /usr/lib/... in a driver container means the
container's /usr/lib, never the node's.

What the dynamic loader reads of libraries: two facts of each that a mirror needs, and the cache of all their names.

`read_library` gives the word size and the name that a library gives itself (DT_SONAME). It reads program headers and
the dynamic segment, never section headers: a stripped driver library may have none. It reads pieces and maps nothing: a
driver is looked at while it is being replaced, and to touch the map of a file that was just cut short is the end of the
process.

`read_cache` reads /etc/ld.so.cache in both of its forms, 64 and 32 bit; not through `ldconfig -p`, since the driver may
lie in another root (a driver container) whose ldconfig need not run on this machine, and since an image of the agent
need not have ldconfig.

Sources: System V ABI, chapters 4 and 5 (ELF header, program header, dynamic section); glibc,
sysdeps/generic/dl-cache.h (struct cache_file, struct cache_file_new) and elf/cache.c (flags). A cache may hold the old
form with the new one after it, aligned to 8 bytes; the new one's strings count from its own start, the old one's from
the end of its entries.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from aliquot.driver.volume import names as catalog
from aliquot.model.errors import AliquotError

_HEADER: Final = {64: struct.Struct("<16sHHIQQQIHHHHHH"), 32: struct.Struct("<16sHHIIIIIHHHHHH")}
_SEGMENT: Final = {64: struct.Struct("<IIQQQQQQ"), 32: struct.Struct("<IIIIIIII")}
_TAG: Final = {64: struct.Struct("<qQ"), 32: struct.Struct("<iI")}
_PT_LOAD: Final = 1
_PT_DYNAMIC: Final = 2
_DT_NULL: Final = 0
_DT_STRTAB: Final = 5
_DT_SONAME: Final = 14
_SEGMENTS_MOST: Final = 1024
_DYNAMIC_MOST: Final = 1 << 20
_NAME_MOST: Final = 255
OLD_MAGIC: Final = b"ld.so-1.7.0"
NEW_MAGIC: Final = b"glibc-ld.so.cache1.1"
ENTRIES_MOST: Final = 1 << 20
NAME_MOST: Final = 4096
"""Bytes of a path, with its end. Source: Linux, PATH_MAX."""
_OLD_HEADER: Final = 16
_OLD_ENTRY: Final = struct.Struct("<iII")
_NEW_HEADER: Final = 48
_NEW_ENTRY: Final = struct.Struct("<iIIIQ")
# The machine in the second byte of an entry's flags; whatever is not named here is 32 bit.
_ARCH_64: Final = frozenset({0x01, 0x02, 0x03, 0x04, 0x05, 0x07, 0x0A, 0x0D, 0x0E, 0x10, 0x11})
_ELF: Final = (1, 2, 3)

Bits = Literal[32, 64]


class NotElf(AliquotError):
    """A file that is not a complete shared library of this byte order."""


@dataclass(frozen=True)
class Library:
    """`soname` is empty where the library gives itself no name; it is a file's name, never a path."""

    bits: int
    soname: str


class _Damaged(Exception):
    """It violates the ABI."""


def read_library(path: Path) -> Library:
    """Word size and soname of a file.

    Raises:
        NotElf: it is not an ELF file, of the other byte order, or damaged.
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.pread(descriptor, 4, 0) != b"\x7fELF":
            raise NotElf(f"{path} is not an ELF file")
        return _read(descriptor)
    except (_Damaged, UnicodeDecodeError):
        raise NotElf(f"{path} is an ELF file that is damaged or of the other byte order") from None
    finally:
        os.close(descriptor)


def _read(file: int) -> Library:
    ident = _piece(file, 0, 16)
    if ident[4] not in (1, 2) or ident[5] != 1:
        raise _Damaged("class or byte order")
    bits = 64 if ident[4] == 2 else 32
    head, form = _HEADER[bits], _SEGMENT[bits]
    *_, table, _, _, _, size, count, _, _, _ = head.unpack(_piece(file, 0, head.size))
    if (count and size != form.size) or count > _SEGMENTS_MOST:
        raise _Damaged("program headers")
    segments: list[tuple[int, int, int]] = []
    dynamic: tuple[int, int] | None = None
    for kind, first, second, third, fourth, fifth, *_ in form.iter_unpack(_piece(file, table, count * form.size)):
        # Type, flags (here only in 64 bit), offset, virtual address, physical address, size in the file.
        offset, address, size = (second, third, fifth) if bits == 64 else (first, second, fourth)
        if kind == _PT_LOAD:
            segments.append((offset, address, size))
        elif kind == _PT_DYNAMIC and dynamic is None:
            dynamic = offset, size
    if dynamic is None:
        return Library(bits, "")
    at, size = dynamic
    if size > _DYNAMIC_MOST:
        raise _Damaged("dynamic segment")
    entries = _TAG[bits].iter_unpack(_piece(file, at, size - size % _TAG[bits].size))
    tags = dict(itertools.takewhile(lambda entry: entry[0] != _DT_NULL, entries))
    if _DT_SONAME not in tags:
        return Library(bits, "")
    if _DT_STRTAB not in tags:
        raise _Damaged("a name without a table of names")
    strings = tags[_DT_STRTAB]
    places = [strings - address + offset for offset, address, size in segments if address <= strings < address + size]
    if not places:
        raise _Damaged("address")
    text = _piece(file, places[0] + tags[_DT_SONAME], _NAME_MOST + 1, least=1)
    name, end, _ = text.partition(b"\0")
    if not end or b"/" in name or name in (b".", b".."):
        raise _Damaged("soname")
    return Library(bits, name.decode())


def _piece(file: int, offset: int, size: int, *, least: int | None = None) -> bytes:
    """So many bytes from there, or at least as many as are asked for."""
    if offset + size >= 1 << 63:
        raise _Damaged("offset")
    found = os.pread(file, size, offset)
    if len(found) < (size if least is None else least):
        raise _Damaged("end")
    return found


class BadCache(AliquotError):
    """A loader cache that cannot be read."""


@dataclass(frozen=True)
class Cached:
    """One entry: the name by which programs ask, the file, and its kind.

    `special` is set for files that only some processors may use (glibc-hwcaps); the plain one stands beside them.
    """

    name: str
    path: str
    bits: Bits
    special: bool = False


def read_cache(data: bytes) -> tuple[Cached, ...]:
    """All libraries of a cache in its own order, which is the loader's preference.

    Raises:
        BadCache: neither form, of the other byte order, cut short, or with a string that is not inside.
    """
    try:
        if data.startswith(OLD_MAGIC):
            count = _count(data, 12)
            end = _OLD_HEADER + count * _OLD_ENTRY.size
            after = (end + 7) & ~7
            if data[after : after + len(NEW_MAGIC)] == NEW_MAGIC:
                return tuple(_new(data[after:]))
            entries = _entries(_OLD_ENTRY, data, _OLD_HEADER, count)
            return tuple(
                Cached(_text(data, end + key), _text(data, end + value), _bits(flags))
                for flags, key, value in entries
                if flags & 0xFF in _ELF
            )
        if data.startswith(NEW_MAGIC):
            return tuple(_new(data))
    except (struct.error, IndexError):
        raise BadCache("the loader's cache is cut short or damaged; rebuild it: ldconfig") from None
    raise BadCache("the loader's cache has an unknown form; rebuild it: ldconfig")


def _count(data: bytes, at: int) -> int:
    (count,) = struct.unpack_from("<I", data, at)
    if not 0 <= count <= ENTRIES_MOST:
        raise BadCache(f"the loader's cache lists {count} libraries, {ENTRIES_MOST} is the maximum; is it damaged?")
    return int(count)


def _new(data: bytes) -> Iterator[Cached]:
    if data[28] & 3 == 3:
        raise BadCache("the loader's cache is of a machine with the other byte order")
    for flags, key, value, _, hwcap in _entries(_NEW_ENTRY, data, _NEW_HEADER, _count(data, 20)):
        if flags & 0xFF in _ELF:
            yield Cached(_text(data, key), _text(data, value), _bits(flags), special=hwcap != 0)


def _entries(form: struct.Struct, data: bytes, start: int, count: int) -> Iterator[tuple[int, ...]]:
    for index in range(count):
        yield form.unpack_from(data, start + index * form.size)


def _bits(flags: int) -> Bits:
    return 64 if flags >> 8 & 0xFF in _ARCH_64 else 32


def _text(data: bytes, at: int) -> str:
    """A name as file names are, of whatever bytes: one in another encoding takes nothing from the others."""
    end = data.find(b"\0", at, at + NAME_MOST)
    if at >= len(data) or end < 0:
        raise IndexError(at)
    return os.fsdecode(data[at:end])


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
