"""What the arbiter is told about tenants and what it tells about them: the JSON lines of its two local sockets.

Shares are milli-GPU, memory is MiB, times carry their unit in the name. Unknown fields are ignored, so an older reader
understands a newer arbiter.
"""

from __future__ import annotations

import uuid as uuid_module
from typing import Any

import msgspec

from aliquot.model.quantities import MILLI
from aliquot.model.requests import Enforce


class TenantGpu(msgspec.Struct, frozen=True):
    """A tenant's part of one GPU; `uuid` is the text form, such as `GPU-6c5c...`."""

    uuid: str
    request_milli: int
    limit_milli: int
    memory_mib: int
    context_mib: int = 0
    enforce: Enforce = "all"
    wake_us: int = 0

    def uuid_bytes(self) -> bytes:
        """The 16 bytes that cuDeviceGetUuid gives.

        Raises:
            ValueError: the text is not a GPU's UUID.
        """
        try:
            return uuid_module.UUID(self.uuid.removeprefix("GPU-").removeprefix("MIG-")).bytes
        except ValueError as error:
            raise ValueError(f"{self.uuid!r} is not the UUID of a GPU") from error


class TenantRecord(msgspec.Struct, frozen=True):
    """One tenant: the path of its own socket, and its GPUs in the order of their slots."""

    name: str
    socket: str
    gpus: list[TenantGpu]

    def gates(self) -> list[TenantGpu]:
        """The GPUs with what is enforced on each: one that the tenant has whole, beside a shared one, takes no turns.

        With turns it would stand idle whenever the turn on the shared GPU is another tenant's.
        """
        shared = any(gpu.request_milli < MILLI for gpu in self.gpus)
        return [
            msgspec.structs.replace(gpu, enforce="memory")
            if shared and gpu.request_milli >= MILLI and gpu.enforce == "all"
            else gpu
            for gpu in self.gpus
        ]


class PromiseStatus(msgspec.Struct, frozen=True):
    """Whether the promise was kept to a tenant on one GPU, since it came: see `aliquot.tokens.kept`.

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
    `kernel_ms` is the longest kernel or graph that was lately seen of it, 0 before that.
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


class Unregistered(msgspec.Struct, frozen=True):
    """A process that NVML sees on a GPU and that is attached to no tenant of it, by the arbiter's own pid namespace."""

    pid: int
    memory_mib: int


class GpuStatus(msgspec.Struct):
    """One GPU: who holds it and the part of the window that was charged to anybody.

    `unregistered` has the largest of those processes, and means something only where `Status.compared` is set. Where a
    tenant owns the GPU and its programs have the bare driver, they are in `bare` instead. `context_mib` is the
    least that one context was seen to take, 0 before that.
    """

    uuid: str
    holder: str | None
    busy: float
    tenants: list[TenantStatus]
    unregistered: list[Unregistered] = []
    bare: list[Unregistered] = []
    context_mib: int = 0


class Status(msgspec.Struct):
    """Everything at one moment; `now_ns` is CLOCK_MONOTONIC.

    `compared` is whether NVML's processes are being compared with those that are attached.
    """

    now_ns: int
    boot_id: int
    pid: int
    window_ms: int
    turns: str
    quota_ms: int
    handover: str
    fail_policy: str
    connections: int
    gpus: list[GpuStatus]
    compared: bool = False


class HeldTurn(msgspec.Struct, frozen=True, array_like=True):
    """A tenant held a GPU from one moment to another, of CLOCK_MONOTONIC."""

    tenant: str
    began_ns: int
    ended_ns: int


class GpuTurns(msgspec.Struct, frozen=True):
    """The turns on one GPU in the minute before `now_ns`, oldest first; all of them are known from `known_ns` on."""

    now_ns: int
    known_ns: int
    turns: list[HeldTurn]


class Request(msgspec.Struct):
    """One line to admin.sock or status.sock; `name` is a tenant's, or for `turns` a GPU's UUID."""

    op: str
    tenant: TenantRecord | None = None
    name: str = ""
    follow: bool = False
    end: bool = False


class Answer(msgspec.Struct, omit_defaults=True):
    """One line back: `error` is a sentence for a person, empty when all went well."""

    error: str = ""
    status: Status | None = None
    turns: GpuTurns | None = None
    event: dict[str, Any] | None = None
    end: bool = False


def unhooked(status: Status) -> list[str]:
    """The tenants whose programs got functions of the driver that the hook could not stand before, or ran unasked."""
    found: dict[str, str] = {}
    for tenant in (tenant for gpu in status.gpus for tenant in gpu.tenants):
        if tenant.unrouted:
            found[tenant.name] = f"{tenant.name}: {tenant.unrouted} driver functions not intercepted"
        elif tenant.ungated_ms:
            found[tenant.name] = f"{tenant.name}: {tenant.ungated_ms / 1e3:.1f} s without an arbiter"
    return sorted(found.values())
