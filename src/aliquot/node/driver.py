"""The agent's first part: the node's GPUs, and the driver volume that containers are shown them through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from aliquot.driver.discovery import NoDriver
from aliquot.driver.emulation import driver_version
from aliquot.driver.gpu_lock import GpuLock
from aliquot.driver.native import HOOK, native_part
from aliquot.lib.log import Logger
from aliquot.node.allocation.checkpoint import Allotments
from aliquot.node.machine import WAY_OUT, Machine, emulated_machine, real_machine
from aliquot.node.provisioner import TenantProvisioner
from aliquot.node.settings import NodeSettings
from aliquot.node.volume.following import NodeDriver
from aliquot.node.volume.names import SUBSTITUTED, wanted
from aliquot.node.volume.source import (
    DRIVER_CONTAINER,
    DriverSource,
    NoDriverFiles,
    find_source,
    from_libraries,
    loaded_version,
)
from aliquot.node.volume.volume import DriverVolume, VolumeError

_LOG: Final = Logger("node")
_LIBRARIES: Final = Path("origin/lib64")


def open_driver(settings: NodeSettings) -> tuple[Machine, NodeDriver]:
    """The node's GPUs by its settings, with the driver's files mirrored.

    Raises:
        UnknownProfile: no emulated machine has that name.
        NoDriver: the driver is missing, does not answer, shows no GPU, or a device node is missing.
        NoGpuLeft: all GPUs are left out.
        VolumeError: its files cannot be mirrored.
    """
    volume = DriverVolume(settings.driver_volume, native_part(HOOK))
    machine, driver = _emulated(settings, volume) if settings.emulate else _real(settings, volume)
    extra = tuple(word.strip() for word in settings.extra_devices.split(",") if word.strip())
    for silent in machine.silent:
        _LOG.warning("gpu-silent", why=silent)
    for uuid, why in machine.left_out.items():
        _LOG.info("gpu-left-out", gpu=uuid, why=why)
    return replace(machine, extra=extra, host=Path(settings.host_root)), driver


def lock_gpus(machine: Machine, driver: NodeDriver) -> GpuLock:
    """The lock by which no other program of Aliquot shares these GPUs.

    Raises:
        AliquotError: another one does.
    """
    return GpuLock(driver.source.library(SUBSTITUTED[1]).file, machine.gpus)


async def follow(
    provisioner: TenantProvisioner, allotments: Allotments, on_change: Callable[[], Awaitable[None]], period_s: float
) -> None:
    """Follow the driver: a changed driver is used for new containers, and a driver that no container has is removed.

    `on_change` is called after each change.
    """
    told = ""
    while True:
        await asyncio.sleep(period_s)
        try:
            found = await asyncio.to_thread(provisioner.driver.refresh)
        except (VolumeError, OSError) as error:
            if told != str(error):
                _LOG.warning("driver-not-mirrored", why=str(error))
            told = str(error)
        else:
            told = ""
            if found is not None:
                _LOG.info("driver-changed", version=found.version, generation=found.name)
                provisioner.offer.machine = provisioner.machine.redriven(found.version)
                await on_change()
        # Also after a failure: unused generations may be what fills the disk.
        if gone := await asyncio.to_thread(provisioner.prune, [allotment.driver for allotment in allotments]):
            _LOG.info("driver-pruned", generations=gone)


def _emulated(settings: NodeSettings, volume: DriverVolume) -> tuple[Machine, NodeDriver]:
    machine = emulated_machine(settings.emulate, settings.emulated, only=settings.only_gpus, excluded=settings.not_gpus)
    return machine, emulated_driver(machine, volume)


def emulated_driver(machine: Machine, volume: DriverVolume) -> NodeDriver:
    """The driver volume of an emulated machine, filled from the emulated libraries."""

    def find() -> DriverSource:
        return from_libraries(machine.libcuda, machine.libnvml, driver_version(machine.libcuda.parent))

    return NodeDriver(volume, find)


def _real(settings: NodeSettings, volume: DriverVolume) -> tuple[Machine, NodeDriver]:
    root = Path(settings.driver_root)
    container = root / DRIVER_CONTAINER.relative_to("/")
    try:
        libraries = wanted(settings.extra_libraries)
        driver = NodeDriver(volume, lambda: find_source(root, container, libraries), loaded_version)
    except NoDriverFiles as error:
        raise NoDriver(f"{error}. {WAY_OUT}") from None
    # Through the symbolic link, so that a program that reopens a library after an upgrade gets the new one.
    libcuda, libnvml = (volume.link / _LIBRARIES / name for name in ("libcuda.so.1", "libnvidia-ml.so.1"))
    own = driver.source.root / "dev"
    devices = own if (own / "nvidiactl").exists() else root / "dev"
    made = real_machine(libcuda, libnvml, devices, root, only=settings.only_gpus, excluded=settings.not_gpus)
    return made, driver
