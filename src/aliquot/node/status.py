"""What the node says of its GPUs: the resource `aliquot.dev/gpu-memory`, labels, the annotation with the devices."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import structlog

from aliquot.driver.cores import core_list
from aliquot.kube import names
from aliquot.kube.api import Api
from aliquot.kube.objects import Node
from aliquot.kube.quantities import parse_quantity
from aliquot.kube.reflector import Change, Reflector
from aliquot.kube.resources import NODES
from aliquot.model.ids import GpuUuid
from aliquot.node.machine import Machine

_LOG: Final = structlog.get_logger("aliquot.node")
MIB: Final = 1 << 20
_NO_LABEL: Final = re.compile(r"[^A-Za-z0-9._-]+")
LABEL_LENGTH: Final = 63


def label_value(text: str) -> str:
    """A text as the value of a label."""
    return _NO_LABEL.sub("-", text)[:LABEL_LENGTH].strip("-._")


def labels_of(machine: Machine) -> dict[str, str]:
    """The node's labels: model, count, memory, driver, CUDA, and how its GPUs are wired."""
    first = machine.gpus[0]
    links = {link for row in machine.topology.links for link in row if link != "X"}
    wired = "nvlink" if any(link.startswith("NV") for link in links) else "pcie" if links else "single"
    return {
        names.GPU_MODEL: label_value(first.model),
        f"{names.PREFIX}gpu-count": str(len(machine.gpus)),
        f"{names.PREFIX}gpu-memory-mib": str(first.memory_mib),
        f"{names.PREFIX}driver": label_value(first.driver),
        f"{names.PREFIX}topology": wired,
    }


def described(machine: Machine, sick: Mapping[GpuUuid, str]) -> str:
    """The annotation that the scheduler reads: devices, links, memory nodes, near cores; and which are not well."""
    devices = [
        {"index": gpu.index, "uuid": gpu.uuid, "model": gpu.model, "memory_mib": gpu.memory_mib}
        | ({"sick": sick[GpuUuid(gpu.uuid)]} if GpuUuid(gpu.uuid) in sick else {})
        for gpu in machine.gpus
    ]
    told: dict[str, Any] = {"devices": devices}
    if devices:
        topology = machine.topology
        told |= {
            "links": [list(row) for row in topology.links],
            "numa": list(topology.numa),
            "cores": [core_list(list(cores)) for cores in topology.cores],
        }
    return json.dumps(told, separators=(",", ":"))


class NodeStatus:
    """Keeps the node's own words up to date; `memory_mib` None withdraws the resource."""

    def __init__(self, api: Api, node: str) -> None:
        self._api = api
        self._node = node
        self._memory_mib: int | None = None
        self._now: Node | None = None
        self.reflector = Reflector(api, NODES, self._changed, selectors={"fieldSelector": f"metadata.name={node}"})

    async def describe(self, machine: Machine, sick: Mapping[GpuUuid, str], *, offered: Machine, labels: bool) -> bool:
        """Say labels, which are about the machine, and the annotation, which is about the GPUs that are offered.

        Whether anything had to be written: a node that shows them is left alone, one that was made anew is told again.

        Raises:
            KubeError: the API server refuses or is not there.
        """
        wanted: dict[str, dict[str, str]] = {"annotations": {names.GPUS: described(offered, sick)}}
        if labels:
            wanted["labels"] = labels_of(machine)
        if self._now is not None:
            shown = {"annotations": self._now.metadata.annotations, "labels": self._now.metadata.labels}
            if all(wanted[part].items() <= shown[part].items() for part in wanted):
                return False
        self._now = await self._api.patch(NODES, self._node, {"metadata": wanted})
        return True

    async def advertise(self, memory_mib: int | None) -> bool:
        """Say how much GPU memory the node has; whether anything had to be written.

        Raises:
            KubeError: the API server refuses or is not there.
        """
        self._memory_mib = memory_mib
        if self._now is not None and self._shown(self._now) == memory_mib:
            return False
        value = None if memory_mib is None else str(memory_mib * MIB)
        self._now = await self._api.patch(
            NODES, self._node, {"status": {"capacity": {names.GPU_MEMORY: value}}}, sub="status"
        )
        _LOG.info("gpu-memory", mib=memory_mib)
        return True

    def _changed(self, change: Change[Node]) -> None:
        self._now = None if change.kind == "deleted" else change.object

    @staticmethod
    def _shown(node: Node) -> int | None:
        value = node.status.capacity.get(names.GPU_MEMORY)
        return None if value is None else int(parse_quantity(value)) // MIB
