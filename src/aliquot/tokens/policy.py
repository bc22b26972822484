"""Who may use which GPU until when: the token policy, without a clock and without I/O.

The caller tells what happened and when (`want`, `returned`, `drained`, `dead`), calls `tick(now)` for the actions to
carry out, and calls again at `next_wake_ns()` at the latest. Time is any integer of nanoseconds that never goes back.

A tenant is granted all of its GPUs or none, so tenants never hold one and wait for another, and cannot deadlock. A gang
that could not start for `gang_patience_ns` has its GPUs kept free once its turn has come, so it cannot starve either.
It gives its GPUs back together too: one that has drained is kept for a moment until the others have.

This is what all policies share. The order, the length of a turn and what ends it are in `fluid_turns`, `kubeshare` and
`gemini`. Not promised: that running work stops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from .account import Account, Rank
from .actions import SECOND, Action, Grant, Handover, Revoke, Share, TokenConfig, Upcoming
from .device import Device, Hold
from .gangs import reservations
from .lag import Flow, Lag
from .leavers import Leavers
from .residual import RESUME_NS
from .tenant import Tenant


class UnknownTenant(KeyError):
    """The tenant or its GPU was never added, or was removed."""


class TokenPolicy(ABC):
    """Tenants, grants and hand-overs, for any number of GPUs; whose turn it is, a subclass says."""

    def __init__(self, config: TokenConfig | None = None) -> None:
        self.config = config or TokenConfig()
        self._tenants: dict[str, Tenant] = {}
        self._devices: dict[str, Device] = {}
        self._flows: dict[str, Flow] = {}
        self._leavers = Leavers()
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
        lags: list[Lag] = []
        for gpu in sorted(shares):
            flow = self._flows.setdefault(gpu, Flow(now_ns))
            accounts[gpu] = self._new_account(gpu, shares[gpu], flow, lags, now_ns)
            device = self._devices.setdefault(gpu, Device(gpu, now_ns))
            device.members[name] = accounts[gpu]
        self._tenants[name] = Tenant(name, accounts)
        self._leavers.come(name, accounts, now_ns)

    def remove_tenant(self, name: str, now_ns: int) -> None:
        """Forget a tenant; what it holds is free at once."""
        self.dead(name, now_ns)
        accounts = self._tenants.pop(name).accounts
        self._leavers.leave(name, accounts, now_ns)
        for gpu, account in accounts.items():
            account.lag.go(now_ns)
            device = self._devices[gpu]
            del device.members[name]
            if not device.members:
                del self._devices[gpu], self._flows[gpu]

    def want(self, name: str, now_ns: int, burst_ns: int = 0) -> None:
        """The tenant has work to launch; remembered until it is granted."""
        tenant = self._tenant(name)
        self._learn(tenant, burst_ns)
        if tenant.wanting_since_ns is None:
            tenant.wanting_since_ns = now_ns
        for account in tenant.accounts.values():
            account.arrive(now_ns)

    def unwant(self, name: str, now_ns: int) -> None:
        """Whoever asked for the tenant is gone; what it holds is not touched."""
        self._rest(self._tenant(name), now_ns)

    def returned(self, name: str, now_ns: int, burst_ns: int = 0) -> None:
        """The holder is idle and gives the token back: nothing of it runs, and it rests unless it asks again."""
        tenant = self._tenant(name)
        self._learn(tenant, burst_ns)
        self._end_hold(tenant, now_ns)
        self._clear_residual(tenant, now_ns)
        if tenant.wanting_since_ns is None:
            for account in tenant.accounts.values():
                account.lag.idle(now_ns, at_once=True)

    def stop(self, name: str, now_ns: int) -> None:
        """End the tenant's grant at the next tick: it is idle as a whole, but parts of it have yet to say so."""
        hold = self._tenant(name).hold
        if hold is not None:
            hold.stopped = True
            hold.deadline_ns = min(hold.deadline_ns, now_ns)

    def drained(self, name: str, gpu: str, now_ns: int, burst_ns: int = 0, *, usual: bool = True) -> None:
        """After a revocation: its work here has ended; if not `usual` (stopped), nothing is learned from its length."""
        tenant = self._tenant(name)
        self._learn(tenant, burst_ns)
        if not usual:
            self._go_on(tenant, now_ns)
        if gpu not in tenant.residual:
            return
        tenant.accounts[gpu].residuals.learn(tenant.revoked_ns, now_ns, usual=usual)
        tenant.outlived.pop(gpu, None)
        tenant.residual.discard(gpu)
        tenant.drained.add(gpu)
        self._let_go(tenant, now_ns)

    def caught_up(self, name: str, gpu: str, now_ns: int, *, usual: bool = True) -> None:
        """Work on this GPU that outlived an earlier turn has ended, while the tenant holds or waits again.

        A tenant that was resumed for this work gives the GPUs back, for now its parts are at the same step, or has its
        turn at once if that is due.
        """
        tenant = self._tenant(name)
        if not usual:
            self._go_on(tenant, now_ns)
        ended = tenant.outlived.pop(gpu, None)
        if ended is None:
            return
        tenant.accounts[gpu].residuals.learn(ended, now_ns, usual=usual)
        if tenant.hold is None or tenant.hold.ended_ns is None or tenant.outlived:
            return
        if self._is_due(tenant, now_ns):
            tenant.hold.ended_ns, tenant.resumes = None, 0
            self._begin(tenant, now_ns)
        else:
            self.stop(name, now_ns)

    def stopped(self, name: str, gpu: str, now_ns: int) -> None:
        """A process whose work was left here is stopped, and no tenant waits for it: it is not charged from now on.

        Nor is it owed anything for that time, until it is granted, asks, or says that its work has ended.
        """
        tenant = self._tenant(name)
        if gpu in tenant.residual:
            self._devices[gpu].settle(now_ns)
            self._devices[gpu].leave(name)
            for account in tenant.accounts.values():
                account.lag.go(now_ns)

    def _go_on(self, tenant: Tenant, now_ns: int) -> None:
        """It is stopped no more: if it waits, it is owed its part again."""
        if tenant.wanting_since_ns is not None:
            for account in tenant.accounts.values():
                account.lag.wait(now_ns)

    def dead(self, name: str, now_ns: int) -> None:
        """The tenant has no process left: charge to now, free its GPUs, forget what it wanted."""
        tenant = self._tenant(name)
        self._rest(tenant, now_ns)
        self._end_hold(tenant, now_ns)
        self._clear_residual(tenant, now_ns)

    def skip(self, now_ns: int) -> None:
        """Nobody decided anything for a while, so for that time nobody is charged and nothing is owed."""
        for device in self._devices.values():
            device.skip(now_ns)

    def tick(self, now_ns: int) -> list[Action]:
        """What to do now, in order. Calling again at the same time gives nothing."""
        actions: list[Action] = []
        self._ranks.clear()
        for tenant in self._tenants.values():
            if tenant.is_idle():
                for account in tenant.accounts.values():
                    account.lag.idle(now_ns)
        for device in self._devices.values():
            device.settle(now_ns)
        for tenant in self._tenants.values():
            self._let_go(tenant, now_ns)
        candidates = self._candidates(now_ns)
        ranked = sorted(candidates, key=lambda t: (self._rank(t, now_ns), t.name))
        reserved = reservations(ranked, self.config.gang_patience_ns, now_ns)
        self._expire(now_ns, candidates, reserved, actions)
        self._resume(now_ns, actions)
        self._assign(now_ns, ranked, reserved, actions)
        self._ticked_at_ns = now_ns
        return actions

    def judge(self, now_ns: int) -> None:
        """See of every tenant whether the promise was kept in the window that ends now."""
        for device in self._devices.values():
            device.settle(now_ns)
            for account in device.members.values():
                account.judge(now_ns)

    def next_wake_ns(self) -> int | None:
        """When `tick` has something to do even if nothing happens; None for never. To be asked after `tick`."""
        return self._next_wake(self._ticked_at_ns)

    def upcoming(self, gpu: str, now_ns: int) -> Upcoming | None:
        """Who is granted this GPU when its occupant has returned or drained; None where that is not certain.

        It is what `tick` would decide at any time until then if nothing else happened. To be asked after `tick`, at the
        same time; changes nothing.
        """
        occupant = self._lone_occupant(gpu)
        if occupant is None:
            return None
        returns = occupant.hold is not None
        members = [self._tenants[name] for name in self._devices[gpu].members]
        waiting = [t for t in members if t.wanting_since_ns is not None and t is not occupant]
        ready = [t for t in waiting if t.open_at_ns(now_ns) <= now_ns]
        if not ready or any(len(t.accounts) > 1 for t in members):
            return None
        first = min(ready, key=lambda tenant: (tenant.accounts[gpu].rank(now_ns), tenant.name))
        rivals = [tenant for tenant in (waiting if returns else [*ready, occupant]) if tenant is not first]
        stays = min((self._stays_ns(gpu, first, rival, occupant, now_ns) for rival in rivals), default=SECOND)
        wake = self._next_wake(now_ns)
        until = now_ns + min(SECOND, max(0, stays))
        until = until if wake is None else min(until, wake)
        wanting = 0 if returns else min(until, occupant.resume_at_ns())
        quota = self._turn_ns(first, now_ns)
        return Upcoming(occupant.name, first.name, quota, until, wanting) if until > now_ns else None

    def gpus(self) -> list[str]:
        """Every GPU that a tenant has a share of."""
        return list(self._devices)

    def account(self, name: str, gpu: str) -> Account:
        """The books of one tenant on one GPU, for reading, as of the last tick; raises UnknownTenant."""
        try:
            return self._tenant(name).accounts[gpu]
        except KeyError as error:
            raise UnknownTenant(f"{name} on {gpu}") from error

    def holders(self, gpu: str) -> list[str]:
        """Who holds the GPU or still has work on it, holder last."""
        return list(device.occupants) if (device := self._devices.get(gpu)) else []

    def holder(self, gpu: str) -> str | None:
        """Who has a valid grant of the GPU."""
        return device.holder if (device := self._devices.get(gpu)) else None

    def waiters(self, gpu: str) -> int:
        """How many tenants wait for this GPU."""
        device = self._devices.get(gpu)
        return 0 if device is None else sum(self._tenants[n].wanting_since_ns is not None for n in device.members)

    def quota_ns(self, name: str) -> int:
        """The length of the tenant's next grant, before its limit shortens it."""
        self._tenant(name)
        return self.config.quota_ns

    def restore(self, name: str, gpu: str, *, used_ns: int, debt_ns: int, total_ns: int, now_ns: int) -> None:
        """Take over what a journal says was charged in the window before now, and what is owed."""
        self.account(name, gpu).restore(used_ns, debt_ns, total_ns, now_ns)

    @abstractmethod
    def _new_account(self, gpu: str, share: Share, flow: Flow, lags: list[Lag], now_ns: int) -> Account:
        """The books of a new tenant on one of its GPUs; its lag joins `lags`, those on its others."""

    @abstractmethod
    def _turn_ns(self, tenant: Tenant, now_ns: int) -> int:
        """How long a grant is that begins now."""

    @abstractmethod
    def _review(
        self,
        tenant: Tenant,
        hold: Hold,
        rivals: list[Tenant],
        reserved: Mapping[str, str],
        now_ns: int,
        actions: list[Action],
    ) -> None:
        """Renew the holder's grant or revoke it, if it is time; `rivals` could be granted a GPU of it."""

    @abstractmethod
    def _stays_ns(self, gpu: str, first: Tenant, rival: Tenant, occupant: Tenant, now_ns: int) -> int:
        """For how long at least a waiter goes before a rival when the occupant is gone; 0 if it may not now."""

    def _lone_occupant(self, gpu: str) -> Tenant | None:
        """The tenant that alone holds the GPU, or whose work alone is waited for; None if its end has other effects."""
        device = self._devices.get(gpu)
        if device is None or len(device.occupants) != 1:
            return None
        tenant = self._tenants[next(iter(device.occupants))]
        hold = tenant.hold
        if tenant.outlived or tenant.drained or (hold is not None and (hold.stopped or hold.ended_ns is not None)):
            return None
        if hold is not None:
            return tenant if tenant.wanting_since_ns is None and not tenant.residual else None
        return tenant if tenant.residual == {gpu} else None

    def _learn(self, tenant: Tenant, burst_ns: int) -> None:  # noqa: B027 - most learn nothing
        """A burst of the tenant was measured; zero where none was."""

    def _tenant(self, name: str) -> Tenant:
        try:
            return self._tenants[name]
        except KeyError as error:
            raise UnknownTenant(name) from error

    def _rest(self, tenant: Tenant, now_ns: int) -> None:
        tenant.wanting_since_ns = None
        for account in tenant.accounts.values():
            account.rest(now_ns)

    def _begin(self, tenant: Tenant, now_ns: int) -> None:
        """A turn of the tenant begins, so it waits no more."""
        tenant.wanting_since_ns = None
        for account in tenant.accounts.values():
            account.begin(now_ns)

    def _end_hold(self, tenant: Tenant, now_ns: int) -> None:
        if tenant.hold is None:
            return
        for gpu in tenant.hold.gpus:
            device = self._devices[gpu]
            device.settle(now_ns)
            device.leave(tenant.name)
        tenant.hold = None

    def _let_go(self, tenant: Tenant, now_ns: int) -> None:
        """Free the GPUs that have drained: all at once, or those that have when the patience with the others ends."""
        if tenant.drained and (not tenant.residual or now_ns >= self._kept_until(tenant)):
            for gpu in tenant.drained:
                self._devices[gpu].settle(now_ns)
                self._devices[gpu].leave(tenant.name)
            tenant.drained.clear()

    def _kept_until(self, tenant: Tenant) -> int:
        return min(self._drain_until(tenant.name, tenant.ended_ns), tenant.patience_ends_ns())

    def _clear_residual(self, tenant: Tenant, now_ns: int) -> None:
        tenant.outlived.clear()
        for gpu in tuple(tenant.residual):
            self.drained(tenant.name, gpu, now_ns)

    def _candidates(self, now_ns: int) -> list[Tenant]:
        """Everybody who waits and whom neither its limit nor unfinished work keeps out.

        Unfinished work does so for as long as others wait for it, and not longer: it may need what its owner has yet
        to launch.
        """
        return [
            t
            for t in self._tenants.values()
            if t.wanting_since_ns is not None
            and t.hold is None
            and (not t.residual or t.patience_ends_ns() <= now_ns)
            and t.open_at_ns(now_ns) <= now_ns
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
            if (hold := tenant.hold) is not None:
                rivals = [c for c in candidates if not hold.gpus_set.isdisjoint(c.accounts)]
                self._review(tenant, hold, rivals, reserved, now_ns, actions)

    def _is_due(self, tenant: Tenant, now_ns: int) -> bool:
        """Whether a tenant that was resumed may go on with a turn of its own."""
        return False

    def _is_anyone_overdue(self, hold: Hold, now_ns: int) -> bool:
        """Whether a tenant is to finish what it began on a GPU of this grant."""
        return any(self._tenants[n].is_overdue(now_ns) for gpu in hold.gpus for n in self._devices[gpu].occupants)

    def _lead(self, hold: Hold) -> int:
        return min(self.config.renew_lead_ns, hold.quota_ns // 4)

    def _revoke(self, tenant: Tenant, hold: Hold, now_ns: int, actions: list[Action]) -> None:
        tenant.ended_ns = now_ns if hold.ended_ns is None else hold.ended_ns
        tenant.revoked_ns = now_ns
        for gpu in hold.gpus:
            self._devices[gpu].expire(tenant.name, tenant.ended_ns)
        tenant.residual = set(hold.gpus)
        tenant.hold = None
        actions.append(Revoke(tenant.name, hold.gpus))

    def _resume(self, now_ns: int, actions: list[Action]) -> None:
        """Let owners of overdue work go on for a moment: it may wait for what they have yet to launch.

        They go on with the turn that has ended, so nothing of it is forgiven. Each time the work is given twice as long
        to end by itself, for it may be a long kernel that the next one would follow.
        """
        for tenant in self._tenants.values():
            if tenant.is_overdue(now_ns) and all(self._free(g, tenant.name, now_ns) for g in tenant.accounts):
                tenant.resumes += 1
                self._rest(tenant, now_ns)
                self._enter(tenant, RESUME_NS, now_ns, actions).ended_ns = tenant.ended_ns

    def _assign(self, now_ns: int, ranked: list[Tenant], reserved: Mapping[str, str], actions: list[Action]) -> None:
        """Give every free GPU to the first in the order that can start on all of its GPUs.

        A tenant starts beside work of its own only where nobody before it in the order waits for that work to end.
        """
        waited_for: set[str] = set()
        for tenant in ranked:
            name, gpus = tenant.name, tenant.accounts
            free = all(self._free(gpu, name, now_ns) and reserved.get(gpu, name) == name for gpu in gpus)
            if free and waited_for.isdisjoint(tenant.residual):
                self._grant(tenant, now_ns, actions)
            else:
                waited_for.update(gpus)

    def _free(self, gpu: str, name: str, now_ns: int) -> bool:
        """No valid grant, and what others ran before has drained or is no longer waited for."""
        device = self._devices[gpu]
        if device.holder is not None:
            return False
        return all(
            other == name or ended is None or now_ns >= self._drain_until(other, ended)
            for other, ended in device.occupants.items()
        )

    def _drain_until(self, name: str, ended_ns: int) -> int:
        """Until when others wait for what is left of a tenant's turn."""
        config = self.config
        if config.handover is Handover.OVERLAP:
            return ended_ns
        if config.handover is Handover.DRAIN:
            return ended_ns + config.drain_timeout_ns
        return ended_ns + min(self._tenants[name].patience_ns(), config.drain_timeout_ns)

    def _grant(self, tenant: Tenant, now_ns: int, actions: list[Action]) -> None:
        turn = self._turn_ns(tenant, now_ns)
        self._begin(tenant, now_ns)
        tenant.resumes = 0
        self._enter(tenant, turn, now_ns, actions)

    def _enter(self, tenant: Tenant, quota_ns: int, now_ns: int, actions: list[Action]) -> Hold:
        gpus = tuple(tenant.accounts)
        hold = tenant.hold = Hold(gpus, quota_ns, now_ns, now_ns + quota_ns)
        tenant.take_over(now_ns)
        for gpu in gpus:
            self._devices[gpu].enter(tenant.name, now_ns)
        actions.append(Grant(tenant.name, gpus, quota_ns, hold.deadline_ns))
        return hold

    def _next_wake(self, now_ns: int) -> int | None:
        wakes: list[int] = []
        for tenant in self._tenants.values():
            if tenant.hold is not None:
                lead = tenant.hold.told_ns - self._lead(tenant.hold)
                wakes += [lead, tenant.hold.deadline_ns]
            elif tenant.wanting_since_ns is not None:
                wakes += tenant.wakes_ns(now_ns)
                if len(tenant.accounts) > 1:
                    wakes.append(tenant.wanting_since_ns + self.config.gang_patience_ns)
            if tenant.drained:
                wakes.append(self._kept_until(tenant))
            wakes += [leave for a in tenant.accounts.values() if (leave := a.lag.leave_at_ns) is not None]
        for device in self._devices.values():
            if device.holder is None:
                wakes += [self._drain_until(n, ended) for n, ended in device.occupants.items() if ended is not None]
        return min((wake for wake in wakes if wake > now_ns), default=None)
