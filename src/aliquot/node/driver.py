"""The node's driver: found with the node's GPUs, mirrored in the driver volume, and followed while it changes.

A driver is replaced file by file, so a change counts once two looks have seen the same. New libraries beside a kernel
module that is still the old one do not work: as long as there is a generation of the loaded module's version, that one
is shown, and the new one after the module was loaded. A container keeps its generation, also when it is started again,
unless the loaded module would refuse it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from aliquot.driver.discovery import NoDriver
from aliquot.driver.emulation import driver_version
from aliquot.driver.gpu import Gpu
from aliquot.driver.gpu_lock import GpuLock
from aliquot.driver.native import HOOK, native_part
from aliquot.driver.volume.names import SUBSTITUTED, wanted
from aliquot.driver.volume.source import (
    DRIVER_CONTAINER,
    DriverSource,
    NoDriverFiles,
    find_source,
    from_libraries,
    loaded_version,
)
from aliquot.driver.volume.volume import DriverVolume, Generation, VolumeError
from aliquot.lib.log import Logger
from aliquot.node.machine import WAY_OUT, Machine, emulated_machine, real_machine
from aliquot.node.settings import NodeSettings

_LOG: Final = Logger("node")
_LIBRARIES: Final = Path("origin/lib64")
MAX_SKIPPED: Final = 64
"""Checks between two attempts at a driver that cannot be mirrored: one at first, then doubling."""


def open_driver(settings: NodeSettings) -> tuple[Machine, NodeDriver]:
    """The node's GPUs by its settings, with the driver's files mirrored.

    Raises:
        UnknownProfile: no emulated machine has that name.
        NoDriver: the driver is missing, does not answer, shows no GPU, or a device node is missing.
        NoGpuLeft: all GPUs are left out.
        VolumeError: its files cannot be mirrored.
    """
    volume = DriverVolume(settings.driver_volume, native_part(HOOK))
    only, excluded = settings.only_gpus, settings.not_gpus
    if settings.emulate:
        machine = emulated_machine(settings.emulate, settings.emulated, only=only, excluded=excluded)
        driver = emulated_driver(machine, volume)
    else:
        root = Path(settings.driver_root)
        container = root / DRIVER_CONTAINER.relative_to("/")
        libraries = wanted(settings.extra_libraries)
        try:
            driver = NodeDriver(volume, lambda: find_source(root, container, libraries), loaded_version)
        except NoDriverFiles as error:
            raise NoDriver(f"{error}. {WAY_OUT}") from None
        # Through the symbolic link, so that a program that reopens a library after an upgrade gets the new one.
        libcuda, libnvml = (volume.link / _LIBRARIES / name for name in ("libcuda.so.1", "libnvidia-ml.so.1"))
        own = driver.source.root / "dev"
        devices = own if (own / "nvidiactl").exists() else root / "dev"
        machine = real_machine(libcuda, libnvml, devices, root, only=only, excluded=excluded)
    for silent in machine.silent:
        _LOG.warning("gpu-silent", why=silent)
    for uuid, why in machine.left_out.items():
        _LOG.info("gpu-left-out", gpu=uuid, why=why)
    extra = tuple(word.strip() for word in settings.extra_devices.split(",") if word.strip())
    return replace(machine, extra=extra, host=Path(settings.host_root)), driver


def emulated_driver(machine: Machine, volume: DriverVolume) -> NodeDriver:
    """The driver volume of an emulated machine, filled from the emulated libraries."""

    def find() -> DriverSource:
        return from_libraries(machine.libcuda, machine.libnvml, driver_version(machine.libcuda.parent))

    return NodeDriver(volume, find)


class NodeDriver:
    """The driver volume of a node, and what it is made from. Its methods block and may be called from any thread."""

    def __init__(
        self, volume: DriverVolume, find: Callable[[], DriverSource], loaded: Callable[[], str] = lambda: ""
    ) -> None:
        """`find` finds the driver, `loaded` returns the version of its kernel module, empty for an emulated driver.

        Raises:
            VolumeError: its files cannot be mirrored.
        """
        self.volume = volume
        self._find = find
        self._loaded = loaded
        self._lock = threading.Lock()
        self._taken = ("", "")
        self._seen = ("", "")
        self._failed = ("", "")
        self._pause = self._rest = 0
        self.source = source = find()
        try:
            self._take(source, (source.fingerprint, loaded()))
        except OSError as error:
            raise VolumeError(f"the driver volume: {error.filename} went while it was read; start again") from None

    @property
    def current(self) -> Generation:
        """That for new containers."""
        assert self.volume.current is not None, "made at the start"
        return self.volume.current

    def refresh(self) -> Generation | None:
        """The current generation if it has changed; None while nothing changes, or the driver is missing.

        Raises:
            VolumeError: the driver changed and cannot be mirrored; the current one stays.
        """
        with self._lock:
            try:
                source = self._find()
                now = (source.fingerprint, self._loaded())
            except (NoDriverFiles, OSError):
                return None
            settled, self._seen = now == self._seen, now
            if now == self._taken or not settled:
                return None
            if now != self._failed:
                self._pause = self._rest = 0
            elif self._rest > 0:  # each attempt may copy all of it
                self._rest -= 1
                return None
            before = self.current
            try:
                self._take(source, now)
            except (VolumeError, OSError):
                self._pause = self._rest = min(2 * self._pause or 1, MAX_SKIPPED)
                self._failed = now
                raise
            return self.current if self.current != before else None

    def shown(self, had: str, *, again: bool) -> Generation:
        """What a container with the generation `had` gets; `again` for one that may be running."""
        with self._lock:
            kept = self.volume.generation(had)
            if kept is None:
                return self.current
            loaded = "" if again else self._loaded()
            return self.current if loaded and kept.version != loaded == self.current.version else kept

    def lock(self, gpus: Sequence[Gpu]) -> GpuLock:
        """The lock by which no other program of Aliquot shares these GPUs.

        Raises:
            AliquotError: another one does.
        """
        return GpuLock(self.source.library(SUBSTITUTED[1]).file, gpus)

    def prune(self, used: Collection[str]) -> list[str]:
        """See `DriverVolume.prune`."""
        with self._lock:
            return self.volume.prune(used)

    def _take(self, source: DriverSource, now: tuple[str, str]) -> None:
        made = self.volume.refresh(source)
        loaded = now[1]
        if loaded and made.version not in (loaded, "unknown"):
            fitting = [each for each in self.volume.generations() if each.version == loaded]
            if fitting:
                self.volume.use(fitting[-1])
        self._taken, self.source = now, source
