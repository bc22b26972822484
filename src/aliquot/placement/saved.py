"""The ledger as plain data that JSON can hold: to store and to load again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from fractions import Fraction
from typing import Any, Final

from aliquot.model.errors import AliquotError
from aliquot.model.ids import GpuUuid
from aliquot.model.quantities import MILLI, Memory
from aliquot.model.requests import Device, GpuRequest, Labels, Slice
from aliquot.placement.asks import PPM, Ask
from aliquot.placement.cluster import Cluster, NodeSpec, Placement
from aliquot.topology import Topology

VERSION: Final = 1
_ASK_FIELDS: Final = (
    "whole", "rest_milli", "gpu_mib", "gpu_mem_ppm", "cpu_milli", "memory_mib", "gpu_uuid", "gpu_id",
    "priority", "near_cores", "mixed", "wake_us",
)  # fmt: skip


class BadLedger(AliquotError):
    """A dump that cannot be loaded."""


def dump(cluster: Cluster) -> dict[str, Any]:
    """The ledger as data; loading it gives an equal ledger."""
    nodes = []
    for spec in cluster.nodes:
        gpus = [[g.uuid, g.index, g.model, g.memory_mib, {}] for g in spec.gpus]  # last: what no reader knows
        wired = spec.topology
        topology = wired and {
            "links": [list(row) for row in wired.links],
            "numa": list(wired.numa),
            "cores": [list(cores) for cores in wired.cores],
        }
        nodes.append({
            "name": spec.name, "gpus": gpus, "cpu_milli": spec.cpu_milli, "memory_mib": spec.memory_mib,
            "topology": topology, "rank": spec.rank, "unhealthy": sorted(spec.unhealthy),
            "cordoned": not cluster.open[cluster.index[spec.name]],
        })  # fmt: skip
    tenants = {
        name: {
            "node": holding.placement.node,
            "slices": [[s.gpu, s.request_milli, s.limit_milli, s.memory_mib] for s in holding.placement.slices],
            "ask": _ask(holding.ask),
        }
        for name, holding in cluster.tenants.items()
    }
    return {"version": VERSION, "nodes": nodes, "tenants": tenants}


def load(saved: Mapping[str, Any]) -> Cluster:
    """A ledger from a dump.

    Raises:
        BadLedger: it is of another version, or something in it is missing or of the wrong kind.
        LedgerError: it contradicts itself.
    """
    if saved.get("version") != VERSION:
        raise BadLedger(f"the ledger is of version {saved.get('version')!r}, this program reads version {VERSION}")
    cluster = Cluster()
    try:
        for node in saved["nodes"]:
            gpus = tuple(Device(index, GpuUuid(uuid), model, mib) for uuid, index, model, mib, _ in node["gpus"])
            wired = node["topology"]
            topology = None if wired is None else Topology.of(wired["links"], numa=wired["numa"], cores=wired["cores"])
            size = (node["cpu_milli"], node["memory_mib"])
            unhealthy = frozenset(node.get("unhealthy", ()))
            cluster.add_node(NodeSpec(node["name"], gpus, *size, topology, node["rank"], unhealthy))
            if node["cordoned"]:
                cluster.set_cordoned(node["name"])
        for name, held in saved["tenants"].items():
            slices = tuple(Slice(GpuUuid(gpu), milli, limit, mib) for gpu, milli, limit, mib in held["slices"])
            cluster.reserve(name, Placement(held["node"], slices), _ask_of(held["ask"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BadLedger(f"the ledger cannot be read: {type(error).__name__} {error}") from None
    return cluster


def _ask(ask: Ask) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    fields: dict[str, Any] = {name: getattr(ask, name) for name in _ASK_FIELDS if getattr(ask, name)}
    if ask.request.limit_milli is not None:
        fields["limit_milli"] = ask.request.limit_milli
    if ask.models:
        fields["models"] = list(ask.models)
    if ask.labels != Labels():
        fields["labels"] = asdict(ask.labels)
    return fields


def _ask_of(saved: Mapping[str, Any]) -> Ask:
    memory = Memory(part=Fraction(saved["gpu_mem_ppm"], PPM)) if saved.get("gpu_mem_ppm") else None
    if saved.get("gpu_mib"):
        memory = Memory(mib=saved["gpu_mib"])
    request = GpuRequest(
        saved.get("whole", 0) * MILLI + saved.get("rest_milli", 0),
        saved.get("limit_milli") or None,  # other programs may write 0 where no limit is given
        memory,
        "|".join(saved.get("models", ())),
        saved.get("gpu_uuid", ""),
        saved.get("gpu_id", ""),
        Labels(**saved.get("labels", {})),
        mixed=saved.get("mixed", False),
        wake_us=saved.get("wake_us", 0),
    )
    numbers = {name: saved[name] for name in ("cpu_milli", "memory_mib", "near_cores", "priority") if name in saved}
    return Ask(request, **numbers)
