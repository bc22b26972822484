"""How long the pool keeps GPUs that nobody is on, and how many it has ready.

Source: KubeShare (HPDC'20), 4.4: a vGPU is given back at once (on-demand), some are always kept (reservation), or it is
kept for a while in case somebody comes (hybrid). Pure: times come from the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aliquot.model.errors import UserError

_MOST: Final = 100_000


class BadPoolPolicy(UserError):
    """A pool policy that can not be read."""


@dataclass(frozen=True)
class PoolPolicy:
    """`ready` idle vGPUs are kept whatever happens; the others `idle_s` seconds."""

    name: str = "on-demand"
    ready: int = 0
    idle_s: float = 0.0

    def surplus(self, idle: Mapping[str, float]) -> list[str]:
        """Which of the idle vGPUs (name -> seconds that it is idle) to give back, longest idle first."""
        ordered = sorted(idle, key=lambda name: (-idle[name], name))
        spare = len(ordered) - self.ready
        return [name for name in ordered[: max(spare, 0)] if idle[name] >= self.idle_s]

    def missing(self, idle: int, creating: int) -> int:
        """How many more to make, with so many idle and so many that nobody waits for under way."""
        return max(0, self.ready - idle - creating)

    def next_s(self, idle: Mapping[str, float]) -> float | None:
        """Seconds until `surplus` says something new by itself; None for never."""
        if len(idle) <= self.ready:
            return None
        waits = [self.idle_s - since_s for since_s in idle.values() if since_s < self.idle_s]
        return min(waits) if waits else None


def pool_policy(text: str) -> PoolPolicy:
    """`on-demand`, `reservation:N` or `hybrid:SECONDS`.

    Raises:
        BadPoolPolicy: anything else.
    """
    name, _, number = text.partition(":")
    if name == "on-demand" and not number:
        return PoolPolicy()
    if name in ("reservation", "hybrid") and number.isdigit() and int(number) <= _MOST:
        return PoolPolicy(name, int(number)) if name == "reservation" else PoolPolicy(name, 0, float(number))
    raise BadPoolPolicy(
        f'pool policy "{text}" is not known; write on-demand, reservation:2 (idle vGPUs to keep) or hybrid:300 '
        "(seconds to keep an idle one)"
    )
