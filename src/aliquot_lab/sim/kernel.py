"""Virtual time: events in the order of their time, and at one time in the order of their kind and of being planned.

Nothing here looks at a clock or draws a number, so equal inputs give equal runs to the byte. Time is an integer of
microseconds from the start of the simulation.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import IntEnum
from typing import Final

US_PER_S: Final = 1_000_000


def us(seconds: float) -> int:
    """Seconds as microseconds, to the nearest."""
    return round(seconds * US_PER_S)


def s(microseconds: int) -> float:
    """Microseconds as seconds."""
    return microseconds / US_PER_S


class Kind(IntEnum):
    """The order of events at the same moment: departures before arrivals."""

    DEPARTURE = 0
    ARRIVAL = 1


class Kernel:
    """A queue of things to happen, and the time of the one that is happening."""

    def __init__(self) -> None:
        self.now_us = 0
        self._planned = 0
        self._events: list[tuple[int, int, int, Callable[[], None]]] = []

    def at(self, when_us: int, kind: Kind, happen: Callable[[], None]) -> None:
        """Plan something for a time that is not past.

        Raises:
            ValueError: the time is past.
        """
        if when_us < self.now_us:
            raise ValueError(f"{when_us} us is before now, {self.now_us} us")
        self._planned += 1
        heapq.heappush(self._events, (when_us, kind, self._planned, happen))

    def after(self, delay_us: int, kind: Kind, happen: Callable[[], None]) -> None:
        """Plan something for so much later."""
        self.at(self.now_us + delay_us, kind, happen)

    def run(self, until_us: int | None = None) -> None:
        """Let things happen until nothing is planned, or up to and including a time, at which the clock then stands."""
        while self._events and (until_us is None or self._events[0][0] <= until_us):
            self.now_us, _, _, happen = heapq.heappop(self._events)
            happen()
        if until_us is not None:
            self.now_us = max(self.now_us, until_us)
