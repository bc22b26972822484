"""Who may use which GPU until when: the token policy, without a clock and without I/O.

The caller tells what happened and when (`want`, `returned`, `drained`, `dead`), calls `tick(now)` for the actions to
carry out, and calls again at `next_wake_ns()` at the latest. Time is any integer of nanoseconds that never goes back.

A tenant is granted all of its GPUs or none, so tenants never hold one and wait for another, and cannot deadlock. A gang
that could not start for `gang_patience_ns` has its GPUs kept free once its turn has come, so it cannot starve either.

Source: KubeShare (HPDC'20) 4.5 for the order, Gemini (TCC'21) for the quota. Not promised: that running work stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .account import Account, Rank
from .actions import SECOND, Action, Grant, Handover, QuotaEstimate, Renew, Revoke, Share, TokenConfig
from .device import Device, Hold

NO_DATA_DRAIN_NS: Final = 1 * SECOND


class UnknownTenant(KeyError):
    """The tenant or its GPU was never added, or was removed."""


class Tenant:
    """One tenant: its accounts by GPU, and whether it wants or holds."""

    __slots__ = ("accounts", "hold", "name", "quota", "rank", "residual", "wanting_since_ns")

    def __init__(self, name: str, accounts: dict[str, Account], quota: QuotaEstimate) -> None:
        self.name = name
        self.accounts = accounts
        self.quota = quota
        self.hold: Hold | None = None
        self.residual: set[str] = set()
        self.wanting_since_ns: int | None = None

    def open_at_ns(self, now_ns: int) -> int:
        """When its limits allow the next grant on every GPU of it."""
        return max(account.open_at_ns(now_ns) for account in self.accounts.values())

    def runway_ns(self, now_ns: int) -> int | None:
        """How long it may run from now under all of its limits."""
        runways = [r for a in self.accounts.values() if (r := a.runway_ns(now_ns)) is not None]
        return min(runways) if runways else None


class TokenPolicy:
    """KubeShare's three steps over a sliding window, work-conserving, for any number of GPUs."""

    def __init__(self, config: TokenConfig | None = None) -> None:
        self.config = config or TokenConfig()
        self._tenants: dict[str, Tenant] = {}
        self._devices: dict[str, Device] = {}
        self._ordinal = 0
        self._ticked_at_ns = 0
        self._ranks: dict[str, Rank] = {}  # of this tick; charges do not change within it

    def add_tenant(self, name: str, shares: Mapping[str, Share], now_ns: int) -> None:
        """Make a tenant known with its share on each of its GPUs.

        Raises:
            ValueError: the name is taken, or no GPU is given.
        """
        if name in self._tenants or not shares:
            raise ValueError(f"tenant {name!r} is known already" if shares else f"tenant {name!r} has no GPU")
        self._ordinal += 1
        accounts = {}
        for gpu in sorted(shares):
            accounts[gpu] = Account(gpu, shares[gpu], self._ordinal, self.config, now_ns)
            device = self._devices.setdefault(gpu, Device(gpu, now_ns))
            device.members[name] = accounts[gpu]
        limit = min(share.limit_milli for share in shares.values())
        self._tenants[name] = Tenant(name, accounts, QuotaEstimate(self.config, limit))

    def remove_tenant(self, name: str, now_ns: int) -> None:
        """Forget a tenant; what it holds is free at once."""
        self.dead(name, now_ns)
        for gpu in self._tenants.pop(name).accounts:
            device = self._devices[gpu]
            del device.members[name]
            if not device.members:
                del self._devices[gpu]

    def want(self, name: str, now_ns: int, burst_ns: int = 0) -> None:
        """The tenant has work to launch; remembered until it is granted."""
        tenant = self._tenant(name)
        tenant.quota.learn(burst_ns)
        if tenant.wanting_since_ns is None:
            tenant.wanting_since_ns = now_ns
        for account in tenant.accounts.values():
            account.arrive(now_ns)

    def unwant(self, name: str, now_ns: int) -> None:
        """Whoever asked for the tenant is gone; what it holds is not touched."""
        self._rest(self._tenant(name), now_ns)

    def returned(self, name: str, now_ns: int, burst_ns: int = 0) -> None:
        """The holder is idle and gives the token back; nothing of it runs any more."""
        tenant = self._tenant(name)
        tenant.quota.learn(burst_ns)
        self._end_hold(tenant, now_ns)
        self._clear_residual(tenant, now_ns)

    def stop(self, name: str, now_ns: int) -> None:
        """End the tenant's grant at the next tick: it is idle as a whole, but parts of it have yet to say so."""
        hold = self._tenant(name).hold
        if hold is not None:
            hold.stopped = True
            hold.deadline_ns = min(hold.deadline_ns, now_ns)

    def drained(self, name: str, gpu: str, now_ns: int, burst_ns: int = 0) -> None:
        """After a revocation: the tenant's work on this GPU has ended, so its debt is known."""
        tenant = self._tenant(name)
        tenant.quota.learn(burst_ns)
        if gpu not in tenant.residual:
            return
        device = self._devices[gpu]
        device.settle(now_ns)
        device.leave(name, now_ns)
        tenant.residual.discard(gpu)

    def dead(self, name: str, now_ns: int) -> None:
        """The tenant has no process left: charge to now, free its GPUs, forget what it wanted."""
        tenant = self._tenant(name)
        self._rest(tenant, now_ns)
        self._end_hold(tenant, now_ns)
        self._clear_residual(tenant, now_ns)

    def tick(self, now_ns: int) -> list[Action]:
        """What to do now, in order. Calling again at the same time gives nothing."""
        actions: list[Action] = []
        self._ranks.clear()
        for device in self._devices.values():
            device.settle(now_ns)
        candidates = self._candidates(now_ns)
        reserved = self._reservations(now_ns, candidates)
        self._expire(now_ns, candidates, reserved, actions)
        self._assign(now_ns, candidates, reserved, actions)
        self._ticked_at_ns = now_ns
        return actions

    def next_wake_ns(self) -> int | None:
        """When `tick` has something to do even if nothing happens; None for never. To be asked after `tick`."""
        return self._next_wake(self._ticked_at_ns)

    def account(self, name: str, gpu: str) -> Account:
        """The books of one tenant on one GPU, for reading; current as of the last tick.

        Raises:
            UnknownTenant: there is no such pair.
        """
        try:
            return self._tenant(name).accounts[gpu]
        except KeyError as error:
            raise UnknownTenant(f"{name} on {gpu}") from error

    def holders(self, gpu: str) -> list[str]:
        """Who holds the GPU or still has work on it, holder last."""
        device = self._devices.get(gpu)
        return [] if device is None else list(device.occupants)

    def holder(self, gpu: str) -> str | None:
        """Who has a valid grant of the GPU."""
        device = self._devices.get(gpu)
        return None if device is None else device.holder

    def waiters(self, gpu: str) -> int:
        """How many tenants wait for this GPU."""
        device = self._devices.get(gpu)
        return 0 if device is None else sum(self._tenants[n].wanting_since_ns is not None for n in device.members)

    def quota_ns(self, name: str) -> int:
        """The length of the tenant's next grant, before its limit shortens it."""
        return self._tenant(name).quota.current_ns()

    def restore(self, name: str, gpu: str, *, used_ns: int, debt_ns: int, total_ns: int, now_ns: int) -> None:
        """Take over what a journal says was charged in the window before now, and what is owed.

        The window's charge is spread evenly over the window, for when in it the tenant ran is not journalled.
        """
        account = self.account(name, gpu)
        start = now_ns - self.config.window_ns
        if used_ns > 0:
            account.window.charge(start, now_ns, min(used_ns, self.config.window_ns))
            account.since_ns = start
        account.promise.reset(now_ns)
        if debt_ns > 0:
            account.promise.owe(debt_ns)
            account.bucket.pay(debt_ns)
        account.window.total_ns = total_ns

    def _tenant(self, name: str) -> Tenant:
        try:
            return self._tenants[name]
        except KeyError as error:
            raise UnknownTenant(name) from error

    def _rest(self, tenant: Tenant, now_ns: int) -> None:
        tenant.wanting_since_ns = None
        for account in tenant.accounts.values():
            account.promise.rest(now_ns)

    def _begin(self, tenant: Tenant, now_ns: int) -> None:
        """A turn of the tenant begins, so it waits no more."""
        tenant.wanting_since_ns = None
        for account in tenant.accounts.values():
            account.promise.begin(now_ns)

    def _end_hold(self, tenant: Tenant, now_ns: int) -> None:
        if tenant.hold is None:
            return
        for gpu in tenant.hold.gpus:
            device = self._devices[gpu]
            device.settle(now_ns)
            device.leave(tenant.name, now_ns)
        tenant.hold = None

    def _clear_residual(self, tenant: Tenant, now_ns: int) -> None:
        for gpu in tuple(tenant.residual):
            self.drained(tenant.name, gpu, now_ns)

    def _candidates(self, now_ns: int) -> list[Tenant]:
        """Everybody who waits and whom neither its limit nor unfinished work keeps out."""
        return [
            t
            for t in self._tenants.values()
            if t.wanting_since_ns is not None and t.hold is None and not t.residual and t.open_at_ns(now_ns) <= now_ns
        ]

    def _rank(self, tenant: Tenant, now_ns: int) -> Rank:
        """A gang ranks by the GPU on which it is most behind."""
        rank = self._ranks.get(tenant.name)
        if rank is None:
            rank = self._ranks[tenant.name] = min(account.rank(now_ns) for account in tenant.accounts.values())
        return rank

    def _expire(
        self, now_ns: int, candidates: list[Tenant], reserved: Mapping[str, str], actions: list[Action]
    ) -> None:
        """Renew who may go on, revoke whose time is over."""
        for tenant in self._tenants.values():
            hold = tenant.hold
            if hold is None:
                continue
            rivals = [c for c in candidates if not hold.gpus_set.isdisjoint(c.accounts)]
            self._shorten(tenant, hold, rivals, now_ns)
            if now_ns < hold.deadline_ns - self._lead(hold):
                continue
            if self._may_go_on(tenant, hold, rivals, reserved, now_ns) and self._renew(
                tenant, hold, now_ns, actions, lent=not rivals
            ):
                continue
            if now_ns >= hold.deadline_ns:
                self._revoke(tenant, hold, now_ns, actions)

    def _may_go_on(
        self, tenant: Tenant, hold: Hold, rivals: list[Tenant], reserved: Mapping[str, str], now_ns: int
    ) -> bool:
        """Whether it would be chosen again at once, and no gang has reserved one of its GPUs."""
        if not rivals:
            return True
        mine = self._rank(tenant, now_ns)
        return hold.gpus_set.isdisjoint(reserved) and not any(self._rank(rival, now_ns) < mine for rival in rivals)

    def _lead(self, hold: Hold) -> int:
        return min(self.config.renew_lead_ns, hold.quota_ns // 4)

    def _shorten(self, tenant: Tenant, hold: Hold, rivals: list[Tenant], now_ns: int) -> None:
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

    def _renew(self, tenant: Tenant, hold: Hold, now_ns: int, actions: list[Action], *, lent: bool) -> bool:
        quota = self._bounded_quota(tenant, now_ns)
        if hold.stopped or now_ns + quota <= hold.deadline_ns + self.config.min_quota_ns // 2:
            return False
        hold.quota_ns, hold.deadline_ns = quota, now_ns + quota
        hold.period_start_ns, hold.lent, hold.shortened = now_ns, lent, False
        self._begin(tenant, now_ns)
        actions.append(Renew(tenant.name, hold.gpus, quota, hold.deadline_ns))
        return True

    def _bounded_quota(self, tenant: Tenant, now_ns: int) -> int:
        """The estimate, cut to what its limits leave, and among several tenants to a hundredth of the window.

        One turn is the grain of the shares: a window that begins or ends within a turn is off by it, and a point of
        the window is what the shares are promised to. Whoever is alone takes turns of up to a twentieth.
        """
        alone = all(self._devices[gpu].active(now_ns) <= 1 for gpu in tenant.accounts)
        ceiling = max(self.config.quota_ns, self.config.window_ns // (20 if alone else 100))
        quota, runway = min(tenant.quota.current_ns(), ceiling), tenant.runway_ns(now_ns)
        return quota if runway is None else min(quota, runway)

    def _revoke(self, tenant: Tenant, hold: Hold, now_ns: int, actions: list[Action]) -> None:
        for gpu in hold.gpus:
            self._devices[gpu].expire(tenant.name, now_ns)
        tenant.residual = set(hold.gpus)
        tenant.hold = None
        actions.append(Revoke(tenant.name, hold.gpus))

    def _assign(
        self, now_ns: int, candidates: list[Tenant], reserved: Mapping[str, str], actions: list[Action]
    ) -> None:
        """Give every free GPU to the first in the order that can start on all of its GPUs."""
        ranked = sorted((self._rank(t, now_ns), t.name, t) for t in candidates)
        for _, _, tenant in ranked:
            if all(
                self._free(gpu, now_ns) and reserved.get(gpu, tenant.name) == tenant.name for gpu in tenant.accounts
            ):
                self._grant(tenant, now_ns, actions)

    def _reservations(self, now_ns: int, candidates: list[Tenant]) -> dict[str, str]:
        """GPUs kept for gangs that have waited long enough, each all of its GPUs or none.

        In the order of turns, and never past a tenant that comes before the gang: who is passed over moves up in that
        order with time, so neither a gang nor its neighbours starve.
        """
        reserved: dict[str, str] = {}
        if not any(len(tenant.accounts) > 1 for tenant in candidates):
            return reserved
        claimed: set[str] = set()
        for tenant in sorted(candidates, key=lambda t: (self._rank(t, now_ns), t.name)):
            gang = len(tenant.accounts) > 1
            if gang and now_ns - (tenant.wanting_since_ns or 0) < self.config.gang_patience_ns:
                continue
            if gang and claimed.isdisjoint(tenant.accounts):
                reserved.update(dict.fromkeys(tenant.accounts, tenant.name))
            if not gang or tenant.name in reserved.values():
                claimed.update(tenant.accounts)
        return reserved

    def _free(self, gpu: str, now_ns: int) -> bool:
        """No valid grant, and what ran before has drained or is no longer waited for."""
        device = self._devices[gpu]
        if device.holder is not None:
            return False
        return not device.occupants or now_ns >= self._drain_until(device)

    def _drain_until(self, device: Device) -> int:
        """Until when the residual work of the last holder keeps the next one waiting."""
        config, expired = self.config, device.expired_at_ns
        if config.handover is Handover.OVERLAP:
            return expired
        if config.handover is Handover.DRAIN:
            return expired + config.drain_timeout_ns
        usual = device.usual_residual_ns()
        patience = NO_DATA_DRAIN_NS if usual is None else max(2 * usual, self.config.min_quota_ns)
        return expired + min(patience, config.drain_timeout_ns)

    def _grant(self, tenant: Tenant, now_ns: int, actions: list[Action]) -> None:
        quota = max(self._bounded_quota(tenant, now_ns), self.config.min_quota_ns)
        gpus = tuple(tenant.accounts)
        tenant.hold = Hold(gpus, quota, now_ns, now_ns + quota)
        self._begin(tenant, now_ns)
        for gpu in gpus:
            self._devices[gpu].enter(tenant.name, now_ns)
        actions.append(Grant(tenant.name, gpus, quota, now_ns + quota))

    def _next_wake(self, now_ns: int) -> int | None:
        wakes: list[int] = []
        for tenant in self._tenants.values():
            if tenant.hold is not None:
                lead = tenant.hold.deadline_ns - self._lead(tenant.hold)
                wakes.append(lead if lead > now_ns else tenant.hold.deadline_ns)
            elif tenant.wanting_since_ns is not None and not tenant.residual:
                wakes.append(tenant.open_at_ns(now_ns))
                if len(tenant.accounts) > 1:
                    wakes.append(tenant.wanting_since_ns + self.config.gang_patience_ns)
        for device in self._devices.values():
            if device.holder is None and device.occupants:
                wakes.append(self._drain_until(device))
        return min((wake for wake in wakes if wake > now_ns), default=None)
