"""Whether the promise was kept, judged over sliding windows whose ends are a fortieth of a window apart.

- *request*: in every window a tenant gets its request for the time it wanted the GPU, within 0.02 of the window;
- *busy*: a tenant that wanted the GPU all the time gets its request, within 0.02;
- *fluid*: how far what it got is from what the fluid gave it, as a part of the window.

It wants the GPU while it waits for it, holds it or has work on it. A tenant that owes time for kernels from before the
window has already had that part of its share. Windows in which the tenant never wanted the GPU are not counted. "Its
request in every window in which it wanted that much" is not promised: the fluid itself does not keep it, because limits
hold a tenant back while others rest, and what was not given then is not made up for later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

LOOKS: Final = 40
"""Samples in one window."""
SLACK_MILLI: Final = 20
WHOLE_WINDOW: Final = 0.999
"""A tenant that wanted the GPU for this part of a window counts as wanting it all the time."""
BINS: Final = 200
"""Errors are counted by thousandths of a window, up to a fifth of it; the last bin has what is beyond."""


class AccountSnapshot(NamedTuple):
    """What a tenant's account says at one moment, in nanoseconds since it came."""

    at_ns: int
    charged_ns: int
    wanted_ns: int
    given_ns: int
    debt_ns: int


@dataclass(slots=True)
class Kept:
    """Windows of one tenant on one GPU."""

    request_milli: int
    window_ns: int
    windows: int = 0
    kept: int = 0
    busy_windows: int = 0
    busy_kept: int = 0
    error: float = 0.0
    """Of the last window."""
    error_worst: float = 0.0
    _looks: deque[AccountSnapshot] = field(default_factory=deque)
    _errors: list[int] = field(default_factory=lambda: [0] * BINS)

    def look(self, account: AccountSnapshot) -> None:
        """Judge the window that ends now, if the tenant has existed for that long."""
        looks = self._looks
        if looks and account.at_ns - looks[-1].at_ns < self.window_ns // LOOKS:
            return
        looks.append(account)
        while len(looks) > 1 and looks[1].at_ns <= account.at_ns - self.window_ns:
            looks.popleft()
        if account.at_ns - looks[0].at_ns >= self.window_ns:
            self._judge(looks[0], account)

    def forget(self) -> None:
        """Discard the samples: time passed without decisions, and no window that contains any of it is judged."""
        self._looks.clear()

    def error_p95(self) -> float:
        """The 95th percentile of the errors of all windows, to a thousandth; 0 before the first."""
        left = self.windows * 95 / 100
        for step, count in enumerate(self._errors):
            left -= count
            if left <= 0:
                return min((step + 1) / 1000, self.error_worst)
        return self.error_worst

    def _judge(self, first: AccountSnapshot, last: AccountSnapshot) -> None:
        span, wanted = last.at_ns - first.at_ns, last.wanted_ns - first.wanted_ns
        if wanted <= 0:
            return
        charged = last.charged_ns - first.charged_ns
        had_milli = (charged + max(0, first.debt_ns)) * 1000 + SLACK_MILLI * span
        self.windows += 1
        self.kept += had_milli >= self.request_milli * wanted
        if wanted >= WHOLE_WINDOW * span:
            self.busy_windows += 1
            self.busy_kept += had_milli >= self.request_milli * span
        self.error = abs(charged - (last.given_ns - first.given_ns)) / span
        self.error_worst = max(self.error_worst, self.error)
        self._errors[min(BINS - 1, int(self.error * 1000))] += 1
