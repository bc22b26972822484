"""What must outlive the arbiter: per tenant and GPU the charge in the window, the debt, and the sum of all charges.

Append-only text, one record a line behind its CRC-32; a torn or damaged line is skipped. Times are CLOCK_MONOTONIC, so
a journal from an earlier boot of the machine means nothing and is dropped. When the file is full it is rewritten beside
itself and renamed. It is not fsynced: it guards against the arbiter's death, and no work outlives the machine's.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import zlib
from pathlib import Path

import msgspec

from aliquot.lib.decoding import decode_json
from aliquot.lib.files import open_plain, read_plain, write_whole
from aliquot.tokens import TokenPolicy

from .engine import Dispatcher
from .linux import machine_boot


class Entry(msgspec.Struct, array_like=True):
    """What the arbiter has counted for one (tenant, GPU) until `now_ns`."""

    machine_boot: str
    now_ns: int
    tenant: str
    gpu: str
    used_ns: int
    debt_ns: int
    total_ns: int


class Journal:
    """The file; `limit_bytes` bounds it, up to one record for every (tenant, GPU)."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._boot = machine_boot()
        self._last: dict[tuple[str, str], int] = {}
        self._torn = False
        self._file = self._open()

    def close(self) -> None:
        """Close the file; the records stay."""
        self._file.close()

    def write(self, engine: Dispatcher, now_ns: int) -> None:
        """Append what has changed since the last time; rewrite the file when it is full.

        Raises:
            OSError: it could not be written; the next time it is tried again.
        """
        full = self._file.tell() > self._limit_bytes
        lines, totals_ns = [], {}
        for tenant in engine.tenants.values():
            for grant in tenant.gated:
                key = (tenant.name, grant.gpu.uuid)
                account = engine.policy.account(*key)
                window, debt_ns = account.window, account.debt_ns(now_ns)
                totals_ns[key] = window.total_ns
                if window.total_ns == self._last.get(key, 0) and not full:
                    continue
                entry = Entry(self._boot, now_ns, *key, window.used_ns(now_ns), debt_ns, window.total_ns)
                body = msgspec.json.encode(entry)
                lines.append(b"%08x %s\n" % (zlib.crc32(body), body))
        text = b"".join(lines)
        if full:
            write_whole(self._path, text, synced=False)
            self._file.close()
            self._file = self._open()
        elif text:
            text = b"\n" + text if self._torn else text  # so that a torn line damages no other line
            self._torn = True
            if self._file.write(text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            self._torn = False
        self._last = totals_ns

    def _open(self) -> io.FileIO:
        return io.FileIO(open_plain(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")

    def restore(self, policy: TokenPolicy, window_ns: int, now_ns: int) -> int:
        """Give the policy what is known of its tenants; returns how many records were taken over.

        Charges that left the window while no arbiter ran are not charged again; debts do not shrink during that time.
        """
        taken = 0
        for entry in self.read().values():
            age = now_ns - entry.now_ns
            if entry.machine_boot != self._boot or age < 0:
                continue
            used = entry.used_ns * max(0, window_ns - age) // window_ns
            try:
                policy.restore(
                    entry.tenant,
                    entry.gpu,
                    used_ns=used,
                    debt_ns=entry.debt_ns,
                    total_ns=entry.total_ns,
                    now_ns=now_ns,
                )
            except KeyError:
                continue
            taken += 1
        return taken

    def read(self) -> dict[tuple[str, str], Entry]:
        """The last good record of every (tenant, GPU).

        Raises:
            OSError: the file cannot be read.
        """
        entries: dict[tuple[str, str], Entry] = {}
        for line in read_plain(self._path).split(b"\n"):
            checksum, _, body = line.partition(b" ")
            if not body or checksum != b"%08x" % zlib.crc32(body):
                continue
            with contextlib.suppress(msgspec.DecodeError):  # of another version of this program
                entry = decode_json(body, Entry)
                entries[entry.tenant, entry.gpu] = entry
        return entries
