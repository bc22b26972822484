"""Recent events and recent turns, in rings of bounded length.

Grants are turns and no events, since they are too many. An event that repeats is one record with a count, so that a
tenant that is refused or cut off again and again does not push out what happened to others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from .records import GpuTurns, HeldTurn

Event = dict[str, Any]
REPEAT_NS: Final = 60_000_000_000
"""An event of the same kind about the same tenant and GPU is the same one until it has not happened for this long."""
_ADMINISTRATIVE: Final = frozenset(("tenant-added", "tenant-removed"))
MAX_TURN_MARKS: Final = 4096
"""Beginnings and ends of turns that are kept of one GPU."""
SHOWN_NS: Final = 60_000_000_000


class EventRing:
    """The last events, oldest first, and those who follow along."""

    def __init__(self, kept: int) -> None:
        self._events: dict[Any, Event] = {}
        self._max = kept
        self._count = 0
        self.followers: set[Callable[[Event], None]] = set()

    def emit(self, kind: str, now_ns: int, **facts: Any) -> None:
        """Keep one event and hand it to the followers; a repeated one is counted, and handed on at 2, 4, 8 times."""
        self._count += 1
        key = self._count if kind in _ADMINISTRATIVE else (kind, facts.get("tenant"), facts.get("gpu"))
        before = self._events.get(key)
        if before is not None and now_ns - before["last_ns"] <= REPEAT_NS:
            before["count"] += 1
            before["last_ns"] = now_ns
            if before["count"].bit_count() == 1:
                self._tell(before)
            return
        event: Event = {"id": self._count, "now_ns": now_ns, "last_ns": now_ns, "kind": kind, "count": 1, **facts}
        self._events.pop(key, None)
        self._events[key] = event
        if len(self._events) > self._max:
            del self._events[next(iter(self._events))]
        self._tell(event)

    def _tell(self, event: Event) -> None:
        for follower in tuple(self.followers):
            follower(event)

    def recent(self) -> list[Event]:
        """What is kept, oldest first."""
        return list(self._events.values())


class TurnLog:
    """The beginnings of turns, and the moments from which on no tenant held the GPU.

    A hand-over costs two appends. Nothing is computed until it is queried.
    """

    def __init__(self) -> None:
        self._of: dict[str, deque[tuple[int, str]]] = {}

    def began(self, gpu: str, tenant: str, now_ns: int) -> None:
        """A tenant was granted a GPU; the turn before it has ended."""
        log = self._of.get(gpu)
        if log is None:
            log = self._of[gpu] = deque(maxlen=MAX_TURN_MARKS)
        log.append((now_ns, tenant))

    def ended(self, gpu: str, tenant: str, now_ns: int) -> None:
        """The tenant's work has ended; nothing changes if another one was granted the GPU meanwhile."""
        log = self._of.get(gpu)
        if log and log[-1][1] == tenant:
            log.append((now_ns, ""))

    def last_minute(self, gpu: str, now_ns: int) -> GpuTurns:
        """The turns that ended less than a minute ago, and the one that has not."""
        log = self._of.get(gpu) or ()
        since_ns = now_ns - SHOWN_NS
        known_ns = log[0][0] if isinstance(log, deque) and len(log) == MAX_TURN_MARKS else since_ns
        ends = [*(at_ns for at_ns, _ in log), now_ns][1:]
        turns = [
            HeldTurn(tenant, max(began_ns, since_ns), ended_ns)
            for (began_ns, tenant), ended_ns in zip(log, ends, strict=True)
            if tenant and ended_ns > since_ns
        ]
        return GpuTurns(now_ns, max(known_ns, since_ns), turns)
