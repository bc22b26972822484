"""Why a request waits or where it would be placed, without delaying the program that owns the ledger.

Whether it fits is determined in the ledger itself, while it does not change: some milliseconds. Why it does not fit
takes 57 ms at 1,000 nodes and grows with them, and an open page asks again each second; so the calling thread computes
it in a copy of the ledger, one request at a time, and the answer is valid for as long as the copy is used.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster
from aliquot.placement.decide import Decider
from aliquot.placement.explain import NOWHERE, PlacementExplanation, explain_fitting, explain_waiting

Calmly = Callable[[Callable[[], Any]], Any]
COPY_S: Final = 5.0
COPY_PART: Final = 20
"""The ledger is copied no more often than would take a twentieth of its owner's time."""


class Explaining:
    """Explains by a ledger; `calmly` runs a function while the ledger does not change. May be used from any thread."""

    def __init__(self, decider: Decider, calmly: Calmly, clock: Callable[[], float] = time.monotonic) -> None:
        self._decider = decider
        self._calmly = calmly
        self._clock = clock
        self._lock = threading.Lock()
        self._copy: Cluster | None = None
        self._good_until_s = -math.inf
        self._waiting: dict[tuple[Ask, str, tuple[tuple[str, str], ...]], PlacementExplanation] = {}

    def explain(self, ask: Ask, namespace: str = "", barred: Mapping[str, str] = NOWHERE) -> PlacementExplanation:
        """The explanation of a request that may not go to the nodes in `barred`, for the reasons given there."""
        with self._lock:
            found: PlacementExplanation | None = self._calmly(lambda: self._look(ask, namespace, barred))
            if found is not None:
                return found
            key = (ask, namespace, tuple(sorted(barred.items())))
            if key not in self._waiting:
                assert self._copy is not None
                self._waiting[key] = explain_waiting(self._decider, ask, self._copy, namespace, barred)
            return self._waiting[key]

    def forget(self) -> bool:
        """Drop outdated answers; called now and then."""
        if self._copy is None or self._clock() < self._good_until_s or not self._lock.acquire(blocking=False):
            return False
        self._copy = None
        self._waiting.clear()
        self._lock.release()
        return True

    def _look(self, ask: Ask, namespace: str, barred: Mapping[str, str]) -> PlacementExplanation | None:
        found = explain_fitting(self._decider, ask, namespace, barred)
        began_s = self._clock()
        if found is None and (self._copy is None or began_s >= self._good_until_s):
            self._copy = self._decider.cluster.copy()
            self._waiting.clear()
            now_s = self._clock()
            self._good_until_s = now_s + max(COPY_S, COPY_PART * (now_s - began_s))
        return found
