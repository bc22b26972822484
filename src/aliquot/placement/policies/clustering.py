"""Clustering: pods of one kind together.

Kinds are sharing pods, one-GPU pods, two-GPU pods and so on. A node with only the pod's own kind is best, then one
that has it among others, then one without GPU pods, then the rest; within each the one with the least GPU left.

Source: Xiao et al. (Gandiva, OSDI'18) as Weng et al. (FGD, USENIX ATC'23) compare with it;
hkust-adsl/kubernetes-scheduler-simulator, policy 03.
"""

from __future__ import annotations

import numpy as np

from aliquot.lib.arrays import IntArray
from aliquot.placement.asks import Shape
from aliquot.placement.entries import kind_of
from aliquot.placement.policy import BasePolicy

_MAX_GPU_MILLI = 8_000


class Clustering(BasePolicy):
    """Like to like."""

    name = "clustering"
    because = "the node with pods of the same kind"

    def scores(self, shape: Shape, nodes: IntArray) -> IntArray:
        """0..100: [n]; 0 for pods without GPU."""
        if not shape.devices:
            return np.zeros(len(nodes), dtype=np.int64)
        cluster = self.cluster
        own = 1 << kind_of(shape)
        kinds = cluster.kinds[nodes]
        used = 25 * (_MAX_GPU_MILLI - cluster.free_total[nodes])
        base = np.sign(used) * (np.abs(used) // _MAX_GPU_MILLI)  # towards zero: nodes may have more than 8 GPUs
        bonus = np.where(kinds & own == 0, np.where(kinds == 0, 25, 0), np.where(kinds == own, 75, 50))
        return np.asarray(base + bonus)
