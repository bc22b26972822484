"""All tenants and GPUs, and the events of them: a tenant wants a GPU, returned it, has drained or is gone.

It carries out what follows from that alone. Who is granted a GPU, and whose turn ends, is decided in `policy`.

One tenant of the policy: its accounts by GPU, whether it wants or holds, and what its last turn has left behind.

And one GPU's occupants: the tenant that holds it, and tenants with work on it that outlived their grants. Time is
charged as it passes, divided among the occupants, so the charges of a GPU add up to its busy time exactly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .account import PROVEN_RESUMES, RESUME_CREDIT_NS, SLACK_NS, Account
from .actions import Handover, Share, TokenConfig
from .fluid import WHOLE, Flow, Lag


@dataclass(slots=True, eq=False)
class ActiveGrant:
    """A grant in force: on which GPUs, since when, until when."""

    gpus: tuple[str, ...]
    quota_ns: int
    period_start_ns: int
    deadline_ns: int
    gpus_set: frozenset[str] = field(init=False)
    told_ns: int = field(init=False)  # the deadline that the tenant knows; it may be revoked earlier
    lent: bool = False  # renewed while no tenant waited: not a turn of its own, so a waiter may end it early
    shortened: bool = False
    stopped: bool = False
    ended_ns: int | None = None  # resumed: when the turn ended whose work is to be finished

    def __post_init__(self) -> None:
        self.gpus_set = frozenset(self.gpus)
        self.told_ns = self.deadline_ns


class GpuOccupants:
    """The occupants of one GPU in the order they came, charged up to `at_ns`."""

    __slots__ = ("at_ns", "gpu", "holder", "members", "occupants")

    def __init__(self, gpu: str, now_ns: int) -> None:
        self.gpu = gpu
        self.at_ns = now_ns
        self.members: dict[str, Account] = {}
        self.occupants: dict[str, int | None] = {}  # name -> when its turn ended, None while its grant is valid
        self.holder: str | None = None

    def active(self, now_ns: int) -> int:
        """How many tenants want the GPU or have used it within the last window."""
        return sum(account.is_active(now_ns) for account in self.members.values())

    def settle(self, now_ns: int) -> None:
        """Charge every tenant on the GPU for the time since the last call."""
        start, self.at_ns = self.at_ns, now_ns
        span = now_ns - start
        if span <= 0 or not self.occupants:
            return
        each, rest = divmod(span, len(self.occupants))
        for position, (name, expired) in enumerate(self.occupants.items()):
            amount = each + (1 if position < rest else 0)
            if amount:
                self.members[name].charge(start, now_ns, amount, overrun=expired is not None)

    def skip(self, now_ns: int) -> None:
        """Let time pass without charges."""
        self.at_ns = now_ns
        for account in self.members.values():
            account.skip(now_ns)

    def enter(self, name: str, now_ns: int) -> None:
        """A grant begins."""
        self.settle(now_ns)
        self.occupants[name] = None
        self.holder = name

    def expire(self, name: str, ended_ns: int) -> None:
        """A grant ends while its work may still run; its turn ended at `ended_ns`."""
        self.occupants[name] = ended_ns
        self.holder = None

    def leave(self, name: str) -> None:
        """Nothing of the tenant runs here any more."""
        self.occupants.pop(name, None)
        if self.holder == name:
            self.holder = None


MAX_DOUBLINGS: Final = 10
LEAST_RATE: Final = WHOLE // 50
"""At least at this rate a tenant earns the time for which it is resumed, also where it requests nothing."""


@dataclass(slots=True, eq=False)
class PolicyTenant:
    """`residual` are the GPUs on which work of the last turn still runs; `drained` those kept for the rest of a gang.

    `outlived` has the GPUs on which work of an earlier turn ran on into the present one, and when that turn ended.
    `lone` is its account if it has one GPU.
    """

    name: str
    accounts: dict[str, Account]
    lone: Account | None = field(init=False)
    hold: ActiveGrant | None = None
    residual: set[str] = field(default_factory=set)
    drained: set[str] = field(default_factory=set)
    outlived: dict[str, int] = field(default_factory=dict)
    ended_ns: int = 0
    revoked_ns: int = 0
    resumes: int = 0
    earned_ns: int = 0  # when its rate of the fluid has earned the time for which it was resumed
    wanting_since_ns: int | None = None

    def __post_init__(self) -> None:
        self.lone = next(iter(self.accounts.values())) if len(self.accounts) == 1 else None

    def is_idle(self) -> bool:
        """Whether it neither wants a GPU nor has anything on one."""
        return self.wanting_since_ns is None and self.hold is None and not self.residual and not self.drained

    def open_at_ns(self, now_ns: int) -> int:
        """When its limits allow the next grant on every GPU of it."""
        if self.lone is not None:
            return self.lone.open_at_ns(now_ns)
        return max(account.open_at_ns(now_ns) for account in self.accounts.values())

    def runway_ns(self, now_ns: int) -> int | None:
        """How long it may run from now under all of its limits."""
        runways = [r for a in self.accounts.values() if (r := a.runway_ns(now_ns)) is not None]
        return min(runways) if runways else None

    def patience_ns(self) -> int:
        """How long after a turn of it its residual work is waited for."""
        return max(account.residuals.patience_ns() for account in self.accounts.values())

    def patience_ends_ns(self) -> int:
        """When its residual work no longer keeps it out of the order of turns."""
        return self.ended_ns + self.patience_ns()

    def resume_at_ns(self) -> int:
        """When it may finish what it began, if it has more to launch; later each time, and no more than it earns."""
        overdue = max(account.residuals.overdue_ns() for account in self.accounts.values())
        return max(self.revoked_ns + (overdue << min(self.resumes, MAX_DOUBLINGS)), self.earned_ns - RESUME_CREDIT_NS)

    def pay_resume(self, span_ns: int, now_ns: int) -> None:
        """It was resumed for so long until now while another tenant waited."""
        rate = min(account.lag.rate for account in self.accounts.values())
        self.earned_ns = max(self.earned_ns, now_ns) + span_ns * WHOLE // max(rate, LEAST_RATE)

    def is_overdue(self, now_ns: int) -> bool:
        """Whether it is to finish what it began: it has more to launch, and what is left has had time to end."""
        return bool(self.residual) and self.wanting_since_ns is not None and self.resume_at_ns() <= now_ns

    def wakes_ns(self, now_ns: int) -> list[int]:
        """When its chances may change while it waits."""
        opens = self.open_at_ns(now_ns)
        if not self.residual:
            return [opens]
        # It is charged for what is left, so its limit opens later than it seems.
        opens = max(opens, now_ns + SLACK_NS) if opens > now_ns else now_ns
        return [self.resume_at_ns(), self.patience_ends_ns(), opens]

    def settle(self, gpu: str, expired_ns: int, now_ns: int, *, usual: bool) -> None:
        """What was left on a GPU when a turn ended at `expired_ns` has ended; see `Residuals.learn`.

        If it had waited for its owner, the next work of this tenant that outlives a turn may do so, too.
        """
        residuals = self.accounts[gpu].residuals
        residuals.learn(expired_ns, now_ns, usual=usual)
        if residuals.has_waited_for_its_owner(now_ns):
            self.resumes = min(self.resumes, PROVEN_RESUMES)

    def take_over(self, now_ns: int) -> None:
        """A grant begins: work that is left from before belongs to it now and is settled with it."""
        for gpu in self.residual:
            self.outlived.setdefault(gpu, self.ended_ns)
            self.accounts[gpu].residuals.resumed_at_ns = now_ns
        self.residual.clear()
        self.drained.clear()


LEAST_MILLI: Final = 20
"""The minimum rate at which a debt shrinks, also for a tenant that requested nothing."""


class UnknownTenant(KeyError):
    """The tenant or its GPU was never added, or was removed."""


class _Debt(NamedTuple):
    owed_ns: int
    rate_milli: int
    left_at_ns: int

    def now(self, now_ns: int) -> int:
        return self.owed_ns - (now_ns - self.left_at_ns) * self.rate_milli // 1000


class Leavers:
    """What removed tenants still owe by tenant and GPU, in case they come back.

    A tenant that is removed and added again, such as one whose container keeps restarting, would otherwise be forgiven
    its excess time on each restart. In the meantime the debt shrinks at the rate of the tenant's request, as if it had
    stayed.
    """

    def __init__(self) -> None:
        self._debts: dict[tuple[str, str], _Debt] = {}

    def leave(self, name: str, accounts: Mapping[str, Account], now_ns: int) -> None:
        """Remember the debts of a tenant that is removed."""
        self._debts = {key: debt for key, debt in self._debts.items() if debt.now(now_ns) > 0}
        for gpu, account in accounts.items():
            rate_milli = max(LEAST_MILLI, account.share.request_milli)
            self._debts[name, gpu] = _Debt(account.debt_ns(now_ns), rate_milli, now_ns)

    def come(self, name: str, accounts: Mapping[str, Account], now_ns: int) -> None:
        """Charge a tenant that was added again with what it still owes."""
        for gpu, account in accounts.items():
            debt = self._debts.pop((name, gpu), None)
            if debt is not None and (owed_ns := debt.now(now_ns)) > 0:
                account.restore(0, owed_ns, 0, now_ns)


class Tenants(ABC):
    """Tenants by name and GPUs by UUID, with what each occupies and owes."""

    def __init__(self, config: TokenConfig | None = None) -> None:
        self.config = config or TokenConfig()
        self._tenants: dict[str, PolicyTenant] = {}
        self._devices: dict[str, GpuOccupants] = {}
        self._flows: dict[str, Flow] = {}
        self._leavers = Leavers()
        self._ordinal = 0

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
            device = self._devices.setdefault(gpu, GpuOccupants(gpu, now_ns))
            device.members[name] = accounts[gpu]
        self._tenants[name] = PolicyTenant(name, accounts)
        self._leavers.come(name, accounts, now_ns)

    def resize(self, name: str, shares: Mapping[str, Share], now_ns: int) -> None:
        """Change a tenant's share on each of its GPUs; its accounts go on, and no tenant is owed for the time before.

        Raises:
            UnknownTenant: there is no such tenant.
            ValueError: these are not its GPUs.
        """
        accounts = self._tenant(name).accounts
        if shares.keys() != accounts.keys():
            raise ValueError(f"tenant {name!r} has other GPUs; a resize keeps them")
        for gpu, account in accounts.items():
            self._devices[gpu].settle(now_ns)
            account.resize(shares[gpu], now_ns)
        for flow in self._flows.values():  # each may have rates that it found while a gang linked it to these
            flow.resolve(now_ns)

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
        """The tenant no longer wants a GPU; what it holds is not touched."""
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
        tenant.settle(gpu, tenant.revoked_ns, now_ns, usual=usual)
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
        tenant.settle(gpu, ended, now_ns, usual=usual)
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

    def dead(self, name: str, now_ns: int) -> None:
        """The tenant has no process left: charge to now, free its GPUs, forget what it wanted."""
        tenant = self._tenant(name)
        self._rest(tenant, now_ns)
        self._end_hold(tenant, now_ns)
        self._clear_residual(tenant, now_ns)

    def skip(self, now_ns: int) -> None:
        """Charge no tenant for the time since the last decision: the policy did not run, so nothing is owed for it."""
        for device in self._devices.values():
            device.skip(now_ns)

    def restore(self, name: str, gpu: str, *, used_ns: int, debt_ns: int, total_ns: int, now_ns: int) -> None:
        """Take over what a journal says was charged in the window before now, and what is owed."""
        self.account(name, gpu).restore(used_ns, debt_ns, total_ns, now_ns)

    def gpus(self) -> list[str]:
        """Every GPU that a tenant has a share of."""
        return list(self._devices)

    def account(self, name: str, gpu: str) -> Account:
        """The account of one tenant on one GPU, for reading, as of the last tick; raises UnknownTenant."""
        try:
            return self._tenant(name).accounts[gpu]
        except KeyError as error:
            raise UnknownTenant(f"{name} on {gpu}") from error

    def holders(self, gpu: str) -> list[str]:
        """The tenants that hold the GPU or still have work on it, the holder last."""
        return list(device.occupants) if (device := self._devices.get(gpu)) else []

    def holder(self, gpu: str) -> str | None:
        """Who has a valid grant of the GPU."""
        return device.holder if (device := self._devices.get(gpu)) else None

    def waiters(self, gpu: str) -> int:
        """How many tenants wait for this GPU."""
        device = self._devices.get(gpu)
        return 0 if device is None else sum(self._tenants[n].wanting_since_ns is not None for n in device.members)

    @abstractmethod
    def _new_account(self, gpu: str, share: Share, flow: Flow, lags: list[Lag], now_ns: int) -> Account:
        """The account of a new tenant on one of its GPUs; its lag joins `lags`, those on its others."""

    def _is_due(self, tenant: PolicyTenant, now_ns: int) -> bool:
        """Whether a tenant that was resumed may go on with a turn of its own."""
        return False

    def _learn(self, tenant: PolicyTenant, burst_ns: int) -> None:  # noqa: B027 - most learn nothing
        """A burst of the tenant was measured; zero where none was."""

    def _tenant(self, name: str) -> PolicyTenant:
        try:
            return self._tenants[name]
        except KeyError as error:
            raise UnknownTenant(name) from error

    def _rest(self, tenant: PolicyTenant, now_ns: int) -> None:
        tenant.wanting_since_ns = None
        for account in tenant.accounts.values():
            account.rest(now_ns)

    def _begin(self, tenant: PolicyTenant, now_ns: int) -> None:
        """A turn of the tenant begins, so it waits no more."""
        tenant.wanting_since_ns = None
        for account in tenant.accounts.values():
            account.begin(now_ns)

    def _end_hold(self, tenant: PolicyTenant, now_ns: int) -> None:
        if tenant.hold is None:
            return
        for gpu in tenant.hold.gpus:
            device = self._devices[gpu]
            device.settle(now_ns)
            device.leave(tenant.name)
        tenant.hold = None

    def _go_on(self, tenant: PolicyTenant, now_ns: int) -> None:
        """The tenant is no longer stopped: while it waits, it earns its share again."""
        if tenant.wanting_since_ns is not None:
            for account in tenant.accounts.values():
                account.lag.wait(now_ns)

    def _let_go(self, tenant: PolicyTenant, now_ns: int) -> None:
        """Free the GPUs that have drained: all at once, or those that have when the patience with the others ends."""
        if tenant.drained and (not tenant.residual or now_ns >= self._kept_until(tenant)):
            for gpu in tenant.drained:
                self._devices[gpu].settle(now_ns)
                self._devices[gpu].leave(tenant.name)
            tenant.drained.clear()

    def _kept_until(self, tenant: PolicyTenant) -> int:
        return min(self._drain_until(tenant.name, tenant.ended_ns), tenant.patience_ends_ns())

    def _drain_until(self, name: str, ended_ns: int) -> int:
        """Until when others wait for what is left of a tenant's turn."""
        config = self.config
        if config.handover is Handover.OVERLAP:
            return ended_ns
        if config.handover is Handover.DRAIN:
            return ended_ns + config.drain_timeout_ns
        return ended_ns + min(self._tenants[name].patience_ns(), config.drain_timeout_ns)

    def _clear_residual(self, tenant: PolicyTenant, now_ns: int) -> None:
        tenant.outlived.clear()
        for gpu in tuple(tenant.residual):
            self.drained(tenant.name, gpu, now_ns)
