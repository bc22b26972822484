"""From another system's account of its jobs to a trace, line by line: what is kept is written, the rest counted.

Jobs pass through a temporary file beside the trace, because the first arrival is known only at the end; so a million
lines take no more memory than a thousand, but for the names, of which hashes are kept to find repeated ones.
"""

from __future__ import annotations

import csv
import gzip
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

from aliquot.lib.files import UNFINISHED
from aliquot.model.errors import UserError
from aliquot.model.quantities import MILLI
from aliquot_lab.sim.imports import documents, pai, prometheus, tables
from aliquot_lab.sim.imports.records import JobAccounts, Record, plain
from aliquot_lab.sim.imports.tables import Wanted
from aliquot_lab.sim.tables import BadTable
from aliquot_lab.sim.workload import MAX_MILLI

Reader = Callable[[Sequence[Path], JobAccounts, Wanted], Iterator[Record]]
LONGEST_S: Final = 10 * 366 * 86_400.0
"""Ten years: what is longer is a defect of the record."""
MAX_GPUS: Final = 100_000
"""Of one job; more is a mistake of the source."""
MAX_PRIORITY: Final = 10**6
MAX_AMOUNT: Final = 10**12
"""Of milli-CPU and of MiB."""
TELL_EVERY: Final = 10_000
LATEST_S: Final = 4_102_444_800.0
"""The year 2100, as seconds since 1970."""
LEAST_DATE_S: Final = 1e9
"""September 2001: times from here on are dates, and what is less are seconds from the start of a trace."""
COLUMNS: Final = ("name", "arrival_s", "duration_s", "gpu", "gpu_model", "cpu_milli", "memory_mib", "priority", "user")


DOCUMENTS: Final = {"philly": documents.read_philly, "sacct": documents.read_sacct, "kueue": documents.read_kueue}
TOGETHER: Final = {"pai": pai.read_pai, "prometheus": prometheus.read_prometheus}
"""Readers of files that say something only together."""


def _records(kind: str, paths: Sequence[Path], accounts: JobAccounts, how: Wanted) -> Iterator[Record]:
    if kind in TOGETHER:
        yield from TOGETHER[kind](paths, accounts, how)
        return
    for path in paths:
        if kind in DOCUMENTS:
            yield from DOCUMENTS[kind](path, accounts, how)
        else:
            yield from tables.read_table(path, tables.COLUMNS[kind], kind, accounts, how)


def import_trace(
    kind: str,
    paths: Sequence[Path],
    out: Path,
    *,
    how: Wanted,
    models: bool,
    warn: Callable[[str], None],
    tell: Callable[[float], None] = lambda jobs: None,
) -> dict[str, Any]:
    """Write the trace, and say what was kept and dropped.

    `models` keeps the GPU models that jobs asked for; `tell` hears now and then how many jobs were read.

    Raises:
        UserError: a file cannot be read or is of another kind, no job is left, or the trace cannot be written.
    """
    accounts = JobAccounts(warn)
    if not out.name.endswith((".csv", ".csv.gz")):
        raise UserError(f"-o {out}: a trace is a CSV file; name it .csv or .csv.gz")
    if any(path.exists() and out.exists() and path.samefile(out) for path in paths):
        raise UserError(f"-o {out}: is one of the files to read; name another one")
    if not out.parent.is_dir():
        raise UserError(f"-o {out}: there is no folder {out.parent}; make it, or name a file in another one")
    try:
        with tempfile.TemporaryFile("w+", dir=out.parent, newline="", encoding="utf-8") as spool:
            first_s = _spool(_records(kind, paths, accounts, how), spool, accounts, models, tell)
            if not accounts.kept:
                raise BadTable(f"{paths[0]}: no job is left. {accounts.text().partition(chr(10))[2]}".strip())
            _write(out, spool, first_s)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
    if accounts.models and not models:
        named = ", ".join(f"{model} ({count:,})" for model, count in accounts.models.most_common(5))
        accounts.notes[f"models of GPUs are left out: {named}; --models keeps them"] = 1
    return accounts.facts() | {"from": kind, "trace": str(out), "text": accounts.text()}


def _spool(
    records: Iterator[Record], spool: TextIO, accounts: JobAccounts, models: bool, tell: Callable[[float], None]
) -> float:
    """Write all lines with times as the source has them; the first arrival."""
    writer = csv.writer(spool, lineterminator="\n")
    first_s, names, clocks = float("inf"), set[int](), dict[bool, str]()
    for count, record in enumerate(records):
        if count % TELL_EVERY == 0:
            tell(accounts.seen)
        if fault := _fault(record):
            accounts.unreadable(f'job "{plain(record.name)[:80]}": {fault}')
            continue
        _one_clock(clocks, record.arrival_s, accounts.place)
        accounts.kept += 1
        for note in record.notes:
            accounts.note(note, record.name)
        accounts.gpu_hours += sum(record.sizes_milli) / MILLI * record.duration_s / 3600
        first_s = min(first_s, record.arrival_s)
        if record.model and any(record.sizes_milli):
            accounts.models[plain(record.model)] += 1
        if len(record.sizes_milli) > 1:
            accounts.notes["jobs of several machines or pods became one line for each, placed one by one"] += 1
        if record.priority > MAX_PRIORITY:
            accounts.note(f"jobs had a higher priority than a trace has and got {MAX_PRIORITY:,}", record.name)
        for number, milli in enumerate(record.sizes_milli):
            writer.writerow(
                (_name(record, number, names, accounts), record.arrival_s, f"{record.duration_s:.12g}",
                 f"{milli / MILLI:g}", plain(record.model) if models and milli else "", record.cpu_milli,
                 record.memory_mib, min(record.priority, MAX_PRIORITY), plain(record.user))
            )  # fmt: skip
            accounts.written += 1
    return first_s


def _one_clock(first: dict[bool, str], arrival_s: float, place: object) -> None:
    """Dates and seconds from the start of a trace do not mix: `first` has the first arrival of either kind.

    Raises:
        BadTable: both have been seen; the place of the later one is named.
    """
    dated = arrival_s >= LEAST_DATE_S
    if dated in first:
        return
    when = f"on {datetime.fromtimestamp(arrival_s, UTC):%Y-%m-%d}" if dated else f"at {arrival_s:.12g} s"
    if first:
        raise BadTable(
            f"{place}: the job arrives {when}, and {first[not dated]}; the times of a trace are either all dates, or "
            "all seconds from its start"
        )
    first[dated] = f"that of {place} {when}"


def _fault(record: Record) -> str:
    """What no job has, and what jobs have; empty for a record that can be one."""
    if not (0 <= record.arrival_s <= LATEST_S and 0 < record.duration_s <= LONGEST_S):
        return (
            f"{record.duration_s:.6g} s from {record.arrival_s:.6g} s on; a job arrives from 0 to {LATEST_S:.6g} s and "
            f"takes at most {LONGEST_S:.6g} s"
        )
    if sum(record.sizes_milli) > MAX_GPUS * MILLI:
        return f"{sum(record.sizes_milli) // MILLI:,} GPUs; a job has at most {MAX_GPUS:,}"
    if max(record.sizes_milli) > MAX_MILLI:
        return (
            f"{max(record.sizes_milli) // MILLI:,} GPUs on one machine; allowed are {MAX_MILLI // MILLI}, or a column "
            "with the number of its machines or pods"
        )
    if max(record.cpu_milli, record.memory_mib) > MAX_AMOUNT:
        return f"{record.cpu_milli:,} milli-CPU and {record.memory_mib:,} MiB; either is at most {MAX_AMOUNT:,}"
    return ""


def _name(record: Record, number: int, names: set[int], accounts: JobAccounts) -> str:
    """The name of a line, which no other has: that of the job, with the number of the part where it has several."""
    name = plain(record.name) or "job"
    if len(record.sizes_milli) > 1:
        name = f"{name}#{number}"
    if hash(name) in names:
        accounts.notes["names appeared again and got a number"] += 1
        again, name = name, f"{name}~{accounts.written}"
        while hash(name) in names:
            name = f"{again}~{name.rpartition('~')[2]}0"
    names.add(hash(name))
    return name


def _write(out: Path, spool: TextIO, first_s: float) -> None:
    """The trace, with times from the first arrival on, in place of what is there."""
    spool.seek(0)
    fresh = out.with_name(out.name + UNFINISHED)
    try:
        opened = gzip.open if out.suffix == ".gz" else open
        with opened(fresh, "wt", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for row in csv.reader(spool):
                row[1] = f"{float(row[1]) - first_s:.12g}"
                writer.writerow(row)
        fresh.replace(out)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
