"""The GPUs that tenants share, the driver behind them, and what a container gets to be a tenant's: on a cluster's node
and on one machine the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from aliquot.driver.cdi import DeviceNode, Edits, Mount
from aliquot.driver.choice import some
from aliquot.driver.discovery import Found, NoDriver, find_gpus, gpu_topology
from aliquot.driver.emulation import driver_version
from aliquot.driver.gpu import Gpu, cuda_variables
from aliquot.driver.injection import TenantFolder
from aliquot.driver.modules import CONTROL_NODES, node_name
from aliquot.driver.native import HOOK, native_part
from aliquot.driver.volume.source import find_source, from_libraries
from aliquot.driver.volume.volume import DriverVolume, Generation
from aliquot.tenancy.folders import MARK
from aliquot.topology import Topology

DEVICES: Final = Path("/dev")


@dataclass(frozen=True)
class SharedMachine:
    """GPUs by index, and the libraries by which tenants reach them: the real driver's or an emulated one's.

    `folder` is the emulated machine's, None for a real driver. `devices` is where the driver's device nodes lie, as
    this process sees it, None where there are none, as on most emulated machines; `root` is the machine's root,
    likewise.
    """

    gpus: tuple[Gpu, ...]
    libcuda: Path
    libnvml: Path
    folder: Path | None = None
    devices: Path | None = DEVICES
    root: Path = Path("/")
    seen: tuple[Gpu, ...] = field(default=(), kw_only=True)
    """All GPUs that a program on the machine itself can open, shared or not; empty where one does not answer."""
    extra: tuple[str, ...] = field(default=(), kw_only=True)
    """Further devices for every container: paths of the machine below `/dev`, or patterns."""
    host: Path = field(default=Path("/"), kw_only=True)
    """Where the machine's root is mounted, for those."""

    @property
    def models(self) -> dict[str, str]:
        """The model of each GPU, by UUID."""
        return {gpu.uuid: gpu.model for gpu in self.gpus}

    @property
    def topology(self) -> Topology:
        """How the GPUs are connected."""
        return gpu_topology(self.gpus)

    def by_uuid(self, uuid: str) -> Gpu | None:
        """The GPU of that name."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def only(self, uuids: Collection[str]) -> Self:
        """The machine with some of its GPUs, which keep their numbers and the links among them."""
        return replace(self, gpus=tuple(some(self.gpus, uuids)))

    def edits(self, gpus: list[Gpu], *, bare: bool = False) -> Edits:
        """What a container with those GPUs needs besides the driver's files; `bare` without our library before them."""
        nodes = []
        if self.devices is not None:
            names = [name for name in CONTROL_NODES if (self.devices / name).exists()]
            names += [node_name(minor_of(gpu)) for gpu in gpus]
            on_node = Path("/") / self.devices.relative_to(self.root)
            elsewhere = on_node != DEVICES
            nodes = [DeviceNode(DEVICES / name, on_node / name if elsewhere else None) for name in names]
        shown = Edits(device_nodes=(*nodes, *(DeviceNode(path) for path in self.extra_nodes())))
        if self.folder is None:
            return shown
        # Every process on an emulated machine shares its clock and ledger by a file in this folder, which an
        # emulated driver finds only where it was loaded from there.
        env = (f"LD_LIBRARY_PATH={self.folder}",) if bare else ()
        return Edits(env, (Mount(self.folder, self.folder, writable=True),)) + shown

    def variables(self, gpus: Sequence[Gpu], *, privileged: bool = False) -> tuple[str, ...]:
        """CUDA's variables in a container with those GPUs.

        A container sees only its own GPUs, by their device nodes; a privileged one sees all, as does every container on
        an emulated machine.
        """
        seen = self.seen if privileged or self.folder is not None else gpus
        return tuple(f"{name}={value}" for name, value in cuda_variables([gpu.uuid for gpu in gpus], seen).items())

    def extra_nodes(self) -> list[Path]:
        """The further devices of the node that every container gets, by their paths there."""
        found = [path for pattern in self.extra for path in sorted(self.host.glob(pattern.lstrip("/")))]
        seen = [path for path in dict.fromkeys(found) if path.is_char_device() or path.is_block_device()]
        return [Path("/") / path.relative_to(self.host) for path in seen]

    def container_edits(
        self, folder: TenantFolder, shown: Generation, gpus: list[Gpu], *, mark: Path | None = None
    ) -> Edits:
        """What makes a container with those GPUs one of a tenant's: driver files that are `shown`, the hook before.

        A bare folder's container gets the driver as it is. At `mark` it shows a file that no other tenant has.
        """
        env = (*self.variables(gpus), "NVIDIA_VISIBLE_DEVICES=void", f"ALIQUOT_TENANT={folder.conf.tenant}")
        marks = Edits(mounts=() if mark is None else (Mount(folder.directory / MARK, mark),))
        if folder.bare:
            return Edits(env) + shown.edits(None) + self.edits(gpus, bare=True) + marks
        mounts = (Mount(folder.directory, folder.directory),)
        return Edits(env, mounts) + shown.edits(folder.lib) + self.edits(gpus) + marks

    def shown_driver(self, volume: Path, used: Collection[str]) -> Generation:
        """The driver as containers are shown it, mirrored in the folder `volume` if it is not there yet.

        Generations that are neither this one nor among `used` are removed.

        Raises:
            VolumeError, NoDriverFiles: there is none to show.
        """
        if self.folder is not None:
            source = from_libraries(self.libcuda, self.libnvml, driver_version(self.folder))
        else:
            source = find_source()
        mirrored = DriverVolume(volume, native_part(HOOK))
        generation = mirrored.refresh(source)
        mirrored.prune(used)
        return generation


def minor_of(gpu: Gpu) -> int:
    """The minor number of a GPU's device node; its index if the driver reports none."""
    return gpu.index if gpu.minor is None else gpu.minor


def answering_gpus(libnvml: Path, way_out: str) -> Found:
    """The GPUs of a driver, at least one of which answers; `way_out` ends the sentence where none does.

    Raises:
        NoDriver: the driver does not answer, or has no GPU that does.
    """
    found = find_gpus(libnvml)
    if not found.gpus:
        silent = f" ({'; '.join(found.silent)})" if found.silent else ""
        raise NoDriver(f"the NVIDIA driver shows no GPU that answers{silent}. {way_out}")
    return found
