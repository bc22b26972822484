"""Best fit: the node that would be left with the least, CPU and GPU weighed alike.

The integer scores are stretched over the nodes that fit, as in the published benchmark; the stretching makes ties, so
it belongs to the rule and a score depends on all candidates.

Source: the score that Weng et al. (FGD, USENIX ATC'23) compare with as BestFit;
hkust-adsl/kubernetes-scheduler-simulator, policy 05.
"""

from __future__ import annotations

import numpy as np

from aliquot.lib.arrays import IntArray
from aliquot.placement.asks import Shape
from aliquot.placement.policy import MAX_CPU_MILLI, MAX_GPU_MILLI, BasePolicy


class BestFit(BasePolicy):
    """Least left over."""

    name = "bestfit"
    because = "the node that is left with the least"
    stable = False

    def scores(self, shape: Shape, nodes: IntArray) -> IntArray:
        """0..100 over the nodes given, 0 for all when they are equal: [n]."""
        cluster = self.cluster
        left = (cluster.cpu_free[nodes] - shape.cpu_milli) / MAX_CPU_MILLI * 0.5
        left += (cluster.free_total[nodes] - shape.milli) / MAX_GPU_MILLI * 0.5
        raw = ((1.0 - left) * 100.0).astype(np.int64)
        least, most = raw.min(), raw.max()
        if least == most:
            return np.zeros_like(raw)
        return np.asarray((raw - least) * 100 // (most - least))
