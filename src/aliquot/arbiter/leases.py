"""What each process holds of each GPU's memory, in a mapped file that outlives the arbiter.

A new arbiter knows only what processes report, and a stopped one reports nothing, while its memory must not be free for
others. So every lease is stored here before it is answered: a store into the mapping, which a killed arbiter leaves in
the page cache, without a system call in the grant path. The file has one size, and is not fsynced: no memory outlives
the machine's boot.

A record names its process by pid and start time, so a reused pid is not mistaken. Its checksum covers the machine's
boot and everything but the bytes, which change in one store. Where records may be missing (`whole` is false), NVML's
view counts instead (`measure.hold_unreported`).
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from aliquot.lib.files import open_plain

from .linux import machine_boot, start_ticks

_HEADER: Final = b"aliquot-leases-1"
_IDENTITY: Final = struct.Struct("<16s16sQQ")  # tenant's digest, GPU's UUID, pid, start time
_RECORD_BYTES: Final = 64
_CHECKSUM, _HELD = 6, 7  # 8-byte words of a record behind its identity
_MISSED: Final = 2  # word of the header: a record had no place
_NOTHING: Final = bytes(_RECORD_BYTES)


def digest(tenant: str) -> bytes:
    """A tenant's name in 16 bytes."""
    return blake2b(tenant.encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Earlier:
    """A record that an earlier arbiter left."""

    tenant: bytes
    gpu: bytes
    pid: int
    start: int
    held_bytes: int
    record: LeaseRecord


class Leases:
    """The file, or memory that ends with this arbiter where there is none to be had: `fault` says why then.

    `earlier` are the records found. Whether a process still lives is for the caller to find out.
    """

    def __init__(self, path: Path | None, size_bytes: int) -> None:
        self.fault = ""
        self._boot = machine_boot().encode()
        try:
            self._map = _mapped(path, size_bytes) if path is not None else mmap.mmap(-1, size_bytes)
        except OSError as error:
            self.fault, self._map = str(error), mmap.mmap(-1, size_bytes)
        self.words = memoryview(self._map).cast("Q")
        self.whole = self._map[: len(_HEADER)] == _HEADER and not self.words[_MISSED]
        self.earlier: list[Earlier] = []
        self.free: list[int] = []
        for index in range(size_bytes // _RECORD_BYTES - 1, 0, -1):
            data = self._map[index * _RECORD_BYTES : (index + 1) * _RECORD_BYTES]
            if data == _NOTHING:
                self.free.append(index)
            elif self.words[index * 8 + _CHECKSUM] == self._checksum(data[: _IDENTITY.size]):
                tenant, gpu, pid, start = _IDENTITY.unpack_from(data)
                held_bytes = self.words[index * 8 + _HELD]
                self.earlier.append(Earlier(tenant, gpu, pid, start, held_bytes, LeaseRecord(self, index)))
            else:
                self.whole = False
                LeaseRecord(self, index).clear()
        self._map[: len(_HEADER)] = _HEADER
        self.words[_MISSED] = 0

    def take(self, tenant: str, gpu: bytes, pid: int) -> LeaseRecord | None:
        """A record for a process on a GPU; None: the process is not to be seen, or the file is full."""
        start = start_ticks(pid)
        if not start:
            return None
        if not self.free:
            self.words[_MISSED] = 1
            return None
        index = self.free.pop()
        identity = _IDENTITY.pack(digest(tenant), gpu, pid, start)
        at = index * _RECORD_BYTES
        self._map[at : at + len(identity)] = identity
        self.words[index * 8 + _CHECKSUM] = self._checksum(identity)
        return LeaseRecord(self, index)

    def close(self) -> None:
        """Unmap; the records stay."""
        self.words.release()
        self._map.close()

    def _checksum(self, identity: bytes) -> int:
        return int.from_bytes(blake2b(self._boot + identity, digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The place of one process's lease of one GPU."""

    leases: Leases
    index: int

    def store(self, held_bytes: int) -> None:
        """The process holds this much now."""
        self.leases.words[self.index * 8 + _HELD] = held_bytes

    def clear(self) -> None:
        """The process holds nothing, or is gone."""
        self.store(0)
        self.leases.words[self.index * 8 : (self.index + 1) * 8] = memoryview(_NOTHING).cast("Q")
        self.leases.free.append(self.index)


def _mapped(path: Path, size_bytes: int) -> mmap.mmap:
    """The file at its full size: on a full disk a store beyond what is allocated would end the arbiter."""
    descriptor = open_plain(path, os.O_RDWR | os.O_CREAT)
    try:
        cut = os.fstat(descriptor).st_size != size_bytes
        os.posix_fallocate(descriptor, 0, size_bytes)
        mapped = mmap.mmap(descriptor, size_bytes)
        if cut:
            mapped[: len(_HEADER)] = bytes(len(_HEADER))
        return mapped
    finally:
        os.close(descriptor)
