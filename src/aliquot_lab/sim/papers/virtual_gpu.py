"""One GPU in virtual time under the production token policy: tenants that compute in kernels which cannot be stopped.

A tenant launches kernels one after another as long as it holds the grant. After a revocation the kernel that runs ends
first; the policy hears of it `notice_ns` later, and the next holder starts `launch_ns` after its grant.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from aliquot.tokens import Action, Grant, Revoke, Share, TokenConfig, token_policy


@dataclass
class GreedyTenant:
    """A greedy tenant: kernels of one length, back to back, from its start to its end."""

    name: str
    share: Share
    kernel_ns: int
    computed_ns: int = 0
    running_since_ns: int | None = None


class VirtualGpu:
    """Runs the policy against tenants; `computed_ns` of a tenant is the time its kernels ran."""

    GPU = "gpu0"

    def __init__(self, config: TokenConfig, *, notice_ns: int = 50_000, launch_ns: int = 50_000) -> None:
        self.policy = token_policy(config)
        self.tenants: dict[str, GreedyTenant] = {}
        self.now_ns = 0
        self._notice_ns, self._launch_ns = notice_ns, launch_ns
        self._events: list[tuple[int, int, str, str]] = []
        self._planned = 0

    def tenant(
        self, name: str, request_milli: int, limit_milli: int, kernel_ns: int, start_ns: int, end_ns: int
    ) -> None:
        """Let a tenant come and go."""
        self.tenants[name] = GreedyTenant(name, Share(request_milli, limit_milli), kernel_ns)
        self._at(start_ns, "start", name)
        self._at(end_ns, "end", name)

    def run(self, until_ns: int) -> None:
        """Let time pass; what runs at the end is counted up to there."""
        while self.now_ns < until_ns:
            times = [self.policy.next_wake_ns(), self._events[0][0] if self._events else None, until_ns]
            self.now_ns = max(self.now_ns, min(time for time in times if time is not None))
            while self._events and self._events[0][0] <= self.now_ns:
                _, _, kind, name = heapq.heappop(self._events)
                self._happen(kind, self.tenants[name])
            for action in self.policy.tick(self.now_ns):
                self._act(action)

    def computed(self) -> dict[str, int]:
        """Nanoseconds that each tenant has computed up to now."""
        return {
            tenant.name: tenant.computed_ns + max(0, self.now_ns - tenant.running_since_ns)
            if tenant.running_since_ns is not None
            else tenant.computed_ns
            for tenant in self.tenants.values()
        }

    def _at(self, when_ns: int, kind: str, name: str) -> None:
        self._planned += 1
        heapq.heappush(self._events, (when_ns, self._planned, kind, name))

    def _happen(self, kind: str, tenant: GreedyTenant) -> None:
        policy, now = self.policy, self.now_ns
        if kind == "start":
            policy.add_tenant(tenant.name, {self.GPU: tenant.share}, now)
            policy.want(tenant.name, now)
        elif kind == "end":
            self._stop(tenant, now)
            policy.remove_tenant(tenant.name, now)
            self._events = [event for event in self._events if event[3] != tenant.name]
            heapq.heapify(self._events)
        elif kind == "want":
            policy.want(tenant.name, now)
        elif kind == "drained":
            policy.drained(tenant.name, self.GPU, now)

    def _act(self, action: Action) -> None:
        tenant = self.tenants[action.tenant]
        if isinstance(action, Grant):
            tenant.running_since_ns = self.now_ns + self._launch_ns
        elif isinstance(action, Revoke):
            ended_ns = self._last_kernel_ends_ns(tenant)
            self._stop(tenant, ended_ns)
            self._at(self.now_ns + 1, "want", tenant.name)
            self._at(max(ended_ns, self.now_ns) + self._notice_ns, "drained", tenant.name)

    def _last_kernel_ends_ns(self, tenant: GreedyTenant) -> int:
        since = tenant.running_since_ns
        if since is None or since >= self.now_ns:
            return self.now_ns
        kernels = -(-(self.now_ns - since) // tenant.kernel_ns)
        return since + kernels * tenant.kernel_ns

    def _stop(self, tenant: GreedyTenant, at_ns: int) -> None:
        if tenant.running_since_ns is not None:
            tenant.computed_ns += max(0, at_ns - tenant.running_since_ns)
        tenant.running_since_ns = None
