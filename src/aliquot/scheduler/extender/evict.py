"""Preemption for fragmentation: the node has enough free GPU in total, but no single GPU does.

kube-scheduler counts hundredths of GPUs per node. When the sum suffices but no single GPU has the share, its own
preemption finds no pod to evict and calls no extender. So a pod that no node can take although less important pods hold
what it needs is noted here; if it still waits after `PATIENCE_S`, the fewest and least important pods that make room on
one node are evicted, by the API's eviction, which respects disruption budgets. Each eviction is first tried as a dry
run: a pod that a budget protects is left out, and others are chosen. The room is held for the pod until it is
bound or gone, so that no other pod takes it. Pods with `preemptionPolicy: Never` evict no pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgspec

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock, RealClock
from aliquot.kube.errors import Conflict, KubeError, NotFound, Unreachable
from aliquot.kube.objects import Pod
from aliquot.kube.requests import PodAsk
from aliquot.kube.resources import PODS
from aliquot.lib.log import Logger
from aliquot.model.ids import split_key
from aliquot.scheduler.extender.preempt import VictimSet, node_trials
from aliquot.scheduler.ledger import Ledger, NodeFull

log = Logger("scheduler")
PATIENCE_S: Final = 3.0
MAX_WAITING: Final = 1000
NODES_TRIED: Final = 64
GIVE_UP_S: Final = 120.0


@dataclass
class Preemptor:
    """One pod that waits for evictions. `leaving` are keys by uid, of pods that were evicted from `node`; `kept`
    are keys of pods that may not be evicted now."""

    ask: PodAsk
    since_s: float
    nodes: list[str]
    node: str = ""
    held: bool = False
    leaving: dict[str, str] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)


@dataclass
class Evictor:
    """Evicts for waiting pods. `find` gives a pod from the cache by its key."""

    api: Api
    ledger: Ledger
    find: Callable[[str], Pod | None]
    leads: Callable[[], bool] = lambda: True
    clock: Clock = field(default_factory=RealClock)
    preemptors: dict[str, Preemptor] = field(default_factory=dict)

    def waits(self, pod: Pod, ask: PodAsk, failed: Iterable[str]) -> None:
        """A filter found no node for the pod; on those in `failed` (names) other pods hold what it needs."""
        may = pod.spec.priority > 0 and pod.spec.preemption_policy != "Never"
        if may and ask.uid not in self.preemptors and len(self.preemptors) < MAX_WAITING:
            nodes = list(islice(failed, NODES_TRIED))
            if nodes:
                self.preemptors[ask.uid] = Preemptor(ask, self.clock.monotonic_s(), nodes)

    def gone(self, pod: Pod) -> None:
        """A pod was deleted or ended: hold the room that it made at once."""
        for preemptor in list(self.preemptors.values()):
            if pod.metadata.uid in preemptor.leaving:
                self._reserve(preemptor)

    async def run(self) -> None:
        """Process the waiting pods until cancelled."""
        while True:
            await self.clock.sleep(0.5)
            if self.leads():
                await self.step()

    async def step(self) -> None:
        """Process every waiting pod once, the most important first."""
        for uid, preemptor in sorted(self.preemptors.items(), key=lambda item: -self._priority(item[1].ask.key)):
            pod = self.find(preemptor.ask.key)
            if pod is None or pod.metadata.uid != uid or pod.spec.node_name:
                self.preemptors.pop(uid, None)
            elif preemptor.node:
                self._reserve(preemptor)
            elif self.clock.monotonic_s() - preemptor.since_s >= PATIENCE_S:
                await self._make_room(pod, preemptor)

    def _priority(self, key: str) -> int:
        pod = self.find(key)
        return pod.spec.priority if pod is not None else 0

    async def _make_room(self, pod: Pod, preemptor: Preemptor) -> None:
        """Choose the node where the least is lost, and evict its pods."""
        best: tuple[VictimSet, str] | None = None

        def find(key: str) -> Pod | None:
            return None if key in preemptor.kept else self.find(key)

        async for trial in node_trials(self.ledger, preemptor.ask, preemptor.nodes, find):
            if best is not None and trial.late():
                break
            found = trial.least(pod.spec.priority)
            if found is not None and not found.allocations:
                self.preemptors.pop(preemptor.ask.uid, None)  # it fits by now; kube-scheduler will find the node
                return
            if found is not None and (best is None or found.cost < best[0].cost):
                best = found, trial.node
        if best is None:
            self.preemptors.pop(preemptor.ask.uid, None)  # the next filter call notes it again
            return
        leaving = {allocation.uid: allocation.key for allocation in best[0].allocations}
        if not await self._may_go(preemptor, leaving) or not self.leads():
            return  # the new leader may have chosen others
        preemptor.node, preemptor.leaving = best[1], leaving
        log.info(
            "pod %s needs room on node %s: evicting %s",
            preemptor.ask.key,
            preemptor.node,
            ", ".join(preemptor.leaving.values()),
        )
        await asyncio.gather(*(self._evict(key, uid) for uid, key in preemptor.leaving.items()))

    def _reserve(self, preemptor: Preemptor) -> None:
        """Hold the room as soon as it exists."""
        if self.ledger.allocations.get(preemptor.ask.uid):
            return
        late = self.clock.monotonic_s() - preemptor.since_s > GIVE_UP_S
        if preemptor.held or late:
            self.preemptors.pop(
                preemptor.ask.uid, None
            )  # held in vain, or a pod did not end: start again with the next filter call
            return
        if any(self.ledger.allocations.get(uid) for uid in preemptor.leaving):
            return
        try:
            self.ledger.allocate(preemptor.ask, preemptor.node, self.clock.monotonic_s())
            preemptor.held = True
        except NodeFull:
            self.preemptors.pop(preemptor.ask.uid, None)

    async def _may_go(self, preemptor: Preemptor, leaving: Mapping[str, str]) -> bool:
        """Whether all of them may be evicted; a protected one is not chosen again for this pod."""
        for uid, key in leaving.items():
            try:
                await self._ask(key, uid, dryRun=["All"])
            except (NotFound, Conflict):
                continue  # gone already
            except Unreachable:
                return False
            except KubeError as error:
                log.info("pod %s needs room, but %s may not be evicted: %s", preemptor.ask.key, key, error)
                preemptor.kept.add(key)
        return preemptor.kept.isdisjoint(leaving.values())

    async def _ask(self, key: str, uid: str, **options: Any) -> None:
        namespace, name = split_key(key)
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}, **options},
        }
        path = PODS.path(namespace=namespace, name=name, sub="eviction")
        await self.api.request("POST", path, content=msgspec.json.encode(body), repeat=False)

    async def _evict(self, key: str, uid: str) -> None:
        try:
            await self._ask(key, uid)
        except KubeError as error:
            log.warning("pod %s could not be evicted: %s", key, error)
