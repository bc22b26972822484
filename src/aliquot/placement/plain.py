"""The inner loops of placement in plain Python: the oracle of `native/kernels`, and what runs without it.

Every loop adds doubles in the order of the C code, so answers are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np
from numpy.typing import NDArray

from aliquot.lib.arrays import BoolArray, FloatArray, IntArray
from aliquot.placement.columns import MODELS, Columns, Records, ShapeRecord, model_bit
from aliquot.placement.future.oracle import Future, PlainNode, slot_capacity


class Kernels:
    """The inner loops; see `native/kernels/kernels.h` for the contract of each. `NativeKernels` has them in C."""

    native = False

    def idle(self, columns: Columns) -> tuple[int, IntArray]:
        """Idle milli-GPU in all, and by model bit [MODELS]."""
        left = rooms(columns.free_milli, columns.free_mib, columns.size_mib)
        by_model = np.zeros(MODELS, dtype=np.int64)
        there = columns.model >= 0
        np.add.at(by_model, np.minimum(columns.model[there], MODELS - 1), left[there])
        return int(by_model.sum()), by_model

    def fragmentation(self, columns: Columns, targets: Records, nodes: IntArray) -> FloatArray:
        """Milli-GPU of each node that the next pod of the target workload (`TARGET` [m]) cannot use."""
        return np.array([_fragmentation(*_open(PlainNode(columns, int(n))), targets) for n in nodes], dtype=np.float64)

    def fgd_scores(
        self, columns: Columns, targets: Records, shape: ShapeRecord, before: FloatArray, nodes: IntArray
    ) -> tuple[IntArray, NDArray[np.int16]]:
        """FGD's integer scores of fitting nodes and the device of each; `before` is the fragmentation of all N."""
        found = [_fgd_score(PlainNode(columns, int(n)), targets, shape, float(before[n])) for n in nodes]
        scores, gpus = zip(*found, strict=True) if found else ((), ())
        return np.array(scores, dtype=np.int64), np.array(gpus, dtype=np.int16)

    def capacity(self, columns: Columns, slots: Records, chi: float, held: BoolArray | None = None) -> FloatArray:
        """The slots of each shape in the cluster, without the nodes in `held`: float64 [slots]."""
        return slot_capacity(columns, slots, chi, held)

    def future(self, nodes: int, gpus: int) -> Future:
        """A value function for clusters of this size."""
        return Future()


def rooms(free_milli: NDArray[np.int32], free_mib: IntArray, size_mib: IntArray) -> IntArray:
    """Milli that both compute and memory leave, per device; 0 where there is none."""
    by_memory = np.maximum(free_mib, 0) * 1000 // np.maximum(size_mib, 1)
    full = (size_mib <= 0) | (free_mib >= size_mib)
    return np.where(full, np.maximum(free_milli, 0), np.maximum(np.minimum(free_milli, by_memory), 0)).astype(np.int64)


def _open(node: PlainNode) -> tuple[int, list[int], int]:
    models = 0
    for model in node.model:
        models |= model_bit(model)
    return node.cpu_milli, [max(left, 0) for left in node.free_milli], models


def _fragmentation(cpu_milli: int, left: list[int], models: int, targets: Records) -> float:
    q1 = q2 = q4 = cpu_fits = cpu_lacks = no_access = 0.0
    idle = sum(left)
    for target_cpu, milli, num, allowed, _, share in targets.tolist():
        cpu = cpu_milli >= target_cpu
        fitting = sum(device >= milli for device in left)
        if num == 0:
            cpu_fits, cpu_lacks = (
                (cpu_fits + share * float(idle), cpu_lacks) if cpu else (cpu_fits, cpu_lacks + share * float(idle))
            )
        elif not models & allowed:
            no_access += share * float(idle)
        elif fitting >= num and cpu:
            q2 += share * float(sum(device for device in left if device < milli))
        elif fitting >= num:
            q4 += share * float(idle)
        elif cpu:
            q2 += share * float(idle)
        else:
            q1 += share * float(idle)
    return ((((q1 + q2) + q4) + cpu_fits) + cpu_lacks) + no_access


def _gradient(before: float, after: float) -> int:
    return int(100.0 * (1.0 / (1.0 + exp(-((before - after) / 1000.0)))))


def _fgd_score(node: PlainNode, targets: Records, shape: ShapeRecord, before: float) -> tuple[int, int]:
    cpu_milli, left, models = _open(node)
    cpu_milli -= shape.cpu_milli
    idle = [g for g in node.gpus if node.idle(g) and shape.models & model_bit(node.model[g])]
    for gpu in idle[: shape.whole]:
        left[gpu] = 0
    if not shape.rest_milli:
        return _gradient(before, _fragmentation(cpu_milli, left, models, targets)), -1
    best, best_gpu = -1, -1
    for gpu in node.gpus:
        if gpu in idle[: shape.whole] or not node.rest_fits(shape, gpu):
            continue
        after = [*left[:gpu], left[gpu] - shape.rest_milli, *left[gpu + 1 :]]
        score = _gradient(before, _fragmentation(cpu_milli, after, models, targets))
        if score > best:
            best, best_gpu = score, gpu
    return best, best_gpu


def device_scores(
    columns: Columns, targets: Records, shape: ShapeRecord, before: float, node: int, gpus: Sequence[int]
) -> dict[int, int]:
    """FGD's integer score of a part of a GPU on each of these devices of one node, all of which fit."""
    cpu_milli, left, models = _open(PlainNode(columns, node))
    found = {}
    for gpu in gpus:
        after = [*left[:gpu], left[gpu] - shape.rest_milli, *left[gpu + 1 :]]
        found[gpu] = _gradient(before, _fragmentation(cpu_milli - shape.cpu_milli, after, models, targets))
    return found
