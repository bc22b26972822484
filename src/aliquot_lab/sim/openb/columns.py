"""The benchmark's three tables: a value for each percent of GPU request that has arrived, 0 to 130.

An event is a pod's arrival, CPU-only pods and pods that fail included. Column k is the mean over the events at which
the GPU request arrived so far, rounded to a whole percent of the cluster (half to even), is k; where there is none,
over those at most one percent away.

Source: FGD (USENIX ATC'23) artifact, analysis of `analysis_allo`, `analysis_frag` and `analysis_frag_ratio`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from aliquot.lib.arrays import FloatArray, IntArray

LAST_COLUMN: Final = 130


@dataclass(frozen=True)
class TaskEvents:
    """One run, an entry per arrival: milli-GPU arrived with it, used and idle after it, fragmented times `weight`."""

    arrived_milli: IntArray
    used_milli: IntArray
    frag_numerator: IntArray
    frag_denominator: int
    gpus: int


@dataclass(frozen=True)
class ResultColumns:
    """Values 0..130 of one run; NaN where no event is near."""

    allocation: FloatArray
    frag: FloatArray
    frag_ratio: FloatArray


def columns(events: TaskEvents) -> ResultColumns:
    """The three rows of one run."""
    arrived = np.rint(events.arrived_milli / events.gpus / 10).astype(np.int64)
    allocated: FloatArray = np.asarray(np.round(events.used_milli / events.gpus / 10, 2), dtype=np.float64)
    exact = events.frag_numerator / events.frag_denominator
    frag_milli = np.round(exact, 2)
    idle = events.gpus * 1000 - events.used_milli
    ratio = np.round(np.divide(100 * exact, idle, out=np.zeros(len(idle)), where=idle > 0), 2)
    return ResultColumns(
        np.round(_means(arrived, allocated), 2),
        np.round(100 * _means(arrived, np.asarray(frag_milli, dtype=np.float64)) / 1000 / events.gpus, 2),
        _means(arrived, np.asarray(ratio, dtype=np.float64)),
    )


def _means(arrived: IntArray, values: FloatArray) -> FloatArray:
    out = np.full(LAST_COLUMN + 1, np.nan)
    for column in range(LAST_COLUMN + 1):
        at = arrived == column
        if not at.any():
            at = np.abs(arrived - column) <= 1
        if at.any():
            out[column] = values[at].mean()
    return out
