"""The simulated scheduler: jobs arrive, get a place from the production placement core or wait, run, and leave.

A departure makes room on one node only, so only that node is tried again, with the heads of the groups that wait: who
waited did not fit anywhere else. Labels are the exception, for a label that leaves is free everywhere; jobs with labels
are tried on the whole cluster.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

import numpy as np

from aliquot.placement.asks import Shape
from aliquot.placement.cluster import Cluster, NodeSpec, Placement
from aliquot.placement.decide import Decider
from aliquot.placement.fits import fitting_nodes
from aliquot.placement.policy import Policy
from aliquot_lab.sim.jobs import Job
from aliquot_lab.sim.kernel import Kernel, Kind
from aliquot_lab.sim.load import ever_fits
from aliquot_lab.sim.moves import make_room
from aliquot_lab.sim.pool import PoolSettings, SimulatedPool
from aliquot_lab.sim.record import Outcome, RunRecorder
from aliquot_lab.sim.waiting import Waiting

IDLE_BUDGET_US: Final = 200
TELL_EVERY: Final = 200


class Discipline(StrEnum):
    """Who may start when room is made."""

    BACKFILL = "backfill"  # any job that fits, in order of priority and arrival
    FIFO = "fifo"  # no job before the first that waits


@dataclass(frozen=True)
class SimSettings:
    """How a run is done; `moves` is the most pods moved to make room for one, `until_us` ends a run early."""

    queue: Discipline = Discipline.BACKFILL
    pool: PoolSettings = field(default_factory=PoolSettings)
    moves: int = 0
    until_us: int | None = None


class Simulation:
    """One run: a cluster, jobs in order of arrival, a policy."""

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        jobs: Sequence[Job],
        policy: Policy,
        *,
        seed: int = 0,
        settings: SimSettings | None = None,
        clock_ns: Callable[[], int] | None = None,
        tell_part: Callable[[float], None] | None = None,
    ) -> None:
        """Get ready; `clock_ns` times the decisions and `tell_part` hears how far (0..1) the run is, where given."""
        self.settings = settings or SimSettings()
        self.cluster = Cluster(nodes)
        self.decider = Decider(self.cluster, policy, seed=seed)
        self.kernel = Kernel()
        self.waiting = Waiting()
        self.pool = SimulatedPool(
            self.settings.pool, ((n, g) for n, spec in enumerate(nodes) for g in range(len(spec.gpus)))
        )
        self.record = RunRecorder(self.cluster, jobs)
        self._jobs = {job.name: number for number, job in enumerate(jobs)}
        self._arriving = iter(jobs)
        self._clock_ns, self._tell_part = clock_ns, tell_part
        self._ever_fits = ever_fits(nodes)
        if len(self._jobs) != len(jobs):
            raise ValueError("two jobs have one name")

    def run(self) -> Outcome:
        """Let every job arrive and, unless the settings end the run before, leave."""
        self._plan_arrival()
        self.kernel.run(self.settings.until_us)
        return self.record.outcome(self.kernel.now_us, self.pool.totals(self.kernel.now_us))

    # Events

    def _plan_arrival(self) -> None:
        job = next(self._arriving, None)
        if job is not None:
            self.kernel.at(job.arrive_us, Kind.ARRIVAL, partial(self._arrive, job))

    def _arrive(self, job: Job) -> None:
        self._plan_arrival()
        number = self._jobs[job.name]
        if self._tell_part is not None and number % TELL_EVERY == 0:
            self._tell_part(number / len(self._jobs))
        if not self._ever_fits(job.ask.shape):
            self.record.impossible(self._jobs[job.name])
        elif self.settings.queue is Discipline.FIFO and self.waiting.count:
            self.decider.policy.arrived(job.ask.shape)
            self.waiting.add(job)
        elif not self._place(job, again=False):
            self.waiting.add(job)
        while self.decider.policy.idle(IDLE_BUDGET_US):
            pass
        self._step()

    def _depart(self, number: int) -> None:
        job = self.record.jobs[number]
        holding = self.decider.release(job.name)
        assert holding is not None
        node = holding.node
        self.pool.give(tuple((node, gpu) for gpu in holding.cells), self.kernel.now_us)
        self.record.left(number, self.kernel.now_us)
        if self.waiting.count:
            self._retry(node)
        self._step()

    def _step(self) -> None:
        self.record.step(self.kernel.now_us, self.waiting)

    # Placing

    def _place(self, job: Job, *, again: bool, node: int | None = None) -> bool:
        """Find a place and start there; on one node only where that is given and known to have room."""
        clock = self._clock_ns
        before = clock() if clock else 0
        if node is None:
            found = self.decider.decide(job.ask, again=again)
        else:
            found = self.decider.place_on(job.ask, self.cluster.spec(node).name)
        if clock:
            self.record.decided(clock() - before)
        if not isinstance(found, Placement) and self.settings.moves and not again:
            moved = make_room(self.decider, job.ask, self.settings.moves)
            if moved is not None:
                self._moved(moved)
                found = self.decider.decide(job.ask, again=True)
        if not isinstance(found, Placement):
            return False
        self._start(job, found)
        return True

    def _start(self, job: Job, found: Placement) -> None:
        number, now = self._jobs[job.name], self.kernel.now_us
        self.cluster.reserve(job.name, found, job.ask)
        holding = self.cluster.tenants[job.name]
        delay = self.pool.take(tuple((holding.node, gpu) for gpu in holding.cells), now)
        self.record.started(number, now, delay, holding)
        self.kernel.after(delay + job.service_us, Kind.DEPARTURE, partial(self._depart, number))

    def _moved(self, moved: dict[str, Placement]) -> None:
        """Ledger and pool follow pods that were moved; the pods continue their work."""
        for tenant in moved:
            number = self._jobs[tenant]
            old, holding = self.record.holding(number), self.cluster.tenants[tenant]
            self.pool.give(tuple((old.node, gpu) for gpu in old.cells), self.kernel.now_us)
            self.pool.take(tuple((holding.node, gpu) for gpu in holding.cells), self.kernel.now_us)
            self.record.moved(number, self.kernel.now_us, holding)

    def _retry(self, node: int) -> None:
        """Room was made on a node: start the waiting jobs that now fit, in order."""
        if self.settings.queue is Discipline.FIFO:
            self._retry_first()
            return
        heads = self.waiting.heads()
        heapq.heapify(heads)
        while heads:
            _, group = heapq.heappop(heads)
            if self._start_head(group, node):
                following = self.waiting.head(group)
                if following is not None:
                    heapq.heappush(heads, (following[0], group))

    def _retry_first(self) -> None:
        while self.waiting.count:
            _, group = min(self.waiting.heads(), key=lambda head: head[0])
            if not self._start_head(group, None):
                return

    def _start_head(self, group: Hashable, node: int | None) -> bool:
        head = self.waiting.head(group)
        assert head is not None
        job = head[1]
        where = node if job.ask.plain else None
        if where is not None and not self._fits_on(job.ask.shape, where):
            return False
        if not self._place(job, again=True, node=where):
            return False
        self.waiting.pop(group)
        return True

    def _fits_on(self, shape: Shape, node: int) -> bool:
        cluster = self.cluster
        if shape.cpu_milli > cluster.cpu_free.item(node) or shape.memory_mib > cluster.memory_free.item(node):
            return False
        if shape.whole > cluster.idle_count.item(node) or shape.milli > cluster.free_total.item(node):
            return False
        return bool(fitting_nodes(cluster, shape, np.array([node]))[0])
