"""Sums over GPUs: by node, by namespace and model, and over all; and the GPUs of the pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from aliquot.model.quantities import MILLI
from aliquot.status.gpus import Gpu


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
