"""Turns as in KubeShare: three steps over a sliding window, and grants of one length.

The order (HPDC'20, 4.5): tenants at their limit are left out; of those below their request the one farthest below comes
first; otherwise the lowest usage. A balance measures how far below, the window usage, and a bucket the limit. The
order is evaluated when a grant ends, and shortly before, so that the holder goes on if it would be chosen again.

The request goes before the limit. The limit is paced by a bucket that saves little, so a tenant whose limit is close to
its request could not make up for a neighbour's long turn; a tenant below its request is therefore never held back.

Turns as in Gemini have the order of KubeShare, and grants as long as the tenant's bursts.

Source: Gemini (TCC'21): half the last quota and half the burst just seen, between a minimum and limit x window. A
twentieth of the window is a second ceiling: one grant of limit x window would be the whole promise of a window, and a
tenant that claims endless bursts would make its neighbours wait for seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from .account import Account, Rank
from .actions import MS, SECOND, Action, Renew, Share, TokenConfig
from .fluid import KEPT_NS, Flow, Lag
from .policy import TokenPolicy
from .tenants import ActiveGrant, PolicyTenant

SURE_NS: Final = 10 * MS
"""How far ahead the window is evaluated: by then a turn that has ended is really over, except for long kernels."""
WAITING_WINDOWS: Final = 10
"""What a waiting tenant is owed at most, in windows of its request."""


class PromiseBalance:
    """What a tenant is owed on one GPU: a balance that fills at its request's rate and pays for every charge.

    The sliding window of KubeShare (HPDC'20, 4.5) shows how far a tenant is below its request, but it forgets: with
    kernels of seconds, which cannot be stopped at a grant's end, the tenant that launches them would get the time that
    falls out of the window for nothing, at its neighbours' cost. The balance forgets nothing that was promised:

    - while the tenant wants or uses the GPU it is owed `request` of the time, and every charge is paid from that, work
      that ran past its grant included, however long it ran;
    - a turn that begins on a balance below zero was lent by a tenant that had enough, so what was lent before is
      forgiven;
    - a pause is owed nothing: a tenant that could save up turns by staying away would take them from its neighbours
      when it comes back, as long as it had saved.

    So among tenants that always want the GPU, whose requests add up to it, each gets its request to within one lump of
    its work at any time, and exactly in the long run. In nanoseconds, negative when it had more than was promised; held
    in thousandths of a nanosecond, so that nothing is rounded away.
    """

    __slots__ = ("_at_ns", "_balance", "_overrun_ns", "_request_milli", "_waiting_cap", "waiting")

    def __init__(self, request_milli: int, window_ns: int, now_ns: int) -> None:
        self._request_milli = request_milli
        self._waiting_cap = request_milli * window_ns * WAITING_WINDOWS
        self._balance = 0
        self._at_ns = now_ns
        self.waiting = False
        self._overrun_ns = 0

    def resize(self, request_milli: int, window_ns: int, now_ns: int) -> None:
        """Fill at another request's rate from now on; what is owed until now stays owed."""
        self._accrue(now_ns, busy=self.waiting)
        self._request_milli = request_milli
        self._waiting_cap = request_milli * window_ns * WAITING_WINDOWS

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


class LimitBucket:
    """Room under the limit: fills at `limit_milli` per mille of time, pays for every charge, may go below zero.

    A tenant held at 0.6 runs six parts of every ten, instead of six seconds at full speed and then four not at all.
    Held in thousandths of a nanosecond, so that no share is lost by rounding. A limit of 1000 is no limit.
    """

    __slots__ = ("_at_ns", "_cap", "_level", "limit_milli", "resume_ns")

    def __init__(self, limit_milli: int, *, resume_ns: int, cap_ns: int, now_ns: int) -> None:
        """A bucket that allows a grant of `resume_ns` at once and saves up to `cap_ns`."""
        self.limit_milli = limit_milli
        self.resume_ns = resume_ns
        self._cap = cap_ns * 1000
        self._level = resume_ns * (1000 - limit_milli)
        self._at_ns = now_ns

    def advance(self, now_ns: int, charged_ns: int = 0) -> None:
        """Fill up to now and pay for `charged_ns`."""
        filled = self._level + (now_ns - self._at_ns) * self.limit_milli - charged_ns * 1000
        self._level = min(filled, self._cap)
        self._at_ns = now_ns

    def pay(self, charged_ns: int) -> None:
        """Pay for a charge of the past, read from a journal."""
        self._level -= charged_ns * 1000

    def open_at_ns(self, now_ns: int) -> int:
        """From when on a grant of `resume_ns` fits under the limit; now or earlier means at once."""
        if self.limit_milli >= 1000:
            return now_ns
        return self._at_ns - (-self.missing // max(1, self.limit_milli))

    @property
    def missing(self) -> int:
        """What it lacks for a grant of `resume_ns`, in thousandths of a nanosecond."""
        return max(0, self.resume_ns * (1000 - self.limit_milli) - self._level)

    def runway_ns(self, now_ns: int) -> int | None:
        """How long a grant that starts now stays under the limit; None where there is no limit."""
        if self.limit_milli >= 1000:
            return None
        level = min(self._level + (now_ns - self._at_ns) * self.limit_milli, self._cap)
        return max(0, level) // (1000 - self.limit_milli)


class WindowAccount(Account):
    """The account of one tenant on one GPU, by the sliding window and the balance of its request."""

    __slots__ = ("bucket", "promise")

    def __init__(self, gpu: str, share: Share, ordinal: int, config: TokenConfig, lag: Lag, now_ns: int) -> None:
        super().__init__(gpu, share, ordinal, config, lag)
        self.promise = PromiseBalance(share.request_milli, config.window_ns, now_ns)
        self.bucket = self._bucket(now_ns)

    def _bucket(self, now_ns: int) -> LimitBucket:
        config, limit_milli = self.config, self.share.limit_milli
        return LimitBucket(
            limit_milli,
            resume_ns=max(config.min_quota_ns, config.quota_ns // 2),
            cap_ns=2 * config.quota_ns * (1000 - limit_milli) // 1000 + config.min_quota_ns,
            now_ns=now_ns,
        )

    def resize(self, share: Share, now_ns: int) -> None:
        """Have another share from now on: the balance goes on, and so does what the bucket lacks."""
        super().resize(share, now_ns)
        self.promise.resize(share.request_milli, self.config.window_ns, now_ns)
        self.bucket.advance(now_ns)
        lacks_ns, self.bucket = self.bucket.missing // 1000, self._bucket(now_ns)
        self.bucket.pay(lacks_ns)

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
        # A waiter ends lent time at the minimum quota, and so does one that is owed more than this whole grant.
        # Waiters of equal standing do not: taking turns by whole quotas keeps hand-overs rare.
        if rivals and not hold.shortened:
            ranks = [] if hold.lent else [self._rank(rival, now_ns) for rival in rivals]
            owed = max((-rank[1] for rank in ranks if rank[0] == 0), default=0)
            if hold.lent or (owed > hold.quota_ns and self._rank(tenant, now_ns)[0] != 0):
                hold.shortened = True
                hold.deadline_ns = min(hold.deadline_ns, max(now_ns, hold.period_start_ns + self.config.min_quota_ns))
        if now_ns < hold.deadline_ns - self._lead(hold):
            return
        # The holder goes on if it would be chosen again at once and no gang has reserved its GPU. A tenant that is to
        # resume there goes first, because its charges do not end before its work does, whatever its share.
        goes_on = not self._is_anyone_overdue(hold, now_ns)
        if goes_on and rivals:
            mine = self._rank(tenant, now_ns)
            goes_on = hold.gpus_set.isdisjoint(reserved) and not any(self._rank(r, now_ns) < mine for r in rivals)
        if goes_on and not hold.stopped:
            quota = self._bounded_quota(tenant, now_ns)
            if now_ns + quota > hold.deadline_ns + self.config.min_quota_ns // 2:
                hold.quota_ns, hold.deadline_ns, hold.told_ns = quota, now_ns + quota, now_ns + quota
                hold.period_start_ns, hold.lent, hold.shortened, hold.ended_ns = now_ns, not rivals, False, None
                self._begin(tenant, now_ns)
                actions.append(Renew(tenant.name, hold.gpus, quota, hold.deadline_ns))
                return
        if now_ns >= self._revoked_at_ns(hold):
            self._revoke(tenant, hold, now_ns, actions)

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


@dataclass(slots=True)
class QuotaEstimate:
    """The dynamic quota of one tenant."""

    config: TokenConfig
    limit_milli: int
    quota_ns: int = field(default=0)

    def current_ns(self) -> int:
        """The quota of the next grant; the base quota until a burst was seen."""
        return self.quota_ns or self.config.quota_ns

    def learn(self, burst_ns: int) -> None:
        """Take a measured burst into account; zero means nothing was measured."""
        config = self.config
        if burst_ns <= 0:
            return
        ceiling = min(config.window_ns * self.limit_milli // 1000, max(config.quota_ns, config.window_ns // 20))
        ceiling = max(config.min_quota_ns, ceiling)
        blend = (burst_ns + self.current_ns()) // 2
        self.quota_ns = min(max(blend, config.min_quota_ns), ceiling)


class GeminiPolicy(KubeSharePolicy):
    """KubeShare's order with Gemini's quota."""

    def __init__(self, config: TokenConfig | None = None) -> None:
        super().__init__(config)
        self._estimates: dict[str, QuotaEstimate] = {}

    def add_tenant(self, name: str, shares: Mapping[str, Share], now_ns: int) -> None:
        """Make a tenant known with its share on each of its GPUs.

        Raises:
            ValueError: the name is taken, or no GPU is given.
        """
        super().add_tenant(name, shares, now_ns)
        limit = min(share.limit_milli for share in shares.values())
        self._estimates[name] = QuotaEstimate(self.config, limit)

    def resize(self, name: str, shares: Mapping[str, Share], now_ns: int) -> None:
        """Change a tenant's share on each of its GPUs; see `Tenants.resize`.

        Raises:
            UnknownTenant, ValueError: as there.
        """
        super().resize(name, shares, now_ns)
        self._estimates[name].limit_milli = min(share.limit_milli for share in shares.values())

    def remove_tenant(self, name: str, now_ns: int) -> None:
        """Forget a tenant; what it holds is free at once."""
        super().remove_tenant(name, now_ns)
        del self._estimates[name]

    def quota_ns(self, name: str) -> int:
        """The length of the tenant's next grant, before its limit shortens it."""
        self._tenant(name)
        return self._estimates[name].current_ns()

    def _learn(self, tenant: PolicyTenant, burst_ns: int) -> None:
        self._estimates[tenant.name].learn(burst_ns)
