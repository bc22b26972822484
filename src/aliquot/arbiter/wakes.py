"""How soon tenants wake, measured against their promise, and the neighbours whose kernels endanger it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aliquot.model.wake import longest_kernel_us
from aliquot.status.tenants import WakeStatus

from .grants import GrantState, Tenant

LEAST_WAKES: Final = 100
"""A p99 of fewer values means nothing."""


def shortest_wake_us(grants: Iterable[GrantState]) -> int:
    """The shortest time to wake in that one of these was promised; 0 for none."""
    return min((grant.gpu.wake_us for grant in grants if grant.gpu.wake_us), default=0)


def wake_status(grant: GrantState, tenants: Iterable[Tenant]) -> WakeStatus | None:
    """What was promised and measured, and the neighbour with the longest kernels if they are too long; None without a
    promise."""
    if not grant.gpu.wake_us:
        return None
    others = [(t.name, s) for t in tenants for s in t.grants if s is not grant and s.gpu.uuid == grant.gpu.uuid]
    rivals = sum(other.gpu.wake_us > 0 for _, other in others)
    allowed_us = longest_kernel_us(grant.gpu.wake_us, rivals)
    longest_us, name = max(((other.kernel_us, name) for name, other in others), default=(0, ""))
    too_long = longest_us > allowed_us
    ordered = sorted(grant.wakes_ns)
    p50, p99 = (_percentile_ms(ordered, part) for part in (0.50, 0.99))
    late = len(ordered) >= LEAST_WAKES and p99 > grant.gpu.wake_us / 1000
    return WakeStatus(
        promised_ms=grant.gpu.wake_us / 1000,
        p50_ms=p50,
        p99_ms=p99,
        count=len(ordered),
        kept=not (too_long or late),
        allowed_ms=max(0, allowed_us) / 1000,
        longest_ms=longest_us / 1000,
        longest_by=name,
    )


def _percentile_ms(ordered: list[int], part: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))] / 1e6, 3) if ordered else 0.0
