"""In how many windows of the last hour the promise was kept, from the arbiter's counts.

The arbiter evaluates every window in which a tenant wanted the GPU, as `aliquot.tokens.account.Kept` says, and counts
since the tenant was registered. Here the counts of two readings are subtracted. At the first reading all earlier counts
are dated to that moment, so that a page that has just been opened shows them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from aliquot.status.tenants import TenantStatus

SPAN_S: Final = 3600.0
MAX_READINGS: Final = 3600
"""The number of readings in an hour, a second apart; a node with a slow clock makes no more."""
MAX_WINDOWS: Final = 10**9
"""The maximum a node may report; a year has two million."""


@dataclass(slots=True)
class _Tenant:
    windows: int = 0  # the counts of the last reading: all windows, and those in which the promise was kept
    windows_kept: int = 0
    readings: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=MAX_READINGS))
    """The time, and by how many windows both counts grew since the previous reading."""


class PromiseHistory:
    """Windows of every tenant of every GPU, for the last hour."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._tenants: dict[tuple[str, str], _Tenant] = {}

    def add(self, gpu: str, status: TenantStatus, now_ns: int) -> None:
        """Add a reading of a tenant. Decreased counts (a new tenant of that name, a restarted arbiter) begin at 0."""
        windows = min(max(0, status.promise.windows), MAX_WINDOWS)
        kept = min(max(0, status.promise.kept), windows)
        known = self._tenants.setdefault((gpu, status.name), _Tenant())
        if windows < known.windows or kept < known.windows_kept or windows - known.windows < kept - known.windows_kept:
            known.windows = known.windows_kept = 0
        if windows > known.windows:
            known.readings.append((now_ns, windows - known.windows, kept - known.windows_kept))
        known.windows, known.windows_kept = windows, kept
        while known.readings and known.readings[0][0] < now_ns - SPAN_S * 1e9:
            known.readings.popleft()

    def kept_percent(self, gpu: str, tenant: str) -> tuple[float | None, int]:
        """Percent of the windows in which the promise was kept, and their number."""
        known = self._tenants.get((gpu, tenant))
        count = sum(windows for _, windows, _ in known.readings) if known is not None else 0
        if known is None or not count:
            return None, 0
        return 100.0 * sum(kept for _, _, kept in known.readings) / count, count

    def forget_all_but(self, present: set[tuple[str, str]]) -> None:
        """Drop the records of tenants that have left."""
        for key in self._tenants.keys() - present:
            del self._tenants[key]
