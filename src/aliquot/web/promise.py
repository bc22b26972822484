"""Was the promise kept? The windows of the last hour, from the arbiter's counts.

The arbiter evaluates every window in which a tenant wanted the GPU, as `aliquot.tokens.kept` says, and counts since the
tenant was registered. Here the counts of two readings are subtracted. At the first reading all earlier counts are dated
to that moment, so that a page that has just been opened shows them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from aliquot.status.tenants import TenantStatus

KEPT_S: Final = 3600.0
MAX_LOOKS: Final = 3600
"""The number of readings in an hour, a second apart; a node with a slow clock makes no more."""
MAX_WINDOWS: Final = 10**9
"""The maximum a node may report; a year has two million."""


@dataclass(slots=True)
class _Tenant:
    windows: int = 0  # the counts of the last reading
    kept: int = 0
    looks: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=MAX_LOOKS))
    """When, and how many more windows there were and were kept than at the previous reading."""


class PromiseBook:
    """Windows of every tenant of every GPU, for the last hour."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._tenants: dict[tuple[str, str], _Tenant] = {}

    def see(self, gpu: str, status: TenantStatus, now_ns: int) -> None:
        """Add a reading of a tenant. Decreased counts (a new tenant of that name, a restarted arbiter) begin at 0."""
        windows = min(max(0, status.promise.windows), MAX_WINDOWS)
        kept = min(max(0, status.promise.kept), windows)
        known = self._tenants.setdefault((gpu, status.name), _Tenant())
        if windows < known.windows or kept < known.kept or windows - known.windows < kept - known.kept:
            known.windows = known.kept = 0
        if windows > known.windows:
            known.looks.append((now_ns, windows - known.windows, kept - known.kept))
        known.windows, known.kept = windows, kept
        while known.looks and known.looks[0][0] < now_ns - KEPT_S * 1e9:
            known.looks.popleft()

    def kept(self, gpu: str, tenant: str) -> tuple[float | None, int]:
        """Percent of the windows in which the promise was kept, and their number."""
        known = self._tenants.get((gpu, tenant))
        count = sum(windows for _, windows, _ in known.looks) if known is not None else 0
        if known is None or not count:
            return None, 0
        return 100.0 * sum(kept for _, _, kept in known.looks) / count, count

    def forget_all_but(self, present: set[tuple[str, str]]) -> None:
        """Drop the records of tenants that have left."""
        for key in self._tenants.keys() - present:
            del self._tenants[key]
