"""Timelines and GPU-hours from the history's file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from aliquot.model.errors import UserError
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
)  # fmt: skip
from aliquot.web.history.recorder import MINUTE_S
from aliquot.web.history.records import HourLine, Hours, Lane, Timeline

HOUR_MS: Final = 3_600_000
LATE_S: Final = 10.0
"""How long after its end a minute may be written: it ends with the next reading."""
DIMENSIONS: Final = ("namespace", "controller", "model")

# Each period is looked up by itself: rows are ordered by time, so a scan would read those of all GPUs.
_OF_ONE_GPU: Final = """
WITH RECURSIVE periods(at) AS (SELECT ? UNION ALL SELECT at + ? FROM periods WHERE at + ? < ?)
SELECT periods.at, held.data FROM periods CROSS JOIN {table} AS held
ON held.id = periods.at << 20 | (SELECT id FROM gpus WHERE uuid = ?)
"""


class Range(NamedTuple):
    """A time to look back: how far, in which steps, and from which table."""

    label: str
    seconds: int
    step_s: int
    table: str


RANGES: Final[Mapping[str, Range]] = {
    "15m": Range("15 minutes", 900, 60, "minutes"),
    "1h": Range("1 hour", 3600, 60, "minutes"),
    "24h": Range("24 hours", 86_400, 300, "minutes"),
    "7d": Range("7 days", 604_800, 3600, "quarters"),
    "30d": Range("30 days", 2_592_000, 14_400, "quarters"),
}
"""By the word in an address."""


def range_of(word: str) -> Range:
    """The range by its word; an hour without one.

    Raises:
        UserError: there is none.
    """
    found = RANGES.get(word or "1h")
    if found is None:
        raise UserError(f'range "{word[:20]}" is unknown; choose one of {", ".join(RANGES)}')
    return found


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


def totalled(hours: Hours) -> Hours:
    """With the total of its lines, and the largest promise first."""
    lines = sorted(hours.lines, key=lambda line: (-line.promised, line.namespace, line.owner, line.model))
    total = _together("", "", "", lines)
    return msgspec.structs.replace(hours, lines=lines, total=total)


def summed_by(hours: Hours, by: Iterable[str]) -> Hours:
    """The same hours by fewer dimensions, of `DIMENSIONS`."""
    wanted = [dimension in set(by) for dimension in DIMENSIONS]
    groups: dict[tuple[str, ...], list[HourLine]] = {}
    for line in hours.lines:
        names = (line.namespace, line.owner, line.model)
        key = tuple(name if keep else "" for name, keep in zip(names, wanted, strict=True))
        groups.setdefault(key, []).append(line)
    lines = [_together(key[0], key[1], key[2], held) for key, held in groups.items()]
    return totalled(msgspec.structs.replace(hours, lines=lines))


def _together(namespace: str, owner: str, model: str, lines: Sequence[HourLine]) -> HourLine:
    fields = ("promised", "used", "borrowed", "lent", "idle", "waited")
    return HourLine(namespace, owner, model, *(sum(getattr(line, field) for line in lines) for field in fields))
