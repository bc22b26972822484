"""Whose turn it is on a shared GPU, for how long, and what was charged: pure, in integer nanoseconds."""

from .account import Account, ChargeWindow
from .actions import MS, SECOND, Action, Grant, Handover, Renew, Revoke, Share, TokenConfig, Turns, Upcoming
from .fluid_turns import FluidPolicy
from .kubeshare import GeminiPolicy, KubeSharePolicy, LimitBucket, QuotaEstimate
from .policy import TokenPolicy
from .tenants import UnknownTenant


def token_policy(config: TokenConfig) -> TokenPolicy:
    """The policy that a configuration names."""
    match config.turns:
        case Turns.FLUID:
            return FluidPolicy(config)
        case Turns.KUBESHARE:
            return KubeSharePolicy(config)
        case Turns.GEMINI:
            return GeminiPolicy(config)
