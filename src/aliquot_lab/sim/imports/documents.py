"""Accounts of jobs as documents: Philly's job log, Kueue's workloads, and what `sacct --json` prints.

A workload of Kueue is created, admitted, and finished; one that was evicted in between has only the times of its last
stay, and the seconds that it ran before (`accumulatedPastExecutionTimeSeconds`).

A job of Slurm is put into the cells of a table's line, so tables and documents are read in the same way. Numbers are
plain, or objects (`{"set": true, "infinite": false, "number": 4}`); times are seconds since 1970, 0 where they are not
known; states are one word or a list of them. Steps are inside their jobs and are passed over.

Sources: msr-fiddle/philly-traces, README.md; the Workload of kueue.x-k8s.io; Slurm's REST API, db_v0.0.37 (21.08) to
v0.0.42 (25.05), whose types `sacct --json` prints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from aliquot.model.quantities import MILLI
from aliquot_lab.sim.imports.quantities import MAX_PARTS, Unreadable, milli_of_resource, parse_quantity, parse_time
from aliquot_lab.sim.imports.records import Dropped, JobAccounts, Record
from aliquot_lab.sim.imports.tables import COLUMNS, Line, Wanted, jobs_of, read_table, record_of
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


COMMAND: Final = "kubectl get workloads -A -o json"
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_kueue(path: Path, accounts: JobAccounts, how: Wanted) -> Iterator[Record]:
    """The workloads of a list: created, admitted, finished.

    Raises:
        BadTable: no list of objects, or none of it is a workload.
    """
    document = _document(path)
    items = document.get("items", [document]) if isinstance(document, dict) else None
    if not isinstance(items, list):
        raise BadTable(f"{path}: is no list of workloads; write it with: {COMMAND}")
    # Objects of a typed list, as the API server answers them, do not name their kind.
    named = "Workload" if document.get("kind") == "WorkloadList" else None
    workloads = [item for item in items if isinstance(item, dict) and item.get("kind", named) == "Workload"]
    if not workloads:
        raise BadTable(f"{path}: has no Workload; write it with: {COMMAND}")
    if len(workloads) < len(items):
        accounts.ignored["objects of another kind"] += len(items) - len(workloads)
    return jobs_in(
        workloads, f"{path} workload", "a Workload of Kueue", lambda item: _kueue(item, accounts, how), accounts
    )


def _document(path: Path) -> Any:
    text = read(path)
    if text.lstrip()[:1] in ("{", "["):
        return parsed(path, text)
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where else ""
        raise BadTable(f"{path}{line}: is neither JSON nor YAML; write it with: {COMMAND}") from None


def _kueue(item: Mapping[str, Any], accounts: JobAccounts, how: Wanted) -> Iterator[Record]:
    meta, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    said = {entry["type"]: entry for entry in status.get("conditions") or []}
    name, user = f"{meta.get('namespace', 'default')}/{meta['name']}", str(meta.get("namespace", ""))
    parts = []
    # As many pods as were admitted, which may be fewer than were asked for.
    assigned = (status.get("admission") or {}).get("podSetAssignments") or []
    counts = {entry.get("name"): entry.get("count") for entry in assigned}
    for number, pod_set in enumerate(spec["podSets"]):
        count = counts.get(pod_set.get("name")) or pod_set.get("count", 1)
        if not isinstance(count, int) or not 0 <= count <= MAX_PARTS:
            raise Unreadable(f'"count" is {str(count)[:80]!r}; allowed are whole numbers from 0 to {MAX_PARTS:,}')
        pod = _pod(pod_set["template"]["spec"])
        if count and (pod[0] or how.cpu_jobs):
            parts.append((name if len(spec["podSets"]) == 1 else f"{name}/{pod_set.get('name', number)}", pod, count))
    if not parts:
        accounts.drop(Dropped.NO_GPU)
        return
    stay = _stay(meta, status, said, accounts, how)
    if stay is None:
        return
    created, ran_s, notes = stay
    priority = max(0, int(spec.get("priority") or 0))
    accounts.seen += len(parts) - 1  # each pod set is a job of the trace
    for part, (milli, cpu, memory), count in parts:
        yield Record(
            part, created, ran_s, (milli,) * count, cpu_milli=cpu, memory_mib=memory, priority=priority, user=user,
            notes=notes,
        )  # fmt: skip
        notes = ()  # they are of the workload


def _stay(
    meta: Mapping[str, Any], status: Mapping[str, Any], said: Mapping[str, Any], accounts: JobAccounts, how: Wanted
) -> tuple[float, float, tuple[str, ...]] | None:
    """When a workload was created, how long it ran, and notes; None where that is not known: the accounts say it."""
    created = when(meta["creationTimestamp"], how)
    admitted, finished = said.get("Admitted") or said.get("QuotaReserved"), said.get("Finished", {})
    if finished.get("status") != "True":
        runs = admitted is not None and admitted.get("status") == "True"
        accounts.drop(Dropped.RUNNING if runs else Dropped.NEVER_RAN)
        return None
    if admitted is None:
        accounts.drop(Dropped.NEVER_RAN)
        return None
    start, end = when(admitted["lastTransitionTime"], how), when(finished["lastTransitionTime"], how)
    before = float(status.get("accumulatedPastExecutionTimeSeconds") or 0)
    if created is None or start is None or end is None or end <= start or before < 0:
        accounts.drop(Dropped.NO_TIMES)
        return None
    known = "their stays are joined to one" if before else "only their last stay is known"
    notes = (f"workloads were evicted once or more; {known}",) if before or "Evicted" in said else ()
    return created, before + end - start, notes


def _pod(spec: Mapping[str, Any]) -> tuple[int, int, int]:
    """Milli-GPU, milli-CPU and MiB that a pod asks for; a limit stands for a request that is not given."""
    milli, cpu, memory = 0.0, 0.0, 0.0
    for container in spec["containers"]:
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        milli += sum(parse_quantity(amount) * milli_of_resource(name) for name, amount in asked.items()
                     if milli_of_resource(name))  # fmt: skip
        cpu += parse_quantity(asked.get("cpu", 0)) * 1000
        memory += parse_quantity(asked.get("memory", 0)) / 2**20
    return round(milli), round(cpu), round(memory)


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
