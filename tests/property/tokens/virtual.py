"""A node in virtual time: greedy or bursty tenants on the real token policy, no clock and no GPU."""

import heapq
from dataclasses import dataclass, field

from aliquot.tokens import MS, Grant, Renew, Revoke, Share, TokenConfig, token_policy


@dataclass
class VirtualTenant:
    """A workload: `residual_ns` of work outlives each grant; `busy_ns`/`idle_ns` make it bursty (0 = greedy).

    With `phases` it is greedy within them, by start and end, and rests between them.
    """

    name: str
    shares: dict[str, Share]
    residual_ns: int = 0
    busy_ns: int = 0
    idle_ns: int = 0
    present: bool = True
    hold_id: int = 0
    phases: list[tuple[int, int]] = field(default_factory=list)
    on: bool = True


@dataclass
class VirtualNode:
    """Runs the policy against workloads; `log` has (time, action)."""

    config: TokenConfig = field(default_factory=TokenConfig)
    delay_ns: int = 50_000
    keep_log: bool = True

    def __post_init__(self) -> None:
        self.policy = token_policy(self.config)
        self.now = 0
        self.log: list[tuple[int, object]] = []
        self.tenants: dict[str, VirtualTenant] = {}
        self._events: list[tuple[int, int, str, str, int]] = []
        self._count = 0
        self.check = lambda node: None

    def at(self, when: int, kind: str, name: str, arg: int = 0) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, kind, name, arg))

    def tenant(self, name, request, limit, *, gpus=("g0",), start_ns=0, end_ns=None, **more) -> VirtualTenant:
        made = VirtualTenant(name, {gpu: Share(request, limit) for gpu in gpus}, **more)
        self.tenants[name] = made
        self.at(start_ns, "start", name)
        made.on = not made.phases
        for begin, end in made.phases:
            self.at(begin, "on", name)
            self.at(end, "off", name)
        if end_ns is not None:
            self.at(end_ns, "stop", name)
        return made

    def charged(self, name: str, gpu: str = "g0") -> int:
        return self.policy.account(name, gpu).window.total_ns

    def run_until(self, end_ns: int) -> None:
        while True:
            wake = self.policy.next_wake_ns()
            event = self._events[0][0] if self._events else None
            when = min(t for t in (wake, event, end_ns) if t is not None)
            if when > end_ns:
                when = end_ns
            self.now = max(self.now, when)
            while self._events and self._events[0][0] <= self.now:
                _, _, kind, name, arg = heapq.heappop(self._events)
                self._happen(kind, name, arg)
            for action in self.policy.tick(self.now):
                if self.keep_log:
                    self.log.append((self.now, action))
                self._act(action)
            self.check(self)
            if self.now >= end_ns:
                return

    def _happen(self, kind: str, name: str, arg: int) -> None:
        tenant = self.tenants[name]
        if kind == "start":
            self.policy.add_tenant(name, tenant.shares, self.now)
            if tenant.on:
                self.policy.want(name, self.now)
        elif kind == "stop":
            tenant.present = False
            self.policy.remove_tenant(name, self.now)
        elif not tenant.present:
            return
        elif kind in ("on", "off"):
            self._turn(tenant, on=kind == "on")
        elif kind == "want" and tenant.on:
            self.policy.want(name, self.now)
        elif kind == "drained":
            for gpu in tenant.shares:
                self.policy.drained(name, gpu, self.now)
                self.policy.caught_up(name, gpu, self.now)
        elif kind == "idle" and arg == tenant.hold_id:
            tenant.hold_id += 1
            self.policy.returned(name, self.now)
            self.at(self.now + tenant.idle_ns, "want", name)

    def _turn(self, tenant: VirtualTenant, *, on: bool) -> None:
        tenant.on = on
        if on:
            self.policy.want(tenant.name, self.now)
        elif any(self.policy.holder(gpu) == tenant.name for gpu in tenant.shares):
            self.policy.returned(tenant.name, self.now)
        else:
            self.policy.unwant(tenant.name, self.now)

    def _act(self, action: object) -> None:
        tenant = self.tenants[action.tenant]
        if isinstance(action, Grant):
            tenant.hold_id += 1
            if tenant.busy_ns:
                self.at(self.now + tenant.busy_ns, "idle", tenant.name, tenant.hold_id)
        elif isinstance(action, Revoke):
            tenant.hold_id += 1
            self.at(self.now + min(self.delay_ns, 1), "want", tenant.name)
            self.at(self.now + self.delay_ns + tenant.residual_ns, "drained", tenant.name)
        else:
            assert isinstance(action, Renew)


def shares_between(
    node: VirtualNode, names: list[str], start_ns: int, end_ns: int, gpu: str = "g0"
) -> dict[str, float]:
    """Run from start to end and give each tenant's charged share of that time."""
    node.run_until(start_ns)
    before = {n: node.charged(n, gpu) for n in names}
    node.run_until(end_ns - 1)
    return {n: (node.charged(n, gpu) - before[n]) / (end_ns - start_ns) for n in names}


__all__ = ["MS", "VirtualNode", "VirtualTenant", "shares_between"]
