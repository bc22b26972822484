"""A GPU with the tenants on it: what the ledger promises them, and what their node measures.

Fractions are milli-GPU (1000 = one GPU), memory is MiB, durations carry their unit in the name. A field that is not
known is its default. These are the records of the dashboard's pages and of its API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from aliquot.model.quantities import MILLI
from aliquot.model.requests import Enforce, Slice
from aliquot.status.sensors import Sensors
from aliquot.status.tenants import TenantStatus

GpuState = Literal["whole", "shared", "idle"]
"""Whole: one tenant has all of it; shared: tenants have parts; idle: it has no tenant."""


class Share(msgspec.Struct, frozen=True):
    """One tenant's part of one GPU: its promise and its use.

    `usage_milli` is charged time over the token window. `kept_percent` is the part of the windows of the last hour in
    which the tenant wanted the GPU and got its request for that time; None while there was no such window. `owner` is
    its controller, such as `Deployment/web`, empty where it is not known. `pods` are those that use it, where it is a
    claim. `enforce` is which part of the promise is enforced; on whole GPUs it may be less than all, and then usage is
    what NVML measures. `idle_s` is for how long the tenant has not used or wanted its GPUs. Where `hidden` is true the
    viewer has no rights to the tenant: its size and use are known, all else is not shown. `memory_lent_mib` of what it
    holds of the GPU is beyond its guarantee, `memory_mib`, and `memory_called_mib` of that are called back for others'
    guarantees; `memory_parked_mib` is in the host's memory. `notes` say these in words, and what its memory waits for.
    """

    tenant: str
    request_milli: int
    limit_milli: int
    usage_milli: int
    memory_mib: int
    memory_used_mib: int
    workload: str = ""
    owner: str = ""
    wait_ms: float = 0.0
    debt_ms: float = 0.0
    quota_ms: float = 0.0
    processes: int = 0
    waiting: bool = False
    kept_percent: float | None = None
    windows: int = 0
    enforce: Enforce = "all"
    hidden: bool = False
    idle_s: int = 0
    pods: list[str] = []
    memory_lent_mib: int = 0
    memory_called_mib: int = 0
    memory_parked_mib: int = 0
    notes: list[str] = []


class Gpu(msgspec.Struct, frozen=True):
    """One GPU with its tenants; `holder` has the token now.

    If `measured` is false its use is not known, and every measured number here is 0. `memory_lent_mib` is lent to its
    tenants beyond their guarantees, and `memory_called_mib` of it are called back.
    `bypassing` counts programs on it without a share. `sensors` has temperature, power and clocks where they are read.
    """

    uuid: str
    index: int
    node: str
    model: str
    memory_mib: int
    state: GpuState
    free_milli: int
    free_mib: int
    busy_milli: int
    memory_used_mib: int
    shares: list[Share]
    holder: str = ""
    vgpu: str = ""
    emulated: bool = False
    healthy: bool = True
    measured: bool = True
    bypassing: int = 0
    sensors: Sensors | None = None
    memory_lent_mib: int = 0
    memory_called_mib: int = 0


def gpu_state(requests_milli: Sequence[int]) -> GpuState:
    """The state of a GPU whose tenants have these requests."""
    if not requests_milli:
        return "idle"
    return "whole" if max(requests_milli) >= MILLI else "shared"


def promised(tenant: str, piece: Slice) -> Share:
    """A share as in the ledger, without measured values."""
    return Share(tenant, piece.request_milli, piece.limit_milli, 0, piece.memory_mib, 0, workload_of(tenant))


def workload_of(tenant: str) -> str:
    """The workload that a tenant belongs to: of `namespace/pod/container` the pod, else the tenant itself."""
    return "/".join(tenant.split("/")[:2])


_AS_MEASURED: Final = ("processes", "waiting", "enforce", "memory_lent_mib", "memory_called_mib")


def measured(plan: Share, now: TenantStatus | None, kept: tuple[float | None, int], owner: str = "") -> Share:
    """A promised share with its measured values; a tenant that the arbiter does not know uses nothing."""
    plan = msgspec.structs.replace(plan, owner=owner, kept_percent=kept[0], windows=kept[1])
    if now is None:
        return plan
    return msgspec.structs.replace(
        plan,
        usage_milli=now.usage_milli,
        memory_used_mib=now.present_mib,
        wait_ms=round(now.wait_ms_p50, 1),
        debt_ms=round(now.debt_ms, 1),
        quota_ms=round(now.quota_ms, 1),
        idle_s=int(now.idle_s),
        memory_parked_mib=now.memory_used_mib - now.present_mib,
        notes=now.memory_texts,
        **{name: getattr(now, name) for name in _AS_MEASURED},
    )


def with_measures(
    gpu: Gpu,
    *,
    busy_milli: int,
    holder: str,
    now: Callable[[str], TenantStatus | None],
    kept: Callable[[str], tuple[float | None, int]],
    reported_as: Callable[[str], str] = lambda tenant: tenant,
    owner_of: Callable[[str], str] = lambda tenant: "",
) -> Gpu:
    """A GPU of a ledger with what is measured of it; `reported_as` is a tenant's name there, by that in the ledger.

    `kept` has the percent of windows in which a tenant's promise was kept, and their number.
    """
    names = {share.tenant: reported_as(share.tenant) for share in gpu.shares}
    shares = [
        measured(share, now(names[share.tenant]), kept(names[share.tenant]), owner_of(share.tenant))
        for share in gpu.shares
    ]
    return msgspec.structs.replace(
        gpu,
        shares=shares,
        busy_milli=busy_milli,
        memory_used_mib=min(gpu.memory_mib, sum(share.memory_used_mib for share in shares)),
        holder=next((tenant for tenant, name in names.items() if holder and name == holder), ""),
        measured=True,
        memory_lent_mib=sum(share.memory_lent_mib for share in shares),
        memory_called_mib=sum(share.memory_called_mib for share in shares),
    )


def grown(gpu: Gpu, tenant: str, part: Slice) -> Gpu:
    """A GPU as it would be with one more tenant, for a trial."""
    shares = [*gpu.shares, Share(tenant, part.request_milli, part.limit_milli, 0, part.memory_mib, 0)]
    return msgspec.structs.replace(
        gpu,
        shares=shares,
        state=gpu_state([share.request_milli for share in shares]),
        free_milli=gpu.free_milli - part.request_milli,
        free_mib=gpu.free_mib - part.memory_mib,
    )
