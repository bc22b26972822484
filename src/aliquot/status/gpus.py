"""A GPU with the tenants on it: what the ledger promises them, and what their node measures.

Fractions are milli-GPU (1000 = one GPU), memory is MiB, durations carry their unit in the name. A field that is not
known is its default. These are the records of the dashboard's pages and of its API.

Sums over GPUs: by node, by namespace and model, and over all; and the GPUs of the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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


class Node(msgspec.Struct, frozen=True):
    """A machine with sums over its GPUs; `silent` is the reason why nothing on it is measured, empty if it is.

    `silent_since_s` is the time of a silent node's last answer, 0 if it has never answered.
    """

    name: str
    models: list[str]
    gpus: int
    whole: int
    shared: int
    idle: int
    free_milli: int
    busy_milli: int
    memory_mib: int
    free_mib: int
    ready: bool = True
    cordoned: bool = False
    has_topology: bool = False
    silent: str = ""
    silent_since_s: float = 0.0


class Vgpu(msgspec.Struct, frozen=True):
    """A named GPU of the pool."""

    name: str
    node: str
    phase: Literal["Creating", "Active", "Idle", "Deleting"]
    uuid: str
    model: str
    used_milli: int
    memory_mib: int
    memory_used_mib: int
    attached: list[str]


class Pool(msgspec.Struct, frozen=True):
    """The vGPUs, and the rule by which GPUs join and leave the pool."""

    policy: str
    vgpus: list[Vgpu]


class QuotaLine(msgspec.Struct, frozen=True):
    """A namespace's quota and use of a model; a hard limit of None is no limit."""

    namespace: str
    model: str
    used_milli: int
    used_mib: int
    hard_milli: int | None = None
    hard_mib: int | None = None


class Totals(msgspec.Struct, frozen=True):
    """Totals; of `unmeasured` GPUs the use is not known. `failing` workloads hold shares and do not run.

    `lent_milli` is the use above the users' own requests.
    """

    gpus: int
    whole: int
    shared: int
    idle: int
    promised_milli: int
    busy_milli: int
    memory_mib: int
    memory_promised_mib: int
    memory_used_mib: int
    running: int
    waiting: int
    kept_percent: float | None
    windows: int
    unmeasured: int = 0
    lent_milli: int = 0
    failing: int = 0


def node_sums(gpus: Sequence[Gpu], *, with_topology: frozenset[str] = frozenset()) -> list[Node]:
    """The nodes that a list of GPUs makes, by name."""
    by_node: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.node, []).append(gpu)
    return [_node(name, own, name in with_topology) for name, own in sorted(by_node.items())]


def _node(name: str, gpus: Sequence[Gpu], has_topology: bool) -> Node:
    states = [gpu.state for gpu in gpus]
    return Node(
        name=name,
        models=sorted({gpu.model for gpu in gpus}),
        gpus=len(gpus),
        whole=states.count("whole"),
        shared=states.count("shared"),
        idle=states.count("idle"),
        free_milli=sum(gpu.free_milli for gpu in gpus),
        busy_milli=sum(gpu.busy_milli for gpu in gpus),
        memory_mib=sum(gpu.memory_mib for gpu in gpus),
        free_mib=sum(gpu.free_mib for gpu in gpus),
        has_topology=has_topology,
    )


def pool_of(gpus: Iterable[Gpu]) -> Pool:
    """On one machine a vGPU is a GPU that a SharePod has named; it exists as long as it has a tenant."""
    return Pool("on-demand", [vgpu_of(gpu, gpu.vgpu) for gpu in gpus if gpu.vgpu])


def vgpu_of(gpu: Gpu, name: str) -> Vgpu:
    """A GPU with tenants as a vGPU of that name."""
    return Vgpu(
        name=name,
        node=gpu.node,
        phase="Active",
        uuid=gpu.uuid,
        model=gpu.model,
        used_milli=MILLI - gpu.free_milli,
        memory_mib=gpu.memory_mib,
        memory_used_mib=gpu.memory_mib - gpu.free_mib,
        attached=[share.tenant for share in gpu.shares],
    )


def quota_of(gpus: Iterable[Gpu]) -> list[QuotaLine]:
    """What each namespace holds of each model; a single machine has no quotas."""
    used: dict[tuple[str, str], list[int]] = {}
    for gpu in gpus:
        for share in gpu.shares:
            line = used.setdefault((share.tenant.rpartition("/")[0], gpu.model), [0, 0])
            line[0] += share.request_milli
            line[1] += share.memory_mib
    return [QuotaLine(namespace, model, milli, mib) for (namespace, model), (milli, mib) in sorted(used.items())]
