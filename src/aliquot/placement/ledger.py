"""The ledger GPU by GPU: each device, what is left of it, and who has the rest. What every program shows is drawn from
these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device
from aliquot.placement.cluster import Cluster, Resident

Hidden = Callable[[str], bool]
"""Whether a tenant is a program's own and not shown."""


@dataclass(frozen=True)
class LedgerGpu:
    """A device in the ledger, with its tenants in the order of arrival; `links` are to the node's devices."""

    node: str
    device: Device
    free_milli: int
    free_mib: int
    residents: tuple[Resident, ...] = ()
    links: tuple[str, ...] = ()

    @property
    def uuid(self) -> GpuUuid:
        """The device's."""
        return self.device.uuid

    @property
    def requested_milli(self) -> int:
        """Milli-GPU that are guaranteed to tenants."""
        return sum(resident.piece.request_milli for resident in self.residents)

    @property
    def name(self) -> str:
        """The name by which its tenants requested it; empty if none did."""
        return next((resident.gpu_id for resident in self.residents if resident.gpu_id), "")

    def facts(self) -> dict[str, Any]:
        """The same as plain values, for JSON; the node is the reader's to add."""
        return {
            "index": self.device.index,
            "uuid": str(self.uuid),
            "model": self.device.model,
            "memory_mib": self.device.memory_mib,
            "free_milli": self.free_milli,
            "free_mib": self.free_mib,
            "residents": [
                {
                    "tenant": resident.tenant,
                    "request_milli": resident.piece.request_milli,
                    "limit_milli": resident.piece.limit_milli,
                    "memory_mib": resident.piece.memory_mib,
                }
                for resident in self.residents
            ],
        }


def ledger_gpu(cluster: Cluster, node: int, gpu: int, hidden: Hidden = lambda tenant: False) -> LedgerGpu:
    """A device by the index of its node and its place there."""
    spec = cluster.spec(node)
    return LedgerGpu(
        spec.name,
        spec.gpus[gpu],
        cluster.free_milli.item(node, gpu),
        cluster.free_mib.item(node, gpu),
        tuple(resident for resident in cluster.residents(node, gpu) if not hidden(resident.tenant)),
        tuple(spec.topology.links[gpu]) if spec.topology is not None else (),
    )


def ledger_gpus(cluster: Cluster, node: str, hidden: Hidden = lambda tenant: False) -> list[LedgerGpu]:
    """The devices of a node, in the order of the ledger; it is a node of the cluster."""
    number = cluster.node_index(node)
    return [ledger_gpu(cluster, number, gpu, hidden) for gpu in range(len(cluster.spec(number).gpus))]
