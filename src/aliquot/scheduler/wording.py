"""Alternate the refusal message so that a pod woken by a stale event is retried once.

A refused pod sleeps at kube-scheduler until something changes in the cluster; then the filter is called at once. If the
event of a freed share reaches kube-scheduler before it reaches the ledger, a refusal lets the pod sleep beside free
room
until the next change, which a quiet cluster may not have for minutes. But kube-scheduler writes the refusal into the
pod's condition, and if the text is new, its own write is such a change: it calls again some milliseconds later,
when the ledger is up to date. So a pod that slept is refused with a different message than the last time
(docs/decisions/0021).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from aliquot.kube.clock import Clock, RealClock
from aliquot.lib.bounded import Bounded

SLEPT_S: Final = 1.0
"""A pod that is filtered again after this time slept; kube-scheduler's retry comes sooner."""
MAX_REMEMBERED: Final = 10_000


@dataclass
class Wording:
    """Remembers how pods were refused last, and when."""

    clock: Clock = field(default_factory=RealClock)
    _last: Bounded[str, tuple[bool, float]] = field(default_factory=lambda: Bounded(MAX_REMEMBERED))

    def other(self, key: str) -> bool:
        """Whether the pod, about to be refused, is to be refused in the other of the two wordings."""
        now_s = self.clock.monotonic_s()
        other, at_s = self._last.pop(key, (True, float("-inf")))
        other = other != (now_s - at_s > SLEPT_S)
        self._last[key] = (other, now_s)
        return other
