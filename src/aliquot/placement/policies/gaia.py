"""Gaia: the access cost tree decides, by Fragment, Singular and Link.

Fragment, below one GPU: a partly used GPU with the least left that holds the request, else the idle GPU of least
access cost. Singular, one GPU: of the idle GPUs whose cousins have nothing left the one of least access cost, else of
all idle ones, so that intact groups stay intact. The access cost of a GPU is that of the link to the GPUs nearest to
it, and these are its cousins. Link, several: those that together cost least to talk. The paper draws one tree for the
cluster; here the node is chosen by the same preferences, then the tree of its machine. Nodes whose wiring is unknown
count as wired the slow way.

Source: Song et al. (Gaia Scheduler, ISPA'18), Algorithms 2 to 4; order of the links (NVLink < PIX < PXB < PHB < NODE <
SYS) as nvidia-smi has it, not as the paper's text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from aliquot.lib.arrays import IntArray
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import Ask, Shape
from aliquot.placement.fits import hold_rest, hold_whole, linked, pair_cost, pick_devices, rest_mask
from aliquot.placement.policy import BasePolicy
from aliquot.topology import link_cost

if TYPE_CHECKING:
    from aliquot.placement.cluster import Cluster

_PREFER: Final = 1 << 40
_GPUS: Final = 64


class Gaia(BasePolicy):
    """Fragment, Singular, Link; `random_ties` draws among equal GPUs as the paper's Table I shows it."""

    name = "gaia"
    because = "a part of a GPU from a used one, one GPU from a broken group, several from the closest"

    def __init__(self, *, random_ties: bool = False) -> None:
        self._random_ties = random_ties

    def start(self, cluster: Cluster, seed: int) -> None:
        """Look at this cluster with chance, where asked for, from the start of the seed."""
        super().start(cluster, seed)
        self._chance = np.random.default_rng(seed)

    def scores(self, shape: Shape, nodes: IntArray) -> IntArray:
        """Fragment: least left; Singular: broken groups first; Link: least pair cost; then the fewest idle: [n]."""
        cluster = self.cluster
        idle = cluster.idle_count[nodes].astype(np.int64)
        if not shape.devices:
            return np.asarray(-cluster.free_total[nodes])
        if shape.whole > 1 or (shape.whole and shape.rest_milli):
            costs = np.array([self._link_cost(shape, node) for node in nodes.tolist()], dtype=np.int64)
            return np.asarray(-costs * _GPUS - idle)
        single = np.where((idle < cluster.gpu_count[nodes]), _GPUS, 0) - idle
        if shape.whole:
            return np.asarray(single)
        free = cluster.free_milli[nodes].astype(np.int64)
        partly = rest_mask(cluster, shape, nodes) & (free < MILLI)
        least = np.where(partly, free, MILLI).min(axis=1)
        return np.asarray(np.where(least < MILLI, _PREFER - least, single))

    def choose(self, ask: Ask, node: int, fitting: Sequence[int]) -> tuple[int, ...]:
        """Devices of a node by the same three rules."""
        shape = ask.shape
        if shape.devices != 1:
            return super().choose(ask, node, fitting)
        free = self.cluster.free_milli[node]
        if shape.rest_milli:
            fitting = hold_rest(self.cluster, shape, node, fitting)
            if partly := [g for g in fitting if free.item(g) < MILLI]:
                return (min(partly, key=lambda g: (*self.prefers(node, g), g)),)
        candidates = [g for g in fitting if free.item(g) == MILLI]
        if topology := self.cluster.spec(node).topology:
            others = {g: [o for o in range(topology.count) if o != g] for g in candidates}
            cost = {g: min((topology.cost[g][o] for o in others[g]), default=0) for g in candidates}
            if shape.whole:
                cousins = {g: [o for o in others[g] if topology.cost[g][o] == cost[g]] for g in candidates}
                candidates = [g for g in candidates if cousins[g] and not free[cousins[g]].any()] or candidates
            least = min(cost[g] for g in candidates)
            candidates = [g for g in candidates if cost[g] == least]
        return (candidates[int(self._chance.integers(len(candidates))) if self._random_ties else 0],)

    def _link_cost(self, shape: Shape, node: int) -> int:
        """What the GPUs that the node would give cost to talk, all pairs."""
        cluster = self.cluster
        topology = cluster.spec(node).topology
        if topology is None:
            return link_cost("SYS") * shape.devices * (shape.devices - 1) // 2
        gpus = list(range(topology.count))
        if shape.models:
            mask = cluster.model_mask(shape.models)
            gpus = [g for g in gpus if mask[cluster.model.item(node, g)]]
        if shape.rest_milli:
            return pair_cost(topology, pick_devices(cluster, shape, node, gpus, self.prefers))
        return pair_cost(topology, linked(topology, hold_whole(cluster, shape, node, gpus), shape.whole))
