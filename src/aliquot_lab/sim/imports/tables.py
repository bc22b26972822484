"""Accounts of jobs as tables, one line a job: Slurm's sacct, Helios, and what people export themselves.

Columns may have many names, matched loosely; delimiters are sniffed. A table of a million lines is read line by line;
nothing of it is kept here. What stands before the header line (a command, a warning, blank lines) is passed over, and
so is a header line that appears again, as in files put together.

Sources: sacct(1); the schema of `cluster_log.csv` in S-Lab-System-Group/HeliosData.
"""

from __future__ import annotations

import csv
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import partial
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from aliquot.model.quantities import MILLI
from aliquot_lab.sim.imports.quantities import (
    NOTHING,
    Unreadable,
    gpus_of_gres,
    gpus_of_tres,
    parse_elapsed,
    parse_memory_mib,
    parse_number,
    parse_parts,
    parse_time,
    parse_tres,
    shards_of_tres,
)
from aliquot_lab.sim.imports.records import Dropped, JobAccounts, Record
from aliquot_lab.sim.tables import BadTable, opened

DELIMITERS: Final = ("|", "\t", ",", ";")
MAX_CELL: Final = 1 << 24
MAX_PREAMBLE: Final = 20
"""Lines in which a header line is looked for."""
Value = TypeVar("Value")


def key(name: str) -> str:
    """A column's name as it is compared: `Job ID`, `job_id` and `JobID` are one."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def sniffed(line: str) -> str:
    """The delimiter of a table by its first line; a comma where there is none."""
    return max(DELIMITERS, key=lambda delimiter: (line.count(delimiter), delimiter == ","))


class Line:
    """The line of a table that is being read; the same object for every line."""

    def __init__(self, path: Path, header: Sequence[str], columns: Mapping[str, int], what: str = "line") -> None:
        self.number = 0
        self.what = what
        self.cells: Sequence[str] = ()
        self._path, self._header, self._columns = path, header, columns

    def __str__(self) -> str:
        return f"{self._path} {self.what} {self.number}"

    def has(self, field: str) -> bool:
        """Whether the table has a column for a field."""
        return field in self._columns

    def text(self, field: str) -> str:
        """A cell without blanks around it; empty where the table has no such column."""
        at = self._columns.get(field)
        return "" if at is None else self.cells[at].strip()

    def read(self, field: str, parse: Callable[[str], Value]) -> Value:
        """A cell as `parse` reads it; without such a column, an empty one.

        Raises:
            Unreadable: the cell is not what is wanted; file, line, column and value are named.
        """
        cell = self.text(field)
        try:
            return parse(cell)
        except Unreadable as error:
            at = self._columns.get(field)
            column = field if at is None else self._header[at]
            raise Unreadable(f'{self} column "{column}": {cell[:80]!r} {error}') from None


class Sheet:
    """A table whose columns are found by name: `fields` has the names that each field may have, the best first."""

    def __init__(self, path: Path, fields: Mapping[str, Sequence[str]], *, headless: Sequence[str] = ()) -> None:
        """`headless` are the columns of a table without a header line, in order."""
        self.path = path
        known = {key(name) for columns in fields.values() for name in columns}
        self._before, first = _first_line(path, known)
        self._delimiter = sniffed(first)
        csv.field_size_limit(MAX_CELL)
        cells: list[str] = next(self._reader(iter([first])), [])
        self.width = len(cells)
        self.has_header = bool({key(cell) for cell in cells} & known)
        self.header = list(cells) if self.has_header or not headless else list(headless)
        at = {key(name): number for number, name in reversed(list(enumerate(self.header))) if name.strip()}
        found = {field: [at[key(name)] for name in columns if key(name) in at] for field, columns in fields.items()}
        self.columns = {field: places[0] for field, places in found.items() if places}
        used = {place for places in found.values() for place in places}
        self.unused = [name.strip() for number, name in enumerate(self.header) if number not in used and name.strip()]

    def _reader(self, lines: Iterable[str]) -> Any:  # csv's own type has no public name
        # sacct quotes nothing, and names of jobs may have quotation marks.
        if self._delimiter == "|":
            return csv.reader(lines, delimiter="|", quoting=csv.QUOTE_NONE)
        return csv.reader(lines, delimiter=self._delimiter)

    def lines(self, broken: Callable[[str], None]) -> Iterator[Line]:
        """Every line with cells; one of another length than the header goes to `broken` and is skipped."""
        line = Line(self.path, self.header, self.columns)
        width, header = self.width, self.header if self.has_header else None
        with opened(self.path, "replace") as file:
            for _ in range(self._before):
                file.readline(MAX_CELL)
            rows, ended = self._reader(file), self._before
            try:
                for cells in rows:
                    # A quoted cell may hold line breaks: a row begins behind the last line of the one before.
                    line.number, ended = ended + 1, self._before + rows.line_num
                    if cells == header or not any(cells):
                        continue
                    if len(cells) == width:
                        line.cells = cells
                        yield line
                    else:
                        broken(f"{line}: has {len(cells)} cells, the first line {width}")
            except csv.Error as error:
                raise BadTable(f"{self.path} line {self._before + rows.line_num}: is no table ({error})") from None


def _first_line(path: Path, known: Collection[str]) -> tuple[int, str]:
    """The header line and how many lines stand before it: the one with most known names, else the first not blank."""
    best = (0, 0, "")
    with opened(path, "replace") as file:
        for number, text in enumerate(islice(iter(lambda: file.readline(MAX_CELL), ""), MAX_PREAMBLE)):
            named = len({key(cell) for cell in text.split(sniffed(text))} & set(known))
            if text.strip() and (not best[2] or named > max(best[0], 1)):
                best = (named, number, text)
    if not best[2]:
        raise BadTable(f"{path}: is empty; a table with a header line is wanted")
    return best[1:]


Fields = Mapping[str, Sequence[str]]

COLUMNS: Final[Mapping[str, Fields]] = tomllib.loads(files(__package__).joinpath("columns.toml").read_text("utf-8"))
"""Of each source the names that a field's column may have."""
_OF_PAI: Final = (("num_inst", "num_gpu"), ("inst_num", "plan_gpu"))
Notes = tuple[str, ...]
DIFFERS: Final = "durations differ from the time from start to end, which was taken"
EVENLY: Final = "jobs of several pods, whose GPUs the table has in total, share them evenly"
_RUNNING: Final = frozenset(("RUNNING", "SUSPENDED", "COMPLETING", "RESIZING", "STOPPED"))
_PENDING: Final = frozenset(("PENDING", "WAITING", "QUEUED", "CONFIGURING", "REVOKED"))
_OVER: Final = frozenset((
    "COMPLETED", "COMPLETE", "SUCCEEDED", "SUCCESS", "PASS", "PASSED", "FINISHED", "DONE", "TERMINATED", "FAILED",
    "FAIL", "ERROR", "CANCELLED", "CANCELED", "KILLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "DEADLINE",
))  # fmt: skip
_MAY_NOT_HAVE_RUN: Final = frozenset(("CANCELLED", "CANCELED", "KILLED", "DEADLINE", "BOOT_FAIL"))
"""Some versions of Slurm give a job that ended in the queue the time of its end as its start."""


@dataclass(frozen=True)
class Wanted:
    """What to import: the zone of times without one, whether jobs without a GPU are kept, `gres/shard` of a GPU."""

    zone: tzinfo = UTC
    cpu_jobs: bool = False
    shards: int | None = None


def read_table(path: Path, fields: Fields, kind: str, accounts: JobAccounts, how: Wanted) -> Iterator[Record]:
    """The jobs of a table.

    Raises:
        BadTable: the table has no column for a job's GPUs, or none for its times.
    """
    sheet = Sheet(path, fields)
    _complete(sheet, kind)
    if sheet.unused:
        accounts.warn(f"{path}: columns that are not read: {', '.join(sheet.unused)}")
    if not {"submit", "eligible"} & sheet.columns.keys():
        accounts.warn(f"{path}: has no time of submission; jobs arrive when they started, so past waits are left out")
    lines = sheet.lines(accounts.broken)
    if kind == "sacct":
        lines = _without_steps(lines, accounts)
    yield from jobs_of(lines, lambda line: record_of(line, kind, accounts, how), accounts)


def _without_steps(lines: Iterable[Line], accounts: JobAccounts) -> Iterator[Line]:
    for line in lines:
        if "." in line.text("name"):
            accounts.ignored["job steps"] += 1
        else:
            yield line


def jobs_of(lines: Iterable[Line], read: Callable[[Line], Record | None], accounts: JobAccounts) -> Iterator[Record]:
    """The jobs that `read` makes of lines; every line is a job that was seen, kept or not."""
    for line in lines:
        accounts.seen += 1
        accounts.place = line
        try:
            record = read(line)
        except Unreadable as error:
            accounts.unreadable(str(error))
            continue
        if record is not None:
            yield record


def _complete(sheet: Sheet, kind: str) -> None:
    have = sheet.columns.keys()
    if kind == "csv" and {"gpus", "gpu_milli"} <= have:
        raise BadTable(f"{sheet.path}: is the openb trace, which needs no import: aliquot sim run --trace {sheet.path}")
    if kind == "csv" and any({key(name) for name in names} <= set(map(key, sheet.header)) for names in _OF_PAI):
        raise BadTable(f"{sheet.path}: has the GPUs of one instance, as Alibaba's traces of PAI; use --from pai")
    how = "see docs/simulator.md for its names"
    if kind == "sacct":
        columns = "JobID,User,Submit,Eligible,Start,End,ElapsedRaw,State,NNodes,AllocTRES,ReqTRES"
        how = f"write the table with: sacct -a -P -X -o {columns}"
    elif kind == "helios":
        how = "wanted is cluster_log.csv of HeliosData; for a table of your own use --from csv"
    if not sheet.has_header:
        without = " (-P gives delimiters, and -n takes the header line away)" if kind == "sacct" else ""
        raise BadTable(f"{sheet.path} line 1: does not name the columns{without}; {how}")
    wanted = {
        "GPUs": ("gpus", "gpus_each", "gpu_percent", "gpu_milli", "tres", "asked", "gres"),
        "arrival": ("submit", "eligible", "start"),
        "duration": ("elapsed",) if {"start", "end"} - have else (),
    }
    for what, fields in wanted.items():
        if fields and not have & set(fields):
            raise BadTable(f"{sheet.path} line 1: no column has a job's {what}; {how}")


def record_of(line: Line, kind: str, accounts: JobAccounts, how: Wanted) -> Record | None:
    """The job of a line; None where it is left out, which the accounts then say.

    Raises:
        Unreadable: a cell is not what its column holds.
    """
    tres = parse_tres(line.text("tres") or line.text("asked"))
    sizes, model, shares = _sizes(line, tres, how)
    if not any(sizes) and not how.cpu_jobs:
        accounts.drop(
            Dropped.SHARED if any(name.startswith(("gres/shard", "gres/mps")) for name in tres) else Dropped.NO_GPU
        )
        return None
    times = _times(line, kind, accounts, how)
    if times is None:
        return None
    memory = _memory(line, tres, len(sizes))
    return Record(
        name=line.text("name") or f"{line.what}-{line.number}",
        arrival_s=times[0],
        duration_s=times[1],
        sizes_milli=sizes,
        model=line.text("model") or model,
        cpu_milli=math.ceil(_cpu_milli(line, tres, len(sizes))),
        memory_mib=math.ceil(memory / len(sizes)),
        priority=round(line.read("priority", parse_number)) if line.has("priority") else 0,
        user=line.text("user"),
        notes=(*times[2], *shares),
    )


def _sizes(line: Line, tres: dict[str, str], how: Wanted) -> tuple[tuple[int, ...], str, Notes]:
    """Milli-GPU of each part of a job: of its pods where the table counts them, else of its nodes; model and notes."""
    pods = line.read("pods", parse_parts)
    if line.text("gpus_each").lower() not in NOTHING:
        return (round(line.read("gpus_each", parse_number) * MILLI),) * pods, "", ()
    milli, model = _gpus(line, tres, how)
    if pods > 1:
        return shared(milli, pods), model, (EVENLY,) if milli else ()
    nodes = (
        line.read("nodes", parse_parts)
        if line.has("nodes")
        else line.read("tres", lambda _: parse_parts(tres.get("node", "")))
    )
    return spread(milli, nodes), model, ()


def shared(milli: int, pods: int) -> tuple[int, ...]:
    """A job's GPUs in its pods: evenly, by whole GPUs where there is at least one for each; none without a GPU."""
    if milli >= pods * MILLI:
        return spread(milli, pods)
    each, more = divmod(milli, pods)
    sizes = [each + (number < more) for number in range(pods)]
    return tuple(size for size in sizes if size) or (0,) * pods


def spread(milli: int, nodes: int) -> tuple[int, ...]:
    """A job's GPUs on its nodes, as evenly as whole GPUs allow; nodes without a GPU are left out."""
    if nodes == 1 or milli < MILLI:
        return (milli,)
    nodes = min(nodes, math.ceil(milli / MILLI))
    each, more = divmod(milli // MILLI, nodes)
    sizes = [MILLI * (each + (number < more)) for number in range(nodes)]
    sizes[-1] += milli % MILLI
    return tuple(size for size in sizes if size)


def _gpus(line: Line, tres: dict[str, str], how: Wanted) -> tuple[int, str]:
    for field, factor in (("gpus", MILLI), ("gpu_percent", MILLI / 100), ("gpu_milli", 1)):
        if line.text(field).lower() not in NOTHING:
            return round(line.read(field, parse_number) * factor), ""
    milli, model = line.read("tres", lambda _: gpus_of_tres(tres))
    if not milli and line.has("tres") and line.has("asked"):  # a job that never started has asked only
        milli, model = line.read("asked", lambda cell: gpus_of_tres(parse_tres(cell)))
    if not milli and how.shards:
        milli = round(line.read("tres", lambda _: shards_of_tres(tres)) * MILLI / how.shards)
    return (milli, model) if milli or not line.has("gres") else line.read("gres", gpus_of_gres)


def _times(line: Line, kind: str, accounts: JobAccounts, how: Wanted) -> tuple[float, float, Notes] | None:
    """Arrival, duration and notes on them; None where the job did not run from one known time to another."""
    time = partial(parse_time, zone=how.zone)
    state = line.text("state").partition(" ")[0].upper()
    if state in _RUNNING or state in _PENDING:
        accounts.drop(Dropped.RUNNING if state in _RUNNING else Dropped.NEVER_RAN)
        return None
    start, end = line.read("start", time), line.read("end", time)
    notes: Notes
    # It ran from start to end, but for Slurm, whose elapsed time leaves out suspensions.
    ran, notes = line.read("elapsed", parse_elapsed), ()
    if start is not None and end is not None and not (kind == "sacct" and ran is not None):
        differs = ran is not None and abs(ran - (end - start)) > max(2, 0.01 * ran)
        ran, notes = end - start, (DIFFERS,) if differs else ()
    known = [when for field in ("submit", "eligible") if (when := line.read(field, time)) is not None]
    arrival = max(known) if known else start
    if end is None and start is not None and (ran is None or state == "REQUEUED"):
        accounts.drop(Dropped.NO_END if state in _OVER else Dropped.RUNNING)
    elif ran == 0 and (start or not line.has("start")) and state not in _MAY_NOT_HAVE_RUN:
        accounts.drop(Dropped.OF_0_S)
    elif (ran is None and start is None) or ran == 0:
        accounts.drop(Dropped.NEVER_RAN)
    elif ran is None or ran < 0 or arrival is None or (start is not None and end is not None and end < start):
        accounts.drop(Dropped.NO_TIMES)
    else:
        return (arrival if start is None else min(arrival, start)), ran, notes
    return None


def _cpu_milli(line: Line, tres: dict[str, str], parts: int) -> float:
    """Milli-CPU of one of so many parts."""
    if line.has("cpus_each"):
        return line.read("cpus_each", parse_number) * 1000
    if line.has("cpu_milli"):
        return line.read("cpu_milli", parse_number) / parts
    if "cpu" in tres:
        return line.read("tres", lambda _: parse_number(tres["cpu"])) * 1000 / parts
    return line.read("cpus", parse_number) * 1000 / parts


def _memory(line: Line, tres: dict[str, str], nodes: int) -> int:
    if "mem" in tres:
        return line.read("tres", lambda _: parse_memory_mib(tres["mem"]))
    if line.has("memory_mib"):
        return round(line.read("memory_mib", parse_number))
    if line.has("memory_gib"):
        return math.ceil(line.read("memory_gib", parse_number) * 1024)
    cpus = max(1, round(line.read("cpus", parse_number)))
    parse: Callable[[str], int] = partial(parse_memory_mib, nodes=nodes, cpus=cpus)
    return line.read("memory", parse)
