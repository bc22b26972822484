"""What arrived so far: counts by shape, sums, and how fast pods leave.

Only arrivals already seen are in it. It is a window of the last arrivals, which bounds its memory; a running sum that
decays tells whether the cluster lives (pods leave about as fast as they come) or only fills.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from aliquot.lib.arrays import IntArray
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import PPM, Shape

WINDOW: Final = 4096
DECAY: Final = 1024
"""Arrivals after which the churn measure has forgotten all but 1/e."""
FULL_CHURN: Final = 3.0
"""Chi is 1 as soon as a third of what arrives also leaves."""
MAX_NUMBER: Final = 2**53
"""The largest whole number that every reader of JSON keeps."""
_FIELDS: Final = ("whole", "rest_milli", "gpu_mib", "gpu_mem_ppm", "models", "cpu_milli", "memory_mib")


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
            self._forget(int(self._ring[at]))
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
                self._drop_strangers()
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
        with_gpus = np.isin(seen, self._gpu_numbers())
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
        return {
            "shapes": [{name: _plain(getattr(self._shapes[n], name)) for name in _FIELDS} for n in place],
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
        history._arrived_milli, history._departed_milli = (
            _amount(record[name]) for name in ("arrived_milli", "departed_milli")
        )
        return history

    def _recent(self) -> IntArray:
        """Shapes of the arrivals in the window, the oldest first."""
        if self.arrivals < self.window:
            return self._ring[: self.arrivals]
        return np.roll(self._ring, -(self.arrivals % self.window))

    def _gpu_numbers(self) -> IntArray:
        return np.array([n for n in self._counts if self._shapes[n].devices], dtype=np.int64)

    def _drop_strangers(self) -> None:
        """Forget shapes that were asked about and never arrived."""
        for number in [number for number in self._shapes if number not in self._counts]:
            del self._numbers[self._shapes.pop(number)]

    def _forget(self, number: int) -> None:
        shape = self._shapes[number]
        self.milli -= shape.milli
        self.cpu_milli -= shape.cpu_milli
        self._counts[number] -= 1
        if not self._counts[number]:
            del self._counts[number], self._shapes[number], self._numbers[shape]


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


def _amount(value: object) -> float:
    if not isinstance(value, int | float) or not 0.0 <= value <= MAX_NUMBER:
        raise ValueError(f"{value!r} is not an amount")
    return float(value)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _mix(values: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Sixty-four bits that look random, by counter (Steele, Lea and Flood: SplitMix64, OOPSLA'14)."""
    z = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
