"""The node's GPUs and what a container needs to reach their driver: the real one, or an emulated machine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from aliquot.driver import emulation
from aliquot.driver.discovery import Gpu, NoDriver, gpu_topology, list_gpus
from aliquot.model.errors import UserError
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device
from aliquot.node.cdi import DeviceNode, Edits, Mount
from aliquot.placement.books import NodeSpec
from aliquot.topology import Topology

DEVICES: Final = Path("/dev")
CONTROL_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
FAULTS: Final = "faults"
WAY_OUT: Final = "Try an emulated GPU: aliquot node --emulate h100x2"


class UnknownMachine(UserError):
    """The emulated machine that was asked for does not exist."""


@dataclass(frozen=True)
class Machine:
    """GPUs by index and the two libraries behind them; `folder` is the emulated machine's, None for a real driver.

    `devices` is where the driver's device nodes lie, as this process sees it; `root` is the node's root, likewise.
    """

    gpus: tuple[Gpu, ...]
    libcuda: Path
    libnvml: Path
    folder: Path | None = None
    devices: Path = DEVICES
    root: Path = Path("/")

    def redriven(self, version: str) -> Machine:
        """The same GPUs with another version of the driver."""
        return replace(self, gpus=tuple(msgspec.structs.replace(gpu, driver=version) for gpu in self.gpus))

    @property
    def topology(self) -> Topology:
        """How the GPUs are connected."""
        return gpu_topology(self.gpus)

    def by_uuid(self, uuid: str) -> Gpu | None:
        """The GPU of that name."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def only(self, uuids: Collection[str]) -> Machine:
        """The machine with some of its GPUs, which keep their numbers and the links among them."""
        kept = [place for place, gpu in enumerate(self.gpus) if gpu.uuid in uuids]
        gpus = [self.gpus[place] for place in kept]
        return replace(self, gpus=tuple(msgspec.structs.replace(gpu, links=_among(gpu.links, kept)) for gpu in gpus))

    def spec(self, node: str) -> NodeSpec:
        """The node as the books know it."""
        devices = tuple(Device(GpuUuid(g.uuid), g.index, g.model, g.memory_mib) for g in self.gpus)
        return NodeSpec(node, devices)

    def edits(self, gpus: list[Gpu], *, bare: bool = False) -> Edits:
        """What a container with those GPUs needs besides the driver's files; `bare` without our library before them."""
        if self.folder is not None:
            # Every process on an emulated machine shares its clock and books by a file in this folder, which an
            # emulated driver finds only where it was loaded from there.
            env = (f"LD_LIBRARY_PATH={self.folder}",) if bare else ()
            return Edits(env, (Mount(self.folder, self.folder, writable=True),))
        names = [name for name in CONTROL_NODES if (self.devices / name).exists()]
        names += [f"nvidia{gpu.index}" for gpu in gpus]
        on_node = Path("/") / self.devices.relative_to(self.root)
        elsewhere = on_node != DEVICES
        return Edits(
            device_nodes=tuple(DeviceNode(DEVICES / name, on_node / name if elsewhere else None) for name in names)
        )


def emulated_machine(spec: str, folder: Path) -> Machine:
    """The emulated machine of a specification such as `v100x2`, made in `folder`.

    Raises:
        UnknownMachine: no such profile.
    """
    try:
        made = emulation.prepare(folder, spec)
    except emulation.UnknownProfile as error:
        raise UnknownMachine(str(error)) from None
    profile = made.profile
    wired = emulation.profile_topology(profile, len(made.uuids))
    gpus = [
        Gpu(index, uuid, profile.model, profile.memory_mib, profile.driver, list(near), list(links), numa)
        for index, (uuid, near, links, numa) in enumerate(
            zip(made.uuids, wired.cores, wired.links, wired.numa, strict=True)
        )
    ]
    return Machine(tuple(gpus), made.libcuda, made.libnvml, folder)


def real_machine(libcuda: Path, libnvml: Path, devices: Path = DEVICES, root: Path = Path("/")) -> Machine:
    """This node's own GPUs.

    Raises:
        NoDriver: the driver does not answer, or there is no GPU behind it.
    """
    gpus = list_gpus(libnvml)
    if not gpus:
        raise NoDriver(f"the NVIDIA driver shows no GPU. {WAY_OUT}")
    return Machine(tuple(gpus), libcuda, libnvml, devices=devices, root=root)


def _among(links: Sequence[str], kept: Sequence[int]) -> list[str]:
    """A row of links cut to some GPUs; nothing where nobody asked for links."""
    return [links[place] for place in kept] if links else []
