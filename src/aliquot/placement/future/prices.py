"""What a slot for a pod of several GPUs is worth, and what a scarce GPU model costs requests that could use another.

Both compare the demand expected until the cluster is full with what the cluster still has. In a cluster that lives
(chi = 1) a slot's price is simply the GPU demand it is expected to serve; where nothing leaves (chi = 0) it rises with
the square of the scarcity, because what is opened there will be filled. docs/policy-aliquot.md has the measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from aliquot.lib.arrays import FloatArray, IntArray
from aliquot.placement.columns import ANY_MODEL, MODELS, SLOT, Columns, Records, ShapeRecord, model_bit
from aliquot.placement.future.history import ArrivalHistory
from aliquot.placement.plain import Kernels

if TYPE_CHECKING:
    from aliquot.placement.cluster import Cluster

SLOT_PRICE: Final = 0.3
SLOT_EXPONENT: Final = 2.0
MODEL_PRICE: Final = 2.0
MODEL_EXPONENT: Final = 3.0
TURNOVER: Final = 0.2
"""Part of the cluster's capacity that departures add to the horizon when chi is 1."""
PRIOR_CPU: Final = 0.9
"""CPU of its node that a pod not seen yet is assumed to request, together with all GPUs."""


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
        return Prices(
            self._slots(kernels, columns, history, demands, horizon, chi),
            self._models(history, demands, idle[1], horizon),
            chi,
        )

    def _slots(
        self,
        kernels: Kernels,
        columns: Columns,
        history: ArrivalHistory,
        demands: list[ShapeDemand],
        horizon: float,
        chi: float,
    ) -> Records:
        several = [demand for demand in demands if demand.devices > 1]
        slots = np.zeros(len(several) + len(self._classes), dtype=SLOT)
        for row, demand in zip(slots, several, strict=False):
            record = demand.record
            row["gpus"], row["cpu_milli"], row["memory_mib"] = demand.devices, record.cpu_milli, record.memory_mib
            row["models"] = record.models
        slots[len(several) :] = self._classes
        if not history.milli or not len(slots):
            return slots
        counts = np.array([demand.count for demand in several] + [1] * len(self._classes), dtype=np.float64)
        held = ~columns.cluster.open
        capacity = kernels.capacity(columns, slots, chi, held)
        expected = counts * horizon / history.milli
        used = np.minimum(1.0, expected / np.maximum(capacity, 1e-9)) ** (SLOT_EXPONENT - chi)
        scale = self.slot_price and self.slot_price + (1.0 - self.slot_price) * chi
        slots["price"] = np.where(capacity > 0.0, scale * slots["gpus"] * 1000.0 * used, 0.0)
        return slots

    def _models(
        self, history: ArrivalHistory, demands: list[ShapeDemand], idle: IntArray, horizon: float
    ) -> FloatArray:
        price = np.zeros(MODELS, dtype=np.float64)
        here = np.flatnonzero(idle)
        here_bits = sum(1 << int(model) for model in here)
        picky = [d for d in demands if d.milli and d.record.models != ANY_MODEL and here_bits & ~d.record.models]
        if not picky or not history.milli:
            return price
        allowed = np.array([[(d.record.models >> int(m)) & 1 for m in here] for d in picky], dtype=np.float64)
        wanted = np.array([d.count * d.milli for d in picky], dtype=np.float64) * horizon / history.milli
        share = allowed * idle[here]
        total = share.sum(axis=1, keepdims=True)
        demand = (wanted[:, None] * np.divide(share, total, out=np.zeros_like(share), where=total > 0.0)).sum(axis=0)
        price[here] = self.model_price * np.minimum(1.0, demand / idle[here]) ** MODEL_EXPONENT
        return price
