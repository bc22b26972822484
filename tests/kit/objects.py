"""Nodes as the API server has them, in one line each."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from aliquot.kube.inventory import Inventory, write_inventory
from aliquot.kube.names import GPUS
from aliquot.kube.objects import Node
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device
from aliquot.topology import Topology

V100 = "Tesla V100-SXM2-16GB"


def node(
    name: str,
    gpus: int | Sequence[str] = 2,
    model: str = V100,
    memory_mib: int = 16384,
    *,
    uuids: Sequence[str] = (),
    wired: Topology | None = None,
    unhealthy: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    **document: Any,
) -> Node:
    """A node whose agent tells of so many GPUs, or of one of each of these models: GPU-NAME-0, or as `uuids` has it."""
    models = [model] * gpus if isinstance(gpus, int) else gpus
    named = uuids or [f"GPU-{name}-{i}" for i in range(len(models))]
    known = tuple(Device(i, GpuUuid(named[i]), each, memory_mib) for i, each in enumerate(models))
    told = {GPUS: write_inventory(Inventory(known, wired, unhealthy or {}))}
    given = {"name": name, **(metadata or {})}
    given["annotations"] = {**given.get("annotations", {}), **told}
    return msgspec.convert({"metadata": given, **document}, Node)
