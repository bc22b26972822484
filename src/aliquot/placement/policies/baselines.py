"""The baselines of the published benchmark: policies that FGD is compared with, each by its own rule.

- **bestfit**: the node that would be left with the least, CPU and GPU weighed alike. The integer scores are stretched
  over the nodes that fit, as in the benchmark; the stretching makes ties, so it belongs to the rule and a score depends
  on all candidates. Policy 05.
- **random**: any node that fits, any device that fits: what every policy has to beat. Chance comes from the seed alone,
  so a run can be repeated. Policy 01.
- **clustering**: pods of one kind together. Kinds are sharing pods, one-GPU pods, two-GPU pods and so on. A node with
  only the pod's own kind is best, then one that has it among others, then one without GPU pods, then the rest; within
  each the one with the least GPU left. After Xiao et al. (Gandiva, OSDI'18). Policy 03.
- **dotprod**: avoid the node whose free resources point the way the pod does. CPU and GPU, each over the largest
  machine's (128 cores, 8 GPUs), the product halved and turned round. Doubles are computed in the order of the artifact,
  because its integer scores hang on it. After Grandl et al. (Tetris, SIGCOMM'14). Policy 02 (dimensions merged,
  normalised by the largest).
- **packing**: shared GPUs before free ones, used nodes before free ones, in three bands: a pod that only shared GPUs
  can take (100 down to 50, by what is left on them), one that needs free GPUs of a used node (50 down to 33, by their
  number), one on a node that is all free (33 and less). After Weng et al. (MLaaS in the Wild, NSDI'22). Policy 04.

Source: Weng et al. (FGD, USENIX ATC'23), which compares with them; the numbers are those of
hkust-adsl/kubernetes-scheduler-simulator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aliquot.lib.arrays import IntArray
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import Shape
from aliquot.placement.entries import kind_of
from aliquot.placement.fits import rest_mask, whole_mask
from aliquot.placement.policy import MAX_CPU_MILLI, MAX_GPU_MILLI, BasePolicy

if TYPE_CHECKING:
    from aliquot.placement.cluster import Cluster


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


class Random(BasePolicy):
    """Chance, seeded."""

    name = "random"
    because = "any node and GPU that fit"
    stable = False

    def start(self, cluster: Cluster, seed: int) -> None:
        """Look at this cluster with chance from the start of the seed."""
        super().start(cluster, seed)
        self._chance = np.random.default_rng(seed)

    def scores(self, shape: Shape, nodes: IntArray) -> IntArray:
        """1 for one of the nodes, 0 for the others: [n]."""
        drawn = np.zeros(len(nodes), dtype=np.int64)
        drawn[self._chance.integers(len(nodes))] = 1
        return drawn

    def prefers(self, node: int, gpu: int) -> tuple[int, ...]:
        """A draw for each device."""
        return (int(self._chance.integers(1 << 30)),)


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
