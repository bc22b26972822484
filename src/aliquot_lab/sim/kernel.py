"""Virtual time, the jobs that arrive in it, and those of them that wait for room.

Events come in the order of their time, and at one time in the order of their kind and of being planned. Nothing here
looks at a clock or draws a number, so equal inputs give equal runs to the byte. Time is an integer of microseconds from
the start of the simulation.

Jobs wait in groups of equal asks, each in the order of arrival, and only the heads are ever tried: if the head of a
group does not fit, no job of the group does, because their requests are equal. Between groups the order is priority
(higher first), then arrival.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from aliquot.model.quantities import MILLI
from aliquot.model.requests import GpuRequest
from aliquot.placement.asks import Ask, Shape

US_PER_S: Final = 1_000_000


def us(seconds: float) -> int:
    """Seconds as microseconds, to the nearest."""
    return round(seconds * US_PER_S)


def s(microseconds: int) -> float:
    """Microseconds as seconds."""
    return microseconds / US_PER_S


class Kind(IntEnum):
    """The order of events at the same moment: departures before arrivals."""

    DEPARTURE = 0
    ARRIVAL = 1


class Kernel:
    """A queue of things to happen, and the time of the one that is happening."""

    def __init__(self) -> None:
        self.now_us = 0
        self._planned = 0
        self._events: list[tuple[int, int, int, Callable[[], None]]] = []

    def at(self, when_us: int, kind: Kind, happen: Callable[[], None]) -> None:
        """Plan something for a time that is not past.

        Raises:
            ValueError: the time is past.
        """
        if when_us < self.now_us:
            raise ValueError(f"{when_us} us is before now, {self.now_us} us")
        self._planned += 1
        heapq.heappush(self._events, (when_us, kind, self._planned, happen))

    def after(self, delay_us: int, kind: Kind, happen: Callable[[], None]) -> None:
        """Plan something for so much later."""
        self.at(self.now_us + delay_us, kind, happen)

    def run(self, until_us: int | None = None) -> None:
        """Let things happen until nothing is planned, or up to and including a time, at which the clock then stands."""
        while self._events and (until_us is None or self._events[0][0] <= until_us):
            self.now_us, _, _, happen = heapq.heappop(self._events)
            happen()
        if until_us is not None:
            self.now_us = max(self.now_us, until_us)


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


Order = tuple[int, int]


def group_of(ask: Ask) -> Hashable:
    """Equal for asks that fit in exactly the same places and have the same priority."""
    if ask.plain:
        return (ask.priority, ask.shape)
    return (ask.priority, ask.shape, ask.labels, ask.gpu_id, ask.gpu_uuid)


class Waiting:
    """The jobs that wait, with what they ask for in all."""

    def __init__(self) -> None:
        self.count = 0
        self.milli = 0
        self._groups: dict[Hashable, deque[tuple[int, Job]]] = {}
        self._seen = 0

    def add(self, job: Job) -> None:
        """Let a job wait behind those that came before it."""
        self._seen += 1
        self._groups.setdefault(group_of(job.ask), deque()).append((self._seen, job))
        self.count += 1
        self.milli += job.ask.milli

    def heads(self) -> list[tuple[Order, Hashable]]:
        """The order and the group of every head, unsorted."""
        return [((-queue[0][1].ask.priority, queue[0][0]), group) for group, queue in self._groups.items()]

    def head(self, group: Hashable) -> tuple[Order, Job] | None:
        """The first of a group; None if none of it waits."""
        queue = self._groups.get(group)
        if not queue:
            return None
        number, job = queue[0]
        return (-job.ask.priority, number), job

    def pop(self, group: Hashable) -> Job:
        """Take the first of a group out; it has found a place."""
        queue = self._groups[group]
        _, job = queue.popleft()
        if not queue:
            del self._groups[group]
        self.count -= 1
        self.milli -= job.ask.milli
        return job
