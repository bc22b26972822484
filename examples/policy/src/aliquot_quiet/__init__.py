"""Quiet: the node with the fewest tenants, and on it the GPU with the fewest.

For work that suffers from every neighbour, however small. An example of a policy of one's own: a score for each node
that fits, and what orders the devices of the node that was chosen. Everything else (which nodes fit, labels, quota,
ties, what was scored before) is the core's.

Source: none; it is the simplest rule that the policies of the core do not have.
"""

from __future__ import annotations

import numpy as np

from aliquot.lib.arrays import IntArray
from aliquot.placement.asks import Shape
from aliquot.placement.policy import BasePolicy


class Quiet(BasePolicy):
    """Fewest neighbours first."""

    name = "quiet"
    because = "the node and the GPU with the fewest tenants"

    def scores(self, shape: Shape, nodes: IntArray) -> IntArray:
        """Minus the number of tenants on each node: [n]."""
        return np.array([-len(self.cluster.tenants_on(node)) for node in nodes.tolist()], dtype=np.int64)

    def prefers(self, node: int, gpu: int) -> tuple[int, ...]:
        """The number of tenants on a device; the smallest is taken."""
        return (len(self.cluster.residents(node, gpu)),)
