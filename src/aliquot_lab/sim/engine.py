"""The simulated scheduler: jobs arrive, get a place from the production placement core or wait, run, and leave.

A departure makes room on one node only, so only that node is tried again, with the heads of the groups that wait: who
waited did not fit anywhere else. Labels are the exception, for a label that leaves is free everywhere; jobs with labels
are tried on the whole cluster.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import combinations
from typing import Final

import numpy as np

from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster, NodeSpec, Placement
from aliquot.placement.decide import Decider
from aliquot.placement.fits import fitting_nodes
from aliquot.placement.policy import Policy
from aliquot_lab.sim.kernel import Job, Kernel, Kind, Waiting
from aliquot_lab.sim.load import ever_fits
from aliquot_lab.sim.pool import PoolSettings, SimulatedPool
from aliquot_lab.sim.record import Outcome, RunRecorder

IDLE_BUDGET_US: Final = 200
TELL_EVERY: Final = 200
_CANDIDATES: Final = 12
"""Of a node's pods so many are considered, the smallest first; more would be tried for long and moved never."""


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
        self.record.step(self.kernel.now_us, self.waiting)

    def _depart(self, number: int) -> None:
        job = self.record.jobs[number]
        holding = self.decider.release(job.name)
        assert holding is not None
        node = holding.node
        self.pool.give(tuple((node, gpu) for gpu in holding.cells), self.kernel.now_us)
        self.record.left(number, self.kernel.now_us)
        if self.waiting.count:
            self._retry(node)
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
                for tenant in moved:  # ledger and pool follow them, and they continue their work
                    number = self._jobs[tenant]
                    old, holding = self.record.holding(number), self.cluster.tenants[tenant]
                    self.pool.give(tuple((old.node, gpu) for gpu in old.cells), self.kernel.now_us)
                    self.pool.take(tuple((holding.node, gpu) for gpu in holding.cells), self.kernel.now_us)
                    self.record.moved(number, self.kernel.now_us, holding)
                found = self.decider.decide(job.ask, again=True)
        if not isinstance(found, Placement):
            return False
        number, now = self._jobs[job.name], self.kernel.now_us
        self.cluster.reserve(job.name, found, job.ask)
        holding = self.cluster.tenants[job.name]
        delay = self.pool.take(tuple((holding.node, gpu) for gpu in holding.cells), now)
        self.record.started(number, now, delay, holding)
        self.kernel.after(delay + job.service_us, Kind.DEPARTURE, partial(self._depart, number))
        return True

    def _retry(self, node: int) -> None:
        """Room was made on a node: start the waiting jobs that now fit, in order."""
        if self.settings.queue is Discipline.FIFO:
            while self.waiting.count:
                _, group = min(self.waiting.heads(), key=lambda head: head[0])
                if not self._start_head(group, None):
                    return
            return
        heads = self.waiting.heads()
        heapq.heapify(heads)
        while heads:
            _, group = heapq.heappop(heads)
            if self._start_head(group, node):
                following = self.waiting.head(group)
                if following is not None:
                    heapq.heappush(heads, (following[0], group))

    def _start_head(self, group: Hashable, node: int | None) -> bool:
        head = self.waiting.head(group)
        assert head is not None
        job = head[1]
        where = node if job.ask.plain else None
        if where is not None:
            shape, cluster = job.ask.shape, self.cluster
            if shape.cpu_milli > cluster.cpu_free.item(where) or shape.memory_mib > cluster.memory_free.item(where):
                return False
            if shape.whole > cluster.idle_count.item(where) or shape.milli > cluster.free_total.item(where):
                return False
            if not fitting_nodes(cluster, shape, np.array([where]))[0]:
                return False
        if not self._place(job, again=True, node=where):
            return False
        self.waiting.pop(group)
        return True


def make_room(decider: Decider, ask: Ask, most: int) -> dict[str, Placement] | None:
    """Move at most `most` pods of one node so that the ask fits; where each went, None if that cannot be.

    The fewest milli-GPU are moved; of equal plans that on the node with the smallest rank. Every pod moved must fit
    elsewhere by the same policy before anything is changed for good.
    """
    cluster = decider.cluster
    for _, _, node, tenants in sorted(_plans(cluster, ask, most)):
        moved = _try(decider, ask, node, tenants)
        if moved is not None:
            return moved
    return None


def _plans(cluster: Cluster, ask: Ask, most: int) -> Iterator[tuple[int, int, int, tuple[str, ...]]]:
    """(milli moved, rank, node, tenants) of all plans whose sums would give enough room."""
    shape = ask.shape
    near = cluster.open & (cluster.size_mib >= 0).any(axis=1) if shape.devices else cluster.open
    if shape.models:
        near = near & cluster.model_mask(shape.models)[cluster.model].any(axis=1)
    for node in np.flatnonzero(near & (cluster.gpu_count >= shape.devices)).tolist():
        here = sorted(cluster.tenants_on(node), key=lambda tenant: (cluster.tenants[tenant].ask.milli, tenant))
        for number in range(1, most + 1):
            for tenants in combinations(here[:_CANDIDATES], number):
                asks = [cluster.tenants[tenant].ask for tenant in tenants]
                milli = sum(gone.milli for gone in asks)
                if (
                    cluster.free_total.item(node) + milli >= shape.milli
                    and cluster.cpu_free.item(node) + sum(gone.cpu_milli for gone in asks) >= shape.cpu_milli
                    and cluster.memory_free.item(node) + sum(gone.memory_mib for gone in asks) >= shape.memory_mib
                ):
                    yield milli, cluster.rank.item(node), node, tenants


def _try(decider: Decider, ask: Ask, node: int, tenants: tuple[str, ...]) -> dict[str, Placement] | None:
    cluster, moved = decider.cluster, dict[str, Placement]()
    asks = {tenant: cluster.tenants[tenant].ask for tenant in reversed(tenants)}
    with cluster.trial():
        for tenant in tenants:
            cluster.release(tenant)
        if not decider.feasible(ask)[node]:
            return None
        cluster.set_cordoned(cluster.spec(node).name)
        for tenant, own in asks.items():
            found = decider.decide(own, again=True)
            if not isinstance(found, Placement):
                return None
            cluster.reserve(tenant, found, own)
            moved[tenant] = found
    for tenant in tenants:
        cluster.release(tenant)
    for tenant, place in moved.items():
        cluster.reserve(tenant, place, asks[tenant])
    return moved
