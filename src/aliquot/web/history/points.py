"""What is recorded of one GPU in one period: sums, so that periods add up to longer ones without a remainder.

Used and waited times, windows and hand-overs are differences of the arbiter's counts, so that they are exact however
seldom it is read. Promise and memory are what they were at a reading, for the time since the reading before. A tenant
counts from the reading in which it is first seen to the last one that saw it.

Durations are of a clock that only goes forward; the wall's clock only names the minute. Where that clock is put back,
minutes that are there already grow, and where it is put forward there is a gap.

Every number is the sum over the period of one tenant on one GPU. Times on the GPU are GPU milliseconds: a promise of
0.3 for 10 s is 3,000. A row with the number 0 says for how long the GPU itself was read, so that a GPU without tenants
differs from a period that is missing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aliquot.status import Gpu
from aliquot.status.history import MINUTE_S, Counts, Reading, TenantReading

FIELDS: Final = (
    "span_ms",  # for how long the tenant was there
    "promised_ms",
    "used_ms",
    "borrowed_ms",  # used beyond the promise
    "lent_ms",  # promised, unused, and used by others
    "waited_ms",
    "memory_mib_s",
    "windows",
    "kept",
    "handovers",
)
SPAN, PROMISED, USED, BORROWED, LENT, WAITED, MEMORY, WINDOWS, KEPT, HANDOVERS = range(len(FIELDS))
GPU_ROW: Final = 0
LONGEST_STEP_S: Final = 90.0
"""What happened between two readings that are farther apart is not known: a gap."""

USE_STEPS: Final = (10, 16)
"""Widths of the histogram's buckets: GPU use in thousandths, and memory in MiB."""
USE_BITS: Final = (48, 16)
"""A row of uses has the time of a tenant's minutes with one value; its number is the kind, the tenant and the steps."""

Rows = Mapping[int, list[int]]
"""The sums of one GPU, or of groups of tenants, by number."""
Table = NDArray[np.int64]
"""A decoded row of the file: first the numbers, then each field, one column for each tenant."""


def share_out(rows: Rows) -> None:
    """Fill in what each tenant borrowed and lent in a period.

    What tenants used beyond their promises came first from what was promised to no tenant, and then from promises that
    were not used, from each in proportion to what was left of it.
    """
    span = rows[GPU_ROW][SPAN] if GPU_ROW in rows else 0
    tenants = [row for number, row in rows.items() if number != GPU_ROW]
    unused = [max(0, row[PROMISED] - row[USED]) for row in tenants]
    borrowed = 0
    for row in tenants:
        row[BORROWED] = max(0, row[USED] - row[PROMISED])
        borrowed += row[BORROWED]
    unpromised = max(0, span - sum(row[PROMISED] for row in tenants))
    total = sum(unused)
    lent = min(total, max(0, borrowed - unpromised))
    for row, left in zip(tenants, unused, strict=True):
        row[LENT] = left * lent // total if total else 0


def pack(rows: Rows) -> bytes:
    """The rows as the file holds them.

    Numbers as differences, of which most are 1, and everything sorted by byte, since the high bytes are nearly all 0.
    """
    table = np.ascontiguousarray(np.array([[number, *rows[number]] for number in sorted(rows)], dtype="<i8").T)
    table[0] = np.diff(table[0], prepend=0)
    return zlib.compress(table.view(np.uint8).reshape(-1, 8).T.tobytes(), 6, wbits=-15)


def unpack(data: bytes, fields: int = len(FIELDS)) -> Table:
    """A row of the file; one that cannot be read holds nothing."""
    try:
        raw = np.frombuffer(zlib.decompress(data, wbits=-15), dtype=np.uint8)
        table = np.ascontiguousarray(raw.reshape(8, -1).T).view("<i8").reshape(fields + 1, -1).astype(np.int64)
        table[0] = np.cumsum(table[0])
        return table
    except (zlib.error, ValueError):
        return np.zeros((fields + 1, 0), np.int64)


def rows_of(table: Table) -> dict[int, list[int]]:
    """The rows by number."""
    return {column[0]: column[1:] for column in table.T.tolist()}


def add_to(sums: dict[int, list[int]], rows: Rows) -> None:
    """Add the sums of another period."""
    for number, row in rows.items():
        held = sums.get(number)
        sums[number] = list(row) if held is None else [a + b for a, b in zip(held, row, strict=True)]


def summed(parts: Iterable[tuple[int, bytes]], places: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Many periods at once, each with its place: the numbers found, and their sums by (number, place, field)."""
    tables = [(place, unpack(data)) for place, data in parts]
    if not tables:
        return np.empty(0, np.int64), np.zeros((0, places, len(FIELDS)), np.int64)
    where = np.repeat([place for place, _ in tables], [table.shape[1] for _, table in tables])
    whole = np.concatenate([table for _, table in tables], axis=1)
    numbers, row = np.unique(whole[0], return_inverse=True)
    sums = np.zeros((len(numbers), places, len(FIELDS)), np.int64)
    np.add.at(sums, (row, where), whole[1:].T)
    return numbers, sums


class GpuMinute(NamedTuple):
    """The sums of one GPU: `tenants` by (name, owner), each with the fields of a row, and the time that was read.

    `peak_mib` is the most memory that a reading found of a tenant.
    """

    gpu: Gpu
    span_ms: int
    tenants: dict[tuple[str, str], list[int]]
    peak_mib: dict[tuple[str, str], int] = {}  # noqa: RUF012  (never changed where it is the default)


class Minute(NamedTuple):
    """All that was read in a minute; `at_s` is when it began."""

    at_s: int
    gpus: list[GpuMinute]


class MinuteSums:
    """Readings in, whole minutes out."""

    def __init__(self) -> None:
        self._at_s = -1
        self._read_s = 0.0
        self._before: dict[str, dict[tuple[str, str], TenantReading]] = {}
        self._sums: dict[str, GpuMinute] = {}

    def see(self, now_s: float, wall_s: float, readings: Iterable[Reading]) -> Minute | None:
        """Add a reading; returns the minute that it ends, if any.

        `now_s` is of a clock that only goes forward, `wall_s` of the wall's.
        """
        step_s = now_s - self._read_s
        earlier = self._before if 0 <= step_s <= LONGEST_STEP_S else {}
        self._read_s, self._before = now_s, {}
        for gpu, tenants in readings:
            before = earlier.get(gpu.uuid)
            now = {(tenant.name, tenant.owner): tenant for tenant in tenants}
            for key, tenant in now.items():
                if tenant.counts is None and before is not None and key in before:
                    now[key] = tenant._replace(counts=before[key].counts)
            if before is not None:
                held = self._sums.get(gpu.uuid) or GpuMinute(gpu, 0, {}, {})
                span_ms = held.span_ms + round(step_s * 1000)
                sums = self._sums[gpu.uuid] = held._replace(gpu=gpu, span_ms=span_ms)
                for key in (key for key in now if key in before):
                    _grow(sums.tenants.setdefault(key, [0] * len(FIELDS)), before[key], now[key], step_s)
                    sums.peak_mib[key] = max(now[key].memory_mib, sums.peak_mib.get(key, 0))
            self._before[gpu.uuid] = now
        at_s = int(wall_s // MINUTE_S) * MINUTE_S
        ended = None if at_s == self._at_s else self.end()
        self._at_s = at_s
        return ended

    def end(self) -> Minute | None:
        """The minute as far as it was read; what is read from now on is in the next."""
        sums, self._sums = self._sums, {}
        return Minute(self._at_s, list(sums.values())) if sums and self._at_s >= 0 else None


def _grow(row: list[int], was: TenantReading, tenant: TenantReading, step_s: float) -> None:
    """Add what happened between two readings of one tenant."""
    row[SPAN] += round(step_s * 1000)
    row[PROMISED] += round(tenant.request_milli * step_s)
    row[MEMORY] += round(tenant.memory_mib * step_s)
    now, then = tenant.counts, was.counts
    if now is None or then is None:
        return
    if any(a < b for a, b in zip(now, then, strict=True)):
        then = Counts(0, 0, 0, 0, 0)  # the arbiter or the tenant is new, and counts from 0
    # Of the last microseconds nothing is lost: whole milliseconds of the counts are subtracted.
    row[USED] += now.charged_ns // 1_000_000 - then.charged_ns // 1_000_000
    row[WAITED] += now.waited_ns // 1_000_000 - then.waited_ns // 1_000_000
    row[WINDOWS] += now.windows - then.windows
    row[KEPT] += now.kept - then.kept
    row[HANDOVERS] += now.handovers - then.handovers


def uses_by_number(minute: GpuMinute, numbers: dict[tuple[str, str], int]) -> dict[int, list[int]]:
    """For each tenant its time in the minute, under the part of the GPU that it used, and under its memory."""
    rows = {}
    for key, row in minute.tenants.items():
        values = (-(-row[USED] * 1000 // max(1, row[SPAN])), minute.peak_mib.get(key, 0))
        for kind, (value, step) in enumerate(zip(values, USE_STEPS, strict=True)):
            steps = min(-(-value // step), (1 << USE_BITS[1]) - 1)
            rows[kind << USE_BITS[0] | numbers[key] << USE_BITS[1] | steps] = [row[SPAN]]
    return rows


def rows_by_number(minute: GpuMinute, numbers: dict[tuple[str, str], int]) -> dict[int, list[int]]:
    """The sums of a GPU by the numbers of tenants, with the row of the GPU itself."""
    rows = {numbers[key]: list(row) for key, row in minute.tenants.items()}
    rows[GPU_ROW] = [minute.span_ms, *[0] * (len(FIELDS) - 1)]
    return rows
