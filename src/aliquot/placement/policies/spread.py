"""Spread: the emptiest card that fits, so that tenants meet as late as possible.

For services that suffer from neighbours more than the cluster suffers from broken GPUs. The mirror image of binpack.

Source: the `spread` policies of k8s-device-plugin ("distributed") and HAMi's GPU scheduler policy of that name.
"""

from __future__ import annotations

import numpy as np

from aliquot.lib.arrays import IntArray
from aliquot.placement.asks import Shape
from aliquot.placement.fits import rest_mask
from aliquot.placement.policy import BasePolicy

_MILLI_IN_MIB = 1 << 40


class Spread(BasePolicy):
    """Use GPUs without tenants."""

    name = "spread"
    because = "the emptiest GPU that holds the request"

    def scores(self, shape: Shape, nodes: IntArray) -> IntArray:
        """What the best card of each node has left, in milli-GPU, then in MiB: [n]."""
        cluster = self.cluster
        if shape.whole or not shape.devices:
            return cluster.free_total[nodes]
        left = cluster.free_milli[nodes].astype(np.int64) * _MILLI_IN_MIB + cluster.free_mib[nodes]
        return np.asarray(np.where(rest_mask(cluster, shape, nodes), left, -1).max(axis=1))

    def prefers(self, node: int, gpu: int) -> tuple[int, ...]:
        """The emptiest card, then the one with the most memory left."""
        return -self.cluster.free_milli.item(node, gpu), -self.cluster.free_mib.item(node, gpu)
