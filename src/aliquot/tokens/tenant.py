"""One tenant of the policy: its accounts by GPU, whether it wants or holds, and what its last turn has left behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from .account import Account
from .device import ActiveGrant
from .fluid import WHOLE
from .residual import PROVEN_RESUMES, RESUME_CREDIT_NS, SLACK_NS

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
