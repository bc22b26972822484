"""Which pods arrive in which order, and which node wins a tie, for one seed: the FGD artifact's protocol.

The pods are sorted by name and shuffled; then the trace is tuned to 130 % of the cluster's GPUs, by appending copies of
pods drawn from it or, where it asks for more already, by removing pods drawn from it. Ties between nodes fall by a
random but fixed order of the nodes.

Source: FGD (USENIX ATC'23) artifact; the recipe is in the README beside the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aliquot.model.quantities import MILLI
from aliquot_lab.sim.openb.gorand import GoRand
from aliquot_lab.sim.openb.trace import PodRow

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
