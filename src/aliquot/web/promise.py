"""Was the promise kept? Window by window, from what a tenant was charged and how long it stood waiting.

In a window of length W a tenant that was charged `c` and waited `w` wanted `c + w` of the GPU. If that is at least its
request r x W, it wanted its request, and the window counts; it is kept when c, or what its account shows with the debts
it pays, reaches (r - slack) x W. A tenant that wants less than its request can not be wronged by the others' share of
the time, only by latency, and that is shown as waits.

Source: KubeShare (HPDC'20), 4.5: a container that wants its gpu_request gets it in the sliding window. The slack of two
points is the share error this project sets itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from aliquot.arbiter.records import TenantStatus

SLACK_MILLI: Final = 20
KEPT_S: Final = 3600.0
MOST_WINDOWS: Final = 3600
"""As many as there are in an hour of looks a second apart; a node whose clock creeps makes no more."""


@dataclass(slots=True)
class _Tenant:
    at_ns: int
    charged_ns: int
    waited_ns: int
    windows: deque[tuple[int, bool]]  # (end, kept) of those that count


class PromiseBook:
    """Windows of every tenant of every GPU, back to back, for the last hour."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._tenants: dict[tuple[str, str], _Tenant] = {}

    def see(self, gpu: str, status: TenantStatus, now_ns: int) -> None:
        """A look at a tenant; a window ends with the first look at or after its length.

        A counter that went back (a new tenant of the same name, a restarted arbiter) begins anew.
        """
        key = (gpu, status.name)
        charged_ns, waited_ns = status.charged_ns, status.waited_ns
        known = self._tenants.get(key)
        if known is None or charged_ns < known.charged_ns or waited_ns < known.waited_ns:
            windows = known.windows if known is not None else deque(maxlen=MOST_WINDOWS)
            self._tenants[key] = _Tenant(now_ns, charged_ns, waited_ns, windows)
            return
        length_ns = now_ns - known.at_ns
        if length_ns < self.window_s * 1e9:
            return
        charged, waited = charged_ns - known.charged_ns, waited_ns - known.waited_ns
        request = status.request_milli
        if request and (charged + waited) * 1000 >= request * length_ns:
            got_milli = max(charged * 1000 / length_ns, status.usage * 1000)
            known.windows.append((now_ns, got_milli >= request - SLACK_MILLI))
        while known.windows and known.windows[0][0] < now_ns - KEPT_S * 1e9:
            known.windows.popleft()
        known.at_ns, known.charged_ns, known.waited_ns = now_ns, charged_ns, waited_ns

    def kept(self, gpu: str, tenant: str) -> tuple[float | None, int]:
        """Percent of the windows that count in which the promise was kept, and how many count."""
        known = self._tenants.get((gpu, tenant))
        if known is None or not known.windows:
            return None, 0
        count = len(known.windows)
        return 100.0 * sum(kept for _, kept in known.windows) / count, count

    def forget_all_but(self, present: set[tuple[str, str]]) -> None:
        """Drop the books of tenants that have left."""
        for key in self._tenants.keys() - present:
            del self._tenants[key]
