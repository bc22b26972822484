"""Two wordings of a refusal, so that kube-scheduler looks twice at a pod that it wakes.

Who was refused sleeps at kube-scheduler until something changes in the cluster; then it is asked about at once. If the
news of a freed share reaches kube-scheduler before it reaches the books, a refusal lets the pod sleep beside free room
until the next change, which a quiet cluster may not have for minutes. But kube-scheduler writes the refusal into the
pod's condition, and if that says something new, its own write is such a change: it asks again some milliseconds later,
when the books have heard. So a pod that slept is refused in other words than the last time (docs/decisions/0021).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from aliquot.kube.clock import Clock, RealClock
from aliquot.lib.bounded import Bounded

SLEPT_S: Final = 1.0
"""Who is asked about after this time slept; kube-scheduler's second look comes sooner."""
MOST_REMEMBERED: Final = 10_000


@dataclass
class Wording:
    """Remembers how pods were refused last, and when."""

    clock: Clock = field(default_factory=RealClock)
    _last: Bounded[str, tuple[bool, float]] = field(default_factory=lambda: Bounded(MOST_REMEMBERED))

    def other(self, key: str) -> bool:
        """Whether the pod, about to be refused, is to be refused in the other of the two wordings."""
        now_s = self.clock.monotonic_s()
        other, at_s = self._last.pop(key, (True, float("-inf")))
        other = other != (now_s - at_s > SLEPT_S)
        self._last[key] = (other, now_s)
        return other
