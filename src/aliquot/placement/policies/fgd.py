"""FGD: place where the fragmentation of the GPUs grows least, for the pods that are expected.

A node's fragmentation is the idle milli-GPU that the next pod, drawn from a target workload, could not use. The score
is 100 x sigmoid of the fall of that number, in GPUs, cut to an integer: the cut and the order in which doubles are
added are part of the rule, for with exact scores the published results do not come out.

Source: Weng et al. (FGD, USENIX ATC'23), sections 3 and 4; hkust-adsl/kubernetes-scheduler-simulator, policy 06.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aliquot.lib.arrays import IntArray
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import Ask, Shape
from aliquot.placement.kernels import TARGET, Columns, Records, ShapeRecord, kernels, shape_record
from aliquot.placement.policy import BasePolicy

if TYPE_CHECKING:
    from aliquot.placement.cluster import Cluster

Target: TypeAlias = Sequence[tuple[Shape, float]]
COVERAGE: Final = 0.95
LEARNS_EVERY: Final = 1024


def typical_shapes(counts: Mapping[Shape, int]) -> list[tuple[Shape, int]]:
    """The most frequent shapes with their counts, until they cover 95 % of the pods.

    Order: count, then CPU, milli, number and models, all falling. Memory is not a part of a target; shapes that differ
    in it alone are one. Source: the artifact's typical pods (popularity threshold 95).
    """
    merged: Counter[Shape] = Counter()
    for shape, count in counts.items():
        merged[Shape(shape.whole, shape.rest_milli, models=shape.models, cpu_milli=shape.cpu_milli)] += count
    wanted, covered, taken = COVERAGE * sum(merged.values()), 0, []
    keys = [(n, s.cpu_milli, milli_each(s), s.devices, "|".join(s.models), s) for s, n in merged.items()]
    for count, *_, shape in sorted(keys, key=lambda key: key[:5], reverse=True):
        if covered >= wanted:
            break
        covered += count
        taken.append((shape, count))
    return taken


def target_workload(counts: Mapping[Shape, int]) -> list[tuple[Shape, float]]:
    """The typical shapes with their probabilities."""
    total, taken = float(sum(counts.values())), typical_shapes(counts)
    covered = float(sum(count for _, count in taken))
    if covered == total:
        return [(shape, count / total) for shape, count in taken]
    return [(shape, count / total / (covered / total)) for shape, count in taken]


def milli_each(shape: Shape) -> int:
    """Milli-GPU of each device that a target takes; a rest beside whole GPUs counts as one more whole GPU."""
    return MILLI if shape.whole else shape.rest_milli


class Fgd(BasePolicy):
    """Fragmentation gradient descent; without a `target` it takes the arrivals so far for the workload to come."""

    name = "fgd"
    because = "the place where the GPUs are fragmented least for the pods expected"

    def __init__(self, target: Target | None = None) -> None:
        self._given = None if target is None else list(target)

    def start(self, cluster: Cluster, seed: int) -> None:
        """Look at this cluster; forget what arrived."""
        super().start(cluster, seed)
        self._columns = Columns(cluster)
        self._counts: Counter[Shape] = Counter()
        self._arrivals = 0
        self._target: Target = self._given or []
        self._records: dict[Shape, ShapeRecord] = {}
        self._layout = -1

    def arrived(self, shape: Shape) -> None:
        """Learn at arrival 1, 2, 4 ... 1024, then every 1024."""
        if self._given is not None:
            return
        self._counts[shape] += 1
        self._arrivals += 1
        doubled = self._arrivals & (self._arrivals - 1) == 0
        if (doubled and self._arrivals < LEARNS_EVERY) or self._arrivals % LEARNS_EVERY == 0:
            self._target = target_workload(self._counts)
            self._layout = -1
            self.epoch += 1

    def scores(self, shape: Shape, nodes: IntArray) -> IntArray:
        """0..100: [n]."""
        self._catch_up()
        record = self._record(shape)
        scores, _ = kernels().fgd_scores(
            self._columns, self._targets, record, self._amount, np.ascontiguousarray(nodes)
        )
        return scores

    def choose(self, ask: Ask, node: int, fitting: Sequence[int]) -> tuple[int, ...]:
        """For a part of a GPU the device of the largest score, the first of equals; whole ones by Link."""
        if ask.whole or not ask.rest_milli:
            return super().choose(ask, node, fitting)
        self._catch_up()
        record = self._record(ask.shape)
        one = np.array([node], dtype=np.int64)
        _, gpus = kernels().fgd_scores(self._columns, self._targets, record, self._amount, one)
        if gpus.item(0) not in fitting:  # labels took the best device away
            left = self._columns.only(node, fitting)
            _, gpus = kernels().fgd_scores(left, self._targets, record, self._amount, one)
        return (gpus.item(0),)

    def fragmentation(self) -> NDArray[np.float64]:
        """Milli-GPU of every node that the next pod of the target workload cannot use: [N]."""
        self._catch_up()
        return self._amount

    def _catch_up(self) -> None:
        """Bring the fragmentation of nodes that changed up to date."""
        cluster = self.cluster
        if self._layout != cluster.layout:
            self._layout = cluster.layout
            self._columns.refresh()
            self._records.clear()
            self._targets = target_records(cluster, self._target)
            self._amount = np.zeros(len(cluster.rank))
            self._seen = np.full(len(cluster.rank), -1, dtype=np.int64)
        changed = np.flatnonzero(self._seen != cluster.version)
        if len(changed):
            self._amount[changed] = kernels().fragmentation(self._columns, self._targets, changed)
            self._seen[changed] = cluster.version[changed]

    def _record(self, shape: Shape) -> ShapeRecord:
        record = self._records.get(shape)
        if record is None:
            record = self._records[shape] = shape_record(self.cluster, shape, len(self._records))
        return record


def target_records(cluster: Cluster, target: Iterable[tuple[Shape, float]]) -> Records:
    """A target workload as the kernels read it."""
    rows = [
        (shape.cpu_milli, milli_each(shape), shape.devices, shape_record(cluster, shape, 0).models, 0, share)
        for shape, share in target
    ]
    return np.array(rows, dtype=TARGET)
