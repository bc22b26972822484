"""Binpack: the fullest card that still fits, over the whole cluster.

Aliyun's gpushare packs cards within a node that kube-scheduler chose; here node and card are one decision, for a node
is worth as much as its best card. Whole GPUs go where the fewest are idle, pods without GPU where they cost no GPU its
CPU.

Source: AliyunContainerService/gpushare-scheduler-extender, the choice of the device in its bind verb (the card with
the least free memory that holds the request); compute takes the place of memory here, memory breaks ties.
"""

from __future__ import annotations

import numpy as np

from aliquot.lib.arrays import IntArray
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import Shape
from aliquot.placement.fits import rest_mask
from aliquot.placement.policy import BasePolicy

_MILLI_IN_MIB = 1 << 40
"""One milli-GPU weighs more than any memory."""


class Binpack(BasePolicy):
    """Fill what is already in use."""

    name = "binpack"
    because = "the fullest GPU that holds the request"

    def scores(self, shape: Shape, nodes: IntArray) -> IntArray:
        """Minus what the best card of each node has left, in milli-GPU, then in MiB: [n]."""
        cluster = self.cluster
        if shape.whole or not shape.devices:
            return np.asarray(-cluster.free_total[nodes])
        left = cluster.free_milli[nodes].astype(np.int64) * _MILLI_IN_MIB + cluster.free_mib[nodes]
        left = np.where(rest_mask(cluster, shape, nodes), left, (MILLI + 1) * _MILLI_IN_MIB)
        return np.asarray(-left.min(axis=1))

    def prefers(self, node: int, gpu: int) -> tuple[int, ...]:
        """The fullest card, then the one with the least memory left."""
        return self.cluster.free_milli.item(node, gpu), self.cluster.free_mib.item(node, gpu)
