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
from aliquot.scheduler.books import Books
from aliquot.scheduler.holds import Hold
from aliquot.scheduler.look import tried
from aliquot.scheduler.wire import MetaPod, MetaVictims

MAX_S: Final = 2.5
"""Less than kube-scheduler waits (5 s)."""


async def victims(
    books: Books,
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
    seats = ask.seats(books.known)
    for node, given in proposed.items():
        await asyncio.sleep(0)
        if found and loop.time() >= ends_s:
            break
        if node not in books.cluster.index:
            continue
        theirs = [victim.uid for victim in given.pods or []]
        more = _more(books, pod, seats, node, theirs, find)
        if more is not None:
            uids = _spared(books, seats, node, pod.metadata.namespace, theirs, more, find)
            found[node] = MetaVictims([MetaPod(uid) for uid in uids], given.num_pdb_violations)
    return found


def _more(
    books: Books,
    pod: Pod,
    seats: Sequence[PlacementUnit],
    node: str,
    theirs: Iterable[str],
    find: Callable[[str], Pod | None],
) -> list[str] | None:
    """The pods to add to the victims proposed, by uid; None if even all less important ones are not enough."""
    namespace = pod.metadata.namespace
    going = set(theirs)
    on_node = [hold for hold in books.on_node(node) if hold.tenants]
    lesser = [h for h in on_node if h.uid not in going and h.settled and _priority(find, h) < pod.spec.priority]
    gpus = {piece.gpu for h in lesser for piece in _slices(h)}
    best: tuple[tuple[int, ...], list[Hold]] | None = None
    with _without(books, [h for h in on_node if h.uid in going]):
        with _without(books, lesser):
            if not tried(books, seats, node, namespace):
                return None
        for gpu in sorted(gpus) or [GpuUuid("")]:
            leaving = _least(books, seats, node, namespace, _order(lesser, gpu, find))
            priorities = [_priority(find, hold) for hold in leaving]
            lost = sum(_size(hold) for hold in leaving)
            cost = (max(priorities, default=-(2**31)), sum(priorities), len(leaving), lost)
            if best is None or cost < best[0]:
                best = (cost, leaving)
    assert best is not None
    return [hold.uid for hold in best[1]]


def _spared(
    books: Books,
    seats: Sequence[PlacementUnit],
    node: str,
    namespace: str,
    theirs: Sequence[str],
    more: Sequence[str],
    find: Callable[[str], Pod | None],
) -> list[str]:
    """All victims except those of kube-scheduler's that are not needed."""
    going = list(dict.fromkeys([*theirs, *more]))
    wanted = _freed(books, theirs, find)
    for uid in theirs:
        rest = [other for other in going if other != uid]
        if not rest or uid not in books.holds or not _dominates(_freed(books, rest, find), wanted):
            continue
        with _without(books, [hold for other in rest for hold in books.holds.get(other, [])]):
            if tried(books, seats, node, namespace):
                going = rest
    return going


def _freed(books: Books, uids: Iterable[str], find: Callable[[str], Pod | None]) -> Counter[str]:
    """The sum of these pods' requests by resource, in thousandths; pods that the ledger does not know count nothing."""
    total: Counter[str] = Counter()
    for uid in uids:
        pod = find(books.holds[uid][0].key) if uid in books.holds else None
        for container in pod.spec.containers if pod is not None else ():
            for name, amount in {**container.resources.limits, **container.resources.requests}.items():
                total[name] += milli(amount)
    return total


def _dominates(freed: Counter[str], wanted: Counter[str]) -> bool:
    return all(freed[name] >= amount for name, amount in wanted.items())


def _order(lesser: Sequence[Hold], gpu: str, find: Callable[[str], Pod | None]) -> list[Hold]:
    """In which order they may stay: the most important first, then those that are not on this GPU, then the largest."""

    def key(hold: Hold) -> tuple[int, bool, int]:
        return (-_priority(find, hold), any(p.gpu == gpu for p in _slices(hold)), -_size(hold))

    return sorted(lesser, key=key)


def _least(
    books: Books, seats: Sequence[PlacementUnit], node: str, namespace: str, lesser: Sequence[Hold]
) -> list[Hold]:
    """The victims, when each pod that can be reprieved is, in this order."""
    leaving = list(lesser)
    for hold in lesser:
        rest = [other for other in leaving if other is not hold]
        with _without(books, rest):
            if tried(books, seats, node, namespace):
                leaving = rest
    return leaving


def _slices(hold: Hold) -> list[Slice]:
    return [piece for given in hold.plan.containers.values() for piece in given.slices]


def needed(books: Books, pod: Pod, ask: PodAsk, node: str, find: Callable[[str], Pod | None]) -> dict[str, str] | None:
    """The minimal victims on a node, keys by uid; None if even all less important pods are not enough."""
    more = _more(books, pod, ask.seats(books.known), node, (), find)
    if more is None:
        return None
    return {uid: books.holds[uid][0].key for uid in more}


def _priority(find: Callable[[str], Pod | None], hold: Hold) -> int:
    pod = find(hold.key)
    return pod.spec.priority if pod is not None else 2**31  # an unknown pod is not evicted


def _size(hold: Hold) -> int:
    return sum(piece.request_milli for piece in _slices(hold))


@contextmanager
def _without(books: Books, holds: Iterable[Hold]) -> Iterator[None]:
    """The ledger without these pods, in the block."""
    with books.cluster.trial():
        for hold in holds:
            for tenant in hold.tenants:
                books.cluster.release(tenant)
        yield
