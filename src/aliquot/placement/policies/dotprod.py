"""Dot product: avoid the node whose free resources point the way the pod does.

As in the published benchmark: CPU and GPU, each over the largest machine's (128 cores, 8 GPUs), the product halved and
turned round. Doubles are computed in the order of the artifact, because its integer scores hang on it.

Source: the score that Weng et al. (FGD, USENIX ATC'23) compare with as DotProd, after Grandl et al. (Tetris,
SIGCOMM'14); hkust-adsl/kubernetes-scheduler-simulator, policy 02 (dimensions merged, normalised by the largest).
"""

from __future__ import annotations

import numpy as np

from aliquot.lib.arrays import IntArray
from aliquot.placement.asks import Shape
from aliquot.placement.policy import MAX_CPU_MILLI, MAX_GPU_MILLI, BasePolicy


class DotProduct(BasePolicy):
    """Alignment of what is free with what is asked, the least aligned first."""

    name = "dotprod"
    because = "the node whose free resources are least like the request"

    def scores(self, shape: Shape, nodes: IntArray) -> IntArray:
        """100 x (1 - dot product / 2), cut to integers: [n]."""
        cluster = self.cluster
        product = cluster.cpu_free[nodes] / MAX_CPU_MILLI * (shape.cpu_milli / MAX_CPU_MILLI)
        product += cluster.free_total[nodes] / MAX_GPU_MILLI * (shape.milli / MAX_GPU_MILLI)
        return (100.0 * (1.0 - product / 2.0)).astype(np.int64)
