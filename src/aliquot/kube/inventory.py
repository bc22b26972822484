"""The node annotation `aliquot.dev/gpus`: which devices a node has and how they are connected. Read and written here.

The node's agent writes it, the scheduler reads it. Compact JSON:

    {"v":1,"devices":[{"index":0,"uuid":"GPU-..","model":"Tesla V100-SXM2-16GB","memory_mib":16384}],
     "links":[["X"]],"numa":[0],"cores":["0-19"]}

`links` are labels as `nvidia-smi topo -m` prints them, `numa` and `cores` one entry for each device; the three may be
left out. A device with `"unhealthy":"XID 79"` is unhealthy and takes no new tenants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from aliquot.driver.cores import core_list, read_core_list
from aliquot.kube.names import GPUS
from aliquot.model.errors import AliquotError
from aliquot.model.requests import Device
from aliquot.topology.machine import BadTopology, Topology

INVENTORY_VERSION: Final = 1


class BadInventory(AliquotError):
    """A node's inventory that cannot be read; the node gets no pods that request GPUs."""


@dataclass(frozen=True)
class Inventory:
    """A node's devices; `topology` is None if the node does not report it."""

    devices: tuple[Device, ...]
    topology: Topology | None = None
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    """The unhealthy devices, by UUID, with the reason."""


class _Health(msgspec.Struct):
    uuid: str
    unhealthy: str = ""


class _Healths(msgspec.Struct):
    """What an inventory's devices say beyond what placement knows of them."""

    devices: list[_Health]


class _Inventory(msgspec.Struct, omit_defaults=True):
    devices: list[Device]
    v: int = INVENTORY_VERSION
    links: list[list[str]] = []
    numa: list[int | None] = []
    cores: list[str] = []


def write_inventory(inventory: Inventory) -> str:
    """The annotation's text."""
    devices = [
        {name: getattr(device, name) for name in Device.__struct_fields__}  # and not what extends it on its node
        | ({"unhealthy": why} if (why := inventory.unhealthy.get(device.uuid)) else {})
        for device in inventory.devices
    ]
    made = _Inventory([])
    if (topology := inventory.topology) is not None:
        made.links = [list(row) for row in topology.links]
        made.numa = list(topology.numa)
        made.cores = [core_list(list(cores)) for cores in topology.cores]
    return msgspec.json.encode({"v": INVENTORY_VERSION, **msgspec.to_builtins(made), "devices": devices}).decode()


def read_inventory(annotations: Mapping[str, str]) -> Inventory | None:
    """The devices of a node with these annotations; None without an inventory.

    Raises:
        BadInventory: not in the form of an inventory, of another version, or it contradicts itself.
    """
    text = annotations.get(GPUS)
    if text is None:
        return None
    where = f'metadata.annotations["{GPUS}"]'
    try:
        raw = msgspec.json.decode(text, type=_Inventory)
        healths = msgspec.json.decode(text, type=_Healths).devices
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadInventory(f"{where} cannot be read: {error}") from None
    if raw.v != INVENTORY_VERSION:
        raise BadInventory(f"{where} is of version {raw.v}, this program reads version {INVENTORY_VERSION}; upgrade it")
    devices = tuple(raw.devices)
    if len({d.uuid for d in devices}) != len(devices) or any(d.memory_mib <= 0 or not d.uuid for d in devices):
        raise BadInventory(f"{where} has two devices of one UUID, or one without memory")
    return Inventory(devices, _topology(raw, where), {d.uuid: d.unhealthy for d in healths if d.unhealthy})


def _topology(raw: _Inventory, where: str) -> Topology | None:
    if not raw.links:
        return None
    counts = {len(raw.links), len(raw.devices)} | {len(part) for part in (raw.numa, raw.cores) if part}
    if len(counts) > 1:
        raise BadInventory(f"{where} has links, numa or cores for another number of devices than {len(raw.devices)}")
    try:
        cores = [read_core_list(text) for text in raw.cores] if raw.cores else None
        return Topology.of(raw.links, numa=raw.numa or None, cores=cores, where=where)
    except (BadTopology, ValueError) as error:
        raise BadInventory(f"{where}: {error}") from None
