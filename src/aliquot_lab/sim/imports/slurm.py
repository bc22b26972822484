"""Slurm's accounting: tables as `sacct -P` writes them, or the documents of `sacct --json`.

A job of a document is put into the cells of a table's line, so both are read in the same way. Numbers are plain, or
objects (`{"set": true, "infinite": false, "number": 4}`); times are seconds since 1970, 0 where they are not known;
states are one word or a list of them. Steps are inside their jobs and are passed over.

Source: Slurm's REST API, db_v0.0.37 (21.08) to v0.0.42 (25.05), whose types `sacct --json` prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aliquot_lab.sim.imports.documents import BROKEN, load
from aliquot_lab.sim.imports.records import JobAccounts, Record
from aliquot_lab.sim.imports.sheet import Line
from aliquot_lab.sim.imports.tables import COLUMNS, Wanted, jobs_of, read_table, record_of
from aliquot_lab.sim.tables import BadTable, opened

CELLS: Final = ("name", "submit", "eligible", "start", "end", "elapsed", "state", "user", "tres", "asked", "nodes")
LEAST_BYTES: Final = 1 << 30
"""Memory from here on is bytes, which some versions print: as MiB it would be more than a pebibyte."""


def read_sacct(path: Path, accounts: JobAccounts, how: Wanted) -> Iterator[Record]:
    """The jobs of a table or a document.

    Raises:
        BadTable: it is neither, or lacks what a job needs.
    """
    with opened(path, "replace") as file:
        document = file.read(1 << 12).lstrip()[:1] == "{"
    return _read_json(path, accounts, how) if document else read_table(path, COLUMNS["sacct"], "sacct", accounts, how)


def _read_json(path: Path, accounts: JobAccounts, how: Wanted) -> Iterator[Record]:
    document = load(path, "; write a table with sacct -P, or give several files, cut by -S and -E")
    jobs = document.get("jobs")
    if not isinstance(jobs, list):
        raise BadTable(f"{path}: has no list of jobs; write it with: sacct -a -X --json")
    return jobs_of(_lines(path, jobs, accounts), lambda line: record_of(line, "sacct", accounts, how), accounts)


def _lines(path: Path, jobs: Sequence[Any], accounts: JobAccounts) -> Iterator[Line]:
    """Each job in the cells of a line; the same object for every job."""
    line = Line(path, CELLS, {name: at for at, name in enumerate(CELLS)}, "job")
    for line.number, job in enumerate(jobs):
        try:
            line.cells = _cells(job)
        except BROKEN:
            accounts.broken(f"{line}: is not a job of sacct --json")
        else:
            yield line


def _cells(job: Mapping[str, Any]) -> list[str]:
    times, tres, state = job["time"], job.get("tres") or {}, job["state"]["current"]
    known = [str(int(times.get(name) or 0) or "") for name in ("submission", "eligible", "start", "end")]
    states = [state] if isinstance(state, str) else state
    return [
        _name(job), *known, str(times.get("elapsed", "")), str(states[0]) if states else "", str(job.get("user") or ""),
        _tres(tres.get("allocated")), _tres(tres.get("requested")), str(_number(job.get("allocation_nodes")) or ""),
    ]  # fmt: skip


def _name(job: Mapping[str, Any]) -> str:
    """The id as `sacct -P` prints it: `1_7` for a task of an array."""
    array = job.get("array") or {}
    task = array.get("task_id")
    if not _number(array.get("job_id")) or task is None or (isinstance(task, dict) and not task.get("set")):
        return str(job["job_id"])
    return f"{array['job_id']}_{_number(task)}"


def _tres(entries: object) -> str:
    """A list of TRES as text: `cpu=8,mem=65536M,gres/gpu:a100=2`."""
    parts = []
    for entry in entries if isinstance(entries, list) else ():
        kind, count = entry["type"], _number(entry.get("count"))
        name = f"{kind}/{entry['name']}" if entry.get("name") else kind
        if kind == "mem":
            parts.append(f"mem={count // 1024}K" if count >= LEAST_BYTES else f"mem={count}M")
        elif kind in ("cpu", "node") or name.startswith("gres/"):
            parts.append(f"{name}={count}")
    return ",".join(parts)


def _number(value: object) -> int:
    """A number, plain or in an object; 0 where it is not set."""
    if isinstance(value, dict):
        return int(value.get("number") or 0) if value.get("set", True) else 0
    return int(value) if isinstance(value, int | float | str) and str(value).strip() else 0
