"""The figures of a run: allocation, fragmentation, waiting, completion, makespan, utilisation, active GPUs.

The state between two steps is the state after the first, so means over time are exact. Waits count the jobs that
arrived after the warm-up; one that never got a place waits until the run ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aliquot.lib.arrays import FloatArray, IntArray
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import Shape
from aliquot.placement.cluster import NodeSpec
from aliquot.placement.policies.fgd import typical_shapes
from aliquot_lab.sim.kernel import CLASSES, US_PER_S, job_class
from aliquot_lab.sim.openb.fragmentation import Fragmentation
from aliquot_lab.sim.record import NEVER, Outcome

BINS: Final = 200
QUANTILES: Final = (50, 90, 99)
CURVES: Final = ("allocation_percent", "fragmentation_percent", "waiting_percent", "active_gpus")


@dataclass(frozen=True)
class RunFigures:
    """A run's figures by name, its curves (`BINS` means over equal spans of time), and the waits themselves."""

    figures: dict[str, Any]
    end_s: float
    curves: dict[str, FloatArray]
    waits_s: FloatArray
    gpu_use: FloatArray
    """Use of each GPU, 0..1, [G, BINS]."""
    gpu_names: list[str]
    decision_us: FloatArray
    users: dict[str, UserWaits]
    """By user, where the trace names any."""
    axis_s: float
    """When the last job has arrived and 99 % of those that finished have; what comes after is the tail of a few."""


@dataclass(frozen=True)
class UserWaits:
    """What one user asked for and how long it waited."""

    jobs: int
    gpu_hours: float
    mean_s: float
    p90_s: float


class Curve:
    """A quantity that changes in steps, and its means over spans of time."""

    def __init__(self, step_us: IntArray, values: FloatArray, end_us: int) -> None:
        """`values` hold from their step to the next; before the first step the quantity is 0."""
        self._at = np.concatenate(([0], step_us, [max(end_us, 1)])).astype(np.float64)
        held = np.concatenate(([0.0], np.asarray(values, dtype=np.float64)))
        self._integral = np.concatenate(([0.0], np.cumsum(held * np.diff(self._at))))

    def integral(self, from_us: float, to_us: float) -> float:
        """Quantity times microseconds."""
        low, high = np.interp([from_us, to_us], self._at, self._integral)
        return float(high - low)

    def mean(self, from_us: float, to_us: float) -> float:
        """The mean over a span; 0 for an empty one."""
        return self.integral(from_us, to_us) / (to_us - from_us) if to_us > from_us else 0.0

    def bins(self, end_us: int) -> FloatArray:
        """Means over `BINS` equal spans from 0 to the end."""
        edges = np.linspace(0, max(end_us, 1), BINS + 1)
        return np.diff(np.interp(edges, self._at, self._integral)) / np.diff(edges)


def task_mix(outcome: Outcome, models: list[str]) -> Fragmentation:
    """The fragmentation measure for the jobs of a run; a rest beside whole GPUs counts as one more whole GPU."""
    counted: Counter[Shape] = Counter()
    for job in outcome.jobs:
        ask = job.ask
        devices = (ask.devices, 0) if ask.whole else (0, ask.rest_milli)
        counted[Shape(*devices, models=ask.models, cpu_milli=ask.cpu_milli)] += 1
    return Fragmentation(typical_shapes(counted), models)


def measured(outcome: Outcome, nodes: Sequence[NodeSpec], counted_from: int = 0) -> RunFigures:
    """Work out a run's figures; the jobs before `counted_from` are left out of means and waits."""
    arrive = np.array([job.arrive_us for job in outcome.jobs], dtype=np.int64)
    from_us, to_us = int(arrive[counted_from]), max(int(arrive[-1]), int(arrive[counted_from]) + 1)
    if to_us - from_us <= 1:  # everything arrives at once: look at the whole run
        to_us = max(outcome.end_us, from_us + 1)
    capacity = outcome.gpus * MILLI
    models = list(dict.fromkeys(device.model for node in nodes for device in node.gpus))
    frag = 100 * outcome.fragmentation(task_mix(outcome, models)) / capacity
    values = (100 * outcome.used_milli / capacity, frag, 100 * outcome.waiting_milli / capacity, outcome.active_gpus)
    curves = {
        name: Curve(outcome.step_us, np.asarray(value, dtype=np.float64), outcome.end_us)
        for name, value in zip(CURVES, values, strict=True)
    }
    figures: dict[str, Any] = {name: _round(curve.mean(from_us, to_us)) for name, curve in curves.items()}
    finish = outcome.finish_us
    makespan_us = int(finish.max(initial=0)) if (finish != NEVER).any() else outcome.end_us
    figures["utilisation_percent"] = _round(curves["allocation_percent"].mean(0, makespan_us))
    figures["makespan_s"] = _round(makespan_us / US_PER_S)
    waits = waits_s(outcome, arrive)
    counts = ~outcome.impossible
    counts[:counted_from] = False
    figures |= _waiting(outcome, waits, counts) | _completion(outcome, arrive, counts, makespan_us)
    figures |= {"moves": outcome.moves, **{name: _round(value) for name, value in outcome.pool.items()}}
    bins = {name: np.round(curve.bins(outcome.end_us), 4) for name, curve in curves.items()}
    gpu_names = [f"{node.name}/{index}" for node in nodes for index in range(len(node.gpus))]
    use = gpu_use(outcome, [len(node.gpus) for node in nodes], outcome.end_us)
    decisions = outcome.decision_ns / 1000
    users = _by_user(outcome, waits, counts)
    done = finish[finish != NEVER]
    axis_us = max(int(arrive[-1]), int(np.percentile(done, 99)) if len(done) else outcome.end_us, 1)
    return RunFigures(
        figures, outcome.end_us / US_PER_S, bins, waits[counts], use, gpu_names, decisions, users,
        min(axis_us, max(outcome.end_us, 1)) / US_PER_S,
    )  # fmt: skip


def _by_user(outcome: Outcome, waits: FloatArray, counts: NDArray[np.bool_]) -> dict[str, UserWaits]:
    """The users by what they asked for, the largest first; empty where no job names one."""
    theirs: dict[str, list[int]] = {}
    for number in np.flatnonzero(counts).tolist():
        theirs.setdefault(outcome.jobs[number].user, []).append(number)
    if not any(theirs):
        return {}
    users = {}
    for user, numbers in theirs.items():
        jobs = [outcome.jobs[number] for number in numbers]
        hours = sum(job.ask.milli * job.service_us for job in jobs) / MILLI / US_PER_S / 3600
        some = waits[numbers]
        users[user] = UserWaits(len(jobs), _round(hours), _round(some.mean()), _round(np.percentile(some, 90)))
    return dict(sorted(users.items(), key=lambda entry: (-entry[1].gpu_hours, entry[0])))


def _round(value: float) -> float:
    return round(float(value), 4)


def waits_s(outcome: Outcome, arrive: IntArray) -> FloatArray:
    """How long each job waited; one that never got a place waits until the run ends."""
    started = np.where(outcome.start_us == NEVER, outcome.end_us, outcome.start_us)
    return np.asarray(np.maximum(started - arrive, 0) / US_PER_S)


def _waiting(outcome: Outcome, waits: FloatArray, counts: NDArray[np.bool_]) -> dict[str, Any]:
    kinds = np.array([job_class(job.ask) for job in outcome.jobs])
    some = waits[counts]
    figures: dict[str, Any] = {"wait_mean_s": _round(some.mean() if len(some) else 0)}
    for percent in QUANTILES:
        figures[f"wait_p{percent}_s"] = _round(np.percentile(some, percent) if len(some) else 0)
    figures["wait_max_s"] = _round(some.max(initial=0))
    for kind in CLASSES:
        of_kind = waits[counts & (kinds == kind)]
        if len(of_kind):
            figures[f"wait_mean_{kind}_s"] = _round(of_kind.mean())
            figures[f"wait_p90_{kind}_s"] = _round(np.percentile(of_kind, 90))
    return figures


def _completion(outcome: Outcome, arrive: IntArray, counts: NDArray[np.bool_], makespan_us: int) -> dict[str, Any]:
    done = outcome.finish_us != NEVER
    took = (outcome.finish_us - arrive)[done & counts] / US_PER_S
    return {
        "completion_mean_s": _round(took.mean() if len(took) else 0),
        "throughput_per_min": _round(60 * US_PER_S * int(done.sum()) / makespan_us if makespan_us else 0),
        "jobs": len(outcome.jobs),
        "placed": int((outcome.placed_us != NEVER).sum()),
        "finished": int(done.sum()),
        "waiting_at_end": int(((outcome.placed_us == NEVER) & ~outcome.impossible).sum()),
        "impossible": int(outcome.impossible.sum()),
    }


def gpu_use(outcome: Outcome, counts: Sequence[int], end_us: int) -> FloatArray:
    """How much of each GPU was given away, mean over `BINS` equal spans: [GPUs, BINS], in the order of the nodes.

    `counts` has the number of GPUs of each node.
    """
    offset = np.concatenate(([0], np.cumsum(counts)))
    width = max(end_us, 1) / BINS
    stays = outcome.stays
    at, milli = offset[stays.node] + stays.gpu, stays.milli.astype(np.float64)
    starts, ends = stays.start_us / width, stays.end_us / width
    # Each edge changes the rate from its place inside a bin on: part of it counts in this bin, all of it in the next.
    change = np.zeros((int(offset[-1]), BINS + 2))
    for edges, sign in ((starts, 1), (ends, -1)):
        whole = np.minimum(edges.astype(np.int64), BINS)
        inside = edges - whole
        np.add.at(change, (at, whole), sign * milli * (1 - inside))
        np.add.at(change, (at, whole + 1), sign * milli * inside)
    given = np.clip(np.cumsum(change[:, :BINS], axis=1) / MILLI, 0, 1)
    return np.asarray(np.round(given, 3), dtype=np.float64)
