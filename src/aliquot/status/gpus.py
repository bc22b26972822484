"""A GPU with the tenants on it: what the ledger promises them, and what their node measures.

Fractions are milli-GPU (1000 = one GPU), memory is MiB, durations carry their unit in the name. A field that is not
known is its default. These are the records of the dashboard's pages and of its API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

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
    viewer has no rights to the tenant: its size and use are known, all else is not shown.
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


class Gpu(msgspec.Struct, frozen=True):
    """One GPU with its tenants; `holder` has the token now.

    If `measured` is false its use is not known, and every measured number here is 0.
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


def measured(plan: Share, now: TenantStatus | None, kept: tuple[float | None, int], owner: str = "") -> Share:
    """A promised share with its measured values; a tenant that the arbiter does not know uses nothing."""
    percent, windows = kept
    if now is None:
        return msgspec.structs.replace(plan, owner=owner, kept_percent=percent, windows=windows)
    return msgspec.structs.replace(
        plan,
        owner=owner,
        usage_milli=now.usage_milli,
        memory_used_mib=now.memory_used_mib,
        wait_ms=round(now.wait_ms_p50, 1),
        debt_ms=round(now.debt_ms, 1),
        quota_ms=round(now.quota_ms, 1),
        processes=now.processes,
        waiting=now.waiting,
        kept_percent=percent,
        windows=windows,
        enforce=now.enforce,
        idle_s=int(now.idle_s),
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
