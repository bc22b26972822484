"""The ledger as plain data: to store, to load again, to compare.

A dump is what JSON can hold and depends on nothing but the ledger. A difference carries tenants that were added,
removed and moved, so a planner of moves can pass them on in the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from aliquot.model.errors import AliquotError
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device, Labels, Slice
from aliquot.placement.asks import Ask
from aliquot.placement.books import NodeSpec, Placement
from aliquot.topology import Topology

if TYPE_CHECKING:
    from aliquot.placement.cluster import Cluster

VERSION: Final = 1
_ASK_FIELDS: Final = (
    "whole", "rest_milli", "limit_milli", "gpu_mib", "gpu_mem_ppm", "cpu_milli", "memory_mib", "gpu_uuid", "gpu_id",
    "priority", "near_cores", "mixed", "wake_us",
)  # fmt: skip


class BadBooks(AliquotError):
    """A dump that cannot be loaded."""


@dataclass(frozen=True, slots=True)
class Diff:
    """What changed between two states of the ledger; names sorted, placements by tenant."""

    nodes_added: tuple[str, ...]
    nodes_removed: tuple[str, ...]
    cordoned: tuple[str, ...]
    uncordoned: tuple[str, ...]
    joined: Mapping[str, Placement]
    left: Mapping[str, Placement]
    moved: Mapping[str, tuple[Placement, Placement]]
    """From where to where: another node, other devices or other amounts."""

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__)


def dump(cluster: Cluster) -> dict[str, Any]:
    """The ledger as data; loading it gives an equal ledger."""
    nodes = [_node(spec) | {"cordoned": not cluster.open[cluster.index[spec.name]]} for spec in cluster.nodes]
    tenants = {
        name: {
            "node": holding.placement.node,
            "slices": [[s.gpu, s.request_milli, s.limit_milli, s.memory_mib] for s in holding.placement.slices],
            "ask": _ask(holding.ask),
        }
        for name, holding in cluster.tenants.items()
    }
    return {"version": VERSION, "nodes": nodes, "tenants": tenants}


def load(saved: Mapping[str, Any], into: Cluster) -> None:
    """Fill an empty ledger from a dump.

    Raises:
        BadBooks: it is of another version, or something in it is missing or of the wrong kind.
        LedgerError: it contradicts itself.
    """
    if saved.get("version") != VERSION:
        raise BadBooks(f"the books are of version {saved.get('version')!r}, this program reads version {VERSION}")
    try:
        for node in saved["nodes"]:
            into.add_node(_spec(node))
            if node["cordoned"]:
                into.set_cordoned(node["name"])
        for name, held in saved["tenants"].items():
            slices = tuple(Slice(GpuUuid(gpu), milli, limit, mib) for gpu, milli, limit, mib in held["slices"])
            into.reserve(name, Placement(held["node"], slices), _ask_of(held["ask"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BadBooks(f"the books cannot be read: {type(error).__name__} {error}") from None


def copy(cluster: Cluster) -> Cluster:
    """A copy of the ledger; index and order of nodes and tenants are those of the original as far as it has no gaps."""
    fresh = type(cluster)(cluster.nodes)
    for name in _closed(cluster):
        fresh.set_cordoned(name)
    for tenant, holding in cluster.tenants.items():
        fresh.reserve(tenant, holding.placement, holding.ask)
    fresh.measured = cluster.measured
    return fresh


def diff(before: Cluster, after: Cluster) -> Diff:
    """What changed from one state to another."""
    nodes = {spec.name for spec in before.nodes}, {spec.name for spec in after.nodes}
    closed = _closed(before), _closed(after)
    held = {t: h.placement for t, h in before.tenants.items()}, {t: h.placement for t, h in after.tenants.items()}
    both = sorted(held[0].keys() & held[1].keys())
    return Diff(
        nodes_added=tuple(sorted(nodes[1] - nodes[0])),
        nodes_removed=tuple(sorted(nodes[0] - nodes[1])),
        cordoned=tuple(sorted(closed[1] - closed[0])),
        uncordoned=tuple(sorted((closed[0] - closed[1]) & nodes[1])),
        joined={name: held[1][name] for name in sorted(held[1].keys() - held[0].keys())},
        left={name: held[0][name] for name in sorted(held[0].keys() - held[1].keys())},
        moved={name: (held[0][name], held[1][name]) for name in both if held[0][name] != held[1][name]},
    )


def _closed(cluster: Cluster) -> set[str]:
    return {spec.name for spec in cluster.nodes if not cluster.open[cluster.index[spec.name]]}


def _node(spec: NodeSpec) -> dict[str, Any]:
    gpus = [[g.uuid, g.index, g.model, g.memory_mib, dict(g.attributes)] for g in spec.gpus]
    topology = None
    if spec.topology is not None:
        wired = spec.topology
        topology = {
            "links": [list(row) for row in wired.links],
            "numa": list(wired.numa),
            "cores": [list(cores) for cores in wired.cores],
        }
    return {
        "name": spec.name, "gpus": gpus, "cpu_milli": spec.cpu_milli, "memory_mib": spec.memory_mib,
        "topology": topology, "rank": spec.rank, "unhealthy": sorted(spec.unhealthy),
    }  # fmt: skip


def _spec(saved: Mapping[str, Any]) -> NodeSpec:
    gpus = tuple(Device(GpuUuid(uuid), index, model, mib, extra) for uuid, index, model, mib, extra in saved["gpus"])
    wired = saved["topology"]
    topology = None if wired is None else Topology.of(wired["links"], numa=wired["numa"], cores=wired["cores"])
    unhealthy = frozenset(saved.get("unhealthy", ()))
    return NodeSpec(saved["name"], gpus, saved["cpu_milli"], saved["memory_mib"], topology, saved["rank"], unhealthy)


def _ask(ask: Ask) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    fields: dict[str, Any] = {name: getattr(ask, name) for name in _ASK_FIELDS if getattr(ask, name)}
    if ask.models:
        fields["models"] = list(ask.models)
    if ask.labels != Labels():
        fields["labels"] = asdict(ask.labels)
    return fields


def _ask_of(saved: Mapping[str, Any]) -> Ask:
    fields = dict(saved)
    models, labels = tuple(fields.pop("models", ())), Labels(**fields.pop("labels", {}))
    return Ask(**fields, models=models, labels=labels)
