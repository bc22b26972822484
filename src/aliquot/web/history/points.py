"""What is recorded of one GPU in one period: sums, so that periods add up to longer ones without a remainder.

Every number is the sum over the period of one tenant on one GPU. Times on the GPU are GPU milliseconds: a promise of
0.3 for 10 s is 3,000. A row with the number 0 says for how long the GPU itself was read, so that a GPU without tenants
differs from a period that is missing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

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


def unpack(data: bytes) -> Table:
    """A row of the file; one that cannot be read holds nothing."""
    try:
        raw = np.frombuffer(zlib.decompress(data, wbits=-15), dtype=np.uint8)
        table = np.ascontiguousarray(raw.reshape(8, -1).T).view("<i8").reshape(len(FIELDS) + 1, -1).astype(np.int64)
        table[0] = np.cumsum(table[0])
        return table
    except (zlib.error, ValueError):
        return np.zeros((len(FIELDS) + 1, 0), np.int64)


def rows_of(table: Table) -> dict[int, list[int]]:
    """The rows by number."""
    return {column[0]: column[1:] for column in table.T.tolist()}


def added(rows: Rows, others: Rows) -> dict[int, list[int]]:
    """The sums of two periods."""
    found = {number: list(row) for number, row in rows.items()}
    for number, row in others.items():
        found[number] = [a + b for a, b in zip(found[number], row, strict=True)] if number in found else list(row)
    return found


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
