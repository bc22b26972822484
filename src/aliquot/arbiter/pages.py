"""The grant page as the arbiter holds it: a sealed memfd with one writer.

Once sealed, the page cannot be mapped for writing; the arbiter's own mapping, made before, still writes. Stores go
through native-width views, so the hook never sees half a word; x86 and the interpreter keep their order, and the word
is always stored last.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from array import array
from typing import Final

from aliquot.model.wake import in_flight_us

from .abi import ABI_VERSION, GRANT_PAGE, PAGE_MAGIC, PAGE_SIZE_BYTES, FailPolicy, Feature, WordState, word
from .leases import digest
from .linux import F_SEAL_FUTURE_WRITE, futex_wake
from .records import TenantGpu

_OFFSET: Final = {field.name: field.offset for field in GRANT_PAGE}
_WORD: Final = _OFFSET["word"] // 4
_WAITERS: Final = _OFFSET["waiters"] // 4
_DEADLINE: Final = _OFFSET["deadline_ns"] // 8
_IN_FLIGHT: Final = _OFFSET["in_flight_us"] // 4
_OVERLAPPING: Final = _OFFSET["overlapping"] // 4
_GRANTED: Final = _OFFSET["granted_at_ns"] // 8
_LEASED: Final = _OFFSET["memory_leased_bytes"] // 8
_CONTEXT: Final = _OFFSET["memory_context_bytes"] // 8
_PROCESSES: Final = _OFFSET["processes"] // 4
_PROCESS_ROOM: Final = 256
HEADER_SIZE_BYTES: Final = 208
_NEVER_NS: Final = 1 << 62
ALONE_IN_FLIGHT_US: Final = 100_000
"""Microseconds of work that a tenant alone on a GPU may queue: enough to keep it busy while the program pauses."""


def memfd_name(tenant: str) -> str:
    """The name under which a process that has the page of a tenant shows it in /proc/PID/maps."""
    return f"aliquot-grant-{digest(tenant).hex()}"


class GrantPage:
    """One page for one (tenant, GPU); `fd` is what goes to the tenant's processes."""

    def __init__(
        self,
        gpu: TenantGpu,
        *,
        boot_id: int,
        fail_policy: FailPolicy,
        window_ms: int,
        gap_us: int,
        in_flight_us: int,
        tenant: str = "",
    ) -> None:
        self.fd = os.memfd_create(memfd_name(tenant), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, PAGE_SIZE_BYTES)
        self._map = mmap.mmap(self.fd, PAGE_SIZE_BYTES)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        self._bytes = memoryview(self._map)
        self._u16 = self._bytes.cast("H")
        self._u32 = self._bytes.cast("I")
        self._u64 = self._bytes.cast("Q")
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._word_address = self.address + _OFFSET["word"]
        self._u16[_OFFSET["version"] // 2] = ABI_VERSION
        self._u16[_OFFSET["header_size"] // 2] = HEADER_SIZE_BYTES
        self._u64[_OFFSET["boot_id"] // 8] = boot_id
        start = _OFFSET["gpu_uuid"]
        self._bytes[start : start + 16] = gpu.uuid_bytes()
        self.set_share(gpu)
        for name, value in (
            ("fail_policy", int(fail_policy)),
            ("window_ms", window_ms),
            ("burst_gap_us", gap_us),
            ("max_in_flight_us", in_flight_us),
            ("magic", PAGE_MAGIC),
        ):
            self._u32[_OFFSET[name] // 4] = value
        self.set_limit(gpu.memory_mib << 20, gpu.limit_mib << 20)
        self._in_flight_us = in_flight_us
        self.set_company(False)

    def grant(self, epoch: int, now_ns: int, deadline_ns: int) -> None:
        """Open the gate for this epoch and wake every thread that sleeps on it."""
        self._u64[_DEADLINE] = deadline_ns
        self._u64[_GRANTED] = now_ns
        self._u32[_WORD] = word(epoch, WordState.VALID)
        futex_wake(self._word_address)

    def open_for_good(self, epoch: int) -> None:
        """Open the gate and never close it: the GPU is the tenant's alone."""
        self._u64[_OFFSET["features"] // 8] |= int(Feature.UNGATED)
        self.grant(epoch, 0, _NEVER_NS)

    def renew(self, deadline_ns: int) -> None:
        """Move the deadline; no thread has to wake."""
        self._u64[_DEADLINE] = deadline_ns

    def close_gate(self, epoch: int) -> None:
        """End the grant of this epoch and wake the threads that wait for its end."""
        self._u32[_WORD] = word(epoch, WordState.CLOSED)
        futex_wake(self._word_address)

    def beat(self, now_ns: int) -> None:
        """A sign of life."""
        self._u64[_OFFSET["beat_ns"] // 8] = now_ns

    def set_neighbours(self, waiters: int, overlapping: int) -> None:
        """How many other tenants wait for this GPU, and how many may have work on it now."""
        if self._u32[_WAITERS] != waiters:
            self._u32[_WAITERS] = waiters
        if self._u32[_OVERLAPPING] != overlapping:
            self._u32[_OVERLAPPING] = overlapping

    def set_company(self, others: bool, wake_us: int = 0) -> None:
        """Whether other tenants are attached to this GPU: less may be queued then, for they wait for what is queued.

        `wake_us` is the shortest time to wake in that one of them was promised, 0 for none.
        """
        wide = self._in_flight_us and not others
        bound_us = in_flight_us(wake_us, self._in_flight_us)
        self._u32[_IN_FLIGHT] = max(self._in_flight_us, ALONE_IN_FLIGHT_US) if wide else bound_us

    def set_share(self, gpu: TenantGpu) -> None:
        """Its request and limit of the GPU's time."""
        self._u32[_OFFSET["request_milli"] // 4] = gpu.request_milli
        self._u32[_OFFSET["limit_milli"] // 4] = gpu.limit_milli

    def set_limit(self, total_bytes: int, max_bytes: int) -> None:
        """The tenant's memory, which is the GPU's total in its own view; and what it may hold at most."""
        self._u64[_OFFSET["memory_limit_bytes"] // 8] = total_bytes
        self._u64[_OFFSET["memory_max_bytes"] // 8] = max_bytes

    def set_memory(self, leased_bytes: int, context_bytes: int) -> None:
        """What the tenant is charged, for its own view of memory."""
        self._u64[_LEASED] = leased_bytes
        self._u64[_CONTEXT] = context_bytes

    def demand_memory(self, demand: int) -> None:
        """Ask every process to return leased memory that it does not use; wakes all threads that sleep on the page."""
        self._u32[_OFFSET["memory_demand"] // 4] = demand & 0xFFFFFFFF
        futex_wake(self._word_address)

    def set_lent(self, lent_bytes: int) -> None:
        """What of this GPU is lent to other tenants."""
        self._u64[_OFFSET["memory_lent_bytes"] // 8] = lent_bytes

    def call_back(self, size_bytes: int, by_ns: int) -> None:
        """Ask for bytes that were lent, of the programs if they have a time for it; wakes those that listen."""
        self._u64[_OFFSET["memory_back_by_ns"] // 8] = by_ns
        self._u64[_OFFSET["memory_back_bytes"] // 8] = size_bytes
        calls = _OFFSET["memory_calls"]
        self._u32[calls // 4] = (self._u32[calls // 4] + 1) & 0xFFFFFFFF
        for at in (calls, _OFFSET["word"]):
            futex_wake(self.address + at)

    def park(self, number: int) -> None:
        """Have calls of the driver wait, and processes say so, by the number of this park; 0 lets them go on."""
        self._u32[_OFFSET["parked"] // 4] = number
        for name in ("parked", "word"):
            futex_wake(self.address + _OFFSET[name])

    def set_processes(self, pids: list[int]) -> None:
        """The tenant's processes on this GPU; more than the page has room for are left out."""
        pids = pids[:_PROCESS_ROOM]
        self._u32[_PROCESSES : _PROCESSES + len(pids)] = memoryview(array("I", pids))
        self._u32[_OFFSET["process_count"] // 4] = len(pids)

    def close(self) -> None:
        """Unmap and close; the tenant's mappings live on, closed."""
        for view in (self._u16, self._u32, self._u64, self._bytes):
            view.release()
        self._map.close()
        os.close(self.fd)
