"""What happened in a run, kept as numbers: per job, and per step of time for the cluster."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from aliquot.lib.arrays import IntArray
from aliquot.placement.cluster import Cluster, Holding
from aliquot_lab.sim.kernel import Job, Waiting
from aliquot_lab.sim.openb.fragmentation import Fragmentation, NodeChanges

NEVER = -1


@dataclass(frozen=True)
class Stays:
    """Each job on each of its devices: from when to when, in microseconds, and how much of it; arrays of one length."""

    node: IntArray
    gpu: IntArray
    milli: IntArray
    start_us: IntArray
    end_us: IntArray


@dataclass(frozen=True)
class Outcome:
    """A run's numbers: arrays per job [J], -1 where it never happened, and per step [T], the state right after it."""

    jobs: Sequence[Job]
    end_us: int
    gpus: int
    placed_us: IntArray
    start_us: IntArray
    finish_us: IntArray
    impossible: NDArray[np.bool_]
    moves: int
    pool: dict[str, float]
    decision_ns: IntArray
    step_us: IntArray
    used_milli: IntArray
    waiting_milli: IntArray
    active_gpus: IntArray
    stays: Stays
    changes: NodeChanges

    def fragmentation(self, measure: Fragmentation) -> NDArray[np.float64]:
        """Fragmented milli-GPU after each step."""
        return self.changes.fragmentation(measure, len(self.step_us)) / measure.total


class RunRecorder:
    """Collects a run."""

    def __init__(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self._cluster = cluster
        self._gpus = int(cluster.gpu_count.sum())
        self._placed, self._start, self._finish = (np.full(len(jobs), NEVER, dtype=np.int64) for _ in range(3))
        self._impossible = np.zeros(len(jobs), dtype=bool)
        self._moves = 0
        self._decisions = array("q")
        self._columns = {name: array("q") for name in ("us", "used", "waiting_milli", "active")}
        self._changes = NodeChanges(cluster)
        self._open: dict[int, tuple[int, Holding]] = {}
        self._stays = array("q")
        self._used = 0
        self._users: dict[tuple[int, int], int] = {}

    def impossible(self, number: int) -> None:
        """A job that no empty cluster of this kind could hold."""
        self._impossible[number] = True

    def decided(self, took_ns: int) -> None:
        """One decision took so long."""
        self._decisions.append(took_ns)

    def started(self, number: int, now_us: int, delay_us: int, holding: Holding) -> None:
        """A job got a place now and runs after a delay."""
        self._placed[number], self._start[number] = now_us, now_us + delay_us
        self._take(number, now_us, holding)

    def left(self, number: int, now_us: int) -> None:
        """A job has ended."""
        self._finish[number] = now_us
        self._give(number, now_us)

    def moved(self, number: int, now_us: int, new: Holding) -> None:
        """A running job has gone from one place to another."""
        self._moves += 1
        self._give(number, now_us)
        self._take(number, now_us, new)

    def holding(self, number: int) -> Holding:
        """What a running job holds as far as was recorded."""
        return self._open[number][1]

    def step(self, now_us: int, waiting: Waiting) -> None:
        """The state after everything that happened at an event."""
        values = (now_us, self._used, waiting.milli, len(self._users))
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def outcome(self, end_us: int, pool: dict[str, float]) -> Outcome:
        """Everything, once the run is over."""
        for number in sorted(self._open):
            self._stay(number, end_us)
        columns = {name: np.array(column, dtype=np.int64) for name, column in self._columns.items()}
        stays = np.array(self._stays, dtype=np.int64).reshape(-1, len(fields(Stays)))
        return Outcome(
            jobs=self.jobs, end_us=end_us, gpus=self._gpus, placed_us=self._placed, start_us=self._start,
            finish_us=self._finish, impossible=self._impossible, moves=self._moves, pool=pool,
            decision_ns=np.array(self._decisions, dtype=np.int64), step_us=columns["us"], used_milli=columns["used"],
            waiting_milli=columns["waiting_milli"], active_gpus=columns["active"], stays=Stays(*stays.T),
            changes=self._changes,
        )  # fmt: skip

    def _take(self, number: int, now_us: int, holding: Holding) -> None:
        self._open[number] = (now_us, holding)
        self._used += holding.ask.milli
        for gpu in holding.cells:
            cell = (holding.node, gpu)
            self._users[cell] = self._users.get(cell, 0) + 1
        self._changes.note(len(self._columns["us"]), holding.node)

    def _give(self, number: int, now_us: int) -> None:
        self._stay(number, now_us)
        _, holding = self._open.pop(number)
        self._used -= holding.ask.milli
        for gpu in holding.cells:
            cell = (holding.node, gpu)
            self._users[cell] -= 1
            if not self._users[cell]:
                del self._users[cell]
        self._changes.note(len(self._columns["us"]), holding.node)

    def _stay(self, number: int, end_us: int) -> None:
        since, holding = self._open[number]
        for gpu, piece in zip(holding.cells, holding.placement.slices, strict=True):
            self._stays.extend((holding.node, gpu, piece.request_milli, since, end_us))
