"""How long the pool keeps idle vGPUs, and how many it has ready.

Source: KubeShare (HPDC'20), 4.4: a vGPU is given back at once (on-demand), some are always kept (reservation), or an
idle one is kept for a while in case it is used again (hybrid). Pure: times come from the caller, which is the
operator of a cluster or the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from aliquot.model.errors import UserError

_MAX: Final = 100_000
Key = TypeVar("Key", str, tuple[int, int])
"""What names a vGPU: its name in a cluster, node and device in the simulator."""


class BadPoolPolicy(UserError):
    """The text names no pool policy."""


@dataclass(frozen=True)
class PoolPolicy:
    """At least `ready` idle vGPUs are kept; each other one for `idle_s` seconds."""

    name: str = "on-demand"
    ready: int = 0
    idle_s: float = 0.0

    def surplus(self, idle: Mapping[Key, float]) -> list[Key]:
        """Which of the idle vGPUs (key -> seconds that it has been idle) to give back, the longest idle first."""
        ordered = sorted(idle, key=lambda key: (-idle[key], key))
        spare = len(ordered) - self.ready
        return [key for key in ordered[: max(spare, 0)] if idle[key] >= self.idle_s]

    def missing(self, idle: int, creating: int) -> int:
        """How many more to make; `creating` are being made and are not yet assigned."""
        return max(0, self.ready - idle - creating)

    def next_s(self, idle: Mapping[Key, float]) -> float | None:
        """Seconds until `surplus` returns more with no other change; None for never."""
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
    if name in ("reservation", "hybrid") and number.isdigit() and int(number) <= _MAX:
        return PoolPolicy(name, int(number)) if name == "reservation" else PoolPolicy(name, 0, float(number))
    raise BadPoolPolicy(
        f'pool policy "{text}" is not known; write on-demand, reservation:2 (idle vGPUs to keep) or hybrid:300 '
        "(seconds to keep an idle one)"
    )
