"""The machine under an engine: the real driver's GPUs, or an emulated one made for it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from aliquot.driver.discovery import Gpu, NoDriver, find_driver, list_gpus
from aliquot.model.errors import UserError
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device


class UnknownMachine(UserError):
    """The emulated machine that was asked for does not exist."""


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


def check_spec(spec: str) -> None:
    """Say at once whether a text such as `v100x4` names a machine.

    Raises:
        UnknownMachine: it does not; the text lists the profiles.
    """
    from aliquot.driver import emulation

    try:
        emulation.parse_spec(spec)
    except (emulation.UnknownProfile, ValueError, KeyError) as error:
        raise UnknownMachine(str(error.args[0]) if error.args else str(error)) from None


def find_machine(spec: str | None, directory: Path) -> Machine:
    """The emulated machine of a spec, made in `directory`, or this machine's own GPUs.

    Raises:
        UnknownMachine: no such profile.
        NoDriver: no spec, and no driver that answers or no GPU behind it.
    """
    if spec:
        check_spec(spec)
        from aliquot.driver import emulation

        shutil.rmtree(directory, ignore_errors=True)
        emulated = emulation.prepare(directory, spec)
        profile = emulated.profile
        gpus = [
            Gpu(index, uuid, profile.model, profile.memory_mib, profile.driver)
            for index, uuid in enumerate(emulated.uuids)
        ]
        return Machine(emulated.libcuda, emulated.libnvml, gpus, spec)
    driver = find_driver()
    gpus = list_gpus(driver.libnvml)
    if not gpus:
        raise NoDriver("the NVIDIA driver shows no GPU. Try an emulated one: aliquot run --emulate v100 -- ...")
    return Machine(driver.libcuda, driver.libnvml, gpus)
