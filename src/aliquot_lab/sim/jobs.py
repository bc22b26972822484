"""What arrives in a simulation: a request, when, and how long it runs once it has a place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aliquot.model.quantities import MILLI
from aliquot.model.requests import GpuRequest
from aliquot.placement.asks import Ask, Shape


@dataclass(frozen=True, slots=True)
class Job:
    """One pod; its name is unique within a run, times are microseconds from the start of the simulation."""

    name: str
    ask: Ask
    arrive_us: int
    service_us: int
    user: str = ""


@dataclass(frozen=True)
class Workload:
    """The jobs of one seed, in order of arrival, and what to call it."""

    name: str
    jobs: Sequence[Job]


def on_whole_gpus(load: Workload) -> Workload:
    """The same jobs with each part of a GPU rounded up and no labels, as in a cluster without sharing."""
    jobs = []
    for job in load.jobs:
        if job.ask.rest_milli:
            request = GpuRequest(job.ask.devices * MILLI, model=job.ask.request.model)
            job = replace(job, ask=replace(job.ask, request=request))
        jobs.append(job)
    return Workload(load.name, jobs)


def job_class(ask: Ask | Shape) -> str:
    """`cpu` (no GPU), `fractional` (a part of one), `one` (a whole one) or `multi` (touches several)."""
    if ask.devices == 0:
        return "cpu"
    if ask.devices > 1:
        return "multi"
    return "one" if ask.whole else "fractional"


CLASSES = ("cpu", "fractional", "one", "multi")
