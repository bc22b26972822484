"""Random: any node that fits, any device that fits.

What every policy has to beat. Chance comes from the seed alone, so a run can be repeated.

Source: Weng et al. (FGD, USENIX ATC'23), the baseline Random; hkust-adsl/kubernetes-scheduler-simulator, policy 01.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aliquot.lib.arrays import IntArray
from aliquot.placement.asks import Shape
from aliquot.placement.policy import BasePolicy

if TYPE_CHECKING:
    from aliquot.placement.cluster import Cluster


class Random(BasePolicy):
    """Chance, seeded."""

    name = "random"
    because = "any node and GPU that fit"
    stable = False

    def start(self, cluster: Cluster, seed: int) -> None:
        """Look at this cluster with chance from the start of the seed."""
        super().start(cluster, seed)
        self._chance = np.random.default_rng(seed)

    def scores(self, shape: Shape, nodes: IntArray) -> IntArray:
        """1 for one of the nodes, 0 for the others: [n]."""
        drawn = np.zeros(len(nodes), dtype=np.int64)
        drawn[self._chance.integers(len(nodes))] = 1
        return drawn

    def prefers(self, node: int, gpu: int) -> tuple[int, ...]:
        """A draw for each device."""
        return (int(self._chance.integers(1 << 30)),)
