"""One run of the benchmark through the production placement core: pods arrive, are placed or dropped, never depart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster, Placement
from aliquot.placement.decide import Decider
from aliquot.placement.policies.fgd import typical_shapes
from aliquot.placement.policy import Policy
from aliquot_lab.sim.changes import NodeChanges
from aliquot_lab.sim.openb.arrivals import TUNE, arrivals
from aliquot_lab.sim.openb.columns import TaskEvents
from aliquot_lab.sim.openb.fragmentation import Fragmentation
from aliquot_lab.sim.openb.trace import PodRow, TraceNode, node_specs
from aliquot_lab.sim.policies import made

TELL_EVERY: Final = 500


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
