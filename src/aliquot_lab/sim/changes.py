"""The states that nodes went through, kept as they change, so that fragmentation is worked out once for a whole run."""

from __future__ import annotations

import numpy as np

from aliquot.lib.arrays import IntArray
from aliquot.placement.cluster import Cluster
from aliquot_lab.sim.openb.fragmentation import Fragmentation


class NodeChanges:
    """One entry per noted change: a node's free milli-GPU and CPU right after it."""

    def __init__(self, cluster: Cluster, room: int = 1024) -> None:
        self._cluster = cluster
        self._count = 0
        self._node = np.empty(room, dtype=np.int64)
        self._step = np.empty(room, dtype=np.int64)
        self._free = np.empty((room, cluster.free_milli.shape[1]), dtype=np.int32)
        self._cpu = np.empty(room, dtype=np.int64)
        self._start_free = cluster.free_milli.copy()
        self._start_cpu = cluster.cpu_free.copy()

    def note(self, step: int, node: int) -> None:
        """A node has just changed in step number `step`; steps never go back."""
        at = self._count
        if at == len(self._node):
            for name in ("_node", "_step", "_free", "_cpu"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate((array, np.empty_like(array))))
        self._node[at], self._step[at] = node, step
        self._free[at] = self._cluster.free_milli[node]
        self._cpu[at] = self._cluster.cpu_free[node]
        self._count = at + 1

    def fragmentation(self, measure: Fragmentation, steps: int) -> IntArray:
        """The cluster's fragmented milli-GPU after each of `steps` steps, times the measure's denominator; int64."""
        model = self._cluster.model.max(axis=1, initial=-1).astype(np.int64)
        start = measure.numerators(self._start_free, self._start_cpu, model)
        node = self._node[: self._count]
        after = measure.numerators(self._free[: self._count], self._cpu[: self._count], model[node])
        # What the same node had before: its previous change, or the start.
        by_node = np.argsort(node, kind="stable")
        ordered, values = node[by_node], after[by_node]
        first = np.ones(len(node), dtype=bool)
        first[1:] = ordered[1:] != ordered[:-1]
        before = np.empty_like(after)
        before[by_node] = np.where(first, start[ordered], np.concatenate(([0], values[:-1])))
        difference = np.zeros(steps, dtype=np.int64)
        np.add.at(difference, self._step[: self._count], after - before)
        return np.asarray(int(start.sum()) + np.cumsum(difference))
