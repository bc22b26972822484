"""The ledger GPU by GPU, as the read model has them: what every program shows of the ledger is drawn from these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aliquot.placement.cluster import Cluster
from aliquot.status.gpus import Gpu, gpu_state, promised

Hidden = Callable[[str], bool]
"""Whether a tenant is a program's own and not shown."""


def ledger_gpu(cluster: Cluster, node: int, gpu: int, hidden: Hidden = lambda tenant: False) -> Gpu:
    """A device by the index of its node and its place there, with its tenants in the order of arrival.

    Nothing of it is measured; `vgpu` is the name by which its tenants requested it.
    """
    spec = cluster.spec(node)
    device = spec.gpus[gpu]
    residents = [resident for resident in cluster.residents(node, gpu) if not hidden(resident.tenant)]
    return Gpu(
        uuid=device.uuid,
        index=device.index,
        node=spec.name,
        model=device.model,
        memory_mib=device.memory_mib,
        state=gpu_state([resident.piece.request_milli for resident in residents]),
        free_milli=cluster.free_milli.item(node, gpu),
        free_mib=cluster.free_mib.item(node, gpu),
        busy_milli=0,
        memory_used_mib=0,
        shares=[promised(resident.tenant, resident.piece) for resident in residents],
        vgpu=next((resident.gpu_id for resident in residents if resident.gpu_id), ""),
        measured=False,
    )


def ledger_gpus(cluster: Cluster, node: str, hidden: Hidden = lambda tenant: False) -> list[Gpu]:
    """The devices of a node, in the order of the ledger; it is a node of the cluster."""
    number = cluster.node_index(node)
    return [ledger_gpu(cluster, number, gpu, hidden) for gpu in range(len(cluster.spec(number).gpus))]


def ledger_facts(gpu: Gpu) -> dict[str, Any]:
    """What the ledger says of a GPU as plain values, for JSON; its node is the reader's to add."""
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "memory_mib": gpu.memory_mib,
        "free_milli": gpu.free_milli,
        "free_mib": gpu.free_mib,
        "residents": [
            {
                "tenant": share.tenant,
                "request_milli": share.request_milli,
                "limit_milli": share.limit_milli,
                "memory_mib": share.memory_mib,
            }
            for share in gpu.shares
        ],
    }
