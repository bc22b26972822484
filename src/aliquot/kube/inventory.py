"""What a node's agent writes on its node and the scheduler reads: devices, and how long kernels are. Compact JSON.

`aliquot.dev/gpus`, which devices the node has and how they are connected:

    {"v":1,"devices":[{"index":0,"uuid":"GPU-..","model":"Tesla V100-SXM2-16GB","memory_mib":16384}],
     "links":[["X"]],"numa":[0],"cores":["0-19"]}

`links` are labels as `nvidia-smi topo -m` prints them, `numa` and `cores` one entry for each device; the three may be
left out. A device with `"unhealthy":"XID 79"` is unhealthy and takes no new tenants.

`aliquot.dev/gpu-kernels`, the kernel lengths of the node's tenants, in microseconds by GPU and container, and its turn
policy, by which the scheduler promises a tenant how soon it wakes:

    {"turns":"fluid","gpus":{"GPU-..":{"default/a/main":2048}}}

Lengths are rounded up to steps of a quarter or less, so that it changes rarely.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from aliquot.driver.gpu import core_list, read_core_list
from aliquot.kube.names import GPU_KERNELS, GPUS
from aliquot.kube.objects import Node
from aliquot.lib.decoding import decode_json
from aliquot.model.errors import AliquotError
from aliquot.model.requests import Device
from aliquot.placement.entries import MeasuredKernels
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


class _Reported(Device, frozen=True):
    """A device with what placement does not know of it."""

    unhealthy: str = ""


class _Inventory(msgspec.Struct, omit_defaults=True):
    devices: list[_Reported]
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
        raw = decode_json(text, _Inventory)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadInventory(f"{where} cannot be read: {error}") from None
    if raw.v != INVENTORY_VERSION:
        raise BadInventory(f"{where} is of version {raw.v}, this program reads version {INVENTORY_VERSION}; upgrade it")
    devices = tuple(Device(d.index, d.uuid, d.model, d.memory_mib) for d in raw.devices)
    if len({d.uuid for d in devices}) != len(devices) or any(d.memory_mib <= 0 or not d.uuid for d in devices):
        raise BadInventory(f"{where} has two devices of one UUID, or one without memory")
    topology = None
    if raw.links:
        counts = {len(raw.links), len(devices)} | {len(part) for part in (raw.numa, raw.cores) if part}
        if len(counts) > 1:
            raise BadInventory(f"{where} has links, numa or cores for another number of devices than {len(devices)}")
        try:
            cores = [read_core_list(text) for text in raw.cores] if raw.cores else None
            topology = Topology.of(raw.links, numa=raw.numa or None, cores=cores, where=where)
        except (BadTopology, ValueError) as error:
            raise BadInventory(f"{where}: {error}") from None
    return Inventory(devices, topology, {d.uuid: d.unhealthy for d in raw.devices if d.unhealthy})


class KernelLengths(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's values; lengths in microseconds."""

    turns: str = ""
    gpus: dict[str, dict[str, int]] = {}


def rounded_up(length_us: int) -> int:
    """The next number with three bits in front and zeros behind."""
    step = 1 << max(0, length_us.bit_length() - 3)
    return -(-length_us // step) * step


def write_kernels(kernels: KernelLengths) -> str:
    """The annotation's text."""
    gpus = {
        gpu: {name: rounded_up(us) for name, us in sorted(lengths.items())} for gpu, lengths in kernels.gpus.items()
    }
    return msgspec.json.encode(KernelLengths(kernels.turns, dict(sorted(gpus.items())))).decode()


def read_kernels(annotations: Mapping[str, str]) -> KernelLengths:
    """The values of a node with these annotations; empty if missing or unreadable."""
    try:
        return decode_json(annotations.get(GPU_KERNELS, "{}"), KernelLengths)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return KernelLengths()


class KernelLengthTracker:
    """Reads kernel lengths from nodes' annotations; a node is trusted only for the GPUs of its own inventory."""

    def __init__(self, measured: MeasuredKernels) -> None:
        self._measured = measured
        self._texts: dict[str, str] = {}
        self._gpus: dict[str, tuple[str, ...]] = {}

    def take(self, node: Node, *, gone: bool) -> None:
        """Replace the node's earlier values."""
        name, annotations = node.metadata.name, node.metadata.annotations
        text = "" if gone else annotations.get(GPU_KERNELS, "")
        if self._texts.get(name, "") == text:
            return
        self._texts[name] = text
        lengths = read_kernels({GPU_KERNELS: text} if text else {})
        self._measured.turns.pop(name, None)
        if lengths.turns:
            self._measured.turns[name] = lengths.turns
        for uuid in self._gpus.pop(name, ()):
            self._measured.kernels.pop(uuid, None)
        own = {uuid: kernels for uuid, kernels in lengths.gpus.items() if f'"{uuid}"' in annotations.get(GPUS, "")}
        self._measured.kernels.update(own)
        self._gpus[name] = tuple(own)
