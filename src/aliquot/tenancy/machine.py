"""The GPUs that tenants share, and the two libraries of the driver behind them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from aliquot.driver.choice import some
from aliquot.driver.discovery import Found, NoDriver, find_gpus, gpu_topology
from aliquot.driver.gpu import Gpu
from aliquot.topology import Topology


@dataclass(frozen=True)
class SharedMachine:
    """GPUs by index, and the libraries by which tenants reach them: the real driver's or an emulated one's."""

    gpus: tuple[Gpu, ...]
    libcuda: Path
    libnvml: Path
    seen: tuple[Gpu, ...] = field(default=(), kw_only=True)
    """All GPUs that a program on the machine itself can open, shared or not; empty where one does not answer."""

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
