"""Jobs of the openb trace: at their own times, or drawn from it at random for a load that is asked for.

`replayed` keeps creation times; a job runs as long as it did from being scheduled to being deleted. `drawn` takes pods
at random, each with its own service time, at Poisson arrivals: the load is offered GPU time over capacity. It begins
with a stationary population: jobs that were there before, each with what is left of its service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from aliquot.model.errors import UserError
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import Ask
from aliquot_lab.sim.jobs import Job, Workload
from aliquot_lab.sim.kernel import us
from aliquot_lab.sim.openb.trace import PodRow

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
