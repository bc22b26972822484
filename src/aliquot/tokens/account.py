"""One tenant on one GPU: its share, what it was charged, and how far that is from the fluid.

The distance from the fluid (`lag`) is kept whatever the order of turns is, for the promise is judged by it. Where its
charges put a tenant in the order, and when its limit holds it back, a policy's own account says.

The usage of a tenant that has been here for less than a window is measured against its own time, not against time
before it came.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from .actions import Share, TokenConfig
from .fluid import WHOLE
from .kept import AccountSnapshot, Kept
from .lag import Lag
from .residual import Residuals
from .window import ChargeWindow

Rank = tuple[int, int, int]


class Account(ABC):
    """The account of one tenant on one GPU."""

    __slots__ = ("config", "gpu", "kept", "lag", "ordinal", "residuals", "share", "since_ns", "window")

    def __init__(self, gpu: str, share: Share, ordinal: int, config: TokenConfig, lag: Lag) -> None:
        self.gpu = gpu
        self.share = share
        self.ordinal = ordinal
        self.config = config
        self.lag = lag
        self.since_ns: int | None = None
        self.window = ChargeWindow(config.window_ns)
        self.residuals = Residuals()
        self.kept = Kept(share.request_milli, config.window_ns)

    def arrive(self, now_ns: int) -> None:
        """The tenant wants the GPU from now on; after a whole window without a charge it counts as new."""
        if self.since_ns is None or not self.is_active(now_ns):
            self.since_ns = now_ns
        self.lag.wait(now_ns)

    def begin(self, now_ns: int) -> None:
        """A turn of the tenant begins; it may have asked for it before it was stopped."""
        self.lag.wait(now_ns)
        self.lag.begin(now_ns)

    def rest(self, now_ns: int) -> None:
        """The tenant wants nothing from now on."""
        self.lag.begin(now_ns)

    def skip(self, now_ns: int) -> None:
        """Let time pass in which nothing becomes due."""
        self.lag.skip(now_ns)
        self.kept.forget()

    def is_active(self, now_ns: int) -> bool:
        """Whether it wants the GPU or was charged for some of it within the last window."""
        return self.lag.waiting or self.window.used_ns(now_ns) > 0

    def age_ns(self, now_ns: int) -> int:
        """How much of the window the tenant has been here for."""
        return 0 if self.since_ns is None else min(self.config.window_ns, now_ns - self.since_ns)

    def charge(self, start_ns: int, end_ns: int, amount_ns: int, *, overrun: bool) -> None:
        """Charge time held, or time that ran past the grant's end."""
        self.window.charge(start_ns, end_ns, amount_ns)
        self.lag.charge(end_ns, amount_ns)

    def restore(self, used_ns: int, debt_ns: int, total_ns: int, now_ns: int) -> None:
        """Take over what was charged in the window before now, spread evenly over it, and what it owes."""
        start = now_ns - self.config.window_ns
        if used_ns > 0:
            self.window.charge(start, now_ns, min(used_ns, self.config.window_ns))
            self.since_ns = start
        self.window.total_ns = total_ns

    def judge(self, now_ns: int) -> None:
        """See whether the promise was kept in the window that ends now."""
        debt = self.debt_ns(now_ns)
        self.lag.flow.accrue(now_ns)
        self.kept.look(AccountSnapshot(now_ns, self.window.total_ns, self.lag.wanted_ns, self.lag.given // WHOLE, debt))

    def is_urgent(self, now_ns: int) -> bool:
        """Whether it must start at once because of a promised time to wake; only under the order `fluid`."""
        return False

    def usage(self, now_ns: int) -> float:
        """Charged share of the window, or of the tenant's time here if that is shorter; 1.0 is the whole GPU."""
        age = self.age_ns(now_ns)
        return self.window.used_ns(now_ns) / max(age, self.config.quota_ns) if age else 0.0

    @abstractmethod
    def missing_ns(self, now_ns: int) -> int:
        """Nanoseconds that the tenant is owed, by which turns are ordered; negative if it had more than its due."""

    @abstractmethod
    def debt_ns(self, now_ns: int) -> int:
        """Nanoseconds that it was charged beyond its due and must make up for, as written to the journal."""

    @abstractmethod
    def open_at_ns(self, now_ns: int) -> int:
        """When the limit allows the next grant, as far as is known now; now or earlier means at once."""

    @abstractmethod
    def runway_ns(self, now_ns: int) -> int | None:
        """How long a grant that starts now may last; None where there is no limit."""

    @abstractmethod
    def rank(self, now_ns: int) -> Rank:
        """The sort key of the order of turns, smallest first; the order is total, and the earlier tenant wins a tie."""
