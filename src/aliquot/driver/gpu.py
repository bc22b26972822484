"""The facts of a GPU and its CUDA number, apart from how GPUs are found: commands that print them load no search."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aliquot.model.requests import Device


class Gpu(Device, frozen=True):
    """One GPU as NVML describes it."""

    driver: str = ""
    near_cores: list[int] = msgspec.field(default_factory=list)
    links: list[str] = msgspec.field(default_factory=list)
    """Its link to each GPU by index, as `nvidia-smi topo -m` labels them; empty if not queried."""
    numa: int | None = None
    minor: int | None = None
    """The number of its device node, `/dev/nvidia<minor>`; it need not be the index. None where nothing says it."""
    pci: str = ""
    """Its PCI address as NVML writes it, `00000000:07:00.0`."""
    mig: bool = False
    """Whether it is in MIG mode, in which no program can use the GPU as a whole."""


def cuda_variables(given: Sequence[str], seen: Sequence[Gpu]) -> dict[str, str]:
    """The variables for a program that is given the GPUs of these UUIDs, in this order, and can open those of `seen`.

    Many programs read CUDA_VISIBLE_DEVICES as numbers and end at a UUID. CUDA numbers the GPUs that a process can open,
    with CUDA_DEVICE_ORDER=PCI_BUS_ID in the order of their PCI addresses; without it the fastest GPU comes first. The
    variables have UUIDs where one of these is not in `seen`, and beside a GPU in MIG mode, where CUDA counts otherwise.

    Sources: CUDA programming guide, "CUDA environment variables"; NVIDIA MIG user guide, "Device enumeration".
    """
    numbers: dict[str, str] = {gpu.uuid: str(number) for number, gpu in enumerate(sorted(seen, key=_place))}
    if any(gpu.mig for gpu in seen) or not numbers.keys() >= set(given):
        return {"CUDA_VISIBLE_DEVICES": ",".join(given)}
    return {"CUDA_VISIBLE_DEVICES": ",".join(numbers[uuid] for uuid in given), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _place(gpu: Gpu) -> tuple[str, int]:
    return gpu.pci.lower(), gpu.index
