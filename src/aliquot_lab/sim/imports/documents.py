"""Accounts of jobs as JSON documents, and Philly's job log, which is one.

Source: msr-fiddle/philly-traces, README.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from aliquot.model.quantities import MILLI
from aliquot_lab.sim.imports.quantities import Unreadable, parse_time
from aliquot_lab.sim.imports.records import Dropped, JobAccounts, Record
from aliquot_lab.sim.imports.tables import Wanted
from aliquot_lab.sim.tables import BadTable, opened

MAX_DOCUMENT: Final = 1 << 30
"""Characters of a document; parsed, they take about eight times their size."""
BROKEN: Final = (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError)
"""What reading a document raises where a part of it is of another type, or a number is none or infinite."""


def load(path: Path, hint: str = "") -> Any:
    """A JSON document; `hint` says how to get a smaller one.

    Raises:
        BadTable: it cannot be read, is no JSON or is too large.
    """
    return parsed(path, read(path, hint))


def parsed(path: Path, text: str) -> Any:
    """What the text of a JSON document says.

    Raises:
        BadTable: it is no JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadTable(f"{path}: is no JSON ({error})") from None


def read(path: Path, hint: str = "") -> str:
    """The text of a document.

    Raises:
        BadTable: it cannot be read or is too large.
    """
    with opened(path, "replace") as file:
        text = file.read(MAX_DOCUMENT + 1)
    if len(text) > MAX_DOCUMENT:
        raise BadTable(f"{path}: is larger than {MAX_DOCUMENT >> 30} GiB, and JSON is read as a whole{hint}")
    return text


def read_philly(path: Path, accounts: JobAccounts, how: Wanted) -> Iterator[Record]:
    """The jobs of `cluster_job_log`: GPUs of the last attempt, the time of all attempts together.

    The authors' notebook takes the first attempt's GPUs, and the time from its start to the end of the last. Between
    attempts a job holds no GPU, but waits again, and how long it waits is what a simulation is to say.

    Raises:
        BadTable: no list of jobs.
    """
    jobs = load(path)
    if not isinstance(jobs, list):
        raise BadTable(f"{path}: is no list of jobs; Philly's cluster_job_log is wanted")
    return jobs_in(jobs, f"{path} job", "a job of Philly's log", lambda job: _philly(job, accounts, how), accounts)


def jobs_in(
    items: Iterable[Any], place: str, kind: str, read: Callable[[Any], Iterable[Record]], accounts: JobAccounts
) -> Iterator[Record]:
    """The jobs that `read` makes of the items of a document, which warnings call by place and number."""
    for number, item in enumerate(items):
        accounts.seen += 1
        accounts.place = f"{place} {number}"
        try:
            yield from read(item)
        except Unreadable as error:
            accounts.unreadable(f"{accounts.place}: {error}")
        except BROKEN:
            accounts.unreadable(f"{accounts.place}: is not {kind}")


def _philly(job: Mapping[str, Any], accounts: JobAccounts, how: Wanted) -> Iterator[Record]:
    attempts = job["attempts"]
    spans = [tuple(when(attempt.get(name), how) for name in ("start_time", "end_time")) for attempt in attempts]
    details = [attempt["detail"] for attempt in attempts if attempt.get("detail")]
    sizes = tuple(size for machine in details[-1] if (size := _gpus(machine["gpus"]))) if details else ()
    submitted = when(job.get("submitted_time"), how)
    ran_s = sum(end - start for start, end in spans if start is not None and end is not None and end > start)
    if not attempts:
        accounts.drop(Dropped.NEVER_RAN)
    elif not sizes and not how.cpu_jobs:
        accounts.drop(Dropped.NO_GPU)
    elif spans[-1][0] is not None and spans[-1][1] is None:
        accounts.drop(Dropped.RUNNING)
    elif submitted is None or not ran_s:
        accounts.drop(Dropped.NO_TIMES)
    else:
        note = "of the jobs kept have an attempt whose times are not recorded, and which their duration leaves out"
        yield Record(
            str(job["jobid"]), submitted, ran_s, sizes or (0,), user=str(job.get("user") or ""),
            notes=(note,) if any(None in span for span in spans) else (),
        )  # fmt: skip


def _gpus(names: object) -> int:
    """Milli-GPU of the list of GPUs on a machine.

    Raises:
        Unreadable: no list.
    """
    if not isinstance(names, list):
        raise Unreadable(f'"gpus" is {str(names)[:80]!r}; allowed is a list of names')
    return len(names) * MILLI


def when(value: object, how: Wanted) -> float | None:
    """A time of a document; None where it is unknown.

    Raises:
        Unreadable: no time; the value is named.
    """
    text = "" if value is None else str(value)
    try:
        return parse_time(text, how.zone)
    except Unreadable as error:
        raise Unreadable(f"{text[:80]!r} {error}") from None
