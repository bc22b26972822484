"""The demand to expect: what arrived so far, and what slots and models are worth by it.

The history is a window of the last arrivals, which bounds its memory; a running sum that decays tells whether the
cluster lives (pods leave about as fast as they come) or only fills. Prices compare the demand expected until the
cluster is full with what the cluster still has. In a cluster that lives (chi = 1) a slot's price is simply the GPU
demand it is expected to serve; where nothing leaves (chi = 0) it rises with the square of the scarcity, because what is
opened there will be filled. docs/policy-aliquot.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aliquot.lib.arrays import FloatArray, IntArray
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import PPM, Shape
from aliquot.placement.kernels import ANY_MODEL, MODELS, SLOT, Columns, Kernels, Records, ShapeRecord, model_bit

if TYPE_CHECKING:
    from aliquot.placement.cluster import Cluster

WINDOW: Final = 4096
DECAY: Final = 1024
"""Arrivals after which the churn measure has forgotten all but 1/e."""
FULL_CHURN: Final = 3.0
"""Chi is 1 as soon as a third of what arrives also leaves."""
MAX_NUMBER: Final = 2**53
"""The largest whole number that every reader of JSON keeps."""
_FIELDS: Final = ("whole", "rest_milli", "gpu_mib", "gpu_mem_ppm", "models", "cpu_milli", "memory_mib")
SLOT_PRICE: Final = 0.3
SLOT_EXPONENT: Final = 2.0
MODEL_PRICE: Final = 2.0
MODEL_EXPONENT: Final = 3.0
TURNOVER: Final = 0.2
"""Part of the cluster's capacity that departures add to the horizon when chi is 1."""
PRIOR_CPU: Final = 0.9
"""CPU of its node that a pod not seen yet is assumed to request, together with all GPUs."""


class ArrivalHistory:
    """The last `most` arrivals; shapes have small numbers that are never given twice."""

    def __init__(self, most: int = WINDOW) -> None:
        self.window = most
        self.arrivals = 0
        self.milli = 0
        self.cpu_milli = 0
        self._shapes: dict[int, Shape] = {}
        self._numbers: dict[Shape, int] = {}
        self._counts: dict[int, int] = {}
        self._ring = np.full(min(most, 1024), -1, dtype=np.int64)
        self._next_number = 0
        self._arrived_milli = 0.0
        self._departed_milli = 0.0

    def arrive(self, shape: Shape) -> int:
        """Count an arrival; the number of its shape."""
        at = self.arrivals % self.window
        if at >= len(self._ring):
            more = np.full(min(self.window, 2 * len(self._ring)) - len(self._ring), -1, dtype=np.int64)
            self._ring = np.concatenate([self._ring, more])
        if self.arrivals >= self.window:
            oldest = int(self._ring[at])
            forgotten = self._shapes[oldest]
            self.milli -= forgotten.milli
            self.cpu_milli -= forgotten.cpu_milli
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest], self._shapes[oldest], self._numbers[forgotten]
        number = self._ring[at] = self.number(shape)
        self.arrivals += 1
        self._counts[number] = self._counts.get(number, 0) + 1
        self.milli += shape.milli
        self.cpu_milli += shape.cpu_milli
        keep = 1.0 - 1.0 / DECAY
        self._arrived_milli = self._arrived_milli * keep + shape.milli
        self._departed_milli *= keep
        return number

    def depart(self, shape: Shape) -> None:
        """Count a departure."""
        self._departed_milli += shape.milli

    def number(self, shape: Shape) -> int:
        """The number of a shape, seen or not."""
        number = self._numbers.get(shape)
        if number is None:
            if len(self._numbers) > 2 * len(self._counts) + 64:
                # Forget shapes that were asked about and never arrived.
                for stranger in [stranger for stranger in self._shapes if stranger not in self._counts]:
                    del self._numbers[self._shapes.pop(stranger)]
            number = self._numbers[shape] = self._next_number
            self._shapes[number] = shape
            self._next_number += 1
        return number

    @property
    def chi(self) -> float:
        """0 where nothing leaves, 1 in a cluster that lives."""
        if self._departed_milli <= 0.0:
            return 0.0
        return min(1.0, FULL_CHURN * self._departed_milli / max(self._arrived_milli, 1.0))

    @property
    def shapes(self) -> int:
        """How many shapes are in the window."""
        return len(self._counts)

    def counts(self) -> Iterator[tuple[int, Shape, int]]:
        """Number, shape and count of all in the window."""
        for number, count in self._counts.items():
            yield number, self._shapes[number], count

    def draws(self, count: int, seed: int, cpu_only: float = 0.0) -> IntArray:
        """Numbers of shapes of past arrivals that asked for GPUs, in the proportions of the window.

        With `cpu_only` that part of the CPU-only arrivals, the latest of them, is drawn from as well.

        The same seed draws at the same places each time (common random numbers), so that what changes from one learning
        to the next is the history and not the luck. Empty when no such arrival was seen.
        """
        seen = self._recent()
        asked_gpus = np.array([n for n in self._counts if self._shapes[n].devices], dtype=np.int64)
        with_gpus = np.isin(seen, asked_gpus)
        pool, others = seen[with_gpus], seen[~with_gpus]
        if len(pool) and cpu_only > 0.0:
            pool = np.concatenate([pool, others[len(others) - int(cpu_only * len(others)) :]])
        if not len(pool):
            return pool
        at = (_mix(np.arange(count, dtype=np.uint64) + np.uint64(seed)) % np.uint64(len(pool))).astype(np.int64)
        return pool[at]

    def dump(self, part: float = 1.0) -> dict[str, Any]:
        """What was learned, fit for JSON; of the arrivals the last `part`."""
        recent = self._recent()
        used = recent[len(recent) - int(part * len(recent)) :].tolist()
        place = {number: i for i, number in enumerate(dict.fromkeys(used))}
        shapes = [{name: getattr(self._shapes[n], name) for name in _FIELDS} for n in place]
        return {
            "shapes": [shape | {"models": list(shape["models"])} for shape in shapes],
            "recent": [place[n] for n in used],
            "arrived_milli": self._arrived_milli,
            "departed_milli": self._departed_milli,
        }

    @classmethod
    def load(cls, record: Mapping[str, Any], most: int = WINDOW) -> ArrivalHistory:
        """The history of a dump; what it had beyond the window is left out.

        Raises:
            ValueError, LookupError, TypeError, AttributeError, BadRequest: it is not a dump, or has what no arrival
                can have.
        """
        history = cls(most)
        shapes = [_shape(entry) for entry in record["shapes"]]
        for at in record["recent"][-most:]:
            history.arrive(shapes[_whole_number(at)])
        amounts = [record["arrived_milli"], record["departed_milli"]]
        for amount in amounts:
            if not isinstance(amount, int | float) or not 0.0 <= amount <= MAX_NUMBER:
                raise ValueError(f"{amount!r} is not an amount")
        history._arrived_milli, history._departed_milli = map(float, amounts)
        return history

    def _recent(self) -> IntArray:
        """Shapes of the arrivals in the window, the oldest first."""
        if self.arrivals < self.window:
            return self._ring[: self.arrivals]
        return np.roll(self._ring, -(self.arrivals % self.window))


def _shape(entry: Mapping[str, Any]) -> Shape:
    """The shape of an entry of a dump, with the rules of an ask."""
    numbers = {name: _whole_number(entry[name]) for name in _FIELDS if name != "models"}
    models = entry["models"]
    if not isinstance(models, list) or not all(isinstance(model, str) for model in models):
        raise ValueError(f"models {models!r}")
    if numbers["rest_milli"] >= MILLI or numbers["gpu_mem_ppm"] > PPM:
        raise ValueError(f"{entry!r} is not a shape")
    return Shape(**numbers, models=tuple(sorted(set(models))))


def _whole_number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise ValueError(f"{value!r} is not a whole number from 0 to {MAX_NUMBER}")
    return value


def _mix(values: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Sixty-four bits that look random, by counter (Steele, Lea and Flood: SplitMix64, OOPSLA'14)."""
    z = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True)
class ShapeDemand:
    """What one shape of the history asks: a row of the tables that prices are made from."""

    record: ShapeRecord
    devices: int
    milli: int
    count: int


@dataclass(frozen=True)
class Prices:
    """Slots with their prices, and the price of each model per milli-GPU."""

    slots: Records
    model_price: FloatArray
    chi: float


class Pricing:
    """Prices for one cluster; `slot_price` and `model_price` scale them (0: none), `prior` adds the unseen pods."""

    def __init__(self, slot_price: float = SLOT_PRICE, model_price: float = MODEL_PRICE, prior: bool = True) -> None:
        self.slot_price, self.model_price, self.prior = slot_price, model_price, prior
        self._classes: Records = np.zeros(0, dtype=SLOT)
        self.capacity_milli = 0

    def look(self, cluster: Cluster) -> None:
        """Take note of the kinds of nodes there are: a pod that fills one of them may come."""
        kinds: dict[tuple[int, int, int], None] = {}
        self.capacity_milli = 1000 * int(cluster.gpu_count.sum())
        for number in sorted(cluster.index.values()):
            spec = cluster.spec(number)
            if len(spec.gpus) > 1:
                kinds[cluster.model.item(number, 0), len(spec.gpus), spec.cpu_milli] = None
        self._classes = np.zeros(len(kinds) if self.prior else 0, dtype=SLOT)
        for row, (model, gpus, cpu_milli) in zip(self._classes, kinds, strict=False):
            row["gpus"], row["cpu_milli"], row["models"] = gpus, PRIOR_CPU * cpu_milli, model_bit(model)

    def prices(
        self,
        kernels: Kernels,
        columns: Columns,
        history: ArrivalHistory,
        demands: list[ShapeDemand],
        idle: tuple[int, IntArray],
        chi: float,
    ) -> Prices:
        """The prices now; `idle` is in milli-GPU, in all and by model, `chi` 0 where nothing leaves."""
        horizon = idle[0] + TURNOVER * chi * self.capacity_milli
        several = [demand for demand in demands if demand.devices > 1]
        slots = np.zeros(len(several) + len(self._classes), dtype=SLOT)
        for row, demand in zip(slots, several, strict=False):
            record = demand.record
            row["gpus"], row["cpu_milli"], row["memory_mib"] = demand.devices, record.cpu_milli, record.memory_mib
            row["models"] = record.models
        slots[len(several) :] = self._classes
        model_price = np.zeros(MODELS, dtype=np.float64)
        if not history.milli:
            return Prices(slots, model_price, chi)
        if len(slots):
            counts = np.array([demand.count for demand in several] + [1] * len(self._classes), dtype=np.float64)
            capacity = kernels.capacity(columns, slots, chi, ~columns.cluster.open)
            expected = counts * horizon / history.milli
            used = np.minimum(1.0, expected / np.maximum(capacity, 1e-9)) ** (SLOT_EXPONENT - chi)
            scale = self.slot_price and self.slot_price + (1.0 - self.slot_price) * chi
            slots["price"] = np.where(capacity > 0.0, scale * slots["gpus"] * 1000.0 * used, 0.0)
        left = idle[1]
        here = np.flatnonzero(left)
        here_bits = sum(1 << int(model) for model in here)
        picky = [d for d in demands if d.milli and d.record.models != ANY_MODEL and here_bits & ~d.record.models]
        if picky:
            allowed = np.array([[(d.record.models >> int(m)) & 1 for m in here] for d in picky], dtype=np.float64)
            wanted = np.array([d.count * d.milli for d in picky], dtype=np.float64) * horizon / history.milli
            share = allowed * left[here]
            total = share.sum(axis=1, keepdims=True)
            part = np.divide(share, total, out=np.zeros_like(share), where=total > 0.0)
            demand_milli = (wanted[:, None] * part).sum(axis=0)
            model_price[here] = self.model_price * np.minimum(1.0, demand_milli / left[here]) ** MODEL_EXPONENT
        return Prices(slots, model_price, chi)
