"""Who waits for room: groups of equal asks, each in the order of arrival, and only their heads are ever tried.

If the head of a group does not fit, no job of the group does, because their requests are equal. Between groups the
order is priority (higher first), then arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from aliquot.placement.asks import Ask
from aliquot_lab.sim.jobs import Job

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
