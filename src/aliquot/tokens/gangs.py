"""GPUs kept free for tenants of several GPUs, so that these do not starve."""

from __future__ import annotations

from collections.abc import Sequence

from .tenant import PolicyTenant


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
