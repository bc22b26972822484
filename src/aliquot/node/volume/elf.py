"""The two facts of a shared library that a mirror needs: its word size and the name it gives itself (DT_SONAME).

Reads program headers and the dynamic segment, never section headers: a stripped driver library may have none.

Source: System V ABI, chapters 4 and 5 (ELF header, program header, dynamic section).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aliquot.model.errors import AliquotError

_PT_LOAD: Final = 1
_PT_DYNAMIC: Final = 2
_DT_NULL: Final = 0
_DT_STRTAB: Final = 5
_DT_SONAME: Final = 14
_SEGMENTS_MOST: Final = 1024
_NAME_MOST: Final = 255


class NotElf(AliquotError):
    """A file that is no whole shared library of this byte order."""


@dataclass(frozen=True)
class Library:
    """`soname` is empty where the library gives itself no name."""

    bits: int
    soname: str


@dataclass(frozen=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def read_library(path: Path) -> Library:
    """Word size and soname of a file.

    Raises:
        NotElf: it is no ELF file, of the other byte order, or damaged.
        OSError: it can not be read.
    """
    with path.open("rb") as file:
        if file.read(6)[:4] != b"\x7fELF":
            raise NotElf(f"{path} is no ELF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read(data)
            except (struct.error, IndexError, UnicodeDecodeError):
                raise NotElf(f"{path} is an ELF file that is damaged or of the other byte order") from None


def _read(data: mmap.mmap) -> Library:
    if data[4] not in (1, 2) or data[5] != 1:
        raise IndexError("class or byte order")
    wide = data[4] == 2
    segments = list(_segments(data, wide=wide))
    bits = 64 if wide else 32
    dynamic = next((each for each in segments if each.kind == _PT_DYNAMIC), None)
    if dynamic is None:
        return Library(bits, "")
    tags = dict(_tags(data, dynamic, wide=wide))
    if _DT_SONAME not in tags:
        return Library(bits, "")
    start = _offset_of(tags[_DT_STRTAB], segments) + tags[_DT_SONAME]
    end = data.find(b"\0", start, start + _NAME_MOST + 1)
    if end < 0:
        raise IndexError("soname")
    return Library(bits, data[start:end].decode())


def _segments(data: mmap.mmap, *, wide: bool) -> Iterator[_Segment]:
    (table,) = struct.unpack_from("<Q" if wide else "<I", data, 32 if wide else 28)
    size, count = struct.unpack_from("<HH", data, 54 if wide else 42)
    for index in range(min(count, _SEGMENTS_MOST)):
        at = table + index * size
        if wide:
            kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, at)
        else:
            kind, offset, address, _, length = struct.unpack_from("<IIIII", data, at)
        yield _Segment(kind, offset, address, length)


def _tags(data: mmap.mmap, dynamic: _Segment, *, wide: bool) -> Iterator[tuple[int, int]]:
    form = struct.Struct("<qQ" if wide else "<iI")
    for at in range(dynamic.offset, dynamic.offset + dynamic.size - form.size + 1, form.size):
        tag, value = form.unpack_from(data, at)
        if tag == _DT_NULL:
            return
        yield tag, value


def _offset_of(address: int, segments: list[_Segment]) -> int:
    """Where in the file an address lies."""
    for each in segments:
        if each.kind == _PT_LOAD and each.address <= address < each.address + each.size:
            return address - each.address + each.offset
    raise IndexError(address)
