"""What removed tenants still owe, in case they come back.

A tenant that is removed and added again, such as one whose container keeps restarting, would otherwise be forgiven its
excess time on each restart. In the meantime the debt shrinks at the rate of the tenant's request, as if it had stayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from .account import Account

LEAST_MILLI: Final = 20
"""The minimum rate at which a debt shrinks, also for a tenant that requested nothing."""


class _Debt(NamedTuple):
    owed_ns: int
    rate_milli: int
    left_at_ns: int

    def now(self, now_ns: int) -> int:
        return self.owed_ns - (now_ns - self.left_at_ns) * self.rate_milli // 1000


class Leavers:
    """Debts by tenant and GPU, until they are worked off."""

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
