"""Whose turn it is on a shared GPU, for how long, and what was charged: pure, in integer nanoseconds."""

from .account import Account
from .actions import (
    MS,
    SECOND,
    Action,
    Grant,
    Handover,
    QuotaEstimate,
    QuotaMode,
    Renew,
    Revoke,
    Share,
    TokenConfig,
)
from .policy import TokenPolicy, UnknownTenant
from .window import ChargeWindow, LimitBucket

__all__ = [
    "MS",
    "SECOND",
    "Account",
    "Action",
    "ChargeWindow",
    "Grant",
    "Handover",
    "LimitBucket",
    "QuotaEstimate",
    "QuotaMode",
    "Renew",
    "Revoke",
    "Share",
    "TokenConfig",
    "TokenPolicy",
    "UnknownTenant",
]
