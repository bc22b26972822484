"""Recent events, in a ring of bounded length; grants are not recorded, since they are too many."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

Event = dict[str, Any]


class EventRing:
    """The last events, oldest first, and those who follow along."""

    def __init__(self, kept: int) -> None:
        self._ring: deque[Event] = deque(maxlen=kept)
        self._count = 0
        self.followers: set[Callable[[Event], None]] = set()

    def emit(self, kind: str, now_ns: int, **facts: Any) -> None:
        """Keep one event and hand it to the followers."""
        self._count += 1
        event: Event = {"id": self._count, "now_ns": now_ns, "kind": kind, **facts}
        self._ring.append(event)
        for follower in tuple(self.followers):
            follower(event)

    def recent(self) -> list[Event]:
        """What is kept, oldest first."""
        return list(self._ring)
