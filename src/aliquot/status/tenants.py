"""The measured values of a tenant on a GPU, as its arbiter counts them and every program, page and metric shows them.

Shares are milli-GPU, memory is MiB, times carry their unit in the name. Unknown fields are ignored, so an older reader
understands a newer writer.
"""

from __future__ import annotations

import msgspec

from aliquot.model.quantities import MILLI, format_mib
from aliquot.model.requests import Enforce


class PromiseStatus(msgspec.Struct, frozen=True):
    """How well the promise to a tenant on one GPU was kept since it was added: see `aliquot.tokens.account.Kept`.

    Windows are those in which it wanted the GPU, one for each fortieth of a window. `kept` are those in which it got
    its request for the time it wanted the GPU, within 0.02; `busy_windows` those in which it wanted the GPU all the
    time, and `busy_kept` those of them in which it got its request. The errors are parts of a window: how far what it
    got was from what the fluid gave, in the last window, in 95 of 100 and at worst.
    """

    windows: int = 0
    kept: int = 0
    busy_windows: int = 0
    busy_kept: int = 0
    wanted_ns: int = 0
    fluid_error: float = 0.0
    fluid_error_p95: float = 0.0
    fluid_error_worst: float = 0.0


class WakeStatus(msgspec.Struct, frozen=True):
    """How soon a tenant wakes: promised, and from asking to the grant in the last 1024 wakes within its request.

    `longest_ms` is the longest kernel that was lately seen of a neighbour on the GPU, `longest_by` its name, and
    `allowed_ms` how long one may be. `kept` is false where one is longer, or where the p99 of 100 wakes or more is
    later than promised.
    """

    promised_ms: float
    p50_ms: float
    p99_ms: float
    count: int
    kept: bool
    allowed_ms: float
    longest_ms: float = 0.0
    longest_by: str = ""

    @property
    def text(self) -> str:
        """In words: `5 ms promised, p50 1.9 ms, p99 2.4 ms of 300 wakes`."""
        found = f"{self.promised_ms:g} ms promised"
        if self.count:
            found += f", p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms of {self.count} wakes"
        if self.kept:
            return found
        if self.longest_ms <= self.allowed_ms:
            return f"{found}; not kept"
        kernels = (
            f"{self.longest_by} runs kernels of {self.longest_ms:.1f} ms, at most {self.allowed_ms:.1f} ms keep it"
        )
        return f"{found}; not kept: {kernels}"


class TenantStatus(msgspec.Struct):
    """One tenant on one GPU. `usage` is 0..1 over the window; the percentile is over the last 256 grants.

    `first_grant_ns` is when it was granted the GPU for the first time (CLOCK_MONOTONIC), 0 before that.
    `memory_pending_mib` is what it holds beyond its memory, as after that was reduced, and has yet to free.
    `memory_lent_mib` is what it holds beyond its guarantee, `memory_limit_mib`; `memory_called_mib` of it are called
    back for others' guarantees, and `memory_overdue`: in vain so far. Its own allocations have waited for
    `memory_wait_s` for what is lent to others. `not_lent` is why nothing is lent to it, as the end of a sentence.
    `lost` is how much of it its last programs held in MiB when they were ended for it, and why they were not parked.
    A tenant whose calls of the driver are `stopped` is parked, moved or brought back; one that is `parked` has its
    memory in the host's; `woken`: and waits for it; `moves_from`: and had it on that GPU before. `idle_s` is for how
    long it has had no use of its GPUs and wanted none, and `stays` what keeps its memory on them, as the end of a
    sentence.
    `kernel_ms` is how long its longest recent kernel or graph ran at least, also one in flight; 0 before that.
    `charged_ns`, `waited_ns` and `memory_refusals` (allocations that would have gone over the limit) are totals since
    the tenant came, and so are, for the tenant on all of its GPUs, `unrouted` (driver functions that programs were
    handed unhooked) and `ungated_ms` (time in which programs launched freely, for no arbiter could be reached). What is
    not enforced is measured by NVML: `usage` and `charged_ns` unless `enforce` is all, and with never `memory_used_mib`
    and `processes` as well.
    """

    name: str
    request_milli: int
    limit_milli: int
    usage: float
    charged_ns: int
    memory_used_mib: int
    memory_limit_mib: int
    memory_context_mib: int
    wait_ms_p50: float
    debt_ms: float
    quota_ms: float
    handovers: int
    processes: int
    waiting: bool
    waited_ns: int = 0
    memory_refusals: int = 0
    unrouted: int = 0
    ungated_ms: float = 0.0
    enforce: Enforce = "all"
    promise: PromiseStatus = PromiseStatus()
    kernel_ms: float = 0.0
    wake: WakeStatus | None = None
    first_grant_ns: int = 0
    memory_pending_mib: int = 0
    stopped: bool = False
    parked: bool = False
    woken: bool = False
    idle_s: float = 0.0
    stays: str = ""
    moves_from: str = ""
    memory_lent_mib: int = 0
    memory_called_mib: int = 0
    memory_overdue: bool = False
    memory_wait_s: float = 0.0
    not_lent: str = ""
    lost: tuple[int, str] = (0, "")

    @property
    def lost_text(self) -> str:
        """Why its programs were ended, and what helps, where they held lent memory for too long; else empty."""
        mib, why = self.lost
        held = f"it held {format_mib(mib)} beyond its guarantee that another's needs, did not give them back"
        way_out = "give back what is asked for (aliquot.memory), or set no memory limit"
        parked = f"could not be parked, for it {why or 'did not stop in time'}"
        return f"{held} within a minute, and {parked}; {way_out}" if mib else ""

    @property
    def present_mib(self) -> int:
        """What it holds of its GPU now: nothing while it is parked."""
        return 0 if self.parked else self.memory_used_mib

    @property
    def memory_texts(self) -> list[str]:
        """Where its memory is if not on its GPU, what is lent to it or why nothing is, and what it waits for."""
        room = ", and it waits for room to come back" if self.woken else ""
        held = f"its {format_mib(self.memory_used_mib)} are in the host's memory"
        texts = [f"{self.name} is parked: {held}{room}"] if self.parked else []
        texts += [f"the programs of {self.name} were ended: {self.lost_text}"] if self.lost_text else []
        if self.memory_pending_mib:
            pending = format_mib(self.memory_pending_mib)
            texts.append(f"{self.name} has yet to free {pending}, since its memory was reduced")
        texts += [f"{self.name} borrows no memory, for it {self.not_lent}"] if self.not_lent else []
        if self.memory_lent_mib:
            called = f", {format_mib(self.memory_called_mib)} of it called back" if self.memory_called_mib else ""
            texts.append(f"{self.name} has {format_mib(self.memory_lent_mib)} lent{called}")
        if self.memory_wait_s:
            texts.append(f"{self.name} waits for memory lent to others, called back {self.memory_wait_s:.0f} s ago")
        return texts

    @property
    def wake_text(self) -> str:
        """How soon it wakes and what endangers its promise, in words; empty without a promise."""
        return f"{self.name} wakes: {self.wake.text}" if self.wake is not None else ""

    @property
    def usage_milli(self) -> int:
        """Its use of the GPU's time over the window."""
        return round(self.usage * MILLI)


class Unregistered(msgspec.Struct, frozen=True):
    """A process that NVML sees on a GPU and that is attached to no tenant of it, by the arbiter's own pid namespace."""

    pid: int
    memory_mib: int
