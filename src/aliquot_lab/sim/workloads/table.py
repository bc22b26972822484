"""Jobs from a table of your own.

| column | what | required |
|---|---|---|
| `name` | unique name of the job | yes |
| `arrival_s` | seconds from the start at which it arrives | yes |
| `duration_s` | seconds that it runs once it has a place | yes |
| `gpu` | GPUs asked for: `0.3`, `1`, `2.5`; 0 for none | yes |
| `gpu_limit` | the most it may use | |
| `gpu_memory_mib` | GPU memory of the shared device | |
| `gpu_model` | models allowed, joined by a vertical bar | |
| `cpu_milli`, `memory_mib` | CPU and host memory | |
| `priority` | higher goes first among those that wait | |
| `affinity`, `anti_affinity`, `exclusion` | labels on devices | |
| `gpu_id` | name of a vGPU; equal names share a device | |
| `user` | whose job it is; the report has waits by user | |

Other columns are not read, with a warning.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Final

from aliquot.model.errors import UserError
from aliquot.model.quantities import Memory, parse_milli
from aliquot.model.requests import GpuRequest, Labels
from aliquot.placement.asks import Ask
from aliquot_lab.sim.jobs import Job, Workload
from aliquot_lab.sim.kernel import us
from aliquot_lab.sim.tables import BadTable, TableRow, read_rows

REQUIRED: Final = ("name", "arrival_s", "duration_s", "gpu")
OF_REQUEST: Final = (
    "gpu", "gpu_limit", "gpu_memory_mib", "gpu_model", "cpu_milli", "memory_mib", "priority", "affinity",
    "anti_affinity", "exclusion", "gpu_id",
)  # fmt: skip
COLUMNS: Final = (*REQUIRED, *OF_REQUEST, "user")
MAX_MILLI: Final = 64_000
HINT: Final = "; aliquot sim import makes such a table from others"


def read_jobs(path: Path, name: str) -> Workload:
    """The jobs of a table, in order of arrival.

    Raises:
        BadTable: a broken table; line and column are named.
    """
    jobs: list[Job] = []
    names: set[str] = set()
    asks: dict[tuple[str, ...], Ask] = {}  # a million jobs have a few hundred different requests
    for row in read_rows(path, REQUIRED, HINT):
        job = _job(row, asks)
        if not job.name or job.name in names:
            raise row.fault("name", "is empty or appears twice; every job needs a name of its own")
        names.add(job.name)
        jobs.append(job)
    if not any(job.ask.devices for job in jobs):
        raise BadTable(f"{path}: no job asks for a GPU; the column gpu of at least one line must be above 0")
    return Workload(name, sorted(jobs, key=lambda job: job.arrive_us))


def _job(row: TableRow, asks: dict[tuple[str, ...], Ask]) -> Job:
    arrive_us, service_us = us(row.number("arrival_s", most=1e10)), us(row.number("duration_s", most=1e10))
    asked = tuple(row.text(column) for column in OF_REQUEST)
    if asked not in asks:
        asks[asked] = _ask(row)
    return Job(row.text("name"), asks[asked], arrive_us, service_us, sys.intern(row.text("user")))


def unread_columns(path: Path) -> list[str]:
    """The columns of a table that `read_jobs` does not read.

    Raises:
        BadTable: the table cannot be read.
    """
    return [column for row in islice(read_rows(path, REQUIRED), 1) for column in row.cells if column not in COLUMNS]


def _ask(row: TableRow) -> Ask:
    milli = _milli(row, "gpu")
    memory_mib = row.integer("gpu_memory_mib", default=0)
    labels = Labels(row.text("affinity"), row.text("anti_affinity"), row.text("exclusion"))
    try:
        return Ask(
            GpuRequest(
                milli,
                _milli(row, "gpu_limit") if row.text("gpu_limit") else None,
                Memory(mib=memory_mib) if memory_mib else None,
                row.text("gpu_model") if milli else "",
                gpu_id=row.text("gpu_id"),
                labels=labels,
            ),
            cpu_milli=row.integer("cpu_milli", default=0),
            memory_mib=row.integer("memory_mib", default=0),
            priority=row.integer("priority", default=0, most=10**6),
        )
    except BadTable:
        raise
    except UserError as error:
        raise BadTable(f"{row.path} line {row.line}: {error}") from None


def _milli(row: TableRow, column: str) -> int:
    """Milli-GPU of a cell; a bare 0 is a job without a GPU."""
    percent = row.text(column).endswith("%")
    if not percent and row.number(column, most=MAX_MILLI / 1000) == 0:
        return 0
    try:
        return parse_milli(row.text(column))
    except UserError as error:
        raise row.fault(column, f"is not a part of a GPU ({error})") from None
