"""Jobs that slow each other down on one GPU, placed by the production core: KubeShare's Fig. 13.

Kinds A and B share a GPU by two; two B together run 1.5 times as long, every other pair hardly longer than alone. The
progress of a job depends on its neighbours at each moment, so its end moves when a neighbour arrives or ends.

Source: KubeShare (HPDC'20), 5.5; the two slowdowns are the paper's (1.5, and below 1.1: 1.06 is taken).
`aliquot bench fig12` measures such slowdowns with real programs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from aliquot.model.quantities import MILLI
from aliquot.model.requests import GpuRequest, Labels
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster, NodeSpec, Placement
from aliquot.placement.decide import Decider
from aliquot_lab.sim.jobs import Job
from aliquot_lab.sim.kernel import Kernel, Kind, s, us
from aliquot_lab.sim.policies import made
from aliquot_lab.sim.waiting import Waiting

SLOW: Final = {("A", "A"): 1.06, ("A", "B"): 1.06, ("B", "A"): 1.06, ("B", "B"): 1.5}
ASK_MILLI: Final = 450
SERVICE_S: Final = 38.4


@dataclass
class _Running:
    kind: str
    cell: tuple[int, int]
    left_us: float
    since_us: int
    rate: float = 1.0
    plan: int = field(default=0)


class Interference:
    """A batch of jobs of two kinds on a cluster; all are there from the start, in random order."""

    def __init__(self, nodes: list[NodeSpec], jobs: int, part_a: float, seed: int, *, setting: str) -> None:
        """`setting` is `whole` (Kubernetes), `shared`, or `anti` (B carries an anti-affinity label)."""
        rng = np.random.Generator(np.random.PCG64(seed))
        kinds = ["A"] * round(jobs * part_a) + ["B"] * (jobs - round(jobs * part_a))
        self._kinds = [kinds[at] for at in rng.permutation(jobs)]
        self._cluster = Cluster(nodes)
        self._decider = Decider(self._cluster, made("kubeshare"), seed=seed)
        self._kernel = Kernel()
        self._waiting = Waiting()
        self._running: dict[str, _Running] = {}
        self._setting = setting

    def throughput_per_min(self) -> float:
        """Jobs a minute from the start to the end of the last."""
        for number, kind in enumerate(self._kinds):
            job = Job(f"{number}{kind}", self._ask(kind), 0, us(SERVICE_S))
            if not self._start(job, again=False):
                self._waiting.add(job)
        self._kernel.run()
        return 60 * len(self._kinds) / s(self._kernel.now_us)

    def _ask(self, kind: str) -> Ask:
        if self._setting == "whole":
            return Ask(GpuRequest(MILLI))
        labels = Labels(anti_affinity="slow") if kind == "B" and self._setting == "anti" else Labels()
        return Ask(GpuRequest(ASK_MILLI, labels=labels))

    def _start(self, job: Job, *, again: bool) -> bool:
        found = self._decider.decide(job.ask, again=again)
        if not isinstance(found, Placement):
            return False
        self._cluster.reserve(job.name, found, job.ask)
        holding = self._cluster.tenants[job.name]
        cell = (holding.node, holding.cells[0])
        self._running[job.name] = _Running(job.name[-1], cell, float(job.service_us), self._kernel.now_us)
        self._adjust(cell)
        return True

    def _adjust(self, cell: tuple[int, int]) -> None:
        """Count the progress of all jobs on a device, and reschedule their ends."""
        now = self._kernel.now_us
        here = [resident.tenant for resident in self._cluster.residents(*cell)]
        for name in here:
            one = self._running[name]
            one.left_us -= (now - one.since_us) * one.rate
            others = [self._running[other].kind for other in here if other != name]
            one.rate = 1 / max((SLOW[one.kind, other] for other in others), default=1.0)
            one.since_us, one.plan = now, one.plan + 1
            delay = max(0, round(one.left_us / one.rate))
            self._kernel.after(delay, Kind.DEPARTURE, partial(self._end, name, one.plan))

    def _end(self, name: str, plan: int) -> None:
        one = self._running.get(name)
        if one is None or one.plan != plan:
            return
        del self._running[name]
        self._decider.release(name)
        self._adjust(one.cell)
        for _, group in sorted(self._waiting.heads(), key=lambda head: head[0]):
            while (head := self._waiting.head(group)) is not None and self._start(head[1], again=True):
                self._waiting.pop(group)
