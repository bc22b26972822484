"""Timelines and GPU-hours from the history's file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aliquot.status import HourLine, Hours, Range, Timeline
from aliquot.status.history import MINUTE_S, Lane
from aliquot.status.hours import totalled
from aliquot.web.history.file import QUARTER_S, HistoryFile, key_of
from aliquot.web.history.points import (
    BORROWED,
    GPU_ROW,
    HANDOVERS,
    KEPT,
    LENT,
    MEMORY,
    PROMISED,
    SPAN,
    USED,
    WAITED,
    WINDOWS,
    summed,
)

HOUR_MS: Final = 3_600_000
LATE_S: Final = 10.0
"""How long after its end a minute may be written: it ends with the next reading."""

# Each period is looked up by itself: rows are ordered by time, so a scan would read those of all GPUs.
_OF_ONE_GPU: Final = """
WITH RECURSIVE periods(at) AS (SELECT ? UNION ALL SELECT at + ? FROM periods WHERE at + ? < ?)
SELECT periods.at, held.data FROM periods CROSS JOIN {table} AS held
ON held.id = periods.at << 20 | (SELECT id FROM gpus WHERE uuid = ?)
"""


def timeline_of(file: HistoryFile, gpu: str, span: Range, now_s: float) -> Timeline:
    """One GPU's recorded steps up to now.

    Raises:
        OSError: the file cannot be read.
    """
    until = -int(-now_s // span.step_s) * span.step_s
    if span.step_s == MINUTE_S:  # a minute that has not ended is not there
        until = int((now_s - LATE_S) // MINUTE_S) * MINUTE_S
    since = until - span.seconds
    step_s = MINUTE_S if span.table == "minutes" else QUARTER_S

    def work(base: sqlite3.Connection) -> tuple[list[tuple[int, bytes]], dict[int, tuple[str, str]]]:
        rows = base.execute(_OF_ONE_GPU.format(table=span.table), (since, step_s, step_s, until, gpu)).fetchall()
        names = base.execute("SELECT id, name, owner FROM tenants").fetchall()
        return rows, {number: (name, owner) for number, name, owner in names}

    rows, names = file.read(work)
    steps = span.seconds // span.step_s
    numbers, sums = summed([((at - since) // span.step_s, data) for at, data in rows], steps)
    own = sums[numbers == GPU_ROW]
    spans = own[0, :, SPAN] if len(own) else np.zeros(steps, np.int64)
    lanes = [
        _lane(*names.get(int(number), (f"tenant {number}", "")), one, spans)
        for number, one in zip(numbers, sums, strict=True)
        if number != GPU_ROW
    ]
    at_s = list(range(since, until, span.step_s))
    recorded = [round(min(1.0, ms / 1000 / span.step_s), 3) for ms in spans.tolist()]
    return Timeline(gpu, since, until, span.step_s, at_s, recorded, sorted(lanes, key=lambda lane: lane.tenant))


def _lane(tenant: str, owner: str, sums: NDArray[np.int64], spans: NDArray[np.int64]) -> Lane:
    known = spans > 0
    there = np.maximum(sums[:, SPAN], 1)
    whole = np.maximum(spans, 1)

    def parts(field: int) -> list[float | None]:
        return _where(known, np.round(sums[:, field] / whole, 4))

    windows = sums[:, WINDOWS]
    return Lane(
        tenant,
        owner,
        used=parts(USED),
        promised=parts(PROMISED),
        lent=parts(LENT),
        waited=parts(WAITED),
        memory_mib=_where(known, np.round(sums[:, MEMORY] * 1000 / there, 1)),
        kept_percent=_where(known & (windows > 0), np.round(100 * sums[:, KEPT] / np.maximum(windows, 1), 2)),
        handovers=_where(known, sums[:, HANDOVERS]),
    )


def _where(known: NDArray[np.bool_], values: NDArray[Any]) -> list[Any]:
    return [value if there else None for there, value in zip(known.tolist(), values.tolist(), strict=True)]


def hours_of(file: HistoryFile, span: Range, now_s: float) -> Hours:
    """GPU-hours by namespace, controller and model, of whole quarter hours: at least of the time that is asked for.

    Raises:
        OSError: the file cannot be read.
    """
    until = -int(-now_s // QUARTER_S) * QUARTER_S
    since = int((now_s - max(span.seconds, QUARTER_S)) // QUARTER_S) * QUARTER_S

    def work(base: sqlite3.Connection) -> tuple[list[bytes], dict[int, tuple[str, str, str]]]:
        rows = base.execute(
            "SELECT data FROM hours WHERE id >= ? AND id < ?", (key_of(since), key_of(until))
        ).fetchall()
        groups = base.execute("SELECT id, namespace, owner, model FROM groups").fetchall()
        return [data for (data,) in rows], {number: (space, owner, model) for number, space, owner, model in groups}

    rows, groups = file.read(work)
    numbers, sums = summed([(0, data) for data in rows], 1)
    recorded, lines = 0, []
    for number, (row,) in zip(numbers.tolist(), sums.tolist(), strict=True):
        namespace, owner, model = groups.get(number, ("", f"group {number}", ""))
        if not owner:
            recorded += row[SPAN]
            continue
        lines.append(_line(namespace, owner, model, row))
    return totalled(Hours(since, until, recorded / HOUR_MS, lines, _line("", "", "", [0] * 10)))


def _line(namespace: str, owner: str, model: str, row: Sequence[int]) -> HourLine:
    idle = row[PROMISED] - (row[USED] - row[BORROWED]) - row[LENT]
    sums = (row[PROMISED], row[USED], row[BORROWED], row[LENT], idle, row[WAITED])
    return HourLine(namespace, owner, model, *(ms / HOUR_MS for ms in sums))
