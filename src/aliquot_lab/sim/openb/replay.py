"""One run of the benchmark through the production placement core: pods arrive, are placed or dropped, never depart.

Which pods arrive in which order, and which node wins a tie, is the FGD artifact's protocol. The pods are sorted by
name and shuffled; then the trace is tuned to 130 % of the cluster's GPUs, by appending copies of pods drawn from it
or, where it asks for more already, by removing pods drawn from it. Ties between nodes fall by a random but fixed
order of the nodes.

Source: FGD (USENIX ATC'23) artifact; the recipe is in the README beside the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aliquot.model.quantities import MILLI
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster, Placement
from aliquot.placement.decide import Decider
from aliquot.placement.policies.fgd import typical_shapes
from aliquot.placement.policy import Policy
from aliquot_lab.sim.openb.fragmentation import Fragmentation, NodeChanges
from aliquot_lab.sim.openb.gorand import GoRand
from aliquot_lab.sim.openb.results import TaskEvents
from aliquot_lab.sim.openb.trace import PodRow, TraceNode, node_specs
from aliquot_lab.sim.policies import made

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
class Replay:
    """What a run gave, an entry per arrival: the events for the columns, and whether each pod was placed."""

    events: TaskEvents
    placed: NDArray[np.bool_]
    pods: Sequence[PodRow]
    cluster: Cluster


def _asks(pods: Sequence[PodRow]) -> Iterator[Ask]:
    """The pods' asks; equal ones are one object, for a trace has few."""
    known: dict[tuple[int, int, int, int, tuple[str, ...]], Ask] = {}
    for pod in pods:
        key = (pod.cpu_milli, pod.memory_mib, pod.num_gpu, pod.gpu_milli, pod.models)
        ask = known.get(key)
        if ask is None:
            ask = known[key] = pod.ask()
        yield ask


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
    for at, ask in enumerate(_asks(coming.pods)):
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
