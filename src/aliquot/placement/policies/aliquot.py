"""Aliquot, the default: expected future fill.

A pod goes where the milli-GPU that arrivals to come would still put on the cluster drops least. What will come is
learned from what came: sequences drawn from the last arrivals are placed one by one on a copy of each node, and what
fits is the node's value. Two prices look beyond the node: slots for pods of several GPUs, and scarce GPU models.

A pod that fits somewhere is placed, nothing is moved, and no arrival is known before it comes. Learning happens between
arrivals as long as `idle` is called; else at the learning points, on the way of one decision. The first arrivals of a
cluster say too little of those to come: they are packed as `binpack` does.

Source: this project, docs/policy-aliquot.md; it continues Weng et al., USENIX ATC'23 (FGD), which looks one arrival
ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import numpy as np

from aliquot.lib.arrays import FloatArray, IntArray
from aliquot.model.quantities import MILLI
from aliquot.model.requests import BadRequest
from aliquot.placement.asks import Ask, Shape
from aliquot.placement.cluster import Cluster
from aliquot.placement.demand import WINDOW, ArrivalHistory, Pricing, ShapeDemand
from aliquot.placement.fits import hold_rest
from aliquot.placement.kernels import VISIT, Columns, Future, Records, ShapeRecord, kernels, shape_record
from aliquot.placement.policies.binpack import Binpack
from aliquot.placement.policy import BadMemory, BasePolicy
from aliquot.topology import singular

QUANTUM_MILLI: Final = 20.0
LEARN_EVERY: Final = 1024
LEAST_IDLE: Final = 0.005
"""Part of the cluster that counts as idle at least when it is asked whether idle has moved."""
SCARCE_CPU: Final = (0.85, 1.05)
SHORT_CPU: Final = (1.05, 1.20)
"""CPU wanted over CPU left, where scarcity begins and where it is full."""
PATIENCE: Final = 128
PATIENCE_PART: Final = 8
"""Arrivals in a row, at most and as a part of those seen, for which what is due waits for the next idle time."""
NEVER_IDLE: Final = 1 << 62
COLD_ARRIVALS: Final = 16
"""So many arrivals are packed before what was learned decides."""
SEED: Final = 20231107
MEMORY_VERSION: Final = 1
VALUE_US: Final = 2.5
SCAN_US: Final = 10.0
TEND_PART: Final = 3
REFRESH_US: Final = 500.0
LEARN_US: Final = 1000.0
"""What the steps of learning take, about; slices are counted, not timed, so that one history has one answer. A third of
what a slice has left goes to tending."""


@dataclass(frozen=True)
class Constants:
    """The constants, the same for every cluster and load; others are for ablations (docs/policy-aliquot.md)."""

    sequences: int = 32
    visits: int = 64
    long_run: float = 0.7
    """Weight of the whole sequence; the rest decays with the visits and looks at the near term."""
    long_run_scarce_cpu: float = 0.4
    long_run_no_cpu: float = 0.2
    cpu_only_visits: float = 1.0
    """Part of the CPU-only arrivals that are in the sequences where there is not CPU enough for all."""
    decay: float = 0.5
    window: int = WINDOW
    refresh: float = 0.05
    """Prices are recomputed when idle has moved by this part; in a cluster that lives by `refresh_churn`."""
    refresh_churn: float = 0.1
    slot_price: float = 0.3
    model_price: float = 2.0
    prior: bool = True
    chi: float | None = None
    """How much the cluster lives, 0 to 1; None: as it is seen to."""
    seed: int = SEED


@dataclass
class Preparation:
    """What is learned between arrivals until it is ready, and the shapes that still need scores, most frequent last."""

    future: Future
    shapes: list[Shape]


class Aliquot(BasePolicy):
    """Expected future fill; see the module and docs/policy-aliquot.md."""

    name = "aliquot"
    because = "the place where arrivals to come lose least"

    def __init__(self, constants: Constants = Constants()) -> None:
        self.constants = constants
        self._cold = Binpack()
        self._history = ArrivalHistory(constants.window)
        self._records: dict[Shape, ShapeRecord] = {}
        self._next: Preparation | None = None
        self._due = False
        self._unrested = NEVER_IDLE
        self._moved = self._idle_then = self._untended = 0
        self._turns: list[Shape] = []

    def start(self, cluster: Cluster, seed: int) -> None:
        """Forget everything and use this cluster; chance is the same for every seed."""
        super().start(cluster, seed)
        self._cold.start(cluster, seed)
        self._history = ArrivalHistory(self.constants.window)
        self._unrested = NEVER_IDLE
        self._begin()

    def arrived(self, shape: Shape) -> None:
        """Count it; learn at the learning points unless there was idle time of late, and keep prices fresh."""
        self._history.arrive(shape)
        if self._history.arrivals == COLD_ARRIVALS + 1:
            self.because = type(self).because
            self.epoch += 1
        self._look()
        self._known(shape)
        self._moved += shape.milli
        self._due = self._due or _learning_point(self._history.arrivals - 1)
        self._unrested += 1
        if self._due and self._unrested > max(1, min(PATIENCE, self._history.arrivals // PATIENCE_PART)):
            self._learn()
        elif self._stale():
            self._refresh()
        self._untended = len(self._records)

    def departed(self, shape: Shape) -> None:
        """Count it."""
        self._history.depart(shape)
        self._moved += shape.milli
        self._untended = len(self._records)

    def idle(self, budget_us: int) -> bool:
        """Learn what is due and renew prices, about so many microseconds at most; then tend a few scores.

        A caller that calls it after each arrival, or after a few, never waits for learning in a decision: new sequences
        come into use when the scores by them are ready. True while something is due; tending never is.
        """
        self._look()
        self._unrested = 0
        spent_us = 0.0
        while spent_us < budget_us and (self._due or self._stale()):
            if self._stale():
                self._refresh()
                spent_us += REFRESH_US
            elif self._next is None:
                future = self._kernels.future(self._columns.nodes, self._columns.gpus)
                future.learn(*self._sequences())
                self._price(future)
                frequent = sorted(self._history.counts(), key=lambda entry: (entry[2], entry[0]))
                self._next = Preparation(future, [shape for _, shape, _ in frequent])
                spent_us += LEARN_US
            else:
                spent_us += self._prepare(self._next, budget_us - spent_us)
        left_us = (budget_us - spent_us) / TEND_PART
        while left_us > 0.0 and self._untended:
            shapes = self._turns = self._turns or list(self._records)  # rare ones too
            tended_us, finished = self._score_ahead(self._future, shapes[-1], left_us)
            if finished:
                shapes.pop()
                self._untended -= 1
            left_us -= tended_us
        return self._due

    def scores(self, shape: Shape, nodes: IntArray) -> IntArray:
        """What a placement leaves of the future, in quanta of 20 milli-GPU; [n]."""
        self._look()
        if self._is_cold:
            return self._cold.scores(shape, nodes)
        return self._future.scores(self._columns, self._known(shape), np.ascontiguousarray(nodes), QUANTUM_MILLI)

    def choose(self, ask: Ask, node: int, fitting: Sequence[int]) -> tuple[int, ...]:
        """A fraction goes where most future is left; an untouched GPU is the one that breaks fewest groups (Singular).

        Whole GPUs are chosen by Link, with the rest on the nearest.
        """
        shape, cluster = ask.shape, self.cluster
        if shape.whole or not shape.rest_milli:
            return super().choose(ask, node, fitting)
        if self._is_cold:
            return self._cold.choose(ask, node, fitting)
        self._look()
        record = self._known(shape)
        equal: dict[tuple[int, int, int], list[int]] = {}
        for gpu in hold_rest(cluster, shape, node, fitting):
            left = cluster.free_milli.item(node, gpu), cluster.free_mib.item(node, gpu)
            equal.setdefault((*left, cluster.model.item(node, gpu)), []).append(gpu)
        best, chosen = -inf, [-1]
        for gpus in equal.values():
            option = self._future.option(self._columns, record, node, gpus[0])
            if option > best:
                best, chosen = option, gpus
        topology = cluster.spec(node).topology
        if topology is None or len(chosen) == 1 or cluster.free_milli.item(node, chosen[0]) != MILLI:
            return (chosen[0],)
        free = cluster.free_milli[node, : topology.count]
        return (singular(topology, chosen, np.flatnonzero(free < MILLI).tolist()),)

    def dump(self, part: float = 1.0) -> dict[str, Any]:
        """What was learned, fit for JSON: the last `part` of the arrivals in the window and how fast pods leave."""
        return {"version": MEMORY_VERSION, **self._history.dump(part)}

    def load(self, record: Mapping[str, Any]) -> None:
        """Go on from what a policy had learned before, on the cluster that `start` gave.

        Raises:
            BadMemory: the record is not one of `dump`; nothing is changed, and starting afresh is safe.
        """
        try:
            if record["version"] != MEMORY_VERSION:
                raise ValueError(f"version {record['version']}")
            history = ArrivalHistory.load(record, self.constants.window)
        except (LookupError, TypeError, ValueError, AttributeError, BadRequest) as fault:
            raise BadMemory(f"it is not a history of arrivals ({repr(fault)[:200]})") from fault
        self._history = history
        self._begin()

    # Inside

    def _begin(self) -> None:
        cluster, constants = self.cluster, self.constants
        self.because = self._cold.because if self._is_cold else type(self).because
        self._layout = cluster.layout
        self._kernels = kernels()
        self._columns = Columns(cluster)
        self._pricing = Pricing(constants.slot_price, constants.model_price, constants.prior)
        self._pricing.look(cluster)
        self._records = {}
        self._future = self._kernels.future(self._columns.nodes, self._columns.gpus)
        self._next = None
        self._due = False
        self._untended, self._turns = 0, []
        self._learn()

    def _prepare(self, preparation: Preparation, budget_us: float) -> float:
        """Make scores of the next shape by the sequences to come, or take them into use; microseconds spent, about."""
        if not preparation.shapes:
            self._future, self._next, self._due = preparation.future, None, False
            self.epoch += 1
            return 1.0
        spent_us, finished = self._score_ahead(preparation.future, preparation.shapes[-1], budget_us)
        if finished:
            preparation.shapes.pop()
        return spent_us

    def _score_ahead(self, future: Future, shape: Shape, budget_us: float) -> tuple[float, bool]:
        before = future.work
        budget = max(int(budget_us / VALUE_US), 1)
        finished = future.tend(self._columns, self._known(shape), self.cluster.open, QUANTUM_MILLI, budget)
        return SCAN_US + (future.work - before) * VALUE_US, finished

    def _look(self) -> None:
        """Restart with what was learned when nodes were added or removed."""
        if self._layout != self.cluster.layout:
            self._begin()

    def _known(self, shape: Shape) -> ShapeRecord:
        record = self._records.get(shape)
        if record is None:
            record = self._records[shape] = shape_record(self.cluster, shape, self._history.number(shape))
        return record

    @property
    def _chi(self) -> float:
        return self._history.chi if self.constants.chi is None else self.constants.chi

    @property
    def _is_cold(self) -> bool:
        return self._history.arrivals <= COLD_ARRIVALS

    def _stale(self) -> bool:
        """Whether idle has moved enough for new prices; looked at only when it may have."""
        c = self.constants
        least = c.refresh + (c.refresh_churn - c.refresh) * self._chi
        least *= max(self._idle_then, self._pricing.capacity_milli * LEAST_IDLE)
        least = max(least, 1.0)
        if self._moved < least:
            return False
        idle, _ = self._kernels.idle(self._columns)
        if abs(idle - self._idle_then) >= least:
            return True
        self._moved = abs(idle - self._idle_then)
        return False

    def _refresh(self) -> None:
        self._price(self._future)
        if self._next is not None:
            self._price(self._next.future)
        self.epoch += 1

    def _price(self, future: Future) -> None:
        idle = self._kernels.idle(self._columns)
        if len(self._records) > 2 * self._history.shapes + 64:
            self._records = {}
        demands = [
            ShapeDemand(self._known(shape), shape.devices, shape.milli, count)
            for _, shape, count in self._history.counts()
        ]
        prices = self._pricing.prices(self._kernels, self._columns, self._history, demands, idle, self._chi)
        future.price(prices.slots, prices.model_price, prices.chi)
        self._idle_then, self._moved = idle[0], 0

    def _learn(self) -> None:
        """Learn at once, on the way of a decision."""
        self._next, self._due = None, False
        self._future.learn(*self._sequences())
        self._refresh()

    def _sequences(self) -> tuple[Records, FloatArray]:
        c = self.constants
        scarce, short = self._cpu_shortage()
        numbers = self._history.draws(c.sequences * c.visits, c.seed, c.cpu_only_visits * short)
        if not len(numbers):
            return np.zeros((0, c.visits), dtype=VISIT), np.zeros(c.visits)
        known = {number: shape for number, shape, _ in self._history.counts()}
        unique, where = np.unique(numbers, return_inverse=True)
        table = np.zeros(len(unique), dtype=VISIT)
        sizes = self._columns.size_mib[self._columns.size_mib > 0]
        size = int(sizes.max()) if len(sizes) else 0
        for row, number in zip(table, unique.tolist(), strict=True):
            shape = known[number]
            row["cpu_milli"] = min(shape.cpu_milli, 2**31 - 1)
            row["worth_milli"] = min(shape.milli, 2**31 - 1)
            if shape.rest_milli:  # what the shared part takes: of compute or memory, whichever is more
                by_memory = (
                    -(-shape.gpu_mib * MILLI // size) if size and shape.gpu_mib else -(-shape.gpu_mem_ppm // 1000)
                )
                row["need_milli"] = min(max(shape.rest_milli, by_memory), MILLI)
            row["whole"], row["models"] = min(shape.whole, 2**15 - 1), self._known(shape).models
        # A long run of all alike, and a near term that halves with each visit.
        f = c.long_run - (c.long_run - c.long_run_scarce_cpu) * scarce
        f -= max(f - c.long_run_no_cpu, 0.0) * short
        decayed = c.decay ** np.arange(1, c.visits + 1)
        weights = f + (1.0 - f) * np.where(decayed < 0.01, 0.0, decayed)
        return table[where].reshape(c.sequences, c.visits), weights

    def _cpu_shortage(self) -> tuple[float, float]:
        """How far CPU is scarce, and how far there is not enough of it for all; 0 to 1 each.

        Both look at the CPU that arrivals would want while the idle GPUs fill, over the CPU that is left. The second
        needs the evidence of a thousand arrivals.
        """
        history = self._history
        idle, _ = self._kernels.idle(self._columns)
        cpu_left = int(self.cluster.cpu_free[self.cluster.open].sum())
        rho = history.cpu_milli / max(history.milli, 1) * idle / max(cpu_left, 1)
        short = _ramp(rho, *SHORT_CPU) if history.arrivals > LEARN_EVERY else 0.0
        return _ramp(rho, *SCARCE_CPU), short


def _ramp(value: float, low: float, high: float) -> float:
    """0 up to `low`, 1 from `high` on, straight between."""
    return min(max((value - low) / (high - low), 0.0), 1.0)


def _learning_point(arrivals: int) -> bool:
    """Before arrivals 0, 16, 32, 64 and so on to 1024, then every 1024."""
    if arrivals >= LEARN_EVERY:
        return arrivals % LEARN_EVERY == 0
    return arrivals == 0 or (arrivals >= 16 and arrivals & (arrivals - 1) == 0)
