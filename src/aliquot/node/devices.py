"""The device ids that kubelet counts, such as `g3-042`: a fixed number for each GPU, whose health they carry.

The ids are short and their number is bounded, since kubelet takes no message over 4 MiB and stores each id it gives.
The plan decides which GPU a container gets, not its ids; a GPU's ids only report its health to kubelet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from aliquot.driver.gpu import Gpu

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"


@dataclass(frozen=True)
class DeviceId:
    """One id as reported to kubelet; `numa` is the memory node, None where it is not known."""

    name: str
    healthy: bool
    numa: int | None


def id_of(gpu: int, number: int) -> str:
    """`g0-007`: the GPU by its index, and a number."""
    return f"g{gpu}-{number:03}"


def gpu_of(device: str) -> int | None:
    """The index of the GPU an id belongs to; None for an id that is none of ours."""
    head, dash, number = device.partition("-")
    return int(head[1:]) if dash and head[:1] == "g" and head[1:].isdigit() and number.isdigit() else None


def device_ids(gpus: Sequence[Gpu], per_gpu: int, unhealthy: Collection[str]) -> list[DeviceId]:
    """All ids of a node; those of an unhealthy GPU are unhealthy.

    They have a memory node only if all GPUs share one: kubelet's Topology Manager chooses ids, and CPU cores to match,
    before the plan's GPU is known, and could admit or refuse a pod by the wrong one.
    """
    nodes = {gpu.numa for gpu in gpus}
    numa = next(iter(nodes)) if len(nodes) == 1 else None
    return [
        DeviceId(id_of(gpu.index, number), gpu.uuid not in unhealthy, numa) for gpu in gpus for number in range(per_gpu)
    ]


def preferred(available: Iterable[str], must: Iterable[str], size: int, gpus: Sequence[int]) -> list[str]:
    """`size` ids, those of `gpus` first and in order; required ids are always included."""
    chosen = sorted(set(must))
    order = {gpu: place for place, gpu in enumerate(gpus)}

    def rank(device: str) -> tuple[int, str]:
        gpu = gpu_of(device)
        return (order.get(gpu, len(order)) if gpu is not None else len(order), device)

    rest = sorted(set(available) - set(chosen), key=rank)
    return (chosen + rest)[: max(size, 0)]
