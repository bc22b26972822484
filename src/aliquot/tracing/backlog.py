"""The bounds of spans that wait for their receiver, and the count of those that it did not get."""

from __future__ import annotations

import threading
from typing import Final

from prometheus_client import Counter

from aliquot.lib.log import Logger

log = Logger("tracing")
QUEUE: Final = 2048
"""Spans that wait or are being sent."""
BATCH: Final = 512
EVERY_MS: Final = 1000
TIMEOUT_S: Final = 5.0
"""For one batch in all, with its retries."""


class Backlog:
    """How many spans wait or are being sent; what does not fit is dropped. From any thread."""

    def __init__(self) -> None:
        self.dropped = Counter(
            "aliquot_tracing_spans_dropped_total",
            "Spans that the receiver did not get, where tracing is on.",
            registry=None,
        )
        self._lock = threading.Lock()
        self._count = 0
        self._delivers = True

    def admit(self) -> bool:
        """Whether one more fits."""
        with self._lock:
            if self._count < QUEUE:
                self._count += 1
                return True
        self.dropped.inc()
        return False

    def sent(self, count: int, *, delivered: bool, endpoint: str) -> None:
        """So many have left the queue; a change between delivered and not is logged once."""
        with self._lock:
            self._count -= count
            changed, self._delivers = self._delivers != delivered, delivered
        if not delivered:
            self.dropped.inc(count)
        if changed and delivered:
            log.info("spans are delivered again to %s", endpoint)
        elif changed:
            log.warning("spans are not delivered to %s and are dropped; scheduling goes on without them", endpoint)
