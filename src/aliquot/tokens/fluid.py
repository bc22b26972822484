"""What each tenant would get if GPUs could be divided like a fluid, and how far each is behind that.

Every tenant that wants its GPUs gets its request; the rest raises the lowest rates first, until a limit is reached or a
GPU is full. A tenant of several GPUs has one rate on all of them, for it is granted all or none. The rates change only
when a tenant begins or stops wanting its GPUs.

The lag of a tenant is the measure of the promise, and the order of the policy `fluid`. Every tenant that wants the GPU
earns at its rate and pays for the time it occupies. A tenant that rests earns nothing. One that is ahead when it comes
to rest stays among those that want the GPU until it is not, for in the fluid its work would still run: else a rest
would wipe out what it had too much. What comes or goes with a tenant is borne by the others in proportion to their
rates, so what all are owed adds up to nothing but idle time.

Source: EEVDF (Stoica and Abdel-Wahab, 1995) with the rates of the fluid as weights; lag kept over a rest and the late
leave are those of Linux 6.12. Held in millionths of a nanosecond.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from .actions import MS, SECOND, Share

WHOLE: Final = 1_000_000
"""The rate of a whole GPU: rates are in millionths."""
KEPT_NS = 1 * SECOND
"""The most credit that a resting tenant keeps; credit above it decays at the pace of the rest, not at once."""
GRACE_NS = 2 * MS
"""How long after a turn was taken from it a tenant may say that it wants more, before it counts as resting."""
REST_NS = 2 * MS
"""The shortest pause that counts as a rest, after which a tenant goes first; a lack of CPU causes shorter ones."""
LEAST_NS = 1 * MS
CACHED = 64
"""Sets of busy tenants whose rates are kept."""


def rates(shares: Sequence[Share], gpus: Sequence[Sequence[Hashable]]) -> list[int]:
    """The rate of each tenant on its GPUs, in millionths, rounded down; [n]. Requests that do not fit are scaled."""
    rate = [share.request_milli * 1000 for share in shares]
    used: dict[Hashable, int] = {}
    for place, mine in zip(rate, gpus, strict=True):
        for gpu in mine:
            used[gpu] = used.get(gpu, 0) + place
    if any(total > WHOLE for total in used.values()):
        rate = [r * WHOLE // max(WHOLE, *(used[gpu] for gpu in mine)) for r, mine in zip(rate, gpus, strict=True)]
        return rate
    free = {gpu: WHOLE - total for gpu, total in used.items()}
    limits = [share.limit_milli * 1000 for share in shares]
    rising = [i for i in range(len(shares)) if rate[i] < limits[i]]
    while rising:
        lowest = min(rate[i] for i in rising)
        low = [i for i in rising if rate[i] == lowest]
        count: dict[Hashable, int] = {}
        for i in low:
            for gpu in gpus[i]:
                count[gpu] = count.get(gpu, 0) + 1
        steps = [limits[i] - lowest for i in low] + [rate[i] - lowest for i in rising if rate[i] > lowest]
        step = min([*steps, *(free[gpu] // n for gpu, n in count.items())])
        for i in low:
            rate[i] += step
        for gpu, n in count.items():
            free[gpu] -= n * step
        full = {gpu for gpu, n in count.items() if free[gpu] < n}
        rising = [i for i in rising if rate[i] < limits[i] and (i not in low or full.isdisjoint(gpus[i]))]
    return rate


class Creditor(NamedTuple):
    """A tenant that came to rest at `rested_ns` while it was owed `owed_ns`."""

    lag: Lag
    rested_ns: int
    owed_ns: int


class Flow:
    """The fluid of one GPU: the tenants that want it, their rates, and the last that left while it was owed time."""

    __slots__ = ("_at_ns", "_cache", "busy", "creditor")

    def __init__(self, now_ns: int) -> None:
        self.busy: dict[Lag, int] = {}
        self.creditor: Creditor | None = None
        self._at_ns = now_ns
        self._cache: dict[tuple[Lag, ...], list[int]] = {}

    def accrue(self, now_ns: int) -> None:
        """Credit every tenant that wants the GPU for the time up to now."""
        span = now_ns - self._at_ns
        if span > 0:
            self._at_ns = now_ns
            for lag, rate in self.busy.items():
                lag.give(rate * span)
                if lag.wants:
                    lag.wanted_ns += span

    def skip(self, now_ns: int) -> None:
        """Let time pass in which no tenant earns."""
        self._at_ns = now_ns

    def join(self, lag: Lag, now_ns: int) -> None:
        """A tenant begins to want the GPU; the others bear what it is owed."""
        self._share_out(-lag.level)
        self.busy[lag] = 0
        self._solve(now_ns)

    def leave(self, lag: Lag, now_ns: int) -> None:
        """A tenant wants the GPU no more; the others get what it is owed."""
        linked = self._linked()
        for flow in linked:
            flow.accrue(now_ns)
        del self.busy[lag]
        for flow in linked:
            flow._solve(now_ns)
        self._share_out(lag.level)

    def resolve(self, now_ns: int) -> None:
        """Find the rates again, since a tenant has another share; credit up to now is by the rates before."""
        self._cache.clear()
        self._solve(now_ns)

    def _solve(self, now_ns: int) -> None:
        """Find the rates of all GPUs that share a tenant with this one, directly or over others."""
        linked = self._linked()
        key = tuple(lag for flow in linked for lag in flow.busy)
        found = self._rates(key)
        for flow in linked:
            flow.accrue(now_ns)
        for lag, of_lag in zip(key, found, strict=True):
            lag.flow.busy[lag] = of_lag

    def parts_without(self, leaving: Lag) -> dict[Lag, int]:
        """The part of a leaving tenant's level that each other tenant would get, if no tenant has several GPUs."""
        key = tuple(lag for lag in self.busy if lag is not leaving)
        rates = self._rates(key)
        total = sum(rates) or 1
        return {lag: leaving.level * rate // total for lag, rate in zip(key, rates, strict=True)}

    def _rates(self, key: tuple[Lag, ...]) -> list[int]:
        found = self._cache.get(key)
        if found is None:
            tenants: dict[int, list[Lag]] = {}
            for lag in key:
                tenants.setdefault(id(lag.tenant), []).append(lag)
            shares: list[Share] = []
            for lags in tenants.values():  # one rate on all GPUs of a tenant, since they are granted together
                limit = min(lag.share.limit_milli for lag in lags)
                shares.append(Share(min(limit, *(lag.share.request_milli for lag in lags)), limit))
            of_tenant = rates(shares, [[lag.flow for lag in lags] for lags in tenants.values()])
            rate = {lag: r for lags, r in zip(tenants.values(), of_tenant, strict=True) for lag in lags}
            if len(self._cache) >= CACHED:
                self._cache.clear()
            found = self._cache[key] = [rate[lag] for lag in key]
        return found

    def _linked(self) -> list[Flow]:
        linked, seen = [self], {id(self)}
        for flow in linked:
            for lag in flow.busy:
                for other in lag.tenant:
                    if id(other.flow) not in seen and other in other.flow.busy:
                        seen.add(id(other.flow))
                        linked.append(other.flow)
        return linked

    def _share_out(self, amount: int) -> None:
        total = sum(self.busy.values())
        if not total:
            return
        left = amount
        for lag, rate in self.busy.items():
            part = amount * rate // total
            lag.give(part)
            left -= part
        next(iter(self.busy)).give(left)


@dataclass(slots=True, eq=False, repr=False)
class Lag:
    """One tenant's place in the fluid of one GPU; `tenant` are its lags on all of its GPUs.

    With `max_ahead_ns` it owes no more than that when it comes to rest: for orders that forgive what they have lent.
    """

    flow: Flow
    share: Share
    tenant: list[Lag]
    max_ahead_ns: int | None = None
    level: int = 0
    given: int = 0  # what the fluid has given it, as the level in millionths of a nanosecond
    wants: bool = False  # it waits, holds the GPU or has work on it
    wanted_ns: int = 0
    waiting: bool = False
    fresh: bool = False  # it woke from a rest, and no turn was taken from it since
    leave_at_ns: int | None = None  # when to look again whether it leaves
    _idle_ns: int | None = None
    _rested_at_ns: int | None = -REST_NS  # since when it has rested; None while it wants the GPU

    def __post_init__(self) -> None:
        self.tenant.append(self)

    @property
    def rate(self) -> int:
        """What it earns, in millionths of the GPU; 0 at rest."""
        return self.flow.busy.get(self, 0)

    @property
    def is_held_by_its_limit(self) -> bool:
        """Whether the fluid itself gives it all that its limit allows, and no more."""
        return self.share.limit_milli < 1000 and self.rate >= self.share.limit_milli * 1000

    def give(self, amount: int) -> None:
        """Add this amount to what the fluid has given it; a negative amount takes away."""
        self.level += amount
        self.given += amount

    def owed_ns(self, now_ns: int) -> int:
        """How far it is behind the fluid; negative ahead of it."""
        self.flow.accrue(now_ns)
        return self.level // WHOLE

    def wait(self, now_ns: int) -> None:
        """It wants the GPU."""
        self.flow.accrue(now_ns)
        self.waiting = self.wants = True
        self._idle_ns = self.leave_at_ns = None
        if self.flow.creditor is not None and self.flow.creditor.lag is self:
            self.flow.creditor = None
        if self not in self.flow.busy:
            rest_ns = 0 if self._rested_at_ns is None else now_ns - self._rested_at_ns
            self.level = min(self.level, max(KEPT_NS * WHOLE, self.level - rest_ns * WHOLE))
            self.flow.join(self, now_ns)
        if self._rested_at_ns is not None:
            self.fresh |= now_ns - self._rested_at_ns >= REST_NS
            self._rested_at_ns = None

    def begin(self, now_ns: int) -> None:
        """The wait is over: it holds the GPU, or wants nothing; `idle` decides whether that is a rest."""
        self.flow.accrue(now_ns)
        self.waiting = False

    def idle(self, now_ns: int, *, at_once: bool = False) -> None:
        """It neither wants nor occupies the GPU; after a moment, and once it is not ahead, it leaves the fluid."""
        if self not in self.flow.busy:
            return
        if self._idle_ns is None or at_once:
            self._idle_ns = now_ns - GRACE_NS if at_once else now_ns
            self.flow.accrue(now_ns)
            self.wants = False
            if self.max_ahead_ns is not None:
                self.level = max(self.level, -self.max_ahead_ns * WHOLE)
        ready_ns = self._idle_ns + GRACE_NS
        if now_ns < ready_ns:
            self.leave_at_ns = ready_ns
            return
        if self._rested_at_ns is None:
            self._rested_at_ns = now_ns
        ahead = -self.owed_ns(now_ns)
        if ahead > LEAST_NS // 1000:
            self.leave_at_ns = now_ns + max(LEAST_NS, ahead * WHOLE // max(self.rate, WHOLE // 50))
        else:
            self.go(now_ns)

    def may_leave_at_ns(self, now_ns: int) -> int | None:
        """The earliest time at which `idle` may let it leave; None if it is not about to leave."""
        if self._idle_ns is None or self not in self.flow.busy:
            return None
        even_ns = now_ns + max(0, -self.owed_ns(now_ns) - LEAST_NS // 1000 - 1) * WHOLE // max(self.rate, 1)
        return max(self._idle_ns + GRACE_NS, even_ns)

    def go(self, now_ns: int) -> None:
        """Leave the fluid now."""
        self.flow.accrue(now_ns)
        self.leave_at_ns = self._idle_ns = None
        self.waiting = self.wants = False
        if self._rested_at_ns is None:
            self._rested_at_ns = now_ns
        if self in self.flow.busy:
            if self.level > 0:
                self.flow.creditor = Creditor(self, now_ns, self.level // WHOLE)
            self.flow.leave(self, now_ns)

    def charge(self, end_ns: int, amount_ns: int) -> None:
        """It was on the GPU until `end_ns` and pays `amount_ns` for it, within its turn or past its end."""
        self.flow.accrue(end_ns)
        self.level -= amount_ns * WHOLE
