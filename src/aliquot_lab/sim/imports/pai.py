"""Alibaba PAI's trace of 2020: tables without a header line, recognised by the number of their columns.

The table of tasks is enough. With the table of jobs a task arrives when its job was submitted, and has its user; with
the table of instances each instance has its own times. `plan_gpu` and `plan_cpu` are percent and of one instance; a
time of 0 is not known, as in the authors' own analysis.

The trace for their simulator has a header line and whole jobs, in two forms: with `num_pod` its GPUs and CPUs are the
job's (one has 25 GPUs in 50 pods, more than any of their machines), with `num_inst` they are those of one instance, as
the simulator's scheduler reads them.

Sources: alibaba/clusterdata, cluster-trace-gpu-v2020/README.md, which also has the columns, and simulator/scheduler.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from aliquot.model.quantities import MILLI
from aliquot_lab.sim.imports.quantities import Unreadable, parse_memory_mib, parse_number, parse_parts, parse_time
from aliquot_lab.sim.imports.records import Dropped, JobAccounts, Record
from aliquot_lab.sim.imports.tables import COLUMNS, Fields, Line, Sheet, Wanted, jobs_of, key, read_table
from aliquot_lab.sim.tables import BadTable


class _Task(NamedTuple):
    milli: int
    cpu_milli: int
    memory_mib: int
    model: str


Names = tuple[str, ...]
Tasks = dict[Names, _Task]
Jobs = dict[Names, tuple[float | None, str]]
Value = TypeVar("Value")


def read_pai(paths: Sequence[Path], accounts: JobAccounts, how: Wanted) -> Iterator[Record]:
    """The tasks of the trace, or its instances where that table is given.

    Raises:
        BadTable: a file is none of the three tables, one is given twice, or that of the tasks is missing; or the trace
            for the simulator is given with another file.
    """
    for path in paths:
        fields = _simulator(path)
        if fields and len(paths) > 1:
            raise BadTable(f"{path}: is the trace for Alibaba's simulator, which has whole jobs; import it alone")
        if fields:
            return read_table(path, fields, "pai", accounts, how)
    return _read_tables(paths, accounts, how)


def _simulator(path: Path) -> Fields | None:
    """The columns of the trace for the simulator; None for another table."""
    for fields, count in ((COLUMNS["pai_of_instance"], "num_inst"), (COLUMNS["pai_of_job"], "num_pod")):
        sheet = Sheet(path, fields)
        wanted = ("job_id", "submit_time", "duration", "num_gpu", count)
        if set(map(key, wanted)) <= set(map(key, sheet.header)):
            return fields
    return None


def _read_tables(paths: Sequence[Path], accounts: JobAccounts, how: Wanted) -> Iterator[Record]:
    sheets: dict[str, Sheet] = {}
    for path in paths:
        kind, sheet = _sheet(path)
        if kind in sheets:
            raise BadTable(f"{path}: is a second table of {kind}; give each of PAI's tables once")
        sheets[kind] = sheet
    if "tasks" not in sheets:
        raise BadTable(f"{paths[0]}: the table of tasks is missing, which says how many GPUs; add pai_task_table.csv")
    jobs: Jobs = {}
    if "jobs" in sheets:
        time = partial(_when, how=how)
        jobs = _by_name(
            sheets["jobs"], ("job_name",), lambda line: (line.read("start_time", time), line.text("user")), accounts
        )
    if not jobs:
        accounts.notes["without pai_job_table.csv a task arrives when it started, and past waits are left out"] = 1
    if "instances" in sheets:
        tasks = _by_name(sheets["tasks"], ("job_name", "task_name"), _task, accounts)
        read = partial(_instance, tasks=tasks, jobs=jobs, accounts=accounts, how=how)
        return jobs_of(sheets["instances"].lines(accounts.broken), read, accounts)
    read = partial(_whole_task, jobs=jobs, accounts=accounts, how=how)
    return jobs_of(sheets["tasks"].lines(accounts.broken), read, accounts)


def _sheet(path: Path) -> tuple[str, Sheet]:
    for kind, columns in COLUMNS["pai_tables"].items():
        sheet = Sheet(path, {name: (name,) for name in columns}, headless=columns)
        if sheet.has_header and set(columns) <= sheet.columns.keys():
            return kind, sheet
        if not sheet.has_header and len(columns) == sheet.width:
            return kind, Sheet(path, {name: (name,) for name in columns}, headless=columns)
    wanted = ", ".join(f"{len(columns)} columns ({kind})" for kind, columns in COLUMNS["pai_tables"].items())
    raise BadTable(
        f"{path}: is none of PAI's tables; wanted are {wanted}, or the trace for its simulator; "
        "for a table of your own use --from csv"
    )


def _by_name(sheet: Sheet, names: Names, read: Callable[[Line], Value], accounts: JobAccounts) -> dict[Names, Value]:
    """What `read` makes of each line of a table that jobs are looked up in, by the cells that name the line."""
    found: dict[Names, Value] = {}
    for line in sheet.lines(accounts.warn_of_line):
        try:
            found[tuple(map(line.text, names))] = read(line)
        except Unreadable as error:
            accounts.warn_of_line(str(error))
    return found


def _task(line: Line) -> _Task:
    return _Task(
        round(line.read("plan_gpu", parse_number) * MILLI / 100),
        round(line.read("plan_cpu", parse_number) * 10),
        line.read("plan_mem", partial(parse_memory_mib, bare="g")),
        line.text("gpu_type"),
    )


def _whole_task(line: Line, jobs: Jobs, accounts: JobAccounts, how: Wanted) -> Record | None:
    count = line.read("inst_num", parse_parts)
    return _record(line, line.text("task_name"), _task(line), count, jobs, accounts, how)


def _instance(line: Line, tasks: Tasks, jobs: Jobs, accounts: JobAccounts, how: Wanted) -> Record | None:
    task = tasks.get((line.text("job_name"), line.text("task_name")))
    if task is None:
        accounts.drop("of a task that pai_task_table.csv does not have")
        return None
    return _record(line, line.text("inst_name"), task, 1, jobs, accounts, how)


def _record(
    line: Line, part: str, task: _Task, count: int, jobs: Jobs, accounts: JobAccounts, how: Wanted
) -> Record | None:
    time = partial(_when, how=how)
    start, end = line.read("start_time", time), line.read("end_time", time)
    submitted, user = jobs.get((line.text("job_name"),), (None, ""))
    status = line.text("status").upper()
    # A task that waits has empty cells in place of what it asks for.
    if status in ("WAITING", "INTERUPTED") or (start is None and end is None):
        accounts.drop(Dropped.NEVER_RAN)
    elif not task.milli and not how.cpu_jobs:
        accounts.drop(Dropped.NO_GPU)
    elif status == "RUNNING":
        accounts.drop(Dropped.RUNNING)
    elif end is None:
        accounts.drop(Dropped.NO_END)
    elif start is None or end <= start:
        accounts.drop(Dropped.NO_TIMES)
    else:
        return Record(
            name=f"{line.text('job_name')}/{part}",
            arrival_s=start if submitted is None else min(submitted, start),
            duration_s=end - start,
            sizes_milli=(task.milli,) * count,
            model=task.model,
            cpu_milli=task.cpu_milli,
            memory_mib=task.memory_mib,
            user=user,
        )
    return None


def _when(text: str, how: Wanted) -> float | None:
    return parse_time(text, how.zone) or None
