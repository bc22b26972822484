"""KubeShare's Algorithm 1, as we read it where the printed text contradicts itself.

Step 1: an affinity label that is on a device draws its own there (the rules of labels see to that for every policy);
the first of a label takes an idle device, else the emptiest that it may have. Step 2, the filter by labels and room, is
the decider's. Step 3: best fit among busy devices without an affinity label, worst fit among those that have one, an
idle device last. Best fit is by what is left of compute, then of memory; ties fall to the smallest rank and id.

Source: Yeh, Chen, Chou (KubeShare, HPDC'20), Algorithm 1. Read differently: the idle check of line 17 is inverted in
print; new_dev() is an idle physical GPU and fails where there is none; whole GPUs, which the paper does not place, go
where the fewest are idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from aliquot.lib.arrays import IntArray
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import Ask, Shape
from aliquot.placement.fits import Rules, rest_mask
from aliquot.placement.policy import BasePolicy

_STEP: Final = 1 << 55
_MILLI_IN_MIB: Final = 1 << 40
_OUT: Final = -(1 << 60)


class KubeShare(BasePolicy):
    """Locality aware: labels decide first, then best fit and worst fit."""

    name = "kubeshare"
    because = "the fullest GPU without affinity labels, then the emptiest with them, then an idle one"

    def scores(self, shape: Shape, nodes: IntArray) -> IntArray:
        """As `ask_scores`, for an ask without labels."""
        return self.rule_scores(shape, nodes, first_of_label=False, rules=None)

    def ask_scores(self, ask: Ask, nodes: IntArray, rules: Rules | None) -> IntArray:
        """The value of the best device that the rules leave on each node: [n]."""
        return self.rule_scores(ask.shape, nodes, first_of_label=self._first(ask), rules=rules)

    def rule_scores(self, shape: Shape, nodes: IntArray, *, first_of_label: bool, rules: Rules | None) -> IntArray:
        """The value of the best device of each node: [n]."""
        cluster = self.cluster
        if shape.whole or not shape.devices:
            return np.asarray(-cluster.free_total[nodes])
        hold = rest_mask(cluster, shape, nodes)
        if rules is not None:
            hold &= rules.mask_for(nodes, *cluster.free_milli.shape)
        return np.asarray(np.where(hold, self._values(nodes, first_of_label=first_of_label), _OUT).max(axis=1))

    def choose(self, ask: Ask, node: int, fitting: Sequence[int]) -> tuple[int, ...]:
        """The device of the best value, the lowest of equals; whole GPUs by Link."""
        if ask.whole or not ask.devices:
            return super().choose(ask, node, fitting)
        values = self._values(np.array([node]), first_of_label=self._first(ask))[0]
        return (max(fitting, key=lambda g: (values[g], -g)),)

    def _first(self, ask: Ask) -> bool:
        """Whether it brings an affinity label that no device has yet."""
        return bool(ask.labels.affinity) and ask.labels.affinity not in self.cluster.labels.affinity

    def _values(self, nodes: IntArray, *, first_of_label: bool) -> IntArray:
        """What a device is worth, higher is better: [n, G]."""
        cluster = self.cluster
        free = cluster.free_milli[nodes].astype(np.int64)
        left = free * _MILLI_IN_MIB + np.minimum(cluster.free_mib[nodes], _MILLI_IN_MIB - 1)
        idle = free == MILLI
        if first_of_label:
            return np.where(idle, _STEP, left)
        labelled = np.zeros(cluster.free_milli.shape, dtype=np.bool_)
        for cells in cluster.labels.affinity.values():
            labelled[tuple(np.array([*cells]).T)] = True
        labelled = labelled[nodes]
        return np.where(idle, -_STEP, np.where(labelled, left, 2 * _STEP - left))
