"""The inner loops of placement in plain Python: the oracle of `native/kernels`.

`PlainKernels` has the loops over a cluster, `PlainFuture` the value of a node for arrivals to come and the score of a
placement by it, which docs/policy-aliquot.md describes. Every loop adds doubles in the order of the C code, so answers
are equal to the last bit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, replace
from math import exp, floor, inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aliquot.lib.arrays import BoolArray, FloatArray, IntArray
from aliquot.model.quantities import MILLI
from aliquot.placement.kernels import MODELS, Columns, Future, Kernels, Records, ShapeRecord, model_bit

NO_SCORE: Final = -(1 << 63)


@dataclass(frozen=True)
class State:
    """A node as the sequences see it: `left` ascending, of the devices that are there."""

    model: int
    cpu_milli: int
    memory_mib: int
    left: tuple[int, ...]
    idle: int


class PlainFuture(Future):
    """The value of nodes for arrivals to come, and scores by it."""

    def __init__(self) -> None:
        self._work = 0
        self._visits: list[list[tuple[int, int, int, int, int]]] = []
        self._weight: list[float] = []
        self._values: dict[tuple[int, int, tuple[int, ...]], float] = {}
        self._slots: list[tuple[float, float, float, float, int, int]] = []
        self._model_price = [0.0] * MODELS
        self._chi = 0.0

    @property
    def work(self) -> int:
        """Values recomputed so far."""
        return self._work

    def learn(self, visits: Records, weight: FloatArray) -> None:
        """New sequences: `VISIT` [sequences, visits], weight [visits]; forgets all values."""
        self._visits = visits.tolist()
        self._weight = weight.tolist()
        self._values.clear()

    def price(self, slots: Records, model_price: FloatArray, chi: float) -> None:
        """Set the prices of slots (`SLOT` [slots]) and models (per milli-GPU, [MODELS]); chi weighs partial slots."""
        self._slots, self._model_price, self._chi = slots.tolist(), model_price.tolist(), chi

    def value(self, model: int, cpu_milli: int, left: IntArray) -> float:
        """Milli-GPU that future arrivals put on a node of this model with so much left."""
        return self._value(model, cpu_milli, tuple(sorted(int(x) for x in left)))

    def scores(self, columns: Columns, shape: ShapeRecord, nodes: IntArray, quantum: float) -> IntArray:
        """Scores of nodes that fit."""
        best = [max(self._changes(columns, shape, node).values(), default=-inf) for node in nodes.tolist()]
        return np.array([NO_SCORE if d == -inf else floor(d / quantum) for d in best], dtype=np.int64)

    def tend(self, columns: Columns, shape: ShapeRecord, open_nodes: BoolArray, quantum: float, budget: int) -> bool:
        """Have the scores of a shape ready on all open nodes that fit it; False when the budget of values ended it.

        Nothing is remembered here but values, so there is nothing to do.
        """
        return True

    def option(self, columns: Columns, shape: ShapeRecord, node: int, gpu: int) -> float:
        """What the shape's shared part changes on one device; minus infinity where it does not fit."""
        return self._changes(columns, shape, node).get(gpu, -inf)

    # Inside

    def _changes(self, columns: Columns, shape: ShapeRecord, node: int) -> dict[int, float]:
        """What each possible device for the shared part changes; -1 where there is no shared part."""
        devices = Devices(columns, shape, node)
        before = devices.state()
        worth = self._worth(before)
        value = self._value(before.model, before.cpu_milli, before.left)
        found: dict[int, float] = {}
        for gpu in devices.options():
            after = devices.state_after(gpu)
            gain = self._value(after.model, after.cpu_milli, after.left) - value
            cost = self._model_price[min(max(before.model, 0), MODELS - 1)] * float(
                shape.whole * 1000 + shape.rest_milli
            )
            found[gpu] = (gain + (self._worth(after) - worth)) - cost
        return found

    def _worth(self, state: State) -> float:
        worth = 0.0
        for gpus, cpu_milli, memory_mib, price, models, _ in self._slots:
            if state.idle > 0 and models & model_bit(state.model) and len(state.left) >= gpus:
                worth += price * slots_of(state, gpus, cpu_milli, memory_mib, self._chi)
        return worth

    def _value(self, model: int, cpu_milli: int, left: tuple[int, ...]) -> float:
        key = (model, cpu_milli, left)
        if key not in self._values:
            self._work += 1
            total = 0.0
            for sequence in self._visits:
                cpu, devices = cpu_milli, list(left)
                for weight, (cpu_asked, worth, need, whole, models) in zip(self._weight, sequence, strict=True):
                    if cpu_asked > cpu or not models & model_bit(model):
                        continue
                    after = taken(devices, need, whole)
                    if after is not None:
                        devices = after
                        cpu -= cpu_asked
                        total += weight * float(worth)
            self._values[key] = total / float(len(self._visits)) if self._visits else 0.0
        return self._values[key]


def value_of(future: Future, model: int, cpu_milli: int, left: IntArray) -> float:
    """Milli-GPU that future arrivals put on a node of this model with so much left, by either form of the loops."""
    if isinstance(future, PlainFuture):
        return future.value(model, cpu_milli, left)
    devices = np.ascontiguousarray(left, dtype=np.int32)
    return future._library.aliquot_future_value(future._handle, model, cpu_milli, devices, len(devices))


class PlainNode:
    """One node of the columns, as plain integers; devices that are not there have no room."""

    def __init__(self, columns: Columns, node: int) -> None:
        self.cpu_milli = int(columns.cpu_free[node])
        self.memory_mib = int(columns.memory_free[node])
        self.free_milli: list[int] = columns.free_milli[node].tolist()
        self.free_mib: list[int] = columns.free_mib[node].tolist()
        self.size_mib: list[int] = columns.size_mib[node].tolist()
        self.model: list[int] = columns.model[node].tolist()
        self.gpus = range(len(self.free_milli))

    def idle(self, gpu: int) -> bool:
        """Whether the device has no tenant."""
        return self.free_milli[gpu] == MILLI and self.free_mib[gpu] == self.size_mib[gpu]

    def rest_fits(self, shape: ShapeRecord, gpu: int) -> bool:
        """Whether the shape's shared part fits the device."""
        return (
            self.free_milli[gpu] >= shape.rest_milli
            and bool(shape.models & model_bit(self.model[gpu]))
            and self.free_mib[gpu] >= need_mib(shape, self.size_mib[gpu])
        )


def need_mib(shape: ShapeRecord, size_mib: int) -> int:
    """MiB that the shape's shared part takes of a device of this size."""
    if shape.gpu_mib:
        return shape.gpu_mib
    if shape.gpu_mem_ppm:
        return shape.gpu_mem_ppm * size_mib // 1_000_000
    return shape.rest_milli * size_mib // 1000


class Devices:
    """The devices of one node and what a shape takes of them."""

    def __init__(self, columns: Columns, shape: ShapeRecord, node: int) -> None:
        self.shape, self.node = shape, PlainNode(columns, node)
        self.gpus = [g for g in self.node.gpus if self.node.model[g] >= 0]
        idle = [g for g in self.gpus if self.node.idle(g) and shape.models & model_bit(self.node.model[g])]
        if shape.rest_milli:  # a node of unequal devices keeps one for the rest
            idle.sort(key=lambda g: self.node.rest_fits(shape, g))
        self.whole = idle[: shape.whole]

    def options(self) -> list[int]:
        """Devices for the shared part by index; [-1] for a shape without one."""
        if not self.shape.rest_milli:
            return [-1]
        return [g for g in self.gpus if g not in self.whole and self.node.rest_fits(self.shape, g)]

    def state(self) -> State:
        """As it is."""
        node = self.node
        left = tuple(sorted(room(node.free_milli[g], node.free_mib[g], node.size_mib[g]) for g in self.gpus))
        model = node.model[self.gpus[0]] if self.gpus else -1
        return State(model, node.cpu_milli, node.memory_mib, left, sum(map(node.idle, self.gpus)))

    def state_after(self, gpu: int) -> State:
        """With the shape's whole devices taken, and the shared part on `gpu` unless that is -1."""
        node, shape = self.node, self.shape
        free = {g: (0 if g in self.whole else node.free_milli[g], node.free_mib[g]) for g in self.gpus}
        idle = sum(map(node.idle, self.gpus)) - len(self.whole)
        if gpu >= 0:
            milli, mib = free[gpu]
            free[gpu] = milli - shape.rest_milli, mib - need_mib(shape, node.size_mib[gpu])
            idle -= node.idle(gpu)
        left = tuple(sorted(room(milli, mib, node.size_mib[g]) for g, (milli, mib) in free.items()))
        return replace(
            self.state(),
            cpu_milli=node.cpu_milli - shape.cpu_milli,
            memory_mib=node.memory_mib - shape.memory_mib,
            left=left,
            idle=idle,
        )


def room(free_milli: int, free_mib: int, size_mib: int) -> int:
    """Free milli-GPU of a device, as limited by both its compute and its memory."""
    if free_milli <= 0:
        return 0
    if size_mib <= 0 or free_mib >= size_mib:
        return free_milli
    return min(free_milli, max(free_mib, 0) * 1000 // size_mib)


def taken(left: list[int], need_milli: int, whole: int) -> list[int] | None:
    """The devices' free milli, ascending, after one more pod; None if it does not fit.

    Whole GPUs are taken from idle devices, the shared part from the fullest device that has room.
    """
    kept = len(left) - whole
    if whole and (kept < 0 or left[kept] < MILLI):
        return None
    after = left[:kept]
    if need_milli:
        at = bisect_left(after, need_milli)
        if at == len(after):
            return None
        insort(after, after.pop(at) - need_milli)
    return [0] * whole + after


def slots_of(state: State, gpus: float, cpu_milli: float, memory_mib: float, chi: float) -> float:
    """How many pods of one multi-GPU shape (its slots) fit on a node; a part x of one more counts chi * x ** 3."""
    x = float(state.idle) / gpus
    if x < 1.0 and chi == 0.0:
        return 0.0
    if cpu_milli > 0.0:
        x = min(x, float(state.cpu_milli) / cpu_milli)
    if memory_mib > 0.0:
        x = min(x, float(state.memory_mib) / memory_mib)
    whole = float(floor(x))
    part = x - whole
    return whole if chi == 0.0 else whole + chi * (part * part * part)


def slot_capacity(columns: Columns, slots: Records, chi: float, held: BoolArray) -> FloatArray:
    """The slots of each shape in the cluster, without the nodes in `held`: float64 [slots]."""
    found = np.zeros(len(slots), dtype=np.float64)
    nothing = ShapeRecord()
    for node in range(columns.nodes):
        state = Devices(columns, nothing, node).state()
        if held[node] or state.idle == 0:
            continue
        for i, (gpus, cpu_milli, memory_mib, _, models, _) in enumerate(slots.tolist()):
            if models & model_bit(state.model) and len(state.left) >= gpus:
                found[i] += slots_of(state, gpus, cpu_milli, memory_mib, chi)
    return found


class PlainKernels(Kernels):
    """The inner loops; see `native/kernels/kernels.h` for the contract of each."""

    def __init__(self) -> None:
        pass

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

    def capacity(self, columns: Columns, slots: Records, chi: float, held: BoolArray) -> FloatArray:
        """The slots of each shape in the cluster, without the nodes in `held`: float64 [slots]."""
        return slot_capacity(columns, slots, chi, held)

    def future(self, nodes: int, gpus: int) -> Future:
        """A value function for clusters of this size."""
        return PlainFuture()


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
