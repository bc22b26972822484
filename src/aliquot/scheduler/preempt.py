"""Preempt: which pods to evict so that a more important pod gets its GPUs, and only where that helps.

kube-scheduler proposes victims per node by what it counts (CPU, memory, hundredths of GPUs). It does not know which
GPU each is on. To its victims are added the fewest and least important pods whose shares make room; then those of its
own stay whose going changes nothing: the GPU has room without, and the others free as much of every resource as it
wanted freed; the GPU on which that is least is found by trying each. Nodes on which no
eviction helps are left out, and those for which there was no time: kube-scheduler waits some seconds for an answer, a
node with many pods takes hundredths of one, and hundreds of nodes may be proposed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from aliquot.kube.objects import Pod
from aliquot.kube.quantities import milli
from aliquot.kube.requests import PlacementUnit, PodAsk
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Slice
from aliquot.scheduler.allocations import Allocation, fit
from aliquot.scheduler.ledger import Ledger
from aliquot.scheduler.wire import MetaPod, MetaVictims

MAX_S: Final = 2.5
"""Less than kube-scheduler waits (5 s)."""


async def victims(
    ledger: Ledger,
    pod: Pod,
    ask: PodAsk,
    proposed: Mapping[str, MetaVictims],
    find: Callable[[str], Pod | None],
    *,
    max_s: float = MAX_S,
) -> dict[str, MetaVictims]:
    """Who would have to go, by node, within `max_s`; `find` gives a pod from the cache by its key.

    Other tasks run between two nodes, so the answer for each node is from its own moment.
    """
    found: dict[str, MetaVictims] = {}
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + max_s
    units = ask.units(ledger.known)
    for node, given in proposed.items():
        await asyncio.sleep(0)
        if found and loop.time() >= ends_s:
            break
        if node not in ledger.cluster.index:
            continue
        theirs = [victim.uid for victim in given.pods or []]
        more = _more(ledger, pod, units, node, theirs, find)
        if more is not None:
            uids = _spared(ledger, units, node, pod.metadata.namespace, theirs, more, find)
            found[node] = MetaVictims([MetaPod(uid) for uid in uids], given.num_pdb_violations)
    return found


def _more(
    ledger: Ledger,
    pod: Pod,
    units: Sequence[PlacementUnit],
    node: str,
    theirs: Iterable[str],
    find: Callable[[str], Pod | None],
) -> list[str] | None:
    """The pods to add to the victims proposed, by uid; None if even all less important ones are not enough."""
    namespace = pod.metadata.namespace
    going = set(theirs)
    on_node = [allocation for allocation in ledger.on_node(node) if allocation.tenants]
    lesser = [h for h in on_node if h.uid not in going and h.confirmed and _priority(find, h) < pod.spec.priority]
    gpus = {piece.gpu for h in lesser for piece in _slices(h)}
    best: tuple[tuple[int, ...], list[Allocation]] | None = None
    with _without(ledger, [h for h in on_node if h.uid in going]):
        with _without(ledger, lesser):
            if fit(ledger.decider, units, node, namespace) is None:
                return None
        for gpu in sorted(gpus) or [GpuUuid("")]:
            leaving = _least(ledger, units, node, namespace, _order(lesser, gpu, find))
            priorities = [_priority(find, allocation) for allocation in leaving]
            lost = sum(_size(allocation) for allocation in leaving)
            cost = (max(priorities, default=-(2**31)), sum(priorities), len(leaving), lost)
            if best is None or cost < best[0]:
                best = (cost, leaving)
    assert best is not None
    return [allocation.uid for allocation in best[1]]


def _spared(
    ledger: Ledger,
    units: Sequence[PlacementUnit],
    node: str,
    namespace: str,
    theirs: Sequence[str],
    more: Sequence[str],
    find: Callable[[str], Pod | None],
) -> list[str]:
    """All victims except those of kube-scheduler's that are not needed."""
    going = list(dict.fromkeys([*theirs, *more]))
    wanted = _freed(ledger, theirs, find)
    for uid in theirs:
        rest = [other for other in going if other != uid]
        if not rest or uid not in ledger.allocations or not _dominates(_freed(ledger, rest, find), wanted):
            continue
        with _without(ledger, [allocation for other in rest for allocation in ledger.allocations.get(other, [])]):
            if fit(ledger.decider, units, node, namespace) is not None:
                going = rest
    return going


def _freed(ledger: Ledger, uids: Iterable[str], find: Callable[[str], Pod | None]) -> Counter[str]:
    """The sum of these pods' requests by resource, in thousandths; pods that the ledger does not know count nothing."""
    total: Counter[str] = Counter()
    for uid in uids:
        pod = find(ledger.allocations[uid][0].key) if uid in ledger.allocations else None
        for container in pod.spec.containers if pod is not None else ():
            for name, amount in {**container.resources.limits, **container.resources.requests}.items():
                total[name] += milli(amount)
    return total


def _dominates(freed: Counter[str], wanted: Counter[str]) -> bool:
    return all(freed[name] >= amount for name, amount in wanted.items())


def _order(lesser: Sequence[Allocation], gpu: str, find: Callable[[str], Pod | None]) -> list[Allocation]:
    """In which order they may stay: the most important first, then those that are not on this GPU, then the largest."""

    def key(allocation: Allocation) -> tuple[int, bool, int]:
        return (-_priority(find, allocation), any(p.gpu == gpu for p in _slices(allocation)), -_size(allocation))

    return sorted(lesser, key=key)


def _least(
    ledger: Ledger, units: Sequence[PlacementUnit], node: str, namespace: str, lesser: Sequence[Allocation]
) -> list[Allocation]:
    """The victims, when each pod that can be reprieved is, in this order."""
    leaving = list(lesser)
    for allocation in lesser:
        rest = [other for other in leaving if other is not allocation]
        with _without(ledger, rest):
            if fit(ledger.decider, units, node, namespace) is not None:
                leaving = rest
    return leaving


def _slices(allocation: Allocation) -> list[Slice]:
    return [piece for given in allocation.plan.containers.values() for piece in given.slices]


def needed(
    ledger: Ledger, pod: Pod, ask: PodAsk, node: str, find: Callable[[str], Pod | None]
) -> dict[str, str] | None:
    """The minimal victims on a node, keys by uid; None if even all less important pods are not enough."""
    more = _more(ledger, pod, ask.units(ledger.known), node, (), find)
    if more is None:
        return None
    return {uid: ledger.allocations[uid][0].key for uid in more}


def _priority(find: Callable[[str], Pod | None], allocation: Allocation) -> int:
    pod = find(allocation.key)
    return pod.spec.priority if pod is not None else 2**31  # an unknown pod is not evicted


def _size(allocation: Allocation) -> int:
    return sum(piece.request_milli for piece in _slices(allocation))


@contextmanager
def _without(ledger: Ledger, allocations: Iterable[Allocation]) -> Iterator[None]:
    """The ledger without these pods, in the block."""
    with ledger.cluster.trial():
        for allocation in allocations:
            for tenant in allocation.tenants:
                ledger.cluster.release(tenant)
        yield
