"""Recent events, in a ring of bounded length; grants are not recorded, since they are too many.

An event that repeats is one record with a count, so that a tenant that is refused or cut off again and again does not
push out what happened to others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Event = dict[str, Any]
REPEAT_NS: Final = 60_000_000_000
"""An event of the same kind about the same tenant and GPU is the same one until it has not happened for this long."""
_ADMINISTRATIVE: Final = frozenset(("tenant-added", "tenant-removed"))


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
