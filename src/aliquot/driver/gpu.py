"""The facts of a GPU: its CUDA number, and the CPU cores near it. How GPUs are found is elsewhere: commands that print
them load no search.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from aliquot.model.errors import UserError
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
    capability: str = ""
    """Its compute capability, `9.0`; empty where the driver does not say it, like the next."""
    cuda: str = ""
    """The newest CUDA that the driver knows, `12.8`."""


def cuda_variables(given: Sequence[str], seen: Sequence[Gpu]) -> dict[str, str]:
    """The variables for a program that is given the GPUs of these UUIDs, in this order, and can open those of `seen`.

    Many programs read CUDA_VISIBLE_DEVICES as numbers and end at a UUID. CUDA numbers the GPUs that a process can open,
    with CUDA_DEVICE_ORDER=PCI_BUS_ID in the order of their PCI addresses; without it the fastest GPU comes first. The
    variables have UUIDs where one of these is not in `seen`, and beside a GPU in MIG mode, where CUDA counts otherwise.

    Sources: CUDA programming guide, "CUDA environment variables"; NVIDIA MIG user guide, "Device enumeration".
    """
    ordered = sorted(seen, key=lambda gpu: (gpu.pci.lower(), gpu.index))
    numbers: dict[str, str] = {gpu.uuid: str(number) for number, gpu in enumerate(ordered)}
    if any(gpu.mig for gpu in seen) or not numbers.keys() >= set(given):
        return {"CUDA_VISIBLE_DEVICES": ",".join(given)}
    return {"CUDA_VISIBLE_DEVICES": ",".join(numbers[uuid] for uuid in given), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


class TooManyCores(UserError):
    """More cores were asked than this process may use."""


def core_list(cores: list[int]) -> str:
    """`[0, 1, 2, 5]` -> `0-2,5`."""
    parts: list[str] = []
    start = previous = None
    for core in [*sorted(cores), None]:
        if start is not None and core is not None and previous is not None and core == previous + 1:
            previous = core
            continue
        if start is not None:
            parts.append(f"{start}" if start == previous else f"{start}-{previous}")
        start = previous = core
    return ",".join(parts)


def read_core_list(text: str) -> list[int]:
    """`0-2,5` -> `[0, 1, 2, 5]`; what the kernel writes in a cpulist."""
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores


def least_used(cores: Iterable[int], count: int, used: Mapping[int, int]) -> tuple[int, ...]:
    """So many of these cores, those first that the fewest are bound to; `used` counts them by core."""
    return tuple(sorted(cores, key=lambda core: (used.get(core, 0), core))[:count])


def nearest_cores(count: int, near: list[int] | None = None, used: Mapping[int, int] | None = None) -> str:
    """So many of the cores this process may use, as a list for the hook: those in `near` first, the least used first.

    Raises:
        TooManyCores: there are fewer.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if count > len(allowed):
        raise TooManyCores(f"--cpu-bind {count}: this process may use {len(allowed)} CPU cores; ask for at most those")
    chosen = least_used([core for core in allowed if near and core in near], count, used or {})
    rest = [core for core in allowed if core not in chosen]
    return core_list([*chosen, *least_used(rest, count - len(chosen), used or {})])
