"""Where jobs come from: the openb trace, tables of your own, and generators; all drawn from one seed.

Of the openb trace jobs are at their own times, or drawn at random for a load that is asked for. `replayed` keeps
creation times; a job runs as long as it did from being scheduled to being deleted. `drawn` takes pods at random, each
with its own service time, at Poisson arrivals: the load is offered GPU time over capacity. It begins with a stationary
population: jobs that were there before, each with what is left of its service.

A table of your own (`read_jobs`) has these columns; others are not read, with a warning.

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

Generators are KubeShare's inference jobs and a mix of sizes, with Poisson arrivals both; `generated` reads them as
people name them: `kubeshare:jobs=2000,rate=150,mean=30`, `mix:jobs=500`. KubeShare's have a demand drawn from a normal
distribution, cut to what a GPU has; service time and base rate are not in the paper: 38.4 s and 16.7 jobs a minute give
its Kubernetes curve (50 jobs a minute on 32 GPUs from factor 3 on).

Source: KubeShare (HPDC'20), 5.3; the two numbers are inferred from its Fig. 8.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from aliquot.model.errors import UserError
from aliquot.model.quantities import MILLI, Memory, parse_milli
from aliquot.model.requests import GpuRequest, Labels
from aliquot.placement.asks import Ask
from aliquot_lab.sim.kernel import Job, Workload, us
from aliquot_lab.sim.openb.trace import PodRow
from aliquot_lab.sim.tables import BadTable, TableRow, read_rows

DAY_S: Final = 86_400.0


@dataclass(frozen=True)
class TraceReplay:
    """Which part of the trace, GPU pods only or all, arrivals moved by up to `jitter_s`, time divided by `compress`."""

    from_s: float = 0.0
    gpu_only: bool = False
    jitter_s: float = 0.0
    compress: float = 1.0


@dataclass(frozen=True, slots=True)
class TimedAsk:
    """What jobs are drawn from: a request, and how long it ran where the trace says so."""

    ask: Ask
    ran_s: float | None


def timed(pods: Sequence[PodRow]) -> list[TimedAsk]:
    """The pods of a trace, to draw from."""
    return [TimedAsk(pod.ask(), service_s(pod)) for pod in pods]


def service_s(pod: PodRow) -> float | None:
    """How long the pod ran; None where the trace does not say."""
    if pod.deleted_s is None or pod.scheduled_s is None or pod.deleted_s <= pod.scheduled_s:
        return None
    return pod.deleted_s - pod.scheduled_s


def stay_s(pod: PodRow) -> float | None:
    """How long the pod was wanted: as it ran, or from creation to deletion where it was never scheduled."""
    if pod.scheduled_s is None and pod.deleted_s is not None and pod.created_s is not None:
        return max(0.0, pod.deleted_s - pod.created_s)
    return service_s(pod)


def replayed(pods: Sequence[PodRow], name: str, seed: int, how: TraceReplay) -> Workload:
    """The trace at its own times, the first arrival at 0.

    Pods that were never deleted have no service time and are left out.

    Raises:
        UserError: no pod is left, or the trace has no times at all.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    timed = []
    for pod in pods:
        jitter = rng.uniform(-how.jitter_s, how.jitter_s) if how.jitter_s else 0.0
        ran_s = stay_s(pod)
        if pod.created_s is None or ran_s is None or pod.created_s < how.from_s or (how.gpu_only and not pod.num_gpu):
            continue
        timed.append(((pod.created_s + jitter) / how.compress, ran_s / how.compress, pod))
    if not timed:
        raise UserError(
            f"trace {name}: no task has creation_time and deletion_time in the part asked for; "
            f"draw from it instead: --load 0.9"
        )
    timed.sort(key=lambda entry: (entry[0], entry[2].name))
    first_s = timed[0][0]
    jobs = [
        Job(f"{number}", pod.ask(), us(at_s - first_s), us(ran_s)) for number, (at_s, ran_s, pod) in enumerate(timed)
    ]
    return Workload(name, jobs)


@dataclass(frozen=True)
class Draws:
    """How jobs are drawn: offered load (1 = all GPUs busy), number of arrivals, cap on service, exponential mean."""

    load: float
    count: int
    max_s: float = DAY_S
    mean_service_s: float | None = None


def drawn(
    tasks: Sequence[TimedAsk], name: str, gpus: int, seed: int, how: Draws, *,
    services: Sequence[TimedAsk] | None = None,
) -> Workload:  # fmt: skip
    """Jobs drawn from the trace with replacement; `services` gives the times where the trace has none.

    Raises:
        UserError: neither the trace nor `services` has times, and no exponential mean was given.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    services_s = _Services(tasks, services or tasks, how)
    if not services_s.known:
        raise UserError(f"trace {name} has no times; give --service-s, the mean time that a task runs")
    source, held_s = services_s.source, services_s.expected_s
    milli = np.array([tasks[at].ask.milli for at in source])
    if not milli.any():
        raise UserError(f"trace {name}: no job asks for a GPU, so no number of them makes a load; leave --load out")
    rate_per_s = how.load * gpus * MILLI / float((milli * held_s).mean())
    # Who is there at the start: as many as the rate times the mean service, each with what is left of it.
    standing = round(rate_per_s * float(held_s.mean()))
    jobs = [
        Job(f"start-{number}", tasks[at].ask, 0, us(left_s))
        for number, (at, left_s) in enumerate(services_s.residual(rng, standing))
    ]
    chosen = rng.choice(source, how.count).tolist()
    at_s = np.cumsum(rng.exponential(1 / rate_per_s, how.count)).tolist()
    for number, (at, when_s) in enumerate(zip(chosen, at_s, strict=True)):
        jobs.append(Job(f"{number}", tasks[at].ask, us(when_s), us(services_s.draw(rng, at))))
    return Workload(name, jobs)


class _Services:
    """How long tasks run: each its own time, or one drawn from other tasks' times, or exponential.

    `source` are the tasks that may be drawn, `expected_s` what each runs on average.
    """

    def __init__(self, tasks: Sequence[TimedAsk], others: Sequence[TimedAsk], how: Draws) -> None:
        self._mean_s = how.mean_service_s
        times = [None if task.ran_s is None else min(task.ran_s, how.max_s) for task in tasks]
        timed = [at for at, ran_s in enumerate(times) if ran_s is not None]
        self._own = times if timed and self._mean_s is None else None
        self.source = np.array(timed if self._own else range(len(tasks)))
        self._pool = np.array([min(task.ran_s, how.max_s) for task in others if task.ran_s is not None])
        self.known = self._mean_s is not None or len(self._pool) > 0
        if self._own:
            self.expected_s = np.array([self._own[at] for at in timed], dtype=np.float64)
        elif self.known:
            mean_s = self._mean_s if self._mean_s is not None else float(self._pool.mean())
            self.expected_s = np.full(len(tasks), mean_s)

    def draw(self, rng: np.random.Generator, task: int) -> float:
        """How long a task that arrives will run."""
        if self._own:
            return self._own[task] or 0.0
        if self._mean_s is not None:
            return float(rng.exponential(self._mean_s))
        return float(rng.choice(self._pool))

    def residual(self, rng: np.random.Generator, number: int) -> list[tuple[int, float]]:
        """Tasks met at a random moment with what is left of them: long ones are met more often, cut anywhere."""
        if self._own:
            met = rng.choice(len(self.source), number, p=self.expected_s / self.expected_s.sum())
            left_s = self.expected_s[met] * rng.uniform(0, 1, number)
            return list(zip(self.source[met].tolist(), left_s.tolist(), strict=True))
        tasks = rng.choice(self.source, number).tolist()
        if self._mean_s is not None:
            return list(zip(tasks, rng.exponential(self._mean_s, number).tolist(), strict=True))
        met_s = rng.choice(self._pool, number, p=self._pool / self._pool.sum())
        return list(zip(tasks, (met_s * rng.uniform(0, 1, number)).tolist(), strict=True))


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


KUBESHARE_SERVICE_S: Final = 38.4
KUBESHARE_BASE_PER_MIN: Final = 16.7


@dataclass(frozen=True)
class KubeShareJobs:
    """Number of jobs, arrivals a minute, mean and deviation of the demand in milli-GPU, time each one runs."""

    jobs: int = 1000
    per_min: float = KUBESHARE_BASE_PER_MIN
    mean_milli: float = 300.0
    sd_milli: float = 140.0
    service_s: float = KUBESHARE_SERVICE_S
    whole: bool = False


def kubeshare(how: KubeShareJobs, seed: int) -> Workload:
    """Jobs as in KubeShare's throughput experiments; `whole` gives each a GPU of its own, as Kubernetes does."""
    rng = np.random.Generator(np.random.PCG64(seed))
    at_s = np.cumsum(rng.exponential(60 / how.per_min, how.jobs))
    milli = np.clip(np.rint(rng.normal(how.mean_milli, how.sd_milli, how.jobs)), 1, MILLI).astype(int)
    jobs = []
    for number, (when_s, demand) in enumerate(zip(at_s.tolist(), milli.tolist(), strict=True)):
        jobs.append(Job(f"{number}", share_of(MILLI if how.whole else demand), us(when_s), us(how.service_s)))
    return Workload("kubeshare", jobs)


@dataclass(frozen=True)
class MixJobs:
    """Jobs of many sizes (milli-GPU, weight): how many, arrivals a minute, mean of the time they run."""

    jobs: int = 1000
    per_min: float = 60.0
    service_s: float = 600.0
    sizes: tuple[tuple[int, float], ...] = ((100, 2), (250, 3), (500, 3), (1000, 4), (2000, 1), (4000, 0.3))


def mix(how: MixJobs, seed: int) -> Workload:
    """Jobs of random sizes (milli-GPU), from a tenth of a GPU to several."""
    rng = np.random.Generator(np.random.PCG64(seed))
    at_s = np.cumsum(rng.exponential(60 / how.per_min, how.jobs))
    weights = np.array([weight for _, weight in how.sizes])
    sizes = rng.choice([milli for milli, _ in how.sizes], how.jobs, p=weights / weights.sum())
    service = rng.exponential(how.service_s, how.jobs)
    jobs = [
        Job(f"{number}", share_of(int(milli)), us(float(when_s)), max(1, us(float(ran_s))))
        for number, (when_s, milli, ran_s) in enumerate(zip(at_s, sizes, service, strict=True))
    ]
    return Workload("mix", jobs)


def share_of(milli: int) -> Ask:
    """An ask for so many milli-GPU and nothing else."""
    return Ask(GpuRequest(milli))


MAX_JOBS: Final = 1_000_000
OPTIONS: Final = {
    "jobs": ("jobs", 1.0), "rate": ("per_min", 1.0), "mean": ("mean_milli", 10.0), "sd": ("sd_milli", 10.0),
    "service": ("service_s", 1.0), "whole": ("whole", 1.0),
}  # fmt: skip
"""Of each option the field it sets, and the factor from the option's unit to the field's."""
GENERATORS: Final = {
    name: {option: to for option, to in OPTIONS.items() if to[0] in how.__dataclass_fields__}
    for name, how in (("kubeshare", KubeShareJobs), ("mix", MixJobs))
}


def is_spec(text: str) -> bool:
    """Whether a trace is the name of a generator."""
    return text.partition(":")[0] in GENERATORS


def generated(text: str, seed: int) -> Workload:
    """The jobs of a generator; rates are jobs a minute, mean and sd percent of a GPU, service seconds.

    Raises:
        UserError: an unknown option, or a value that is no finite number above 0.
    """
    name, _, rest = text.partition(":")
    fields = GENERATORS[name]
    values: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        option, _, value = part.partition("=")
        if option not in fields:
            raise UserError(f"--trace {text}: {name} has no option {option!r}; it has {', '.join(fields)}")
        field, factor = fields[option]
        values[field] = _number(text, option, value) * factor
    return _made(name, values, seed)


def _made(name: str, values: dict[str, float], seed: int) -> Workload:
    jobs = int(values.pop("jobs", 1000))
    if name == "mix":
        return mix(MixJobs(jobs=jobs, **values), seed)  # type: ignore[arg-type]
    whole = bool(values.pop("whole", 0))
    return kubeshare(KubeShareJobs(jobs=jobs, whole=whole, **values), seed)


def _number(text: str, option: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise UserError(f"--trace {text}: {option} {value!r} is not a number") from None
    zero_allowed = option in ("sd", "whole")
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero_allowed) or number > 1e9:
        least = "at least 0" if zero_allowed else "above 0"
        raise UserError(f"--trace {text}: {option} {value} must be a number {least} and at most 1,000,000,000")
    if option == "jobs" and (number != int(number) or number > MAX_JOBS):
        raise UserError(f"--trace {text}: jobs {value} must be a whole number up to {MAX_JOBS}")
    return number
