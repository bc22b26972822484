"""Memory that several processes of one tenant hold on one GPU: charged once, until the last of them lets it go.

Memory leaves a process as a file descriptor. What a process exports moves from its lease into a `Shared`, and a process
that maps what it has imported joins that instead of paying again. Two descriptors are of one memory when they are of
one open file, which the kernel is asked, not the processes; a regular file may have been opened twice. The kernel has
an order of open files, so one is found among a thousand in ten questions.

A false report gains nothing: exported memory was paid for, a process that maps more than that pays the difference, and
an import that is not recognised is charged in full. Memory of another tenant is never recognised here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .linux import compare_open_files

MAX_DESCRIPTORS: Final = 1024
"""Of one tenant on one GPU; what is exported beyond them is charged to each of its holders."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One process's descriptor of a file."""

    pid: int
    number: int
    file: tuple[int, int]
    regular: bool

    @classmethod
    def of(cls, pid: int, number: int) -> Descriptor | None:
        """The file's identity as the kernel reports it; None if it is gone or not visible."""
        try:
            found = os.stat(f"/proc/{pid}/fd/{number}")  # noqa: PTH116
        except OSError:
            return None
        return cls(pid, number, (found.st_dev, found.st_ino), stat.S_ISREG(found.st_mode))

    def compare(self, other: Descriptor) -> int | None:
        """Below, at or above 0 as this comes before the other or is of the same memory; None: one of them is gone."""
        return 0 if self.regular else compare_open_files(self.pid, self.number, other.pid, other.number)


@dataclass(slots=True, eq=False)
class Shared:
    """One piece of memory, the processes that have handles or mappings of it, and the files it is known by."""

    bytes: int
    holders: set[Hashable] = field(default_factory=set)
    files: set[tuple[int, int]] = field(default_factory=set)


class _Known(NamedTuple):
    descriptor: Descriptor
    number: int
    holder: Hashable


class SharedMemory:
    """All that a tenant shares of one GPU; the numbers are never used again."""

    def __init__(self) -> None:
        self._all: dict[int, Shared] = {}
        self._last = int.from_bytes(os.urandom(6), "little") << 8  # not those of the arbiter before
        self._files: dict[tuple[int, int], list[_Known]] = {}  # in the kernel's order
        self._descriptors = 0

    def get(self, number: int, holder: Hashable) -> Shared | None:
        """The memory of this number, if the process holds it."""
        shared = self._all.get(number)
        return shared if shared is not None and holder in shared.holders else None

    def find(self, descriptor: Descriptor) -> int:
        """The number of the memory behind a descriptor; 0: it is not known."""
        number, _ = self._search(descriptor)
        return number

    def make(self, size_bytes: int) -> int:
        """New memory, without a holder."""
        self._last += 1
        self._all[self._last] = Shared(size_bytes)
        return self._last

    def hold(self, number: int, holder: Hashable, descriptor: Descriptor) -> Shared:
        """The process holds it, and it is known by this descriptor too."""
        shared = self._all[number]
        shared.holders.add(holder)
        if not self.is_full():
            _, place = self._search(descriptor)
            self._files.setdefault(descriptor.file, []).insert(place, _Known(descriptor, number, holder))
            self._descriptors += 1
            shared.files.add(descriptor.file)
        return shared

    def more(self, number: int, size_bytes: int) -> int:
        """Bytes by which this size is above what was charged so far."""
        return max(0, size_bytes - self._all[number].bytes)

    def is_full(self) -> bool:
        """Whether no more descriptors are kept."""
        return self._descriptors >= MAX_DESCRIPTORS

    def leave(self, number: int, holder: Hashable) -> int:
        """The process holds it no more; the bytes that no process holds now."""
        shared = self.get(number, holder)
        if shared is None:
            return 0
        shared.holders.discard(holder)
        for file in shared.files & self._files.keys():
            self._keep(file, [each for each in self._files[file] if (each.number, each.holder) != (number, holder)])
        return 0 if shared.holders else self._all.pop(number).bytes

    def leave_all(self, holder: Hashable) -> int:
        """The process is gone; the bytes that no process holds now."""
        for file, known in list(self._files.items()):
            self._keep(file, [each for each in known if each.holder is not holder])
        left = [number for number, shared in self._all.items() if shared.holders == {holder}]
        for shared in self._all.values():
            shared.holders.discard(holder)
        return sum(self._all.pop(number).bytes for number in left)

    def held_bytes(self, holder: Hashable) -> int:
        """What a process holds of it, alone or with others."""
        return sum(shared.bytes for shared in self._all.values() if holder in shared.holders)

    def _keep(self, file: tuple[int, int], known: list[_Known]) -> None:
        self._descriptors -= len(self._files[file]) - len(known)
        self._files[file] = known
        if not known:
            del self._files[file]

    def _search(self, descriptor: Descriptor) -> tuple[int, int]:
        """The number of the memory or 0, and the place of the descriptor; what has been closed is forgotten."""
        known = self._files.get(descriptor.file, [])
        low, high = 0, len(known)
        if known and descriptor.compare(descriptor) is None:
            return 0, 0
        while low < high:
            middle = (low + high) // 2
            order = descriptor.compare(known[middle].descriptor)
            if order is None:
                del known[middle]
                self._descriptors -= 1
                high -= 1
            elif order == 0:
                return known[middle].number, middle
            elif order < 0:
                high = middle
            else:
                low = middle + 1
        return 0, low
