"""The node's GPUs and what a container needs to reach their driver: the real one, or an emulated machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from aliquot.driver import emulation
from aliquot.driver.choice import choose
from aliquot.driver.discovery import NoDriver
from aliquot.driver.gpu import Gpu
from aliquot.driver.modules import MAKE_NODES, make_nodes, missing_nodes
from aliquot.model.ids import GpuUuid
from aliquot.tenancy.machine import DEVICES, SharedMachine, answering_gpus, minor_of

WAY_OUT: Final = "Try an emulated GPU: aliquot node --emulate h100x2"


@dataclass(frozen=True)
class Machine(SharedMachine):
    """A node's GPUs."""

    silent: tuple[str, ...] = ()
    """The GPUs that the driver lists but that do not answer, such as `GPU 3: GPU is lost`."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The GPUs that answer and are not shared, by UUID, and why."""

    def redriven(self, version: str) -> Machine:
        """A copy of this machine with another version of the driver."""
        return replace(self, gpus=tuple(msgspec.structs.replace(gpu, driver=version) for gpu in self.gpus))


class NodeOffer:
    """What the node offers now: its GPUs, which of them are unhealthy, and why nothing can be given.

    One object that all parts of the agent read; each field has one writer, in the agent's loop.
    """

    def __init__(self, machine: Machine, *, coexist: bool = False) -> None:
        """With `coexist` only GPUs of holder pods are offered."""
        self.machine = machine
        self.unhealthy: Mapping[GpuUuid, str] = {}
        """Why each unhealthy GPU is."""
        self.held: frozenset[GpuUuid] | None = frozenset() if coexist else None
        """The GPUs that holder pods have; None where all are ours."""
        self.withheld = "starting"
        """Why nothing may be given now; empty otherwise."""

    @property
    def shared(self) -> Machine:
        """The machine with the GPUs that may be shared now."""
        return self.machine if self.held is None else self.machine.only(self.held)

    @property
    def healthy(self) -> list[Gpu]:
        """The shared GPUs that are healthy."""
        return [gpu for gpu in self.shared.gpus if GpuUuid(gpu.uuid) not in self.unhealthy]


def emulated_machine(spec: str, folder: Path, *, only: str = "", excluded: str = "") -> Machine:
    """The emulated machine of a specification such as `v100x2`, made in `folder`; see `real_machine`.

    Raises:
        UnknownProfile: no such profile.
        NoDriver, NoGpuLeft: as for a real one.
    """
    made = emulation.prepare(folder, spec)
    nodes = folder / emulation.NODES
    machine = Machine((), made.libcuda, made.libnvml, folder, nodes if nodes.is_dir() else None)
    return _with_gpus(machine, only, excluded)


def real_machine(
    libcuda: Path,
    libnvml: Path,
    devices: Path = DEVICES,
    root: Path = Path("/"),
    *,
    only: str = "",
    excluded: str = "",
) -> Machine:
    """The GPUs of this node that answer: those named by `only`, all if it is empty, except those `excluded`.

    Raises:
        NoDriver: the driver does not answer, has no GPU, or a device node is missing.
        NoGpuLeft: no GPU is left.
    """
    return _with_gpus(Machine((), libcuda, libnvml, devices=devices, root=root), only, excluded)


def _with_gpus(machine: Machine, only: str, excluded: str) -> Machine:
    if machine.devices is not None and machine.folder is None:
        make_nodes(machine.devices)  # without them NVML itself does not answer
    found = answering_gpus(machine.libnvml, WAY_OUT)
    choice = choose(found.gpus, only=only, excluded=excluded)
    machine = replace(
        machine, gpus=choice.gpus, silent=tuple(found.silent), left_out=choice.left_out, seen=found.all_seen
    )
    if machine.devices is not None:
        numbers = [minor_of(gpu) for gpu in machine.gpus]
        missing = (missing_nodes if machine.folder else make_nodes)(machine.devices, numbers)
        if missing:
            named = ", ".join(str(path) for path in missing)
            way_out = f"Make it on the node: {MAKE_NODES}; see: aliquot doctor --node"
            raise NoDriver(f"{named}: no such device node. {way_out}")
    return machine
