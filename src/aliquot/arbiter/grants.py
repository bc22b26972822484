"""A tenant as the arbiter sees it: its processes, the state of its grant of each of its GPUs, and what they hold.

A grant state is kept for each (tenant, GPU): the grant page, the epoch, which processes have answered for the current
grant, and the memory ledger. Shares belong to the tenant, not to its processes, so starting more of them buys nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from .abi import ReportFlag
from .leases import LeaseRecord, Leases
from .lending import GpuMemory
from .linux import compare_open_files
from .pages import GrantPage
from .records import TenantGpu, TenantRecord

WAKES_KEPT: Final = 1024
MAX_DESCRIPTORS: Final = 1024
"""Of one tenant on one GPU; what is exported beyond them is charged to each of its holders."""
_MEASURE_GAP_NS: Final = 5_000_000_000
"""The longest time before a measurement that it can account for; what lies further back is not counted."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One process's descriptor of a file."""

    pid: int
    number: int
    file: tuple[int, int]
    regular: bool

    @classmethod
    def of(cls, pid: int, number: int) -> Descriptor | None:
        """The file's identity as the kernel reports it; None if it is gone or not visible."""
        try:
            status = os.stat(f"/proc/{pid}/fd/{number}")  # noqa: PTH116
        except OSError:
            return None
        return cls(pid, number, (status.st_dev, status.st_ino), stat.S_ISREG(status.st_mode))

    def compare(self, other: Descriptor) -> int | None:
        """Below, at or above 0 as this comes before the other or is of the same memory; None: one of them is gone."""
        return 0 if self.regular else compare_open_files(self.pid, self.number, other.pid, other.number)


@dataclass(slots=True, eq=False)
class Shared:
    """One piece of memory, the processes that have handles or mappings of it, and the files it is known by."""

    bytes: int
    holders: set[Hashable] = field(default_factory=set)
    files: set[tuple[int, int]] = field(default_factory=set)


class _OpenFile(NamedTuple):
    descriptor: Descriptor
    number: int
    holder: Hashable


class SharedMemory:
    """Memory that several processes of one tenant hold on one GPU: charged once, until the last of them lets it go.

    Memory leaves a process as a file descriptor. What a process exports moves from its lease into a `Shared`, and a
    process that maps what it has imported joins that instead of paying again. Two descriptors are of one memory when
    they are of one open file, which the kernel is asked, not the processes; a regular file may have been opened twice.
    The kernel has an order of open files, so one is found among a thousand in ten questions.

    A false report gains nothing: exported memory was paid for, a process that maps more than that pays the difference,
    and an import that is not recognised is charged in full. Memory of another tenant is never recognised here. The
    numbers are never used again.
    """

    def __init__(self) -> None:
        self._all: dict[int, Shared] = {}
        self._last = int.from_bytes(os.urandom(6), "little") << 8  # not those of the arbiter before
        self._files: dict[tuple[int, int], list[_OpenFile]] = {}  # in the kernel's order
        self._descriptors = 0

    def get(self, number: int, holder: Hashable) -> Shared | None:
        """The memory of this number, if the process holds it."""
        shared = self._all.get(number)
        return shared if shared is not None and holder in shared.holders else None

    def find(self, descriptor: Descriptor) -> int:
        """The number of the memory behind a descriptor; 0: it is not known."""
        number, _ = self._search(descriptor)
        return number

    def make(self, size_bytes: int) -> int:
        """New memory, without a holder."""
        self._last += 1
        self._all[self._last] = Shared(size_bytes)
        return self._last

    def hold(self, number: int, holder: Hashable, descriptor: Descriptor) -> Shared:
        """The process holds it, and it is known by this descriptor too."""
        shared = self._all[number]
        shared.holders.add(holder)
        if not self.is_full():
            _, place = self._search(descriptor)
            self._files.setdefault(descriptor.file, []).insert(place, _OpenFile(descriptor, number, holder))
            self._descriptors += 1
            shared.files.add(descriptor.file)
        return shared

    def more(self, number: int, size_bytes: int) -> int:
        """Bytes by which this size is above what was charged so far."""
        return max(0, size_bytes - self._all[number].bytes)

    def is_full(self) -> bool:
        """Whether no more descriptors are kept."""
        return self._descriptors >= MAX_DESCRIPTORS

    def leave(self, number: int, holder: Hashable) -> int:
        """The process holds it no more; the bytes that no process holds now."""
        shared = self.get(number, holder)
        if shared is None:
            return 0
        shared.holders.discard(holder)
        for file in shared.files & self._files.keys():
            entries = self._files[file]
            self._replace(file, [entry for entry in entries if (entry.number, entry.holder) != (number, holder)])
        return 0 if shared.holders else self._all.pop(number).bytes

    def leave_all(self, holder: Hashable) -> int:
        """The process is gone; the bytes that no process holds now."""
        for file, entries in list(self._files.items()):
            self._replace(file, [entry for entry in entries if entry.holder is not holder])
        unheld = [number for number, shared in self._all.items() if shared.holders == {holder}]
        for shared in self._all.values():
            shared.holders.discard(holder)
        return sum(self._all.pop(number).bytes for number in unheld)

    def held_bytes(self, holder: Hashable) -> int:
        """What a process holds of it, alone or with others."""
        return sum(shared.bytes for shared in self._all.values() if holder in shared.holders)

    def _replace(self, file: tuple[int, int], entries: list[_OpenFile]) -> None:
        self._descriptors -= len(self._files[file]) - len(entries)
        self._files[file] = entries
        if not entries:
            del self._files[file]

    def _search(self, descriptor: Descriptor) -> tuple[int, int]:
        """The number of the memory or 0, and the place of the descriptor; what has been closed is forgotten."""
        entries = self._files.get(descriptor.file, [])
        low, high = 0, len(entries)
        if entries and descriptor.compare(descriptor) is None:
            return 0, 0
        while low < high:
            middle = (low + high) // 2
            order = descriptor.compare(entries[middle].descriptor)
            if order is None:
                del entries[middle]
                self._descriptors -= 1
                high -= 1
            elif order == 0:
                return entries[middle].number, middle
            elif order < 0:
                high = middle
            else:
                low = middle + 1
        return 0, low


@dataclass(frozen=True, slots=True)
class Seen:
    """NVML's last report: bytes by (GPU UUID, pid), None where it reports nothing, at this time of CLOCK_MONOTONIC."""

    used: dict[tuple[str, int], int | None]
    at_ns: int


@dataclass(slots=True, eq=False)
class MemoryLease:
    """What one process holds of one GPU's memory, in bytes.

    `spare`: some of it may be unused, because the process has not reported since its last lease that it uses all.
    `asked` is the number of the demand that asked it to return unused memory, 0 if none did. `max_bytes` is the maximum
    of `leased_bytes` since the last call of `take_max_bytes`, `earlier_max_bytes` that between the two last calls.
    `unsettled` is the number of coming measurements that may show memory that has left this ledger or is not in it yet.
    `shared_bytes` is what it holds alone or with others, and `record` where all of it is kept for the next arbiter.
    """

    leased_bytes: int = 0
    context_bytes: int = 0
    contexts: int = 0
    spare: bool = False
    asked: int = 0
    max_bytes: int = 0
    earlier_max_bytes: int = 0
    unsettled: int = 0
    shared_bytes: int = 0
    record: LeaseRecord | None = None

    @property
    def held_bytes(self) -> int:
        """All that the process holds, whatever is held by others too."""
        return self.leased_bytes + self.context_bytes + self.shared_bytes

    def write(self) -> None:
        """Store it for the next arbiter."""
        if self.record is not None:
            self.record.store(self.held_bytes)

    def take_max_bytes(self) -> int:
        """Return the maximum leased since before the current measurement began, and start a new period.

        Called when a measurement is used. It may have begun before the previous one was used, but not before the one
        before that was: two periods cover it.
        """
        maximum = max(self.max_bytes, self.earlier_max_bytes)
        self.max_bytes, self.earlier_max_bytes = self.leased_bytes, self.max_bytes
        return maximum


@dataclass(slots=True, eq=False)
class Process:
    """One connection. Its tenant is known by the socket that it connected to, never by what it reports."""

    sock: socket.socket
    tenant: Tenant
    pid: int
    pidfd: int
    allowance: float
    allowance_at_ns: int
    greeted: bool = False
    paused: bool = False
    closed: bool = False
    leases: dict[int, MemoryLease] = field(default_factory=dict)  # by slot, of the slots it is attached to
    unrouted: int = 0  # what it has reported of itself, as sums
    ungated_ns: int = 0
    stays: int = 0  # ReportFlag bits


@dataclass(slots=True, eq=False)
class GrantState:
    """The state of one tenant's grant of one GPU, which is kept between its turns."""

    slot: int
    gpu: TenantGpu
    page: GrantPage
    epoch: int = 0
    first_epoch: int = 0
    granted_epoch: int = 0  # of the last grant that the native loop has stored
    valid: bool = False
    draining: bool = False
    stopped: bool = False  # a process that has yet to answer was stopped when its answer was no longer waited for
    revoked_at_ns: int = 0
    deadline_ns: int = 0
    attached: set[Process] = field(default_factory=set)
    launching: set[Process] = field(default_factory=set)  # those of them that take part in turns, not only query
    wanting: set[Process] = field(default_factory=set)  # processes that have asked for the grant and wait
    users: set[Process] = field(default_factory=set)  # processes that launch under the current grant
    returned: set[Process] = field(default_factory=set)  # whose work under it has ended
    readmitted: dict[Process, int] = field(default_factory=dict)  # and who came back, by this epoch
    pending: set[Process] = field(default_factory=set)  # that have yet to answer its revocation
    parked: set[Process] = field(default_factory=set)  # in which no call of the driver is under way or begins
    behind: set[Process] = field(default_factory=set)  # whose work of an earlier grant runs on into this one
    absent: dict[int, MemoryLease] = field(default_factory=dict)  # by pid: see `Tenant.absent`
    leased_bytes: int = 0  # by all leases, those of absent processes too, and what is shared
    context_bytes: int = 0
    shared: SharedMemory = field(default_factory=SharedMemory)
    handovers: int = 0
    first_grant_ns: int = 0
    waits_ns: deque[int] = field(default_factory=lambda: deque(maxlen=256))
    waited_ns: int = 0
    woke: bool = False  # it waits for its first grant after a rest, within its request and with a promise
    wakes_ns: deque[int] = field(default_factory=lambda: deque(maxlen=WAKES_KEPT))
    kernels_us: dict[Process, int] = field(default_factory=dict)  # the longest lately, as each process reports
    memory_refusals: int = 0
    demand: int = 0
    memory: GpuMemory = field(default_factory=GpuMemory)
    away: bool = False  # the tenant is parked, and what it holds is in the host's memory
    called_ns: int = 0  # since when lent bytes are called back from it, 0: none are
    called: tuple[int, int] = (0, 0)  # how many, and until when the programs are asked for them, 0: not yet
    listens: bool = False  # a program of it answers when lent bytes are called back
    ceiling_bytes: int = 0  # shown as its memory since that was reduced, until no more than its memory is charged
    used_ns: int = 0
    measured_at_ns: int = 0
    uses: deque[tuple[int, int]] = field(default_factory=deque)  # (when, nanoseconds used until then since the last)

    @property
    def ungated(self) -> bool:
        """Whether its time is its own: no turns are taken, and its use is what NVML measures."""
        return self.gpu.enforce != "all"

    def note_use(self, busy: float, now_ns: int, window_ns: int) -> None:
        """The GPU was busy for this part of the time since the last measurement."""
        since_ns = min(now_ns - self.measured_at_ns, _MEASURE_GAP_NS) if self.measured_at_ns else 0
        self.measured_at_ns = now_ns
        self.used_ns += int(since_ns * busy)
        self.uses.append((now_ns, int(since_ns * busy)))
        while self.uses[0][0] < now_ns - window_ns:
            self.uses.popleft()

    def measured_usage(self, now_ns: int, window_ns: int) -> float:
        """The part of the window in which the GPU was busy, as far as it was measured."""
        used_ns = sum(used for at_ns, used in self.uses if at_ns > now_ns - window_ns)
        return min(1.0, used_ns / window_ns)

    @property
    def may_have_work(self) -> bool:
        """Whether it has the token, or what it launched with it has not been seen to end."""
        return self.valid or self.draining or bool(self.behind)

    @property
    def kernel_us(self) -> int:
        """The longest kernel lately of its processes, in microseconds; 0: not known."""
        return max(self.kernels_us.values(), default=0)

    @property
    def guarantee_bytes(self) -> int:
        """The tenant's memory on this GPU."""
        return self.gpu.memory_mib << 20

    @property
    def limit_bytes(self) -> int:
        """What it may hold with what is lent to it."""
        return self.gpu.limit_mib << 20

    @property
    def charged_bytes(self) -> int:
        """What its processes hold, wherever that is."""
        return self.leased_bytes + self.context_bytes

    @property
    def present_bytes(self) -> int:
        """What they hold of the GPU."""
        return 0 if self.away else self.charged_bytes

    @property
    def lent_bytes(self) -> int:
        """What they hold of it beyond the guarantee."""
        return max(0, self.present_bytes - self.guarantee_bytes)

    @property
    def pending_bytes(self) -> int:
        """What the tenant is charged beyond its memory, as after that was reduced: it has yet to free it."""
        return max(0, self.charged_bytes - self.limit_bytes)

    def resize(self, gpu: TenantGpu) -> None:
        """Have another share and other memory; what is held beyond it stays, and unused leases are asked back."""
        self.ceiling_bytes = max(self.ceiling_bytes, self.guarantee_bytes)
        self.gpu = gpu
        self.page.set_share(gpu)
        self._lower_ceiling()
        if self.ceiling_bytes:
            self.demand_memory(None)

    def move(self, tenant: str, leases: Leases) -> None:
        """Have what is held written down as of the GPU that is its now; NVML shows it there after a while."""
        held = [(process.pid, process.leases[self.slot]) for process in self.attached] + [*self.absent.items()]
        for pid, lease in held:
            if lease.record is not None:
                lease.record.clear()
            lease.record = leases.take(tenant, self.gpu.uuid_bytes(), pid)
            lease.unsettled = 2
            lease.write()

    def reserve(self, lease: MemoryLease, needed: int, liked: int, *, borrows: bool = False, now_ns: int = 0) -> int:
        """Lease at least `needed` bytes, more if liked and far from the limit; 0 when it does not fit, or not yet."""
        room = self.memory.room(self, needed, borrows=borrows, now_ns=now_ns) if needed else 0
        if needed > room or not needed:
            return 0
        given = max(needed, min(liked, room // 4))
        self.add(lease, given)
        lease.spare, lease.asked = True, 0
        return given

    def demand_memory(self, process: Process | None) -> bool:
        """Have the tenant's other processes return what they leased and do not use; True while an answer is open."""
        others = (other.leases[self.slot] for other in self.attached if other is not process)
        spare = [lease for lease in others if lease.leased_bytes and lease.spare]
        if any(not lease.asked for lease in spare):
            self.demand += 1
            for lease in spare:
                lease.asked = self.demand
            self.page.demand_memory(self.demand)
        return bool(spare)

    def add(self, lease: MemoryLease, leased: int = 0, context: int = 0) -> None:
        """Change what a process holds, and show it in the page."""
        lease.leased_bytes += leased
        lease.context_bytes += context
        lease.write()
        lease.max_bytes = max(lease.leased_bytes, lease.max_bytes)
        self.leased_bytes += leased
        self.context_bytes += context
        self._show_memory()

    def export(self, process: Process, size_bytes: int, descriptor: int, number: int) -> int:
        """Memory of a process's lease becomes shared, or has one more descriptor; 0: it stays where it was."""
        file = Descriptor.of(process.pid, descriptor)
        if file is None or self.shared.is_full() or (number and not self.shared.get(number, process)):
            return 0
        if not number:
            if self.shared.find(file):
                return 0
            number = self.shared.make(size_bytes)
            process.leases[self.slot].shared_bytes += size_bytes
            self.add(process.leases[self.slot], -size_bytes)
            self._add_shared(size_bytes)
        self.shared.hold(number, process, file)
        return number

    def join(self, process: Process, size_bytes: int, descriptor: int, now_ns: int = 0) -> tuple[int, bool]:
        """A process maps this much of an import: the memory's number or 0, and whether it is known but does not fit."""
        file = Descriptor.of(process.pid, descriptor)
        number = 0 if file is None else self.shared.find(file)
        if file is None or not number:
            return 0, False
        more = self.shared.more(number, size_bytes)
        if more > self.memory.room(self, more, borrows=False, now_ns=now_ns):
            return 0, True
        self.shared.hold(number, process, file).bytes += more
        self._add_shared(more)
        self._write_shared(process)
        return number, False

    def unshare(self, process: Process, number: int) -> None:
        """The process holds this memory no more."""
        if self.shared.get(number, process):
            process.leases[self.slot].unsettled = 2
            self._add_shared(-self.shared.leave(number, process))
            self._write_shared(process)

    def _write_shared(self, process: Process) -> None:
        lease = process.leases[self.slot]
        lease.shared_bytes = self.shared.held_bytes(process)
        lease.write()

    def _add_shared(self, size_bytes: int) -> None:
        self.leased_bytes += size_bytes
        self._show_memory()

    def _show_memory(self) -> None:
        self.page.set_memory(self.leased_bytes, self.context_bytes)
        if self.ceiling_bytes or self.limit_bytes > self.guarantee_bytes:
            self._lower_ceiling()
            self.memory.show_lent()

    def _lower_ceiling(self) -> None:
        """The memory that the page shows falls to what is charged, and to the tenant's memory at last.

        What is lent shows as it is held. A program that sizes itself by the total stays within its guarantee so; and
        neither total nor free memory tells anything of other tenants.
        """
        self.ceiling_bytes = min(self.ceiling_bytes, self.charged_bytes) if self.pending_bytes else 0
        lent = self.charged_bytes if self.limit_bytes > self.guarantee_bytes else 0
        self.page.set_limit(max(self.guarantee_bytes, self.ceiling_bytes, lent), self.limit_bytes)

    def may_return(self, process: Process) -> range:
        """The epochs of this grant whose RETURN says that the process is idle now."""
        return range(self.readmitted.get(process, self.first_epoch), self.epoch + 1)

    def forget(self, process: Process) -> None:
        """The connection of a process has ended; what it holds stays charged until `release`."""
        lease = process.leases.pop(self.slot)
        held_bytes, record, lease.record = lease.held_bytes, lease.record, None
        self.hold(process.pid, held_bytes, record)
        self.add(lease, -lease.leased_bytes, -lease.context_bytes)
        self._add_shared(-self.shared.leave_all(process))
        turns = (self.launching, self.wanting, self.users, self.returned, self.pending, self.behind, self.parked)
        for group in (self.attached, *turns):
            group.discard(process)
        self.readmitted.pop(process, None)
        self.kernels_us.pop(process, None)
        self.show_processes()

    def hold(self, pid: int, held_bytes: int, record: LeaseRecord | None) -> None:
        """Charge what a process that is not connected holds; as by a new arbiter, what others hold too is charged."""
        lease = self.absent.setdefault(pid, MemoryLease(unsettled=2))
        spare, lease.record = (record, lease.record) if lease.record else (None, record)
        self.add(lease, held_bytes)
        if self.pending_bytes:  # also to a new arbiter: its memory was reduced before
            self.ceiling_bytes = self.charged_bytes
            self._lower_ceiling()
        if spare is not None:
            spare.clear()

    def take_over(self, pid: int, restored_bytes: int) -> None:
        """A process that is connected again has restored this much of what it held."""
        if lease := self.absent.get(pid):
            self.add(lease, -min(restored_bytes, lease.leased_bytes))

    def release(self, pid: int) -> None:
        """A process that is not connected is gone, or has reported for itself on a new connection."""
        lease = self.absent.pop(pid, None)
        if lease is not None:
            self.add(lease, -lease.leased_bytes)
            if lease.record is not None:
                lease.record.clear()

    def show_processes(self) -> None:
        """Name the tenant's processes in the page, for its own view of NVML."""
        self.page.set_processes(sorted(process.pid for process in self.attached))


@dataclass(slots=True, eq=False)
class Tenant:
    """One tenant with its listening socket, grant states by slot, and processes.

    `absent` are pid and pidfd of living processes that hold memory and are not connected: known by an earlier arbiter
    and not heard of since, or those whose connection has ended.
    """

    record: TenantRecord
    listener: socket.socket
    grants: list[GrantState]
    processes: set[Process] = field(default_factory=set)
    absent: dict[int, int] = field(default_factory=dict)
    wanted_at_ns: int = 0
    missing: bool = False  # its socket's name was not there at the last round
    stopping: bool = False  # idle as a whole, to be revoked at this turn's end
    active_ns: int = 0  # when it last asked for a GPU or gave one back
    woken: bool = False  # a process of it waits for the memory of the tenant, which is parked
    lost: tuple[int, str] = (0, "")  # MiB lent to its last programs when they were ended for it, why it was not parked
    unrouted: int = 0  # driver functions that its processes got unhooked, since it came
    ungated_ns: int = 0  # time its processes launched freely because no arbiter could be reached
    gated: list[GrantState] = field(init=False)  # what the policy knows: the GPUs with turns; all, if none does

    def __post_init__(self) -> None:
        self.gated = [grant for grant in self.grants if not grant.ungated] or self.grants

    @property
    def name(self) -> str:
        """The name in its record."""
        return self.record.name

    def kill(self) -> None:
        """End its processes."""
        pidfds = [process.pidfd for process in self.processes if process.pidfd >= 0]
        for pidfd in (*pidfds, *self.absent.values()):
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def note_listeners(self) -> None:
        """Note whether a process of it answers when lent memory is called back; see `lending`."""
        for grant in self.grants:
            grant.listens = any(process.stays & ReportFlag.GIVES_BACK for process in self.processes)

    @property
    def is_busy(self) -> bool:
        """Whether it has a GPU, work on one, or waits for one or for memory."""
        waits = any(grant in grant.memory.needs for grant in self.grants if not grant.away)
        return waits or self.wanted_at_ns > 0 or any(grant.may_have_work for grant in self.gated)

    def grant_of(self, uuid: bytes) -> GrantState | None:
        """The grant state of the GPU with these 16 bytes, if it is or was one of the tenant's."""
        if any(earlier.endswith(str(UUID(bytes=uuid))) for earlier in self.record.earlier):
            return self.grants[0]
        return next((grant for grant in self.grants if grant.gpu.uuid_bytes() == uuid), None)


_STAYS: Final = {
    ReportFlag.UNIFIED: "has used unified memory",
    ReportFlag.SHARED: "has memory that it shares with another process, or may",
    ReportFlag.PEERS: "has used another GPU's memory",
}


def why_not_lent(tenant: Tenant) -> str:
    """Why no memory is lent to a tenant, as the end of a sentence: nothing would bring it back; empty if it is lent."""
    if any(grant.listens for grant in tenant.grants):
        return ""
    why = why_no_park(tenant)
    return why and f"{why}, and no program of it answers when memory is called back (aliquot.memory)"


def why_no_park(tenant: Tenant) -> str:
    """Why what is lent to a tenant does not come back by a park, as the end of a sentence; empty if it does."""
    return why_not_parked(tenant, busy=True) if tenant.record.parks else "runs where nothing is parked"


def why_not_parked(tenant: Tenant, *, busy: bool = False) -> str:
    """What keeps a tenant's memory on its GPU, as the end of a sentence; empty if nothing does. It may be `busy`."""
    if any(grant.ungated for grant in tenant.grants):
        return "has a whole GPU; what takes turns is parked"
    stays = 0
    for process in tenant.processes:
        stays |= process.stays
    if why := [text for flag, text in _STAYS.items() if stays & flag]:
        return f"{why[0]}, which the driver does not take off a GPU"
    if tenant.absent:
        return "has processes that are not connected"
    return "is busy on its GPU; what is idle is parked" if tenant.is_busy and not busy else ""
