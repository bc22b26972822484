"""Preemption: which pods to evict so that a more important pod gets its GPUs, and only where that helps.

The verb: kube-scheduler proposes victims per node by what it counts (CPU, memory, hundredths of GPUs). It does not know
which GPU each is on. To its victims are added the fewest and least important pods whose shares make room; then those of
its own stay whose going changes nothing: the GPU has room without, and the others free as much of every resource as it
wanted freed; the GPU on which that is least is found by trying each. Nodes on which no eviction helps are left out, and
those for which there was no time: kube-scheduler waits some seconds for an answer, a node with many pods takes
hundredths of one, and hundreds of nodes may be proposed. A pod of many containers takes seconds for one node, of which
then not every GPU is tried.

The evictor: a node may have enough free GPU in total while no single GPU does. kube-scheduler then finds no pod to
evict and calls no extender. So a pod that no node can take although less important pods hold what it needs is noted
here; if it still waits after `PATIENCE_S`, the fewest and least important pods that make room on one node are evicted,
by the API's eviction, which respects disruption budgets. Each eviction is first tried as a dry run: a pod that a budget
protects is left out, and others are chosen. The room is held for the pod until it is bound or gone, so that no other
pod takes it. Pods with `preemptionPolicy: Never` evict no pod.

The evictor does the same for a pod, of any priority, with which its namespace is within its nominal quota, while others
of its cohort borrow (`placement.quota`): their newest pods are evicted, whatever their priority, as Kueue does with
`reclaimWithinCohort: Any`. A namespace that does not borrow loses no pod.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import msgspec

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock
from aliquot.kube.errors import Conflict, KubeError, NotFound, Unreachable
from aliquot.kube.objects import PODS, Meta, Pod
from aliquot.kube.quantities import milli
from aliquot.kube.requests import PodAsk
from aliquot.lib.log import Logger
from aliquot.model.ids import GpuUuid, split_key
from aliquot.placement.asks import PlacementUnit
from aliquot.scheduler.allocations import Allocation
from aliquot.scheduler.extender.wire import MetaPod, MetaVictims
from aliquot.scheduler.ledger import Ledger, NodeFull

log = Logger("scheduler")
MAX_S: Final = 2.5
"""Less than kube-scheduler waits (5 s)."""
UNKNOWN_PRIORITY: Final = 2**31
"""Of a pod that is not in the cache: it is not evicted."""
PATIENCE_S: Final = 3.0
MAX_WAITING: Final = 1000
NODES_TRIED: Final = 64
GIVE_UP_S: Final = 120.0


class VictimSet(NamedTuple):
    """Pods whose evictions make room on a node; of several sets the one of least `cost` is chosen: the highest
    priority, the sum of the priorities, the number of pods, and the milli-GPU that they hold. `borrowed` is whether
    their namespaces have it from their cohort."""

    cost: tuple[int, int, int, int]
    allocations: Sequence[Allocation]
    node: str
    borrowed: bool = False


@dataclass(frozen=True)
class NodeTrial:
    """Evictions from one node, tried on the ledger, which is as before after each call.

    `find` gives a pod from the cache by its key. After `ends_s`, in the event loop's time, the next best answer is
    given instead of the best.
    """

    ledger: Ledger
    units: Sequence[PlacementUnit]
    node: str
    find: Callable[[str], Pod | None]
    ends_s: float

    def late(self) -> bool:
        """Whether the time is over."""
        return asyncio.get_running_loop().time() >= self.ends_s

    def least(self, priority: int, going: Iterable[str] = ()) -> VictimSet | None:
        """The pods of lower priority to evict beside those `going` (uids) anyway; None if all are not enough."""
        going = set(going)
        on_node = [allocation for allocation in self.ledger.on_node(self.node) if allocation.tenants]
        lesser = [a for a in on_node if a.uid not in going and a.confirmed and self._priority(a) < priority]
        best: VictimSet | None = None
        with self._without(a for a in on_node if a.uid in going):
            if not self._fits_without(lesser):
                return None
            for gpu in sorted({piece.gpu for a in lesser for piece in a.plan.slices}) or [GpuUuid("")]:
                victims = self._reprieved(lesser, gpu)
                if best is None or victims.cost < best.cost:
                    best = victims
                if self.late():
                    break
        return best

    def reclaimed(self) -> VictimSet | None:
        """The newest pods of namespaces that borrow, without which the pod fits within its nominal quota; None if there
        are none."""
        cluster, decider = self.ledger.cluster, self.ledger.decider
        lender, quotas, leaving = split_key(self.units[0].tenant)[0], decider.quotas, list[Allocation]()
        if (nominal := quotas.nominal(lender)) is None:
            return None

        def borrowed(allocation: Allocation) -> bool:
            return borrows(self.ledger, allocation, lender)

        newest_first = by_age(self.ledger, self.find)
        decider.quotas = nominal
        try:
            if not self._fits_without(filter(borrowed, newest_first)):  # each is asked about without those before it
                return None
            with cluster.trial():
                while not self._fits_without(()):
                    allocation = next(filter(borrowed, newest_first))
                    leaving.append(allocation)
                    newest_first.remove(allocation)
                    for tenant in allocation.tenants:
                        cluster.release(tenant)
            for allocation in reversed(list(leaving)):
                rest = [other for other in leaving if other is not allocation]
                if self._fits_without(rest):
                    leaving = rest
        finally:
            decider.quotas = quotas
        return self._victims(leaving)._replace(borrowed=True)

    def _reprieved(self, lesser: Sequence[Allocation], gpu: str) -> VictimSet:
        """The victims when each pod stays that can: the most important ones first, then those that are not on this GPU,
        then the largest."""

        def order(allocation: Allocation) -> tuple[int, bool, int]:
            on_gpu = any(piece.gpu == gpu for piece in allocation.plan.slices)
            return -self._priority(allocation), on_gpu, -allocation.milli

        leaving = sorted(lesser, key=order)
        for allocation in list(leaving):
            rest = [other for other in leaving if other is not allocation]
            if self._fits_without(rest):
                leaving = rest
        return self._victims(leaving)

    def _victims(self, leaving: Sequence[Allocation]) -> VictimSet:
        priorities = [self._priority(a) for a in leaving]
        held_milli = sum(allocation.milli for allocation in leaving)
        cost = max(priorities, default=-UNKNOWN_PRIORITY), sum(priorities), len(leaving), held_milli
        return VictimSet(cost, leaving, self.node)

    def spared(self, proposed: Sequence[str], more: Sequence[str]) -> list[str]:
        """All victims, by uid, except those of kube-scheduler's (`proposed`) that are not needed."""
        going = list(dict.fromkeys([*proposed, *more]))
        wanted = self._freed(proposed)
        for uid in proposed:
            rest = [other for other in going if other != uid]
            if not rest or self.late() or uid not in self.ledger.allocations or not self._freed(rest) >= wanted:
                continue
            if self._fits_without(a for other in rest for a in self.ledger.allocations.get(other, [])):
                going = rest
        return going

    def _freed(self, uids: Iterable[str]) -> Counter[str]:
        """The sum of these pods' requests by resource, in thousandths; pods that the ledger does not know have none."""
        total: Counter[str] = Counter()
        for uid in uids:
            pod = self.find(self.ledger.allocations[uid][0].key) if uid in self.ledger.allocations else None
            for container in pod.spec.containers if pod is not None else ():
                for name, amount in {**container.resources.limits, **container.resources.requests}.items():
                    total[name] += milli(amount)
        return total

    def _priority(self, allocation: Allocation) -> int:
        pod = self.find(allocation.key)
        return pod.spec.priority if pod is not None else UNKNOWN_PRIORITY

    def _fits_without(self, allocations: Iterable[Allocation]) -> bool:
        with self._without(allocations):
            namespace = split_key(self.units[0].tenant)[0]
            return self.ledger.decider.place_together(self.units, self.node, namespace) is not None

    @contextmanager
    def _without(self, allocations: Iterable[Allocation]) -> Iterator[None]:
        """The ledger without these pods, in the block."""
        with self.ledger.cluster.trial():
            for allocation in allocations:
                for tenant in allocation.tenants:
                    self.ledger.cluster.release(tenant)
            yield


async def node_trials(
    ledger: Ledger, ask: PodAsk, nodes: Iterable[str], find: Callable[[str], Pod | None], *, max_s: float = MAX_S
) -> AsyncIterator[NodeTrial]:
    """A trial for each of these nodes that the ledger knows, `max_s` for all of them.

    Other tasks run between two nodes, so the answer for each node is from its own moment.
    """
    units = ask.units(ledger.known)
    ends_s = asyncio.get_running_loop().time() + max_s
    for node in nodes:
        await asyncio.sleep(0)
        if node in ledger.cluster.index:
            yield NodeTrial(ledger, units, node, find, ends_s)


async def victims(
    ledger: Ledger,
    pod: Pod,
    ask: PodAsk,
    proposed: Mapping[str, MetaVictims],
    find: Callable[[str], Pod | None],
    *,
    max_s: float = MAX_S,
) -> dict[str, MetaVictims]:
    """Who would have to go, by node, within `max_s`; `find` gives a pod from the cache by its key."""
    by_node: dict[str, MetaVictims] = {}
    async for trial in node_trials(ledger, ask, proposed, find, max_s=max_s):
        if by_node and trial.late():
            break
        given = proposed[trial.node]
        uids = [victim.uid for victim in given.pods or []]
        if more := trial.least(pod.spec.priority, uids):
            uids = trial.spared(uids, [a.uid for a in more.allocations])
            by_node[trial.node] = MetaVictims([MetaPod(uid) for uid in uids], given.num_pdb_violations)
    return by_node


async def cheapest(
    ledger: Ledger, pod: Pod, ask: PodAsk, nodes: Iterable[str], find: Callable[[str], Pod | None]
) -> VictimSet | None:
    """The victims on that of these nodes where the least is lost; no pods where it fits, None where none may go."""
    if pod.spec.preemption_policy == "Never":
        return None
    best: VictimSet | None = None
    async for trial in node_trials(ledger, ask, nodes, find):
        if best is not None and trial.late():
            break
        lesser = trial.least(pod.spec.priority) if pod.spec.priority > 0 else None
        for victims in filter(None, (lesser, trial.reclaimed())):
            if not victims.allocations:
                return victims
            if best is None or victims.cost < best.cost:
                best = victims
    return best


def by_age(ledger: Ledger, find: Callable[[str], Pod | None]) -> list[Allocation]:
    """What bound pods hold, the newest pods first."""
    holders = chain.from_iterable(ledger.allocations.values())
    pods = [(pod.metadata.creation_timestamp or "", a.key, a) for a in holders if (pod := find(a.key))]
    return [a for _, _, a in sorted(pods, reverse=True) if a.confirmed]


def borrows(ledger: Ledger, allocation: Allocation, lender: str) -> bool:
    """Whether the pod's namespace borrows GPUs as the pod's, of a cohort of the lender's."""
    cluster = ledger.cluster
    models = {cluster.models[cluster.model.item(*cluster.uuids[piece.gpu])] for piece in allocation.plan.slices}
    return ledger.decider.quotas.borrows(cluster, split_key(allocation.key)[0], lender, models)


def borrowers(ledger: Ledger, namespace: str, find: Callable[[str], Pod | None]) -> list[str]:
    """The pods that a namespace loses, the newest first, when others of its cohort ask for all that is theirs."""
    leaving: list[str] = []
    with ledger.cluster.trial():
        for allocation in by_age(ledger, find):
            if split_key(allocation.key)[0] == namespace and borrows(ledger, allocation, namespace):
                leaving.append(allocation.key)
                for tenant in allocation.tenants:
                    ledger.cluster.release(tenant)
    return leaving


@dataclass
class Preemptor:
    """One pod that waits for evictions, itself or by its claim. `leaving` are keys of allocations by uid, whose pods
    were evicted from `node`; `kept` are those whose pods may not be evicted now."""

    pod: Meta
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
    clock: Clock = field(default_factory=Clock)
    preemptors: dict[str, Preemptor] = field(default_factory=dict)

    def waits(self, pod: Pod, ask: PodAsk, failed: Iterable[str]) -> None:
        """A filter found no node for the pod; on those in `failed` (names) other pods hold what it needs."""
        reclaims = self.ledger.decider.quotas.nominal(pod.metadata.namespace) is not None
        may = (pod.spec.priority > 0 or reclaims) and pod.spec.preemption_policy != "Never"
        if may and ask.uid not in self.preemptors and len(self.preemptors) < MAX_WAITING:
            nodes = list(islice(failed, NODES_TRIED))
            if nodes:
                self.preemptors[ask.uid] = Preemptor(pod.metadata, ask, self.clock.monotonic_s(), nodes)

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
        waiting = [(self.find(preemptor.pod.key), uid, preemptor) for uid, preemptor in self.preemptors.items()]
        waiting.sort(key=lambda entry: -entry[0].spec.priority if entry[0] is not None else 0)
        for _, uid, preemptor in waiting:
            pod = self.find(preemptor.pod.key)
            if pod is None or pod.metadata.uid != preemptor.pod.uid or pod.spec.node_name:
                self.preemptors.pop(uid, None)
            elif preemptor.node:
                self._reserve(preemptor)
            elif self.clock.monotonic_s() - preemptor.since_s >= PATIENCE_S:
                await self._make_room(pod, preemptor)

    async def _make_room(self, pod: Pod, preemptor: Preemptor) -> None:
        """Choose the node where the least is lost, and evict its pods."""

        def find(key: str) -> Pod | None:
            return None if key in preemptor.kept else self.find(key)

        best = await cheapest(self.ledger, pod, preemptor.ask, preemptor.nodes, find)
        if best is None or not best.allocations:  # the next filter call notes it again, or it fits by now
            self.preemptors.pop(preemptor.ask.uid, None)
            return
        leaving = {allocation.uid: allocation.key for allocation in best.allocations}
        waiting = preemptor.ask.key
        for key in leaving.values():  # may all of them be evicted? A protected one is not chosen again for this pod
            try:
                await self._evict(key, dryRun=["All"])
            except (NotFound, Conflict):
                continue  # gone already
            except Unreachable:
                return
            except KubeError as error:
                log.info("pod %s needs room, but %s may not be evicted: %s", waiting, key, error)
                preemptor.kept.add(key)
        if not preemptor.kept.isdisjoint(leaving.values()) or not self.leads():
            return  # the new leader may have chosen others
        preemptor.node, preemptor.leaving = best.node, leaving
        log.info("pod %s needs room on node %s: evicting %s", waiting, preemptor.node, ", ".join(leaving.values()))
        evictions = [self._evict(key) for key in leaving.values()]
        answers = await asyncio.gather(*evictions, return_exceptions=True)
        for key, failure in zip(leaving.values(), answers, strict=True):
            if isinstance(failure, KubeError):
                log.warning("pod %s could not be evicted: %s", key, failure)
            elif failure is not None:
                raise failure

    def _reserve(self, preemptor: Preemptor) -> None:
        """Hold the room as soon as it exists."""
        if self.ledger.allocations.get(preemptor.ask.uid):
            return
        late = self.clock.monotonic_s() - preemptor.since_s > GIVE_UP_S
        if preemptor.held or late:  # held in vain, or a pod did not end: start again with the next filter call
            self.preemptors.pop(preemptor.ask.uid, None)
            return
        if any(self.ledger.allocations.get(uid) for uid in preemptor.leaving):
            return
        try:
            self.ledger.allocate(preemptor.ask, preemptor.node, self.clock.monotonic_s())
            preemptor.held = True
        except NodeFull:
            self.preemptors.pop(preemptor.ask.uid, None)

    async def _evict(self, key: str, **options: Any) -> None:
        if (pod := self.find(key)) is None:
            return
        meta = pod.metadata
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": meta.name, "namespace": meta.namespace},
            "deleteOptions": {"preconditions": {"uid": meta.uid}, **options},
        }
        path = PODS.path(namespace=meta.namespace, name=meta.name, sub="eviction")
        await self.api.request("POST", path, content=msgspec.json.encode(body), repeat=False)
