"""The memory of one GPU among its tenants: what each is guaranteed, and what is lent to it beyond that.

Guarantees never add up to more than the GPU has, which the ledger sees to. So what a tenant holds beyond its guarantee
is lent, from what is free now. Where an allocation within a guarantee finds too little, it waits while lent bytes are
called back, in steps that each take place only if the one before was not enough:

1. The hook returns leases, pools and graph memory that the program does not use.
2. The programs of the tenant are asked for the bytes, where one of them listens (`aliquot.memory`).
3. The tenant is parked by the engine that it is a tenant of, which reads here that it is overdue.
4. Its programs are ended.

So the wait is bounded, whatever a borrower does. Meanwhile, and a little longer, nothing is lent: what was given back
would be taken again at once. No clock, no I/O but stores to pages. What is called back and who waits is not kept: after
a restart those that wait ask again, and the steps begin anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from .pages import GrantPage

_MS: Final = 1_000_000
HOOK_NS: Final = 250 * _MS
ASK_NS: Final = 5_000 * _MS
END_NS: Final = 60_000 * _MS
"""Since a call back began: the end of the hook's time, of the programs' time, and of all time."""
FORGOTTEN_NS: Final = 2_000 * _MS
"""An allocation that waits asks again every 20 ms; one that has not for so long has ended."""
CLOSED_NS: Final = 5_000 * _MS
SPARED_PART: Final = 64
"""Of a GPU so much is not lent, for a driver needs some of it."""
CALLED_PART: Final = 32
"""At least so much of a GPU is called back, for what needs a little mostly needs more soon."""


class Holder(Protocol):
    """A grant state: what a tenant holds of a GPU's memory, in bytes. One that is `away` holds nothing of it now."""

    page: GrantPage
    away: bool
    listens: bool
    called_ns: int
    called: tuple[int, int]

    @property
    def guarantee_bytes(self) -> int: ...

    @property
    def limit_bytes(self) -> int: ...

    @property
    def charged_bytes(self) -> int: ...

    @property
    def present_bytes(self) -> int: ...

    @property
    def lent_bytes(self) -> int: ...

    def demand_memory(self, process: None) -> bool: ...


@dataclass(slots=True)
class Need:
    """An allocation within a guarantee, or the return of a parked tenant, that waits for lent bytes."""

    needed_bytes: int
    since_ns: int
    asked_ns: int


@dataclass(slots=True, eq=False)
class GpuMemory:
    """The tenants of one GPU; `size_bytes` is what may be lent of it at most, 0 where its size is not known."""

    size_bytes: int = 0
    grants: list[Holder] = field(default_factory=list)
    needs: dict[Holder, Need] = field(default_factory=dict)
    closed_until_ns: int = 0

    def add(self, grant: Holder, device_mib: int) -> None:
        """One more tenant, whose record says how much the GPU has, or 0."""
        self.size_bytes = max(self.size_bytes, (device_mib << 20) * (SPARED_PART - 1) // SPARED_PART)
        self.grants.append(grant)
        self.show_lent()

    def remove(self, grant: Holder) -> None:
        """One has left, with what it holds."""
        self.grants.remove(grant)
        self.needs.pop(grant, None)
        self.show_lent()

    def free_bytes(self) -> int:
        """What no tenant holds."""
        return self.size_bytes - sum(grant.present_bytes for grant in self.grants)

    def lent_bytes(self, but: Holder | None = None) -> int:
        """What is lent to all tenants, or to all but one."""
        return sum(grant.lent_bytes for grant in self.grants if grant is not but)

    def show_lent(self) -> None:
        """Show each tenant what is lent to the others, which is as good as free to it."""
        lent = self.lent_bytes()
        for grant in self.grants:
            grant.page.set_lent(lent - grant.lent_bytes)

    def room(self, grant: Holder, needed: int, *, borrows: bool, now_ns: int) -> int:
        """How much a tenant may lease now that needs so much; less than that: nothing.

        Within its guarantee it is in `needs` then, where lent bytes are in the way, and is to ask again.
        """
        left = grant.guarantee_bytes - grant.charged_bytes
        if needed <= left:
            if not self.is_free(grant, needed, now_ns):
                return 0
            return min(left, max(needed, self.free_bytes())) if self.lent_bytes() else left
        self.needs.pop(grant, None)  # its guarantee was larger
        most = min(grant.limit_bytes - grant.charged_bytes, self.free_bytes())
        return most if borrows and needed <= most and not self.needs and now_ns >= self.closed_until_ns else 0

    def is_free(self, grant: Holder, needed: int, now_ns: int) -> bool:
        """Whether the GPU has so much for what a tenant may hold; if not, lent bytes are called back from others."""
        if needed > self.free_bytes() and self.lent_bytes(grant):
            need = self.needs.setdefault(grant, Need(needed, now_ns, now_ns))
            need.needed_bytes, need.asked_ns = needed, now_ns
            self.look(now_ns)
            return False
        if self.needs.pop(grant, None):
            self.closed_until_ns = now_ns + CLOSED_NS
            self.look(now_ns)
        return True

    def why_not_back(self, grant: Holder, now_ns: int) -> str:
        """Why what a parked tenant holds has no room, in words; what is lent to others is called back if that helps."""
        held, lent = grant.charged_bytes, self.lent_bytes()
        free = self.free_bytes() - sum(need.needed_bytes for other, need in self.needs.items() if other is not grant)
        short = held > free and (lent > 0 or held > grant.guarantee_bytes)
        if not short or held <= free + lent:
            self.is_free(grant, held, now_ns)
        needed = f"{held >> 20} MiB are needed, {max(0, free) >> 20} MiB of its GPU are free"
        return f"{needed}, and {lent >> 20} MiB are lent to others" if short else ""

    def look(self, now_ns: int) -> list[Holder]:
        """Call back what is needed and lent, from as few tenants as it takes; those whose time is over."""
        for grant in [grant for grant, need in self.needs.items() if now_ns - need.asked_ns > FORGOTTEN_NS]:
            del self.needs[grant]
        short = sum(need.needed_bytes for need in self.needs.values()) - self.free_bytes() if self.needs else 0
        short = max(short, self.size_bytes // CALLED_PART) if short > 0 else 0
        for grant in sorted(self.grants, key=lambda grant: (not grant.called_ns, -grant.lent_bytes)):
            back = min(grant.lent_bytes, short)
            short -= back
            self._call_back(grant, back, now_ns)
        return [grant for grant in self.grants if grant.called_ns and now_ns - grant.called_ns > END_NS]

    def is_overdue(self, grant: Holder, now_ns: int) -> bool:
        """Whether a tenant has had its time to give back what is called back from it, and is to be parked."""
        late = now_ns - grant.called_ns >= (ASK_NS if grant.listens else HOOK_NS)
        return late and grant.called_ns > 0 and grant.lent_bytes > 0

    def _call_back(self, grant: Holder, size_bytes: int, now_ns: int) -> None:
        """Have a tenant give back so much of what is lent to it; 0: nothing any more."""
        if size_bytes and not grant.called_ns:
            grant.called_ns = now_ns
            grant.demand_memory(None)
        elif not size_bytes:
            grant.called_ns = 0
        hook_ended = now_ns - grant.called_ns >= HOOK_NS or now_ns < self.closed_until_ns  # or it has just looked
        asks = size_bytes and grant.listens and hook_ended
        called = (size_bytes, grant.called_ns + ASK_NS if asks else 0)
        if called != grant.called:
            grant.called = called
            grant.page.call_back(*called)
