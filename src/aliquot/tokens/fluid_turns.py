"""Turns that follow the fluid: the tenant farthest behind is next, and the turn changes when the gap is a quantum.

    turn     a free GPU goes to the waiter that is owed most; one that woke from a rest and has had less than its
             request counts as owed LEAD more until a turn is taken from it or it has had a whole one
    change   the holder's turn ends when the best waiter is owed a quantum more than it, never before SLICE
    wake     a tenant that was promised to wake in time goes before all others when it wakes, at once, until a turn is
             taken from it; another one with a promise keeps its turn for SLICE
    hold     a tenant with long kernels does not begin right after one that is owed a quantum has come to rest: that may
             be a pause, and a kernel cannot be taken back
    limit    a tenant whose rate is its limit runs down to a quantum ahead and waits until it is even; and none is
             charged more than limit x window and SLACK in any window

A quantum is of fixed length: with hand-overs of 0.05 to 1 ms no other is better by much (docs/decisions/0028).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from .account import Account, ChargeWindow, Rank
from .actions import MS, SECOND, Action, Renew, Share, TokenConfig, Upcoming
from .fluid import WHOLE, Flow, Lag
from .policy import TokenPolicy
from .tenants import ActiveGrant, PolicyTenant

QUANTUM_NS: Final = 30 * MS
SLICE_NS: Final = 2 * MS
LEAD_PART: Final = 100
"""The lead of a tenant that woke up is this part of a window."""
BELOW_REQUEST: Final = 0.9
"""A tenant that used this part of its request in the last window goes by what it is owed alone when it wakes."""
AHEAD_PART: Final = 50
"""A tenant that is ahead of the fluid by more than this part of a window is no longer within its request."""
SLACK_PART: Final = 500
"""What may be charged beyond limit x window, as a part of the window."""
HOLD_PART: Final = 100
"""How long a free GPU is kept from a tenant after such a rest, as a part of what its work usually takes to end."""
MIN_HOLD_NS: Final = MS
"""Kernels that would need a shorter hold do no harm that the next turn does not correct."""
EXACT_NS: Final = 2000
"""A gap below this may come from rounding, or from the little by which a tenant that leaves the fluid is not even."""
LOOK_NS: Final = MS // 10
"""The minimum time to the next evaluation, so that rounding never makes the policy run again at once."""


class FluidAccount(Account):
    """The account of one tenant on one GPU, where what it is owed is its lag behind the fluid."""

    __slots__ = ("_allowed", "_resized_ns", "blocked")

    def __init__(self, gpu: str, share: Share, ordinal: int, config: TokenConfig, lag: Lag) -> None:
        super().__init__(gpu, share, ordinal, config, lag)
        self.blocked = False  # the tenant has run a quantum ahead of its limit
        self._allowed: ChargeWindow | None = None  # what earlier limits allowed, until they have left the window
        self._resized_ns = 0

    def resize(self, share: Share, now_ns: int) -> None:
        """Have another share from now on; a lower limit does not count what was used under the one before."""
        window_ns = self.config.window_ns
        if self._allowed is None:
            self._allowed, self._resized_ns = ChargeWindow(window_ns), now_ns - window_ns
        since_ns = max(self._resized_ns, now_ns - window_ns)
        self._allowed.charge(since_ns, now_ns, self.share.limit_milli * (now_ns - since_ns) // 1000)
        self._resized_ns = now_ns
        super().resize(share, now_ns)

    def arrive(self, now_ns: int) -> None:
        """It wants the GPU; it has the lead of one that wakes if it has had clearly less than its request.

        A program that never rests still pauses when it lacks processor time; a lead for each pause would delay other
        tenants that wake.
        """
        was_fresh = self.lag.fresh
        super().arrive(now_ns)
        if not was_fresh and not self.share.wake_ns:
            self.lag.fresh &= self.usage(now_ns) * 1000 < self.share.request_milli * BELOW_REQUEST

    def restore(self, used_ns: int, debt_ns: int, total_ns: int, now_ns: int) -> None:
        """Take over what was charged in the window before now, and how far it was ahead of the fluid."""
        super().restore(used_ns, debt_ns, total_ns, now_ns)
        self.lag.level -= debt_ns * WHOLE
        window_ns = self.config.window_ns
        if used_ns > self.share.limit_milli * window_ns // 1000:  # under a limit that has been lowered since
            self._allowed, self._resized_ns = ChargeWindow(window_ns), now_ns
            self._allowed.charge(now_ns - window_ns, now_ns, min(used_ns, window_ns))

    def missing_ns(self, now_ns: int) -> int:
        """How far it is behind the fluid; negative ahead of it."""
        return self.lag.owed_ns(now_ns)

    def debt_ns(self, now_ns: int) -> int:
        """How far it is ahead of the fluid; negative behind."""
        return -self.lag.owed_ns(now_ns)

    def room_ns(self, now_ns: int) -> int:
        """What the limit leaves of the window."""
        window, earlier_ns = self.config.window_ns, 0
        span_ns = window
        if self._allowed is not None:
            span_ns, earlier_ns = now_ns - self._resized_ns, self._allowed.used_ns(now_ns)
            if span_ns >= window:
                span_ns, earlier_ns, self._allowed = window, 0, None
        allowed_ns = self.share.limit_milli * span_ns // 1000 + earlier_ns
        return allowed_ns + window // SLACK_PART - self.window.used_ns(now_ns)

    def open_at_ns(self, now_ns: int) -> int:
        """When its limit and a pause of another tenant allow the next grant; now or earlier means at once."""
        opens, creditor = now_ns, self.lag.flow.creditor
        # A tenant that is owed time and rests may come back before this one begins a long kernel.
        if creditor is not None and creditor.owed_ns >= QUANTUM_NS and creditor.lag is not self.lag:
            hold_ns = self.hold_ns()
            opens = max(now_ns, creditor.rested_ns + hold_ns) if hold_ns else now_ns
        if self.share.limit_milli >= 1000:
            return opens
        behind = self.lag.owed_ns(now_ns)
        if self.blocked and behind < 0 and self.lag.is_held_by_its_limit:
            opens += max(LOOK_NS, -behind * WHOLE // self.lag.rate)
        return opens if self.room_ns(now_ns) > 0 else max(opens, now_ns + self.config.window_ns // 1000)

    def hold_ns(self) -> int:
        """How long it waits after another tenant's rest that may be a pause; 0 for one with short kernels."""
        hold = self.residuals.usual_ns // HOLD_PART
        return hold if hold >= MIN_HOLD_NS else 0

    def runway_ns(self, now_ns: int) -> int | None:
        """How long a grant that starts now may last; None where there is no limit."""
        if self.share.limit_milli >= 1000:
            return None
        room = self.room_ns(now_ns)
        if not self.lag.is_held_by_its_limit:
            return room
        return min(room, (self.lag.owed_ns(now_ns) + QUANTUM_NS) * WHOLE // (WHOLE - self.lag.rate))

    def rank(self, now_ns: int) -> Rank:
        """The sort key, smallest first: tenants with a promised time to wake, then those farthest behind the fluid."""
        lead = self.config.window_ns // LEAD_PART if self.lag.fresh else 0
        return (-1 if self.is_urgent(now_ns) else 0, -self.lag.owed_ns(now_ns) - lead, self.ordinal)

    def is_urgent(self, now_ns: int) -> bool:
        """Whether it was promised to wake in time, woke, has not lost a turn since, and is within its request."""
        if not (self.share.wake_ns and self.lag.fresh):
            return False
        return self.lag.owed_ns(now_ns) >= -self.config.window_ns // AHEAD_PART


class FluidPolicy(TokenPolicy):
    """Turns that follow the fluid, on the mechanism of `TokenPolicy`."""

    def _new_account(self, gpu: str, share: Share, flow: Flow, lags: list[Lag], now_ns: int) -> Account:
        return FluidAccount(gpu, share, self._ordinal, self.config, Lag(flow, share, lags))

    def _turn_ns(self, tenant: PolicyTenant, now_ns: int) -> int:
        return self.config.quota_ns  # how long it may go on unasked; what ends a turn before is in `_ends_ns`

    def _review(
        self,
        tenant: PolicyTenant,
        hold: ActiveGrant,
        rivals: list[PolicyTenant],
        reserved: Mapping[str, str],
        now_ns: int,
        actions: list[Action],
    ) -> None:
        if not hold.stopped:
            whole = now_ns >= hold.told_ns - self._lead(hold)
            if whole:  # the tenant has had a whole turn since it woke, so it loses its lead
                for account in tenant.accounts.values():
                    account.lag.fresh = False
                self._ranks.pop(tenant.name, None)
            ends = self._ends_ns(tenant, hold, rivals, reserved, now_ns)
            if whole and ends > hold.told_ns:
                hold.quota_ns = self._turn_ns(tenant, now_ns)
                hold.told_ns = max(hold.told_ns, now_ns + hold.quota_ns)
                hold.ended_ns = None
                self._begin(tenant, now_ns)
                actions.append(Renew(tenant.name, hold.gpus, hold.quota_ns, hold.told_ns))
            hold.deadline_ns = min(hold.told_ns, ends)
        if now_ns >= self._revoked_at_ns(hold):
            for account in tenant.accounts.values():
                assert isinstance(account, FluidAccount)
                account.lag.fresh = False
                account.blocked = account.lag.is_held_by_its_limit and account.lag.owed_ns(now_ns) <= -QUANTUM_NS
            self._revoke(tenant, hold, now_ns, actions)

    def _ends_ns(
        self,
        tenant: PolicyTenant,
        hold: ActiveGrant,
        rivals: list[PolicyTenant],
        reserved: Mapping[str, str],
        now_ns: int,
    ) -> int:
        """When the turn ends if nothing changes; later than any deadline if no event is known that would end it."""
        if self._is_anyone_overdue(hold, now_ns):
            return now_ns
        if hold.ended_ns is not None and rivals:
            return hold.told_ns  # resumed to finish earlier work: until its deadline and no longer
        ends = [now_ns + 2 * self.config.quota_ns]
        runway = tenant.runway_ns(now_ns)
        if runway is not None:
            ends.append(now_ns if runway <= 0 else now_ns + max(LOOK_NS, runway))
        if not hold.gpus_set.isdisjoint(reserved):
            ends.append(now_ns)
        # Who would have all of its GPUs if this turn ended; a gang that would not, reserves them in time.
        rivals = [
            rival
            for rival in rivals
            if all(gpu in hold.gpus_set or self._free(gpu, rival.name, now_ns) for gpu in rival.accounts)
        ]
        if rivals:
            best = min(rivals, key=lambda rival: self._rank(rival, now_ns))
            if self._is_urgent(best, now_ns):
                return hold.period_start_ns + SLICE_NS if self._is_urgent(tenant, now_ns) else now_ns
            gap = self._rank(tenant, now_ns)[1] - self._rank(best, now_ns)[1]
            if gap >= QUANTUM_NS:
                ends.append(now_ns)
            else:  # until the gap is a quantum: one earns, the other earns and pays
                mine, theirs = tenant.accounts, best.accounts
                speed = max(WHOLE + theirs[gpu].lag.rate - mine[gpu].lag.rate for gpu in mine if gpu in theirs)
                ends.append(now_ns + max(LOOK_NS, (QUANTUM_NS - gap) * WHOLE // max(speed, WHOLE // 100)))
        return max(min(ends), hold.period_start_ns + SLICE_NS)

    def _is_due(self, tenant: PolicyTenant, now_ns: int) -> bool:
        """Whether no other tenant that may start on its GPUs is owed more."""
        mine = min(account.rank(now_ns) for account in tenant.accounts.values())
        for rival in self._candidates(now_ns):
            theirs = min(account.rank(now_ns) for account in rival.accounts.values())
            if theirs < mine and not tenant.accounts.keys().isdisjoint(rival.accounts):
                return False
        return True

    def _enter(self, tenant: PolicyTenant, quota_ns: int, now_ns: int, actions: list[Action]) -> ActiveGrant:
        """Begin a turn; the next evaluation decides when it ends, and may come before the quota is over."""
        hold = super()._enter(tenant, quota_ns, now_ns, actions)
        hold.deadline_ns = min(hold.deadline_ns, now_ns + SLICE_NS)
        return hold

    @staticmethod
    def _is_urgent(tenant: PolicyTenant, now_ns: int) -> bool:
        return any(account.is_urgent(now_ns) for account in tenant.accounts.values())

    def upcoming(self, gpu: str, now_ns: int) -> Upcoming | None:
        """Who is granted this GPU when its occupant has returned or drained; None where that is not certain."""
        found = super().upcoming(gpu, now_ns)
        if found is None:
            return None
        account = self._tenants[found.tenant].accounts[gpu]
        assert isinstance(account, FluidAccount)
        if account.blocked and account.lag.owed_ns(now_ns) < EXACT_NS:
            return None  # it was stopped ahead of its limit and is barely even: a change of rates might hold it back
        if account.hold_ns():
            return None  # the occupant's return may be a pause
        # A tenant at rest that is ahead leaves the fluid as soon as it is even and the policy looks: rates change then.
        leaving = [account.lag.may_leave_at_ns(now_ns) for account in self._devices[gpu].members.values()]
        until = min([found.until_ns, *(at for at in leaving if at is not None)])
        return replace(found, until_ns=until, until_wanting_ns=min(until, found.until_wanting_ns))

    def _stays_ns(
        self, gpu: str, first: PolicyTenant, rivals: list[PolicyTenant], occupant: PolicyTenant, now_ns: int
    ) -> int:
        """For how long at least a waiter goes before all rivals; 0 if it may not now.

        An occupant that returns leaves the fluid, and the others share what it is owed.
        """
        mine, leaving = first.accounts[gpu], occupant.accounts[gpu].lag
        urgent = mine.is_urgent(now_ns) and mine.lag.owed_ns(now_ns) >= EXACT_NS - self.config.window_ns // AHEAD_PART
        returns = occupant.hold is not None
        shares = mine.lag.flow.parts_without(leaving) if returns else {}
        standing, stays = self._standing(first, now_ns), SECOND
        for rival in rivals:
            theirs = rival.accounts[gpu]
            if theirs.share.wake_ns and theirs.lag.fresh:
                if not urgent:
                    return 0  # it goes first as soon as it is within its request
            elif urgent:
                continue
            gap = standing - self._standing(rival, now_ns)
            speed = theirs.lag.rate - mine.lag.rate - (WHOLE if rival is occupant else 0)
            if returns:
                gap += min(0, shares[mine.lag] - shares[theirs.lag]) - EXACT_NS * WHOLE
            elif mine.ordinal > theirs.ordinal:
                gap -= WHOLE  # ranks are in whole nanoseconds, and among equals the other goes first
            if speed > 0:
                stays = min(stays, max(0, gap - WHOLE) // speed)
            elif gap < 0:
                return 0
        return stays

    def _standing(self, tenant: PolicyTenant, now_ns: int) -> int:
        """The key of a single-GPU tenant in the order of turns, in millionths of a nanosecond: larger goes first."""
        (account,) = tenant.accounts.values()
        return -self._rank(tenant, now_ns)[1] * WHOLE + account.lag.level % WHOLE
