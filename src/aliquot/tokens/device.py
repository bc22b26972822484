"""One GPU's occupants: the tenant that holds it, and tenants with work on it that outlived their grants.

Time is charged as it passes, divided among the occupants, so the charges of a GPU add up to its busy time exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .account import Account


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
