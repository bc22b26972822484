"""Turns as in Gemini: the order of KubeShare, and grants as long as the tenant's bursts.

Source: Gemini (TCC'21): half the last quota and half the burst just seen, between a minimum and limit x window. A
twentieth of the window is a second ceiling: one grant of limit x window would be the whole promise of a window, and a
tenant that claims endless bursts would make its neighbours wait for seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .actions import Share, TokenConfig
from .kubeshare import KubeSharePolicy
from .tenant import PolicyTenant


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
