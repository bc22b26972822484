"""What is asked of a cluster, in integers, and the part of it that scores depend on.

An `Ask` is everything that one pod wants: a `GpuRequest`, CPU, memory, priority. Its `Shape` leaves out what only rules
devices out (labels, names) or orders pods (priority); scores are remembered by shape, because a cluster of thousands
of pods knows few shapes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from aliquot.model.quantities import MILLI, format_milli
from aliquot.model.requests import BadRequest, GpuRequest, Labels

PPM: Final = 1_000_000
_APART: Final = re.compile(r"[^a-z0-9]+")
_NO_LABELS: Final = Labels()
_NO_GPU: Final = GpuRequest(0)


@dataclass(frozen=True, slots=True)
class Shape:
    """What of an ask decides where it fits and how well; the fields are those of `Ask`."""

    whole: int = 0
    rest_milli: int = 0
    gpu_mib: int = 0
    gpu_mem_ppm: int = 0
    models: tuple[str, ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0

    @property
    def milli(self) -> int:
        """Milli-GPU in all."""
        return self.whole * MILLI + self.rest_milli

    @property
    def devices(self) -> int:
        """Number of GPUs that it touches."""
        return self.whole + (self.rest_milli > 0)

    def memory_on(self, size_mib: int) -> int:
        """MiB of its shared (or only) device, if that has `size_mib`; parts are rounded down."""
        if self.gpu_mib:
            return self.gpu_mib
        if self.gpu_mem_ppm:
            return size_mib * self.gpu_mem_ppm // PPM
        return size_mib * (self.rest_milli or MILLI) // MILLI


@dataclass(frozen=True, slots=True)
class Ask:
    """What one pod asks for: a `request` for GPUs, 0 for none, and what of its node goes with it.

    `near_cores` CPU cores near the first GPU travel with the plan; a higher `priority` is served first. The properties
    read the request as placement does: `whole` GPUs are taken whole, `rest_milli` (0..999) of one more; `gpu_mib` is
    memory of the shared device (the rest's, or the only whole one's), 0 means `gpu_mem_ppm` parts per million of that
    device, and 0 there the same part as of its compute. `models` are the models allowed, sorted, none for any;
    `gpu_uuid` names devices by UUID, several with commas between them.

    Raises:
        BadRequest: a negative number, more memory than a device has, or a label that would have to split.
    """

    request: GpuRequest = _NO_GPU
    cpu_milli: int = 0
    memory_mib: int = 0
    near_cores: int = 0
    priority: int = 0
    shape: Shape = field(init=False, repr=False, compare=False)
    plain: bool = field(init=False, repr=False, compare=False)
    """Whether neither label, name of a device nor a promise of waking is given."""

    def __post_init__(self) -> None:
        request, memory = self.request, self.request.memory
        numbers = {
            "request_milli": request.request_milli,
            "limit_milli": request.limit_milli or 0,
            "memory": (memory.mib or memory.part or 0) if memory else 0,
            "wake_us": request.wake_us,
            "cpu_milli": self.cpu_milli,
            "memory_mib": self.memory_mib,
            "near_cores": self.near_cores,
        }
        for name, number in numbers.items():
            if number < 0:
                raise BadRequest(f"{name} {number} is negative; the least is 0")
        if memory and memory.part and memory.part > 1:
            raise BadRequest(f"memory {memory} is more than a device; the most is 100%")
        shape = Shape(
            request.whole,
            request.rest_milli,
            (memory.mib or 0) if memory else 0,
            int(memory.part * PPM) if memory and memory.part else 0,
            request.models,
            self.cpu_milli,
            self.memory_mib,
        )
        plain = not (request.gpu or request.gpu_id or request.wake_us or request.labels != _NO_LABELS)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "plain", plain)
        if self.devices > 1 and (request.labels.affinity or request.gpu_id):
            named = f'affinity "{request.labels.affinity}"' if request.labels.affinity else f'vGPU "{request.gpu_id}"'
            raise BadRequest(
                f"{named} means one device, {format_milli(self.milli)} GPUs are on {self.devices}; "
                f"ask for at most 1.0 or leave it out"
            )

    @property
    def whole(self) -> int:
        """GPUs taken whole."""
        return self.shape.whole

    @property
    def rest_milli(self) -> int:
        """Milli-GPU of one more."""
        return self.shape.rest_milli

    @property
    def milli(self) -> int:
        """Milli-GPU in all."""
        return self.request.request_milli

    @property
    def devices(self) -> int:
        """Number of GPUs that it touches."""
        return self.shape.devices

    @property
    def ceiling_milli(self) -> int:
        """The limit over all its devices, with its default."""
        return self.request.ceiling_milli

    @property
    def gpu_mib(self) -> int:
        """MiB of its shared or only device; 0 for a part of it."""
        return self.shape.gpu_mib

    @property
    def gpu_mem_ppm(self) -> int:
        """The part of that device's memory, in millionths; 0 for the same part as of its compute."""
        return self.shape.gpu_mem_ppm

    @property
    def models(self) -> tuple[str, ...]:
        """The models allowed."""
        return self.shape.models

    @property
    def gpu_uuid(self) -> str:
        """The devices named."""
        return self.request.gpu

    @property
    def gpu_id(self) -> str:
        """The name of a vGPU."""
        return self.request.gpu_id

    @property
    def labels(self) -> Labels:
        """Its labels."""
        return self.request.labels

    @property
    def mixed(self) -> bool:
        """Whether its GPUs may be of several models."""
        return self.request.mixed

    @property
    def wake_us(self) -> int:
        """How soon it is promised to wake; 0 for no promise."""
        return self.request.wake_us

    def slice_memory(self, size_mib: int, *, whole: bool) -> int:
        """MiB that a device of `size_mib` gives to it; of several GPUs the whole ones give all they have."""
        return size_mib if whole and self.devices > 1 else self.shape.memory_on(size_mib)

    def least_memory(self, size_mib: int) -> int:
        """MiB of GPU memory in all, on devices of that size."""
        shared = 1 if self.rest_milli or self.devices == 1 else 0
        return (self.devices - shared) * size_mib + shared * self.shape.memory_on(size_mib)

    def but(self, **fields: Any) -> Ask:
        """The same ask with other fields of its request."""
        return replace(self, request=replace(self.request, **fields))

    def sized(self, milli: int) -> Ask:
        """The same ask for so many milli-GPU; a limit that no longer fits its devices is left out."""
        fitting = self.but(request_milli=milli, limit_milli=None)
        limit_milli = self.request.limit_milli
        return fitting if limit_milli is None or limit_milli > fitting.ceiling_milli else self.but(request_milli=milli)


@lru_cache(maxsize=4096)
def model_matches(asked: str, model: str) -> bool:
    """Whether a device's model answers to a name: its words in a row, whatever stands between words, in any case.

    `V100` and `tesla-v100` are `Tesla V100-SXM2-16GB`; `A10` is not `NVIDIA A100-SXM4-80GB`.
    """
    words = f" {_APART.sub(' ', asked.lower()).strip()} "
    return words in f" {_APART.sub(' ', model.lower()).strip()} "


@dataclass(frozen=True)
class PlacementUnit:
    """One ask of a pod, and the tenant it is reserved under: `namespace/pod/container`, further parts with `#2`..."""

    tenant: str
    container: str
    part: int
    ask: Ask
    init: int = 0
