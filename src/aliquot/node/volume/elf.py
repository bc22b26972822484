"""The two facts of a shared library that a mirror needs: its word size and the name it gives itself (DT_SONAME).

Reads program headers and the dynamic segment, never section headers: a stripped driver library may have none. Reads
pieces and maps nothing: a driver is looked at while it is being replaced, and to touch the map of a file that was just
cut short is the end of the process.

Source: System V ABI, chapters 4 and 5 (ELF header, program header, dynamic section).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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


class NotElf(AliquotError):
    """A file that is not a complete shared library of this byte order."""


@dataclass(frozen=True)
class Library:
    """`soname` is empty where the library gives itself no name; it is a file's name, never a path."""

    bits: int
    soname: str


@dataclass(frozen=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


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
    segments = list(_segments(file, bits))
    dynamic = next((each for each in segments if each.kind == _PT_DYNAMIC), None)
    if dynamic is None:
        return Library(bits, "")
    tags = dict(_tags(file, dynamic, bits))
    if _DT_SONAME not in tags:
        return Library(bits, "")
    if _DT_STRTAB not in tags:
        raise _Damaged("a name without a table of names")
    text = _piece(file, _offset_of(tags[_DT_STRTAB], segments) + tags[_DT_SONAME], _NAME_MOST + 1, least=1)
    name, end, _ = text.partition(b"\0")
    if not end or b"/" in name or name in (b".", b".."):
        raise _Damaged("soname")
    return Library(bits, name.decode())


def _segments(file: int, bits: int) -> Iterator[_Segment]:
    head, form = _HEADER[bits], _SEGMENT[bits]
    *_, table, _, _, _, size, count, _, _, _ = head.unpack(_piece(file, 0, head.size))
    if (count and size != form.size) or count > _SEGMENTS_MOST:
        raise _Damaged("program headers")
    for kind, first, second, third, fourth, fifth, *_ in form.iter_unpack(_piece(file, table, count * form.size)):
        if bits == 64:  # type, flags, offset, virtual address, physical address, size in the file
            yield _Segment(kind, second, third, fifth)
        else:  # type, offset, virtual address, physical address, size in the file
            yield _Segment(kind, first, second, fourth)


def _tags(file: int, dynamic: _Segment, bits: int) -> Iterator[tuple[int, int]]:
    form = _TAG[bits]
    if dynamic.size > _DYNAMIC_MOST:
        raise _Damaged("dynamic segment")
    whole = dynamic.size - dynamic.size % form.size
    for tag, value in form.iter_unpack(_piece(file, dynamic.offset, whole)):
        if tag == _DT_NULL:
            return
        yield tag, value


def _offset_of(address: int, segments: list[_Segment]) -> int:
    """Where in the file an address lies."""
    for each in segments:
        if each.kind == _PT_LOAD and each.address <= address < each.address + each.size:
            return address - each.address + each.offset
    raise _Damaged("address")


def _piece(file: int, offset: int, size: int, *, least: int | None = None) -> bytes:
    """So many bytes from there, or at least as many as are asked for."""
    if offset + size >= 1 << 63:
        raise _Damaged("offset")
    found = os.pread(file, size, offset)
    if len(found) < (size if least is None else least):
        raise _Damaged("end")
    return found
