"""Who may use which GPU until when: the token policy, without a clock and without I/O.

The caller tells what happened and when (`want`, `returned`, `drained`, `dead`), calls `tick(now)` for the actions to
carry out, and calls again at `next_wake_ns()` at the latest. Times are integers of nanoseconds that never decrease.

A tenant is granted all of its GPUs or none, so tenants never hold one and wait for another, and cannot deadlock. A gang
that could not start for `gang_patience_ns` has its GPUs kept free once its turn has come, so it cannot starve either.
It gives its GPUs back together too: one that has drained is kept for a moment until the others have.

This is what all policies share. The order, the length of a turn and what ends it are in `fluid_turns`, `kubeshare` and
`gemini`. Not promised: that running work stops.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from .account import RESUME_NS, Rank
from .actions import MS, SECOND, Action, Grant, Revoke, TokenConfig, Upcoming
from .tenants import ActiveGrant, PolicyTenant, Tenants

UNKNOWN: Final = -1
MAX_CARRY_OUT_NS: Final = MS // 2


def reservations(ranked: Sequence[PolicyTenant], patience_ns: int, now_ns: int) -> dict[str, str]:
    """Which GPU is kept for which gang, of the candidates in the order of turns; each gets all of its GPUs or none.

    A gang must have waited for `patience_ns`, and never overtakes a tenant ranked before it: a tenant that is passed
    over moves up in that order with time, so neither a gang nor its neighbours starve.
    """
    reserved: dict[str, str] = {}
    if not any(len(tenant.accounts) > 1 for tenant in ranked):
        return reserved
    claimed: set[str] = set()
    for tenant in ranked:
        gang = len(tenant.accounts) > 1
        if gang and now_ns - (tenant.wanting_since_ns or 0) < patience_ns:
            continue
        if gang and claimed.isdisjoint(tenant.accounts):
            reserved.update(dict.fromkeys(tenant.accounts, tenant.name))
        if not gang or tenant.name in reserved.values():
            claimed.update(tenant.accounts)
    return reserved


class TokenPolicy(Tenants):
    """Grants and hand-overs for any number of GPUs; a subclass decides whose turn it is."""

    def __init__(self, config: TokenConfig | None = None) -> None:
        super().__init__(config)
        self._carry_out_ns = 0  # how long the caller usually takes from a tick until what it decides has effect
        self._ticked_at_ns = 0
        self._wake_ns: int | None = UNKNOWN  # `next_wake_ns` of this tick, once `upcoming` has needed it
        self._ranks: dict[str, Rank] = {}  # of this tick; charges do not change within it

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
            if tenant.drained:
                self._let_go(tenant, now_ns)
        candidates = self._candidates(now_ns)
        reserved: Mapping[str, str] = {}
        if any(len(tenant.accounts) > 1 for tenant in candidates):
            reserved = reservations(self._in_order(candidates, now_ns), self.config.gang_patience_ns, now_ns)
        for tenant in self._tenants.values():
            if (hold := tenant.hold) is not None:
                rivals = [c for c in candidates if not hold.gpus_set.isdisjoint(c.accounts)]
                self._review(tenant, hold, rivals, reserved, now_ns, actions)
        self._resume(now_ns, actions)
        if any(device.holder is None for device in self._devices.values()):
            self._assign(now_ns, self._in_order(candidates, now_ns), reserved, actions)
        self._ticked_at_ns, self._wake_ns = now_ns, UNKNOWN
        return actions

    def _in_order(self, tenants: list[PolicyTenant], now_ns: int) -> list[PolicyTenant]:
        """The tenants sorted by whose turn comes first."""
        return sorted(tenants, key=lambda tenant: (self._rank(tenant, now_ns), tenant.name))

    def judge(self, now_ns: int) -> None:
        """See of every tenant whether the promise was kept in the window that ends now."""
        for device in self._devices.values():
            device.settle(now_ns)
            for account in device.members.values():
                account.judge(now_ns)

    def note_carried_out(self, took_ns: int) -> None:
        """Note how long after its tick the end of a turn took effect.

        A turn that lasts to its deadline is ended this much earlier, because from the deadline on its tenant launches
        nothing and the GPU would wait for the caller.
        """
        self._carry_out_ns += (min(took_ns, MAX_CARRY_OUT_NS) - self._carry_out_ns) // 8

    def next_wake_ns(self) -> int | None:
        """When `tick` has something to do even if nothing happens; None for never. To be asked after `tick`."""
        if self._wake_ns != UNKNOWN:
            return self._wake_ns
        now_ns = self._ticked_at_ns
        wakes: list[int] = []
        for tenant in self._tenants.values():
            if tenant.hold is not None:
                lead = tenant.hold.told_ns - self._lead(tenant.hold)
                wakes += [lead, self._revoked_at_ns(tenant.hold)]
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

    def upcoming(self, gpu: str, now_ns: int) -> Upcoming | None:
        """Who is granted this GPU when its occupant has returned or drained; None where that is not certain.

        It is what `tick` would decide at any time until then if nothing else happened. To be asked after `tick`, at the
        same time; changes nothing.
        """
        device = self._devices.get(gpu)
        if device is None or len(device.occupants) != 1:
            return None
        occupant = self._tenants[next(iter(device.occupants))]
        hold = occupant.hold
        returns = hold is not None
        # The end of one that wants more, is to stop, or has work elsewhere or of earlier turns, has other effects too.
        if occupant.outlived or occupant.drained:
            return None
        if hold is None and occupant.residual != {gpu}:
            return None
        if hold is not None and (
            hold.stopped or hold.ended_ns is not None or occupant.residual or occupant.wanting_since_ns is not None
        ):
            return None
        members = [self._tenants[name] for name in device.members]
        waiting = [t for t in members if t.wanting_since_ns is not None and t is not occupant]
        ready = [t for t in waiting if t.open_at_ns(now_ns) <= now_ns]
        if not ready or any(len(t.accounts) > 1 for t in members):
            return None
        first = min(ready, key=lambda tenant: (self._rank(tenant, now_ns), tenant.name))
        rivals = [tenant for tenant in (waiting if returns else [*ready, occupant]) if tenant is not first]
        stays = self._stays_ns(gpu, first, rivals, occupant, now_ns)
        until = now_ns + min(SECOND, max(0, stays))
        self._wake_ns = self.next_wake_ns()
        until = until if self._wake_ns is None else min(until, self._wake_ns)
        wanting = 0 if returns else min(until, occupant.resume_at_ns())
        quota = self._turn_ns(first, now_ns)
        return Upcoming(occupant.name, first.name, quota, until, wanting) if until > now_ns else None

    def quota_ns(self, name: str) -> int:
        """The length of the tenant's next grant, before its limit shortens it."""
        self._tenant(name)
        return self.config.quota_ns

    @abstractmethod
    def _turn_ns(self, tenant: PolicyTenant, now_ns: int) -> int:
        """The length of a grant that begins now."""

    @abstractmethod
    def _review(
        self,
        tenant: PolicyTenant,
        hold: ActiveGrant,
        rivals: list[PolicyTenant],
        reserved: Mapping[str, str],
        now_ns: int,
        actions: list[Action],
    ) -> None:
        """Renew the holder's grant or revoke it, if it is time; `rivals` could be granted a GPU of it."""

    @abstractmethod
    def _stays_ns(
        self, gpu: str, first: PolicyTenant, rivals: list[PolicyTenant], occupant: PolicyTenant, now_ns: int
    ) -> int:
        """For how long at least a waiter goes before all rivals when the occupant is gone; 0 if it may not now."""

    def _candidates(self, now_ns: int) -> list[PolicyTenant]:
        """The tenants that wait and are held back neither by a limit nor by unfinished work.

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

    def _rank(self, tenant: PolicyTenant, now_ns: int) -> Rank:
        """A gang ranks by the GPU on which it is most behind."""
        rank = self._ranks.get(tenant.name)
        if rank is None and tenant.lone is not None:
            rank = self._ranks[tenant.name] = tenant.lone.rank(now_ns)
        elif rank is None:
            rank = self._ranks[tenant.name] = min(account.rank(now_ns) for account in tenant.accounts.values())
        return rank

    def _is_anyone_overdue(self, hold: ActiveGrant, now_ns: int) -> bool:
        """Whether a tenant is to finish what it began on a GPU of this grant."""
        return any(self._tenants[n].is_overdue(now_ns) for gpu in hold.gpus for n in self._devices[gpu].occupants)

    def _lead(self, hold: ActiveGrant) -> int:
        return min(self.config.renew_lead_ns, hold.quota_ns // 4)

    def _revoked_at_ns(self, hold: ActiveGrant) -> int:
        """When to end a turn that lasts to its deadline; until the deadline that its tenant knows, no tenant waits."""
        ahead_ns = min(self._carry_out_ns, hold.quota_ns // 16) if hold.deadline_ns >= hold.told_ns else 0
        return hold.deadline_ns - ahead_ns

    def _revoke(self, tenant: PolicyTenant, hold: ActiveGrant, now_ns: int, actions: list[Action]) -> None:
        if hold.ended_ns is not None:
            neighbours = {name for gpu in tenant.accounts for name in self._devices[gpu].members} - {tenant.name}
            if any(self._tenants[name].wanting_since_ns is not None for name in neighbours):
                tenant.pay_resume(now_ns - hold.period_start_ns, now_ns)
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
        to end by itself, for it may be a long kernel that the next one would follow. Of several on a GPU the one whose
        time came first goes first: else one would begin its next kernel again and again while another waits for it.
        """
        overdue = [tenant for tenant in self._tenants.values() if tenant.is_overdue(now_ns)]
        awaited: set[str] = set()
        for tenant in sorted(overdue, key=PolicyTenant.resume_at_ns):
            first = awaited.isdisjoint(tenant.accounts)
            awaited.update(tenant.accounts)
            if first and all(self._free(gpu, tenant.name, now_ns) for gpu in tenant.accounts):
                tenant.resumes += 1
                self._rest(tenant, now_ns)
                self._enter(tenant, RESUME_NS, now_ns, actions).ended_ns = tenant.ended_ns

    def _assign(
        self, now_ns: int, ranked: list[PolicyTenant], reserved: Mapping[str, str], actions: list[Action]
    ) -> None:
        """Give every free GPU to the first in the order that can start on all of its GPUs.

        A tenant starts beside its own earlier work only if no tenant before it in the order waits for that work to end.
        """
        waited_for: set[str] = set()
        for tenant in ranked:
            name, gpus = tenant.name, tenant.accounts
            free = all(self._free(gpu, name, now_ns) and reserved.get(gpu, name) == name for gpu in gpus)
            if free and waited_for.isdisjoint(tenant.residual):
                turn = self._turn_ns(tenant, now_ns)
                self._begin(tenant, now_ns)
                tenant.resumes = 0
                self._enter(tenant, turn, now_ns, actions)
                if all(device.holder is not None for device in self._devices.values()):
                    return
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

    def _enter(self, tenant: PolicyTenant, quota_ns: int, now_ns: int, actions: list[Action]) -> ActiveGrant:
        gpus = tuple(tenant.accounts)
        hold = tenant.hold = ActiveGrant(gpus, quota_ns, now_ns, now_ns + quota_ns)
        tenant.take_over(now_ns)
        for gpu in gpus:
            self._devices[gpu].enter(tenant.name, now_ns)
        actions.append(Grant(tenant.name, gpus, quota_ns, hold.deadline_ns))
        return hold
