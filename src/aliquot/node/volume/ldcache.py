"""The content of the loader's cache: /etc/ld.so.cache in both of its forms, 64 and 32 bit.

Read here and not through `ldconfig -p`, since the driver may lie in another root (a driver container) whose ldconfig
need not run on this machine, and since an image of the agent need not have ldconfig.

Source: glibc, sysdeps/generic/dl-cache.h (struct cache_file, struct cache_file_new) and elf/cache.c (flags). A
cache may hold the old form with the new one after it, aligned to 8 bytes; the new one's strings count from its own
start, the old one's from the end of its entries.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from aliquot.model.errors import AliquotError

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
            return tuple(_old(data, count, end))
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


def _old(data: bytes, count: int, strings: int) -> Iterator[Cached]:
    for flags, key, value in _entries(_OLD_ENTRY, data, _OLD_HEADER, count):
        if flags & 0xFF in _ELF:
            yield Cached(_text(data, strings + key), _text(data, strings + value), _bits(flags))


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
