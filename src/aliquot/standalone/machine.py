"""The machine under an engine: the real driver's GPUs, or an emulated one made for it."""

from __future__ import annotations

import shutil
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.driver.discovery import Gpu, NoDriver, find_driver, gpu_topology, list_gpus
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device
from aliquot.standalone.tools import install_tools

if TYPE_CHECKING:  # placement comes with arrays, which `aliquot run` in front of an engine that is up has no use for
    from aliquot.placement.machine import MachineBooks


@dataclass(frozen=True)
class Machine:
    """GPUs and the libraries that drive them; `spec` is the emulation's, empty for a real driver."""

    libcuda: Path
    libnvml: Path
    gpus: list[Gpu]
    spec: str = ""

    @property
    def emulated(self) -> bool:
        """Whether no real GPU is involved."""
        return bool(self.spec)

    @property
    def devices(self) -> list[Device]:
        """The GPUs as placement sees them."""
        return [Device(GpuUuid(g.uuid), g.index, g.model, g.memory_mib) for g in self.gpus]

    def books(self, policy: str) -> MachineBooks:
        """An empty ledger of these GPUs, for placement by a policy of that name.

        Raises:
            UnknownPolicy: there is none; the text lists those there are.
        """
        from aliquot.driver.kernels import use_kernels
        from aliquot.driver.policies import maker
        from aliquot.placement.machine import MachineBooks

        use_kernels()
        topology = gpu_topology(self.gpus)
        return MachineBooks(self.devices, topology=topology, by=maker(policy), node=socket.gethostname())


def imagined_books(spec: str, policy: str = "") -> MachineBooks:
    """An empty ledger of an emulated machine that is not created; its GPUs are named `GPU-0` and so on.

    Raises:
        UnknownProfile: no such profile.
        UnknownPolicy: no such policy.
    """
    from aliquot.driver import emulation
    from aliquot.driver.kernels import use_kernels
    from aliquot.driver.policies import maker
    from aliquot.placement.machine import DEFAULT_POLICY, MachineBooks

    profile, count = emulation.parse_spec(spec)
    devices = [Device(GpuUuid(f"GPU-{g}"), g, profile.model, profile.memory_mib) for g in range(count)]
    wired = emulation.profile_topology(profile, count)
    use_kernels()
    return MachineBooks(devices, topology=wired, by=maker(policy or DEFAULT_POLICY), node=spec)


def find_machine(spec: str | None, directory: Path, *, only: str = "", excluded: str = "") -> Machine:
    """The emulated machine of a spec, made in `directory`, or this machine's own GPUs.

    They are those that `only` names, all where it is empty, but for those `excluded` (see `driver.choice`).

    Raises:
        UnknownProfile: no such profile.
        NoDriver: no spec, and no driver that answers or no GPU behind it.
        NoGpuLeft: no GPU is left.
    """
    from aliquot.driver.choice import check_named, choose

    if spec:
        found = _emulated(spec, directory)
    else:
        driver = find_driver()
        gpus = list_gpus(driver.libnvml)
        if not gpus:
            raise NoDriver("the NVIDIA driver shows no GPU. Try an emulated one: aliquot run --emulate h100 -- ...")
        found = Machine(driver.libcuda, driver.libnvml, gpus)
    check_named(found.gpus, only, "--only-gpus")
    check_named(found.gpus, excluded, "--not-gpus")
    return replace(found, gpus=list(choose(found.gpus, only=only, excluded=excluded).gpus))


def _emulated(spec: str, directory: Path) -> Machine:
    from aliquot.driver import emulation

    shutil.rmtree(directory, ignore_errors=True)
    emulated = emulation.prepare(directory, spec)
    install_tools(directory)
    profile = emulated.profile
    wired = emulation.profile_topology(profile, len(emulated.uuids))
    gpus = [
        Gpu(index, uuid, profile.model, profile.memory_mib, profile.driver, list(near), list(links), numa)
        for index, (uuid, near, links, numa) in enumerate(
            zip(emulated.uuids, wired.cores, wired.links, wired.numa, strict=True)
        )
    ]
    return Machine(emulated.libcuda, emulated.libnvml, gpus, spec)
