"""The node's GPUs and what a container needs to reach their driver: the real one, or an emulated machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aliquot.driver import emulation
from aliquot.driver.discovery import Gpu, NoDriver, find_driver, gpu_topology, list_gpus
from aliquot.model.errors import UserError
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device
from aliquot.node.cdi import Edits, Mount
from aliquot.placement.books import NodeSpec
from aliquot.topology import Topology

CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
FAULTS: Final = "faults"
INSIDE: Final = Path("/run/aliquot/driver")
COMPANIONS: Final = ("libnvidia-ptxjitcompiler", "libnvidia-nvvm", "libnvidia-gpucomp")
"""What libcuda loads by name once it compiles. Source: NVIDIA driver README, "Installed components"."""


class UnknownMachine(UserError):
    """The emulated machine that was asked for does not exist."""


@dataclass(frozen=True)
class Machine:
    """GPUs by index and the two libraries behind them; `folder` is the emulated machine's, None for a real driver."""

    gpus: tuple[Gpu, ...]
    libcuda: Path
    libnvml: Path
    folder: Path | None = None

    @property
    def inside(self) -> tuple[Path, Path]:
        """Where a container finds the libraries behind ours: never by the names that ours have there."""
        if self.folder is not None:
            return self._libraries
        return INSIDE / "libcuda.so.1", INSIDE / "libnvidia-ml.so.1"

    @property
    def _libraries(self) -> tuple[Path, Path]:
        return self.libcuda, self.libnvml

    @property
    def topology(self) -> Topology:
        """How the GPUs are connected."""
        return gpu_topology(self.gpus)

    def by_uuid(self, uuid: str) -> Gpu | None:
        """The GPU of that name."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def spec(self, node: str) -> NodeSpec:
        """The node as the books know it."""
        devices = tuple(Device(GpuUuid(g.uuid), g.index, g.model, g.memory_mib) for g in self.gpus)
        return NodeSpec(node, devices)

    def edits(self, gpus: list[Gpu]) -> Edits:
        """What a container with those GPUs needs to reach the driver."""
        if self.folder is not None:
            # Every process on an emulated machine shares its clock and books by a file in this folder.
            return Edits(mounts=(Mount(self.folder, self.folder, writable=True),))
        nodes = tuple(node for node in CONTROL_NODES if Path(node).exists())
        mounts = [Mount(host.resolve(), inside) for host, inside in zip(self._libraries, self.inside, strict=True)]
        folder = self.libcuda.resolve().parent
        mounts += [Mount(library.resolve(), library) for stem in COMPANIONS for library in folder.glob(f"{stem}.so.*")]
        return Edits(mounts=tuple(mounts), device_nodes=nodes + tuple(f"/dev/nvidia{gpu.index}" for gpu in gpus))


def find_machine(spec: str, folder: Path) -> Machine:
    """The emulated machine of a specification such as `v100x2`, made in `folder`, or this node's own GPUs.

    Raises:
        UnknownMachine: no such profile.
        NoDriver: no specification, and no driver that answers or no GPU behind it.
    """
    if not spec:
        driver = find_driver()
        gpus = list_gpus(driver.libnvml)
        if not gpus:
            raise NoDriver("the NVIDIA driver shows no GPU. Try an emulated one: aliquot node --emulate v100x2")
        return Machine(tuple(gpus), driver.libcuda, driver.libnvml)
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
