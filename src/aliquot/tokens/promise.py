"""What a tenant is owed on one GPU: a balance that fills at its request's rate and pays for every charge.

The sliding window of KubeShare (HPDC'20, 4.5) shows how far a tenant is below its request, but it forgets: with kernels
of seconds, which cannot be stopped at a grant's end, the tenant that launches them would get the time that falls out of
the window for nothing, at its neighbours' cost. The balance forgets nothing that was promised:

- while the tenant wants or uses the GPU it is owed `request` of the time, and every charge is paid from that, work
  that ran past its grant included, however long it ran;
- a turn that begins on a balance below zero was lent by a tenant that had enough, so what was lent before is forgiven;
- a pause is owed nothing: a tenant that could save up turns by staying away would take them from its neighbours when
  it comes back, as long as it had saved.

So among tenants that always want the GPU, whose requests add up to it, each gets its request to within one lump of its
work at any time, and exactly in the long run. Held in thousandths of a nanosecond, so that nothing is rounded away.
"""

from __future__ import annotations

from typing import Final

WAITING_WINDOWS: Final = 10


class PromiseBalance:
    """Nanoseconds owed to one tenant; negative when it had more than was promised."""

    __slots__ = ("_at_ns", "_balance", "_overrun_ns", "_request_milli", "_waiting_cap", "waiting")

    def __init__(self, request_milli: int, window_ns: int, now_ns: int) -> None:
        self._request_milli = request_milli
        self._waiting_cap = request_milli * window_ns * WAITING_WINDOWS
        self._balance = 0
        self._at_ns = now_ns
        self.waiting = False
        self._overrun_ns = 0

    def owed_ns(self, now_ns: int) -> int:
        """What is owed now; rounds towards less."""
        self._accrue(now_ns, busy=self.waiting)
        return self._balance // 1000

    def lead_over(self, other: PromiseBalance) -> int:
        """How much more is owed to it than to another, in thousandths of a nanosecond, as of when each was asked."""
        return self._balance - other._balance

    def debt_ns(self, now_ns: int) -> int:
        """How much of the last turn's overrun is not made up for yet."""
        return max(0, min(-self.owed_ns(now_ns), self._overrun_ns))

    def wait(self, now_ns: int) -> None:
        """The tenant wants the GPU from now on."""
        self._accrue(now_ns, busy=self.waiting)
        self.waiting = True

    def rest(self, now_ns: int) -> None:
        """The tenant wants nothing from now on."""
        self._accrue(now_ns, busy=self.waiting)
        self.waiting = False

    def begin(self, now_ns: int) -> None:
        """A turn begins; one that was not owed leaves nothing to make up for but itself."""
        self._accrue(now_ns, busy=self.waiting)
        self._balance = max(self._balance, 0)
        self._overrun_ns = 0
        self.waiting = False

    def charge(self, end_ns: int, amount_ns: int, *, overrun: bool) -> None:
        """The tenant was on the GPU until `end_ns` and is charged `amount_ns` of it."""
        self._accrue(end_ns, busy=True, paid_ns=amount_ns)
        if overrun:
            self._overrun_ns += amount_ns

    def owe(self, debt_ns: int) -> None:
        """A debt of the past, read from a journal."""
        self._balance -= debt_ns * 1000
        self._overrun_ns += debt_ns

    def skip(self, now_ns: int) -> None:
        """Let time pass in which nothing becomes due."""
        self._at_ns = now_ns

    def reset(self, now_ns: int) -> None:
        """The tenant has been away for a whole window: nothing is owed to it; what it owes stays."""
        self._balance = min(self._balance, 0)
        self._at_ns = now_ns

    def _accrue(self, now_ns: int, *, busy: bool, paid_ns: int = 0) -> None:
        grown = self._balance + (now_ns - self._at_ns) * self._request_milli - paid_ns * 1000
        cap = self._waiting_cap if busy else 0
        self._balance = min(grown, max(self._balance, cap))
        self._at_ns = now_ns
