"""How much idle GPU the expected tasks could not use: FGD's measure, for many node states at once and exactly.

For one task shape a node's idle GPU counts as fragmented in full when the task does not fit there (or needs no GPU),
and else only on the GPUs too small for it. The node's fragmentation is the mean over the target workload, which weighs
shapes by how often the trace has them. Counts and milli-GPU are integers, so sums have one value whatever their order.

`NodeChanges` keeps the states that nodes went through, so that the measure is worked out once for a whole run.

Source: FGD (USENIX ATC'23), section 3, and the artifact's choice of the target workload.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aliquot.lib.arrays import IntArray
from aliquot.placement.asks import Shape
from aliquot.placement.cluster import Cluster
from aliquot.placement.policies.fgd import milli_each

_BATCH: Final = 2048


class Fragmentation:
    """The measure for one target workload on a cluster whose GPU models are numbered as in `models`."""

    def __init__(self, workload: Sequence[tuple[Shape, int]], models: Sequence[str]) -> None:
        shapes = [shape for shape, _ in workload]
        self.total = sum(count for _, count in workload)
        self._count = np.array([count for _, count in workload], dtype=np.int64)
        self._cpu = np.array([shape.cpu_milli for shape in shapes], dtype=np.int64)
        self._milli = np.array([milli_each(shape) for shape in shapes], dtype=np.int32)
        self._number = np.array([shape.devices for shape in shapes], dtype=np.int32)
        # One more row for nodes without a model (-1 indexes the last), on which nothing that needs a GPU is allowed.
        self._allowed = np.array(
            [[bool(s.devices) and (not s.models or name in s.models) for s in shapes] for name in models]
            + [[False] * len(shapes)]
        )

    def numerators(self, free_milli: NDArray[np.int32], cpu_free: IntArray, model: IntArray) -> IntArray:
        """Fragmented milli-GPU of S node states, times `total`; int64 [S].

        `free_milli` is [S, G] with -1 where there is no GPU, `cpu_free` and `model` are [S].
        """
        out = np.empty(len(cpu_free), dtype=np.int64)
        for start in range(0, len(out), _BATCH):
            part = slice(start, start + _BATCH)
            out[part] = self._part(free_milli[part], cpu_free[part], model[part])
        return out

    def _part(self, free_milli: NDArray[np.int32], cpu_free: IntArray, model: IntArray) -> IntArray:
        idle = np.maximum(free_milli, 0)
        fitting = np.zeros((len(cpu_free), len(self._milli)), dtype=np.int32)
        usable = np.zeros_like(fitting)
        for gpu in range(free_milli.shape[1]):
            large = free_milli[:, gpu, None] >= self._milli
            fitting += large
            usable += large * idle[:, gpu, None]
        fits = self._allowed[model] & (cpu_free[:, None] >= self._cpu) & (fitting >= self._number)
        lost = idle.sum(axis=1)[:, None] - fits * usable
        return np.asarray(lost.astype(np.int64) @ self._count)


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
