"""Packing: shared GPUs before free ones, used nodes before free ones.

Three bands: a pod that only shared GPUs can take (100 down to 50, by what is left on them), one that needs free GPUs
of a used node (50 down to 33, by their number), one on a node that is all free (33 and less).

Source: Weng et al. (MLaaS in the Wild, NSDI'22) as their FGD paper (USENIX ATC'23) compares with it;
hkust-adsl/kubernetes-scheduler-simulator, policy 04.
"""

from __future__ import annotations

import numpy as np

from aliquot.lib.arrays import IntArray
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import Shape
from aliquot.placement.fits import rest_mask, whole_mask
from aliquot.placement.policy import BasePolicy


class Packing(BasePolicy):
    """Shared before free."""

    name = "packing"
    because = "shared GPUs before free ones"

    def scores(self, shape: Shape, nodes: IntArray) -> IntArray:
        """0..100: [n]; 0 for pods without GPU."""
        if not shape.devices:
            return np.zeros(len(nodes), dtype=np.int64)
        cluster = self.cluster
        idle = cluster.idle_count[nodes].astype(np.int64)
        needed = np.full(len(nodes), shape.whole, dtype=np.int64)
        shared = np.zeros(len(nodes), dtype=np.int64)
        if shape.rest_milli:
            free = cluster.free_milli[nodes].astype(np.int64)
            busy = rest_mask(cluster, shape, nodes) & ~whole_mask(cluster, Shape(), nodes)
            least = np.where(busy, free, MILLI).min(axis=1)
            needed += ~busy.any(axis=1)
            shared = least * 100 // MILLI // 10
        used = np.where(needed > 0, np.maximum(50 - needed, 33), np.maximum(100 - shared, 50))
        return np.asarray(np.where(idle == cluster.gpu_count[nodes], np.maximum(33 - idle, idle), used))
