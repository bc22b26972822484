"""Preempt: who has to go so that a more important pod finds its GPUs, and only where that helps.

kube-scheduler proposes victims per node by what it counts (CPU, memory, hundredths of GPUs). It does not know which
GPU each is on. Its victims are kept, for they are needed for what it counts; to them are added the fewest and least
important pods whose shares make room. Nodes on which no eviction helps are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from aliquot.kube.objects import Pod
from aliquot.kube.requests import PodAsk, Seat
from aliquot.placement.books import Holding
from aliquot.scheduler.books import Books, Hold
from aliquot.scheduler.look import tried
from aliquot.scheduler.wire import MetaPod, MetaVictims


def victims(
    books: Books, pod: Pod, ask: PodAsk, proposed: Mapping[str, MetaVictims], find: Callable[[str], Pod | None]
) -> dict[str, MetaVictims]:
    """Who would have to go, by node; `find` gives a pod from the cache by its key."""
    found: dict[str, MetaVictims] = {}
    seats = ask.seats(books.known)
    for node, given in proposed.items():
        if node not in books.cluster.index:
            continue
        theirs = [victim.uid for victim in given.pods or []]
        more = _more(books, pod, seats, node, theirs, find)
        if more is not None:
            pods = [MetaPod(uid) for uid in dict.fromkeys([*theirs, *more])]
            found[node] = MetaVictims(pods, given.num_pdb_violations)
    return found


def _more(
    books: Books, pod: Pod, seats: Sequence[Seat], node: str, theirs: Iterable[str], find: Callable[[str], Pod | None]
) -> list[str] | None:
    """The pods to add to the victims proposed, by uid; None if even all less important ones are not enough."""
    namespace = pod.metadata.namespace
    going = set(theirs)
    on_node = [h for holds in books.holds.values() for h in holds if h.node == node and h.tenants]
    lesser = [h for h in on_node if h.uid not in going and h.settled and _priority(find, h) < pod.spec.priority]
    lesser.sort(key=lambda h: (-_priority(find, h), -_size(h)))
    with _without(books, [h for h in on_node if h.uid in going]):
        with _without(books, lesser):
            if not tried(books, seats, node, namespace):
                return None
        # Let each stay that can, the most important and largest first.
        leaving = list(lesser)
        for hold in lesser:
            rest = [other for other in leaving if other is not hold]
            with _without(books, rest):
                if tried(books, seats, node, namespace):
                    leaving = rest
        return [hold.uid for hold in leaving]


def _priority(find: Callable[[str], Pod | None], hold: Hold) -> int:
    pod = find(hold.key)
    return pod.spec.priority if pod is not None else 2**31  # who is not known is not evicted


def _size(hold: Hold) -> int:
    return sum(piece.request_milli for given in hold.plan.containers.values() for piece in given.slices)


@contextmanager
def _without(books: Books, holds: Iterable[Hold]) -> Iterator[None]:
    """The books as if these were gone; they are back when the block ends."""
    cluster = books.cluster
    away: list[tuple[str, Holding]] = []
    for hold in holds:
        for tenant in hold.tenants:
            holding = cluster.release(tenant)
            if holding is not None:
                away.append((tenant, holding))
    try:
        yield
    finally:
        for tenant, holding in reversed(away):
            cluster.reserve(tenant, holding.placement, holding.ask)
