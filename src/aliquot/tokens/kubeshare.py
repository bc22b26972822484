"""Turns as in KubeShare: three steps over a sliding window, and grants of one length.

The order (HPDC'20, 4.5): tenants at their limit are left out; of those below their request the one farthest below comes
first; otherwise the lowest usage. The balance in `promise` measures how far below; the window and the bucket in
`window` measure usage and limit. The order is evaluated when a grant ends, and shortly before, so that the holder goes
on if it would be chosen again.

The request goes before the limit. The limit is paced by a bucket that saves little, so a tenant whose limit is close to
its request could not make up for a neighbour's long turn; a tenant below its request is therefore never held back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .account import Account, Rank
from .actions import MS, SECOND, Action, Renew, Share, TokenConfig
from .device import ActiveGrant
from .lag import KEPT_NS, Flow, Lag
from .policy import TokenPolicy
from .promise import WAITING_WINDOWS, PromiseBalance
from .tenant import PolicyTenant
from .window import LimitBucket

SURE_NS: Final = 10 * MS
"""How far ahead the window is evaluated: by then a turn that has ended is really over, except for long kernels."""


class WindowAccount(Account):
    """The account of one tenant on one GPU, by the sliding window and the balance of its request."""

    __slots__ = ("bucket", "promise")

    def __init__(self, gpu: str, share: Share, ordinal: int, config: TokenConfig, lag: Lag, now_ns: int) -> None:
        super().__init__(gpu, share, ordinal, config, lag)
        self.promise = PromiseBalance(share.request_milli, config.window_ns, now_ns)
        resume = max(config.min_quota_ns, config.quota_ns // 2)
        self.bucket = LimitBucket(
            share.limit_milli,
            resume_ns=resume,
            cap_ns=2 * config.quota_ns * (1000 - share.limit_milli) // 1000 + config.min_quota_ns,
            now_ns=now_ns,
        )

    def arrive(self, now_ns: int) -> None:
        """The tenant wants the GPU from now on; after a whole window without a charge it counts as new."""
        if self.since_ns is None or not self.is_active(now_ns):
            self.promise.reset(now_ns)
        super().arrive(now_ns)
        self.promise.wait(now_ns)

    def begin(self, now_ns: int) -> None:
        """A turn of it begins."""
        super().begin(now_ns)
        self.promise.begin(now_ns)

    def rest(self, now_ns: int) -> None:
        """The tenant wants nothing from now on."""
        super().rest(now_ns)
        self.promise.rest(now_ns)

    def skip(self, now_ns: int) -> None:
        """Let time pass in which nothing becomes due."""
        super().skip(now_ns)
        self.promise.skip(now_ns)

    def charge(self, start_ns: int, end_ns: int, amount_ns: int, *, overrun: bool) -> None:
        """Charge time held, or time that ran past the grant's end."""
        super().charge(start_ns, end_ns, amount_ns, overrun=overrun)
        self.promise.charge(end_ns, amount_ns, overrun=overrun)
        self.bucket.advance(end_ns, amount_ns)

    def restore(self, used_ns: int, debt_ns: int, total_ns: int, now_ns: int) -> None:
        """Take over what was charged in the window before now, spread evenly over it, and what it owes."""
        super().restore(used_ns, debt_ns, total_ns, now_ns)
        self.promise.reset(now_ns)
        if debt_ns > 0:
            self.promise.owe(debt_ns)
            self.bucket.pay(debt_ns)

    def missing_ns(self, now_ns: int) -> int:
        """How far the tenant is below its request; negative above."""
        return self.promise.owed_ns(now_ns)

    def debt_ns(self, now_ns: int) -> int:
        """How much of the last turn's overrun is not made up for yet."""
        return self.promise.debt_ns(now_ns)

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
        """Smaller goes first: those below their request by how far, then the others by their usage."""
        missing = self.missing_ns(now_ns)
        if missing > 0:
            return (0, -missing, self.ordinal)
        used, age = self.window.used_ns(now_ns), self.age_ns(now_ns)
        return (1, used * 1_000_000 // max(age, self.config.quota_ns), self.ordinal)

    def stays_before_ns(self, other: WindowAccount, now_ns: int) -> int:
        """For how long at least this waiter goes before another that waits or is charged; 0 if it does not now."""
        if self.rank(now_ns) > other.rank(now_ns):
            return 0
        mine, theirs = self.missing_ns(now_ns), other.missing_ns(now_ns)
        if mine > 0:
            full = mine >= self.share.request_milli * self.config.window_ns * (WAITING_WINDOWS - 1) // 1000
            speed = other.share.request_milli - (0 if full else self.share.request_milli)
            # Ranks are in whole nanoseconds, and the earlier tenant wins a tie.
            lead = self.promise.lead_over(other.promise) - (1000 if self.ordinal > other.ordinal else 0)
            return _until(lead, speed)
        used = 1_000_000 * (other.window.used_ns(now_ns) - 2)
        key, age = self.rank(now_ns)[1] + 1, max(other.age_ns(now_ns), self.config.quota_ns)
        falls = (used - key * age) // (1_000_000 + key)  # at most all that passes leaves the other's window
        left = 1_000_000 * (other.window.left_ns(now_ns, SURE_NS) - 2)
        if left >= key * max(other.age_ns(now_ns + SURE_NS), self.config.quota_ns):
            falls = max(falls, SURE_NS)
        return min(_until(1000 * (-theirs - 2), other.share.request_milli), falls)


class KubeSharePolicy(TokenPolicy):
    """KubeShare's three steps over a sliding window, work-conserving, for any number of GPUs."""

    def _new_account(self, gpu: str, share: Share, flow: Flow, lags: list[Lag], now_ns: int) -> Account:
        lag = Lag(flow, share, lags, max_ahead_ns=KEPT_NS)
        return WindowAccount(gpu, share, self._ordinal, self.config, lag, now_ns)

    def _turn_ns(self, tenant: PolicyTenant, now_ns: int) -> int:
        return max(self._bounded_quota(tenant, now_ns), self.config.min_quota_ns)

    def _stays_ns(
        self, gpu: str, first: PolicyTenant, rivals: list[PolicyTenant], occupant: PolicyTenant, now_ns: int
    ) -> int:
        mine, stays = first.accounts[gpu], SECOND
        assert isinstance(mine, WindowAccount)
        for rival in rivals:
            theirs = rival.accounts[gpu]
            assert isinstance(theirs, WindowAccount)
            stays = min(stays, mine.stays_before_ns(theirs, now_ns))
        return stays

    def _review(
        self,
        tenant: PolicyTenant,
        hold: ActiveGrant,
        rivals: list[PolicyTenant],
        reserved: Mapping[str, str],
        now_ns: int,
        actions: list[Action],
    ) -> None:
        self._shorten(tenant, hold, rivals, now_ns)
        if now_ns < hold.deadline_ns - self._lead(hold):
            return
        if self._may_go_on(tenant, hold, rivals, reserved, now_ns) and self._renew(
            tenant, hold, now_ns, actions, lent=not rivals
        ):
            return
        if now_ns >= self._revoked_at_ns(hold):
            self._revoke(tenant, hold, now_ns, actions)

    def _may_go_on(
        self,
        tenant: PolicyTenant,
        hold: ActiveGrant,
        rivals: list[PolicyTenant],
        reserved: Mapping[str, str],
        now_ns: int,
    ) -> bool:
        """Whether the holder would be chosen again at once: no gang has reserved its GPU, and no tenant is to resume
        there.

        A tenant that is to resume goes first, because its charges do not end before its work does, whatever its share.
        """
        if self._is_anyone_overdue(hold, now_ns):
            return False
        if not rivals:
            return True
        mine = self._rank(tenant, now_ns)
        return hold.gpus_set.isdisjoint(reserved) and not any(self._rank(rival, now_ns) < mine for rival in rivals)

    def _shorten(self, tenant: PolicyTenant, hold: ActiveGrant, rivals: list[PolicyTenant], now_ns: int) -> None:
        """A waiter ends lent time at the minimum quota, and so does one that is owed more than this whole grant.

        Waiters of equal standing do not: taking turns by whole quotas keeps hand-overs rare.
        """
        if not rivals or hold.shortened:
            return
        if not hold.lent:
            owed = max(-self._rank(rival, now_ns)[1] if self._rank(rival, now_ns)[0] == 0 else 0 for rival in rivals)
            if owed <= hold.quota_ns or self._rank(tenant, now_ns)[0] == 0:
                return
        hold.shortened = True
        hold.deadline_ns = min(hold.deadline_ns, max(now_ns, hold.period_start_ns + self.config.min_quota_ns))

    def _renew(
        self, tenant: PolicyTenant, hold: ActiveGrant, now_ns: int, actions: list[Action], *, lent: bool
    ) -> bool:
        quota = self._bounded_quota(tenant, now_ns)
        if hold.stopped or now_ns + quota <= hold.deadline_ns + self.config.min_quota_ns // 2:
            return False
        hold.quota_ns, hold.deadline_ns, hold.told_ns = quota, now_ns + quota, now_ns + quota
        hold.period_start_ns, hold.lent, hold.shortened, hold.ended_ns = now_ns, lent, False, None
        self._begin(tenant, now_ns)
        actions.append(Renew(tenant.name, hold.gpus, quota, hold.deadline_ns))
        return True

    def _bounded_quota(self, tenant: PolicyTenant, now_ns: int) -> int:
        """The quota, cut to what its limits leave, and among several tenants to a hundredth of the window.

        One turn is the grain of the shares: a window that begins or ends within a turn is off by that turn, and shares
        are promised to one percent of the window. A tenant that is alone takes turns of up to a twentieth.
        """
        alone = all(self._devices[gpu].active(now_ns) <= 1 for gpu in tenant.accounts)
        ceiling = max(self.config.quota_ns, self.config.window_ns // (20 if alone else 100))
        quota, runway = min(self.quota_ns(tenant.name), ceiling), tenant.runway_ns(now_ns)
        return quota if runway is None else min(quota, runway)


def _until(gap: int, speed_milli: int) -> int:
    """Nanoseconds until a gap, in thousandths of a nanosecond, is closed at this speed."""
    if speed_milli <= 0:
        return SECOND if gap >= 0 else 0
    return max(0, gap - 1000) // speed_milli
