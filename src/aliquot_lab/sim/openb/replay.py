"""One run of the benchmark through the production placement core: pods arrive, are placed or dropped, never depart.

Which pods arrive in which order, and which node wins a tie, is the FGD artifact's protocol. The pods are sorted by
name and shuffled; then the trace is tuned to 130 % of the cluster's GPUs, by appending copies of pods drawn from it
or, where it asks for more already, by removing pods drawn from it. Ties between nodes fall by a random but fixed
order of the nodes.

The published experiments were drawn by Go programs, so replaying them needs Go's stream (`GoRand`): y[n] = y[n-607] +
y[n-273] mod 2^64. The 607 constants that Go's seeding mixes in are not written here: they are worked out from the first
607 outputs of one seed (42, published with the trace), and any other seed's start follows from them.

Source: FGD (USENIX ATC'23) artifact; the recipe is in the README beside the trace. The Go standard library's documented
generator (stable since Go 1); replay/go_rand_first607.csv of the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from aliquot.lib.arrays import IntArray
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import Ask, Shape
from aliquot.placement.cluster import Cluster, Placement
from aliquot.placement.decide import Decider
from aliquot.placement.policies.fgd import typical_shapes
from aliquot.placement.policy import Policy
from aliquot_lab.sim.openb.fragmentation import Fragmentation, NodeChanges
from aliquot_lab.sim.openb.trace import PodRow, TraceNode, node_specs
from aliquot_lab.sim.policies import made

LENGTH: Final = 607
LAG: Final = 273
_MASK64: Final = 2**64 - 1
_LEHMER: Final = 2**31 - 1
_KNOWN_SEED: Final = 42

T = TypeVar("T")


def _mixed(seed: int) -> list[int]:
    """What seeding alone gives for the 607 words of the state, before the constants are mixed in."""
    state = seed % _LEHMER or 89482311
    words = []
    for position in range(-20, LENGTH):
        state = state * 48271 % _LEHMER
        if position >= 0:
            word = state << 40
            state = state * 48271 % _LEHMER
            word ^= state << 20
            state = state * 48271 % _LEHMER
            words.append((word ^ state) & _MASK64)
    return words


def _order() -> list[int]:
    """Where the word that output n - 607 stands for lies in the state: the feed runs downwards from 333."""
    return [(LENGTH - LAG - 1 - n) % LENGTH for n in range(LENGTH)]


@cache
def _constants() -> tuple[int, ...]:
    """The 607 words that seeding XORs in, from the known outputs of one seed, by running the recurrence backwards."""
    text = resources.files(__package__).joinpath("gorand_seed42.txt").read_text()
    later = [int(word, 16) for word in text.split()]
    stream = [0] * LENGTH + later
    for n in range(LENGTH - 1, -1, -1):
        stream[n] = (stream[n + LENGTH] - stream[n + LENGTH - LAG]) & _MASK64
    mixed, constants = _mixed(_KNOWN_SEED), [0] * LENGTH
    for n, place in enumerate(_order()):
        constants[place] = stream[n] ^ mixed[place]
    return tuple(constants)


class GoRand:
    """One seeded stream of Go's `math/rand` (additive lagged Fibonacci), with the draws that the artifact makes."""

    def __init__(self, seed: int) -> None:
        mixed, constants = _mixed(seed), _constants()
        self._last = [mixed[place] ^ constants[place] for place in _order()]
        self._next = 0

    def uint64(self) -> int:
        """The next raw output, 0..2^64-1."""
        at = self._next
        word = (self._last[at] + self._last[(at + LENGTH - LAG) % LENGTH]) & _MASK64
        self._last[at] = word
        self._next = (at + 1) % LENGTH
        return word

    def int63(self) -> int:
        """The next output without its top bit."""
        return self.uint64() & (2**63 - 1)

    def intn(self, n: int) -> int:
        """Uniform on 0..n-1, as Go's `Intn` for n below 2^31."""
        if n & (n - 1) == 0:
            return (self.int63() >> 32) & (n - 1)
        top = 2**31 - 1 - (2**31 % n)
        value = self.int63() >> 32
        while value > top:
            value = self.int63() >> 32
        return value % n

    def shuffle(self, items: list[T]) -> None:
        """In place, as Go's `Shuffle`."""
        for i in range(len(items) - 1, 0, -1):
            j = self._int31n(i + 1)
            items[i], items[j] = items[j], items[i]

    def perm(self, n: int) -> list[int]:
        """A permutation of 0..n-1, as Go's `Perm`."""
        places = [0] * n
        for i in range(n):
            j = self.intn(i + 1)
            places[i] = places[j]
            places[j] = i
        return places

    def _int31n(self, n: int) -> int:
        """Lemire's way, which only Go's `Shuffle` uses."""
        product = (self.int63() >> 31) * n
        low = product & 0xFFFFFFFF
        if low < n:
            least = (2**32 - n) % n
            while low < least:
                product = (self.int63() >> 31) * n
                low = product & 0xFFFFFFFF
        return product >> 32


TELL_EVERY: Final = 500
TUNE: Final = 1.3
# What the artifact's client libraries draw from the same stream before the nodes are named.
_DRAWS_BETWEEN: Final = 10


@dataclass(frozen=True)
class Arrivals:
    """The pods in order of arrival, and for each node of the cluster its rank among ties (smallest wins)."""

    pods: list[PodRow]
    ranks: list[int]


def arrivals(pods: Sequence[PodRow], nodes: int, gpus: int, seed: int, tune: float = TUNE) -> Arrivals:
    """The arrivals of one seed on a cluster of `nodes` nodes with `gpus` GPUs in all."""
    stream = GoRand(seed)
    stream.int63()
    by_name = sorted(pods, key=lambda pod: pod.name)
    arriving = list(by_name)
    stream.shuffle(arriving)
    _tune(arriving, by_name, tune * gpus * MILLI, stream)
    for _ in range(_DRAWS_BETWEEN):
        stream.int63()
    return Arrivals(arriving, stream.perm(nodes))


def _tune(arriving: list[PodRow], by_name: Sequence[PodRow], wanted_milli: float, stream: GoRand) -> None:
    total = sum(pod.total_milli for pod in arriving)
    if total > wanted_milli:
        while total > wanted_milli:
            total -= arriving.pop(stream.intn(len(arriving))).total_milli
        return
    while True:
        drawn = by_name[stream.intn(len(by_name))]
        # The artifact looks ahead by the request per GPU, not times the number of GPUs.
        if total + drawn.gpu_milli > wanted_milli:
            return
        arriving.append(drawn)
        total += drawn.total_milli


@dataclass(frozen=True)
class TaskEvents:
    """One run, an entry per arrival: milli-GPU arrived with it, used and idle after it, fragmented times `weight`."""

    arrived_milli: IntArray
    used_milli: IntArray
    frag_numerator: IntArray
    frag_denominator: int
    gpus: int


@dataclass(frozen=True)
class Replay:
    """What a run gave, an entry per arrival: the events for the columns, and whether each pod was placed."""

    events: TaskEvents
    placed: NDArray[np.bool_]
    pods: Sequence[PodRow]
    cluster: Cluster


def replay(
    nodes: Sequence[TraceNode], pods: Sequence[PodRow], policy: Policy | str, seed: int, tune: float = TUNE,
    tell_part: Callable[[float], None] = lambda part: None,
) -> Replay:  # fmt: skip
    """Run one seed of the protocol under one policy; `tell_part` hears how far (0..1) it is.

    Raises:
        UserError: the policy is not known.
    """
    gpus = sum(node.gpus for node in nodes)
    coming = arrivals(pods, len(nodes), gpus, seed, tune)
    cluster = Cluster(node_specs(nodes, coming.ranks))
    mix = Counter(pod.shape() for pod in pods)
    measure = Fragmentation(typical_shapes(mix), cluster.models)
    chosen = made(policy, mix) if isinstance(policy, str) else policy
    decider = Decider(cluster, chosen, seed=seed)
    changes = NodeChanges(cluster, len(coming.pods))
    placed = np.zeros(len(coming.pods), dtype=bool)
    asks: dict[tuple[Shape, int], Ask] = {}  # there are few different ones, and placement remembers by request
    for at, pod in enumerate(coming.pods):
        key = (pod.shape(), pod.memory_mib)
        ask = asks.get(key) or asks.setdefault(key, pod.ask())
        if at % TELL_EVERY == 0:
            tell_part(at / len(coming.pods))
        found = decider.decide(ask)
        if isinstance(found, Placement):
            cluster.reserve(f"{at}", found, ask)
            changes.note(at, cluster.index[found.node])
            placed[at] = True
    milli = np.array([pod.total_milli for pod in coming.pods], dtype=np.int64)
    frag = changes.fragmentation(measure, len(milli))
    events = TaskEvents(np.cumsum(milli), np.cumsum(milli * placed), frag, measure.total, gpus)
    return Replay(events, placed, coming.pods, cluster)
