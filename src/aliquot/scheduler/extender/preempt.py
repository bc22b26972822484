"""Preempt: which pods to evict so that a more important pod gets its GPUs, and only where that helps.

kube-scheduler proposes victims per node by what it counts (CPU, memory, hundredths of GPUs). It does not know which
GPU each is on. To its victims are added the fewest and least important pods whose shares make room; then those of its
own stay whose going changes nothing: the GPU has room without, and the others free as much of every resource as it
wanted freed; the GPU on which that is least is found by trying each. Nodes on which no eviction helps are left out, and
those for which there was no time: kube-scheduler waits some seconds for an answer, a node with many pods takes
hundredths of one, and hundreds of nodes may be proposed. A pod of many containers takes seconds for one node, of which
then not every GPU is tried.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from aliquot.kube.objects import Pod
from aliquot.kube.quantities import milli
from aliquot.kube.requests import PodAsk
from aliquot.model.ids import GpuUuid, split_key
from aliquot.model.requests import Slice
from aliquot.placement.asks import PlacementUnit
from aliquot.scheduler.allocations import Allocation
from aliquot.scheduler.extender.wire import MetaPod, MetaVictims
from aliquot.scheduler.ledger import Ledger

MAX_S: Final = 2.5
"""Less than kube-scheduler waits (5 s)."""
UNKNOWN_PRIORITY: Final = 2**31
"""Of a pod that is not in the cache: it is not evicted."""


class VictimSet(NamedTuple):
    """Pods whose evictions make room; of several sets the one of least `cost` is chosen: the highest priority, the sum
    of the priorities, the number of pods, and the milli-GPU that they hold."""

    cost: tuple[int, int, int, int]
    allocations: Sequence[Allocation]


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
            for gpu in sorted({piece.gpu for a in lesser for piece in _slices(a)}) or [GpuUuid("")]:
                victims = self._reprieved(lesser, gpu)
                if best is None or victims.cost < best.cost:
                    best = victims
                if self.late():
                    break
        return best

    def _reprieved(self, lesser: Sequence[Allocation], gpu: str) -> VictimSet:
        """The victims when each pod stays that can: the most important ones first, then those that are not on this GPU,
        then the largest."""

        def order(allocation: Allocation) -> tuple[int, bool, int]:
            on_gpu = any(piece.gpu == gpu for piece in _slices(allocation))
            return -self._priority(allocation), on_gpu, -_milli(allocation)

        leaving = sorted(lesser, key=order)
        for allocation in list(leaving):
            rest = [other for other in leaving if other is not allocation]
            if self._fits_without(rest):
                leaving = rest
        priorities = [self._priority(a) for a in leaving]
        cost = max(priorities, default=-UNKNOWN_PRIORITY), sum(priorities), len(leaving), sum(map(_milli, leaving))
        return VictimSet(cost, leaving)

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
    found: dict[str, MetaVictims] = {}
    async for trial in node_trials(ledger, ask, proposed, find, max_s=max_s):
        if found and trial.late():
            break
        given = proposed[trial.node]
        uids = [victim.uid for victim in given.pods or []]
        if more := trial.least(pod.spec.priority, uids):
            uids = trial.spared(uids, [a.uid for a in more.allocations])
            found[trial.node] = MetaVictims([MetaPod(uid) for uid in uids], given.num_pdb_violations)
    return found


def _slices(allocation: Allocation) -> list[Slice]:
    return [piece for given in allocation.plan.containers.values() for piece in given.slices]


def _milli(allocation: Allocation) -> int:
    return sum(piece.request_milli for piece in _slices(allocation))
