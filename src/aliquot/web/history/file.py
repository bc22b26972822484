"""The history of weeks: a SQLite file of bounded size, minutes for two days and quarter hours for thirty.

Timelines and GPU-hours are read from it.

One row for each GPU and period, packed by `aliquot.web.history.points`; and for each quarter hour one row with the sums
by namespace, controller and model, so that GPU-hours of a month need not unpack every GPU. A minute is added to its
own row, to the row of its quarter hour and to the sums in one transaction: a process that is killed, or a file that
ends anywhere, leaves all of a minute or nothing.

What is kept is counted in periods that were recorded, not in time that has passed: a wrong clock deletes nothing.
The oldest go first, also where the file would become larger than it may.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

import aliquot.web.history.points as points
from aliquot.lib.files import open_plain
from aliquot.model.ids import split_key
from aliquot.status import HourLine, Hours, Range, Timeline
from aliquot.status.history import (
    MINUTE_S,
    NO_HOURS,
    QUARTER_S,
    ControllerUse,
    Lane,
    Uses,
    names_of_use,
    spread,
    totalled,
)
from aliquot.web.log import notice

T = TypeVar("T")
DAMAGED: Final = ".damaged"
PAGE_BYTES: Final = 8192
KEY_BITS: Final = 20
WAL_PAGES: Final = 256
"""How far the write-ahead log grows before its pages are put into the file."""
HOUR_MS: Final = 3_600_000
LATE_S: Final = 10.0
"""How long after its end a minute may be written: it ends with the next reading."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS gpus(
  id INTEGER PRIMARY KEY, uuid TEXT UNIQUE, node TEXT, number INTEGER, model TEXT, last INTEGER);
CREATE TABLE IF NOT EXISTS tenants(
  id INTEGER PRIMARY KEY, name TEXT, owner TEXT, last INTEGER, UNIQUE(name, owner));
CREATE TABLE IF NOT EXISTS groups(
  id INTEGER PRIMARY KEY, namespace TEXT, owner TEXT, model TEXT, last INTEGER, UNIQUE(namespace, owner, model));
-- The key is the time and the number of the GPU in one, as `key_of` makes it: pages are filled as time goes on.
CREATE TABLE IF NOT EXISTS minutes(id INTEGER PRIMARY KEY, data BLOB);
CREATE TABLE IF NOT EXISTS quarters(id INTEGER PRIMARY KEY, data BLOB);
CREATE TABLE IF NOT EXISTS hours(id INTEGER PRIMARY KEY, data BLOB);
CREATE TABLE IF NOT EXISTS uses(id INTEGER PRIMARY KEY, data BLOB);
"""
_OLDEST_MINUTE: Final = """
WITH RECURSIVE kept(at) AS (
  SELECT max(id) >> 20 FROM minutes UNION ALL
  SELECT (SELECT max(id) >> 20 FROM minutes WHERE id < kept.at << 20) FROM kept WHERE kept.at IS NOT NULL LIMIT ?)
SELECT min(at) FROM kept
"""
_TENANTS: Final = ("SELECT id, name, owner FROM tenants", ())
# Each period is looked up by itself: rows are ordered by time, so a scan would read those of all GPUs.
_OF_ONE_GPU: Final = """
WITH RECURSIVE periods(at) AS (SELECT ? UNION ALL SELECT at + ? FROM periods WHERE at + ? < ?)
SELECT periods.at, held.data FROM periods CROSS JOIN {table} AS held
ON held.id = periods.at << 20 | (SELECT id FROM gpus WHERE uuid = ?)
"""


@dataclass(frozen=True)
class Limits:
    """How many recorded minutes and quarter hours are kept, and how large the file may become."""

    minutes: int = 2 * 24 * 60
    quarters: int = 30 * 24 * 4
    max_bytes: int = 2_000_000_000


IN_MEMORY: Final = Limits(minutes=120, quarters=8)
"""Where nothing is kept in a file: the last two hours."""


class Group(NamedTuple):
    """By what GPU time is summed. The time of the GPUs themselves has neither namespace nor owner."""

    namespace: str
    owner: str
    model: str


class HistoryFile:
    """The file, or memory where `path` is None. May be used from any thread.

    A file that is damaged is put aside with `.damaged` after its name, and a new one is begun.
    """

    def __init__(self, path: Path | None, limits: Limits | None = None) -> None:
        """Open or make it.

        Raises:
            OSError: it cannot be made, read or written now.
        """
        self.path = path
        self.limits = limits or (Limits() if path else IN_MEMORY)
        self._lock = threading.Lock()
        self._numbers: dict[tuple[str, tuple[str, ...]], tuple[int, int]] = {}
        self._cleaned_s = -1
        try:
            self._base = self._in_words(self._connected)
        except _Damaged:
            self._base = self._in_words(self._anew)

    def close(self) -> None:
        """Put everything into the one file."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._base.close()

    def add(self, minute: points.Minute) -> None:
        """Add a minute, to what is there of it if the clock was put back.

        Raises:
            OSError: it cannot be written; nothing of it was.
        """
        self._do(lambda: self._add(minute))

    def read(self, *queries: tuple[str, Sequence[Any]]) -> list[list[tuple[Any, ...]]]:
        """What queries find, all of it at one moment.

        Raises:
            OSError: the file cannot be read.
        """
        return self._do(lambda: [self._base.execute(text, given).fetchall() for text, given in queries])

    @property
    def note(self) -> str:
        """Where an earlier history lies that could not be read; empty where there is none."""
        return damaged_note(self.path)

    @property
    def size(self) -> int:
        """Bytes in use, without what deleted rows left free."""
        return self._do(lambda: _used_bytes(self._base))

    def _do(self, work: Callable[[], T]) -> T:
        with self._lock:
            try:
                return self._in_words(work)
            except _Damaged:
                self._base = self._in_words(self._anew)
                return self._in_words(work)

    def _in_words(self, work: Callable[[], T]) -> T:
        """Errors of SQLite as the errors of files that they are."""
        try:
            return work()
        except sqlite3.Error as error:
            damaged = type(error) is sqlite3.DatabaseError  # its subclasses are of a full disk, a lock or a closed file
            raise (_Damaged if damaged else OSError)(f"{self.path}: {error}") from None

    def _anew(self) -> sqlite3.Connection:
        """Begin again beside what cannot be read."""
        assert self.path is not None
        with contextlib.suppress(AttributeError, sqlite3.Error):
            self._base.close()
        aside = _aside(self.path)
        notice(f"{self.path} is damaged; the history begins anew, and the damaged file is kept as {aside.name}")
        self.path.replace(aside)
        for rest in ("-wal", "-shm"):
            self.path.with_name(self.path.name + rest).unlink(missing_ok=True)
        self._numbers.clear()
        return self._connected()

    def _connected(self) -> sqlite3.Connection:
        if self.path is not None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = open_plain(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a device would be closed to others, and put aside
                    raise OSError(errno.EINVAL, "not a plain file", str(self.path))
                os.fchmod(descriptor, 0o600)
            finally:
                os.close(descriptor)
        base = sqlite3.connect(self.path or ":memory:", timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            # The lock is held as long as the file is open, so that two programs never write one history; and there is
            # no shared-memory file, which a full disk could end a process by.
            for pragma in (
                f"page_size={PAGE_BYTES}", "auto_vacuum=INCREMENTAL", "locking_mode=EXCLUSIVE", "journal_mode=WAL",
                "synchronous=NORMAL", f"wal_autocheckpoint={WAL_PAGES}", f"journal_size_limit={WAL_PAGES * PAGE_BYTES}",
                "temp_store=MEMORY", "trusted_schema=OFF",
            ):  # fmt: skip
                base.execute(f"PRAGMA {pragma}").fetchall()
            base.executescript(_TABLES)
        except BaseException:
            base.close()
            raise
        return base

    def _add(self, minute: points.Minute) -> None:
        quarter_s = minute.at_s // QUARTER_S * QUARTER_S
        base = self._base
        known = dict(self._numbers)
        base.execute("BEGIN IMMEDIATE")
        try:
            groups: dict[int, list[int]] = {}
            uses: dict[int, list[int]] = {}
            for one in minute.gpus:
                uuid, model = one.gpu.uuid, one.gpu.model
                gpu = self._number("gpus", ("uuid",), (uuid,), quarter_s)
                place = (one.gpu.node, str(one.gpu.index), model)
                if ("place", (uuid, *place)) not in self._numbers:
                    base.execute("UPDATE gpus SET node = ?, number = ?, model = ? WHERE id = ?", (*place, gpu))
                    self._numbers["place", (uuid, *place)] = (gpu, quarter_s)
                numbers = {key: self._number("tenants", ("name", "owner"), key, quarter_s) for key in one.tenants}
                points.add_to(uses, points.uses_by_number(one, numbers))
                rows = points.rows_by_number(one, numbers)
                points.share_out(rows)
                for key, number in numbers.items():
                    group = Group(split_key(key[0])[0], key[1], model)
                    points.add_to(groups, {self._number("groups", Group._fields, group, quarter_s): rows[number]})
                own = self._number("groups", Group._fields, Group("", "", model), quarter_s)
                points.add_to(groups, {own: rows[points.GPU_ROW]})
                for row in rows.values():
                    row[points.BORROWED] = 0  # no timeline has it, and it takes a tenth of the file
                for table, at_s in (("minutes", minute.at_s), ("quarters", quarter_s)):
                    _merge(base, table, key_of(at_s, gpu), rows)
            if groups:
                _merge(base, "hours", key_of(quarter_s), groups)
            if uses:
                _merge(base, "uses", key_of(quarter_s), uses, fields=1)
            if quarter_s != self._cleaned_s:
                self._clean()
                self._cleaned_s = quarter_s
            base.execute("COMMIT")
        except BaseException:
            self._numbers = known
            with contextlib.suppress(sqlite3.Error):
                base.execute("ROLLBACK")
            raise

    def _number(self, table: str, columns: Iterable[str], key: tuple[str, ...], at_s: int) -> int:
        """The number of a name; `last`, by which forgotten names are found, is the last quarter hour that has it."""
        known = self._numbers.get((table, key))
        if known is not None and known[1] >= at_s:
            return known[0]
        names, marks = ", ".join(columns), ", ".join("?" for _ in key)
        later = f"ON CONFLICT({names}) DO UPDATE SET last = max(last, excluded.last)"
        self._base.execute(f"INSERT INTO {table}({names}, last) VALUES({marks}, ?) {later}", (*key, at_s))
        row = self._base.execute(f"SELECT id, last FROM {table} WHERE ({names}) = ({marks})", key).fetchone()
        self._numbers[table, key] = row
        return int(row[0])

    def _clean(self) -> None:
        """Delete what is too old and, where the file is too large, the oldest of the rest."""
        base = self._base
        (minute_s,) = base.execute(_OLDEST_MINUTE, (self.limits.minutes,)).fetchone()
        base.execute("DELETE FROM minutes WHERE id < ?", (key_of(minute_s),))
        (quarter,) = base.execute(
            "SELECT min(id) FROM (SELECT id FROM hours ORDER BY id DESC LIMIT ?)", (self.limits.quarters,)
        ).fetchone()
        self._forget(quarter)
        while _used_bytes(base) > self.limits.max_bytes:
            later = base.execute("SELECT id FROM hours ORDER BY id LIMIT 1 OFFSET 1").fetchone()
            if later is None:
                break
            self._forget(later[0])
        base.execute("PRAGMA incremental_vacuum(64)").fetchall()

    def _forget(self, before: int) -> None:
        """Delete what is older than a key, and the names that are in nothing later."""
        base = self._base
        for table in ("minutes", "quarters", "hours", "uses"):
            base.execute(f"DELETE FROM {table} WHERE id < ?", (before,))
        for table in ("tenants", "groups", "gpus"):
            if base.execute(f"DELETE FROM {table} WHERE last < ?", (before >> KEY_BITS,)).rowcount:
                self._numbers.clear()


def damaged_note(path: Path | None) -> str:
    """Where what could not be read of the history at `path` lies; empty where there is nothing."""
    if path is None:
        return ""
    try:
        since_s = _aside(path).stat().st_ctime
    except OSError:
        return ""
    since = time.strftime("%Y-%m-%d %H:%M", time.gmtime(since_s))
    return f"The history begins anew at {since} UTC; the file before was damaged and is kept as {_aside(path)}"


def _aside(path: Path) -> Path:
    return path.with_name(path.name + DAMAGED)


class _Damaged(OSError):
    """What the file holds is not what SQLite wrote."""


def key_of(at_s: int, gpu: int = 0) -> int:
    """The key of a row: by time, and then by GPU."""
    return at_s << KEY_BITS | gpu


def _merge(
    base: sqlite3.Connection, table: str, key: int, rows: Mapping[int, list[int]], fields: int = len(points.FIELDS)
) -> None:
    held = base.execute(f"SELECT data FROM {table} WHERE id = ?", (key,)).fetchone()
    if held is None:
        base.execute(f"INSERT INTO {table} VALUES(?, ?)", (key, points.pack(rows)))
    else:
        sums = points.rows_of(points.unpack(held[0], fields))
        points.add_to(sums, rows)
        base.execute(f"UPDATE {table} SET data = ? WHERE id = ?", (points.pack(sums), key))


def _used_bytes(base: sqlite3.Connection) -> int:
    pages, free = (base.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count"))
    return int(pages - free) * PAGE_BYTES


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

    of_gpu = (_OF_ONE_GPU.format(table=span.table), (since, step_s, step_s, until, gpu))
    rows, tenants = file.read(of_gpu, _TENANTS)
    names = {number: (name, owner) for number, name, owner in tenants}
    steps = span.seconds // span.step_s
    numbers, sums = points.summed([((at - since) // span.step_s, data) for at, data in rows], steps)
    own = sums[numbers == points.GPU_ROW]
    spans = own[0, :, points.SPAN] if len(own) else np.zeros(steps, np.int64)
    known, whole = spans > 0, np.maximum(spans, 1)
    lanes = []
    for number, one in zip(numbers.tolist(), sums, strict=True):
        if number == points.GPU_ROW:
            continue
        parts = {
            field: where(known, np.round(one[:, field] / whole, 4))
            for field in (points.USED, points.PROMISED, points.LENT, points.WAITED)
        }
        windows = one[:, points.WINDOWS]
        lanes.append(
            Lane(
                *names.get(number, (f"tenant {number}", "")),
                used=parts[points.USED],
                promised=parts[points.PROMISED],
                lent=parts[points.LENT],
                waited=parts[points.WAITED],
                memory_mib=where(known, np.round(one[:, points.MEMORY] * 1000 / np.maximum(one[:, points.SPAN], 1), 1)),
                kept_percent=where(
                    known & (windows > 0), np.round(100 * one[:, points.KEPT] / np.maximum(windows, 1), 2)
                ),
                handovers=where(known, one[:, points.HANDOVERS]),
            )
        )
    at_s = list(range(since, until, span.step_s))
    recorded = [round(min(1.0, ms / 1000 / span.step_s), 3) for ms in spans.tolist()]
    return Timeline(gpu, since, until, span.step_s, at_s, recorded, sorted(lanes, key=lambda lane: lane.tenant))


def where(known: NDArray[np.bool_], values: NDArray[Any]) -> list[Any]:
    """The values, None where they are not known."""
    return [value if there else None for there, value in zip(known.tolist(), values.tolist(), strict=True)]


def hours_of(file: HistoryFile, span: Range, now_s: float) -> Hours:
    """GPU-hours by namespace, controller and model, of whole quarter hours: at least of the time that is asked for.

    Raises:
        OSError: the file cannot be read.
    """
    since, until = _quarters(span, now_s)

    of_time = ("SELECT data FROM hours WHERE id >= ? AND id < ?", (key_of(since), key_of(until)))
    rows, found = file.read(of_time, ("SELECT id, namespace, owner, model FROM groups", ()))
    groups = {number: names for number, *names in found}
    numbers, sums = points.summed([(0, data) for (data,) in rows], 1)
    recorded, lines = 0, []
    for number, (row,) in zip(numbers.tolist(), sums.tolist(), strict=True):
        namespace, owner, model = groups.get(number, ("", f"group {number}", ""))
        if not owner:
            recorded += row[points.SPAN]
            continue
        lines.append(_line(namespace, owner, model, row))
    return totalled(Hours(since, until, recorded / HOUR_MS, lines, NO_HOURS))


def _quarters(span: Range, now_s: float) -> tuple[int, int]:
    """From when to when the whole quarter hours are that have a time up to now."""
    until = -int(-now_s // QUARTER_S) * QUARTER_S
    return int((now_s - max(span.seconds, QUARTER_S)) // QUARTER_S) * QUARTER_S, until


def uses_of(file: HistoryFile, span: Range, now_s: float) -> Uses:
    """What was used by namespace, controller and container, in the minutes of whole quarter hours.

    Raises:
        OSError: the file cannot be read.
    """
    since, until = _quarters(span, now_s)

    of_time = ("SELECT data FROM uses WHERE id >= ? AND id < ?", (key_of(since), key_of(until)))
    rows, tenants = file.read(of_time, _TENANTS)
    names = {number: names_of_use(name, owner) for number, name, owner in tenants}
    sums: dict[tuple[str, str, str], tuple[Counter[int], Counter[int]]] = {}
    whole = np.concatenate([np.zeros((2, 0), np.int64), *(points.unpack(data, 1) for (data,) in rows)], axis=1)
    keys, place = np.unique(whole[0], return_inverse=True)
    for key, ms in zip(keys.tolist(), np.bincount(place, whole[1], len(keys)).astype(int).tolist(), strict=True):
        kind, rest = divmod(key, 1 << points.USE_BITS[0])
        number, steps = divmod(rest, 1 << points.USE_BITS[1])
        if number in names:
            held = sums.setdefault(names[number], (Counter(), Counter()))
            held[kind][steps * points.USE_STEPS[kind]] += ms
    uses = [
        ControllerUse(*key, milli.total() // 1000, milli[0] // 1000, spread(milli), spread(mib))
        for key, (milli, mib) in sorted(sums.items())
    ]
    return Uses(since, until, uses)


def _line(namespace: str, owner: str, model: str, row: Sequence[int]) -> HourLine:
    idle = row[points.PROMISED] - (row[points.USED] - row[points.BORROWED]) - row[points.LENT]
    sums = (row[points.PROMISED], row[points.USED], row[points.BORROWED], row[points.LENT], idle, row[points.WAITED])
    return HourLine(namespace, owner, model, *(ms / HOUR_MS for ms in sums))
