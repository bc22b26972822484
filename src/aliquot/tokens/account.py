"""One tenant on one GPU: its share, what it was charged, and where that puts it in the order of turns.

The order is KubeShare's (HPDC'20, 4.5): whoever is at its limit is out; of those below their request the one farthest
below comes first; else the lowest usage. Equal tenants are ordered by who came first, so the order is total. How far
below is told by the balance of `promise`, usage and limit by the window and the bucket of `window`.

The request goes before the limit. The limit is paced by a bucket that saves little, so a tenant whose limit is close to
its request could not make up for a neighbour's long turn; whoever is below its request is therefore never held back.

The usage of a tenant that has been here for less than a window is measured against its own time, not against time
before it came.
"""

from __future__ import annotations

from .actions import Share, TokenConfig
from .lag import Lag
from .promise import PromiseBalance
from .residual import Residuals
from .window import ChargeWindow, LimitBucket

Rank = tuple[int, int, int]


class Account:
    """The books of one tenant on one GPU."""

    __slots__ = ("bucket", "config", "gpu", "ordinal", "promise", "residuals", "share", "since_ns", "window")

    def __init__(self, gpu: str, share: Share, ordinal: int, config: TokenConfig, now_ns: int) -> None:
        self.gpu = gpu
        self.share = share
        self.ordinal = ordinal
        self.config = config
        self.since_ns: int | None = None
        self.window = ChargeWindow(config.window_ns)
        self.residuals = Residuals()
        self.promise: PromiseBalance | Lag = PromiseBalance(share.request_milli, config.window_ns, now_ns)
        resume = max(config.min_quota_ns, config.quota_ns // 2)
        self.bucket = LimitBucket(
            share.limit_milli,
            resume_ns=resume,
            cap_ns=2 * config.quota_ns * (1000 - share.limit_milli) // 1000 + config.min_quota_ns,
            now_ns=now_ns,
        )

    def arrive(self, now_ns: int) -> None:
        """It wants the GPU; after a whole window without a charge this counts as arriving anew."""
        if self.since_ns is None or not self.is_active(now_ns):
            self.since_ns = now_ns
            self.promise.reset(now_ns)
        self.promise.wait(now_ns)

    def is_active(self, now_ns: int) -> bool:
        """Whether it wants the GPU or was charged for some of it within the last window."""
        return self.promise.waiting or self.window.used_ns(now_ns) > 0

    def age_ns(self, now_ns: int) -> int:
        """How much of the window the tenant has been here for."""
        return 0 if self.since_ns is None else min(self.config.window_ns, now_ns - self.since_ns)

    def charge(self, start_ns: int, end_ns: int, amount_ns: int, *, overrun: bool) -> None:
        """Charge time held, or time that ran past the grant's end."""
        self.window.charge(start_ns, end_ns, amount_ns)
        self.promise.charge(end_ns, amount_ns, overrun=overrun)
        self.bucket.advance(end_ns, amount_ns)

    def restore(self, used_ns: int, debt_ns: int, total_ns: int, now_ns: int) -> None:
        """Take over what was charged in the window before now, spread evenly over it, and what is owed."""
        start = now_ns - self.config.window_ns
        if used_ns > 0:
            self.window.charge(start, now_ns, min(used_ns, self.config.window_ns))
            self.since_ns = start
        self.promise.reset(now_ns)
        if debt_ns > 0:
            self.promise.owe(debt_ns)
            self.bucket.pay(debt_ns)
        self.window.total_ns = total_ns

    def missing_ns(self, now_ns: int) -> int:
        """How far the tenant is below its request; negative above."""
        return self.promise.owed_ns(now_ns)

    def room_ns(self, now_ns: int) -> int:
        """What is owed and may be given past an empty limit bucket: never more than the window's request."""
        unused = self.share.request_milli * self.age_ns(now_ns) // 1000 - self.window.used_ns(now_ns)
        return min(self.missing_ns(now_ns), unused)

    def open_at_ns(self, now_ns: int) -> int:
        """When the limit allows the next grant, as far as is known now; now or earlier means at once."""
        least = self.config.min_quota_ns
        opens = self.bucket.open_at_ns(now_ns)
        if opens <= now_ns or self.share.request_milli == 0:
            return opens
        room = self.room_ns(now_ns)
        return now_ns if room >= least else min(opens, now_ns + max(least - room, least))

    def runway_ns(self, now_ns: int) -> int | None:
        """How long a grant that starts now may last; None where there is no limit."""
        runway = self.bucket.runway_ns(now_ns)
        return None if runway is None else max(runway, self.room_ns(now_ns))

    def rank(self, now_ns: int) -> Rank:
        """Smaller goes first."""
        missing = self.missing_ns(now_ns)
        if missing > 0:
            return (0, -missing, self.ordinal)
        used, age = self.window.used_ns(now_ns), self.age_ns(now_ns)
        return (1, used * 1_000_000 // max(age, self.config.quota_ns), self.ordinal)

    def usage(self, now_ns: int) -> float:
        """Charged share of the window, or of the tenant's time here if that is shorter; 1.0 is the whole GPU."""
        age = self.age_ns(now_ns)
        return self.window.used_ns(now_ns) / max(age, self.config.quota_ns) if age else 0.0
