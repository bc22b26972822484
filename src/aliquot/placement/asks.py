"""What is asked of a cluster, in integers, and the part of it that scores depend on.

An `Ask` is everything that one pod wants: GPUs, memory, CPU, labels, priority. Its `Shape` leaves out what only rules
devices out (labels, names) or orders pods (priority); scores are remembered by shape, because a cluster of thousands
of pods knows few shapes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from aliquot.model.quantities import MILLI, format_milli
from aliquot.model.requests import BadRequest, GpuRequest, Labels

PPM: Final = 1_000_000
_APART: Final = re.compile(r"[^a-z0-9]+")
_NO_LABELS: Final = Labels()


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
    """What one pod asks for; `whole == rest_milli == 0` is a pod that needs no GPU.

    `whole` GPUs are taken whole, `rest_milli` (0..999) of one more. `limit_milli` is the ceiling over all its devices,
    None for the whole of each. `gpu_mib` is memory of the shared device (the rest's, or the only whole one's); 0 means
    `gpu_mem_ppm` parts per million of that device, and 0 there the same part as of its compute. `models` are the
    models allowed, sorted, none for any; `gpu_uuid` names devices by UUID, several with commas between them; `gpu_id`
    is a named vGPU, equal names share a device. `near_cores` CPU cores near the first GPU travel with the plan. Several
    GPUs are of one model unless `mixed`. `wake_us` is the promise of how soon it wakes, 0 for none.

    Raises:
        BadRequest: a negative number, a rest of a whole GPU or more, or a label that would have to split.
    """

    whole: int = 0
    rest_milli: int = 0
    limit_milli: int | None = None
    gpu_mib: int = 0
    gpu_mem_ppm: int = 0
    models: tuple[str, ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_uuid: str = ""
    gpu_id: str = ""
    labels: Labels = field(default=_NO_LABELS)
    priority: int = 0
    near_cores: int = 0
    mixed: bool = False
    wake_us: int = 0
    shape: Shape = field(init=False, repr=False, compare=False)
    plain: bool = field(init=False, repr=False, compare=False)
    """Whether neither label, name of a device nor a promise of waking is given."""

    def __post_init__(self) -> None:
        self._check()
        models = tuple(sorted(set(self.models)))
        object.__setattr__(self, "models", models)
        shape = Shape(
            self.whole, self.rest_milli, self.gpu_mib, self.gpu_mem_ppm, models, self.cpu_milli, self.memory_mib
        )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(
            self, "plain", not (self.gpu_uuid or self.gpu_id or self.wake_us or self.labels != _NO_LABELS)
        )

    @property
    def milli(self) -> int:
        """Milli-GPU in all."""
        return self.whole * MILLI + self.rest_milli

    @property
    def devices(self) -> int:
        """Number of GPUs that it touches."""
        return self.whole + (self.rest_milli > 0)

    @property
    def ceiling_milli(self) -> int:
        """The limit with its default: so many devices as it touches, each to the full."""
        return self.devices * MILLI if self.limit_milli is None else self.limit_milli

    def slice_memory(self, size_mib: int, *, whole: bool) -> int:
        """MiB that a device of `size_mib` gives to it; of several GPUs the whole ones give all they have."""
        return size_mib if whole and self.devices > 1 else self.shape.memory_on(size_mib)

    def least_memory(self, size_mib: int) -> int:
        """MiB of GPU memory in all, on devices of that size."""
        shared = 1 if self.rest_milli or self.devices == 1 else 0
        return (self.devices - shared) * size_mib + shared * self.shape.memory_on(size_mib)

    @classmethod
    def of(cls, request: GpuRequest, cpu_milli: int = 0, memory_mib: int = 0) -> Ask:
        """The ask of a request that was checked.

        Raises:
            BadRequest: as for the class.
        """
        memory = request.memory
        return cls(
            whole=request.whole,
            rest_milli=request.rest_milli,
            limit_milli=request.limit_milli,
            gpu_mib=(memory.mib or 0) if memory else 0,
            gpu_mem_ppm=int(memory.part * PPM) if memory and memory.part else 0,
            models=tuple(filter(None, (name.strip() for name in request.model.split("|")))),
            cpu_milli=cpu_milli,
            memory_mib=memory_mib,
            gpu_uuid=request.gpu,
            gpu_id=request.gpu_id,
            labels=request.labels,
            mixed=request.mixed,
            wake_us=request.wake_us,
        )

    def less(self, **fields: int) -> Ask:
        """The same ask with other numbers; a limit that no longer fits its devices falls to their number."""
        smaller = replace(self, **fields)  # type: ignore[arg-type]
        return replace(smaller, limit_milli=None) if smaller.ceiling_milli > smaller.devices * MILLI else smaller

    def _check(self) -> None:
        for name in ("whole", "limit_milli", "gpu_mib", "gpu_mem_ppm", "cpu_milli", "memory_mib", "near_cores",
                     "wake_us"):  # fmt: skip
            if (getattr(self, name) or 0) < 0:
                raise BadRequest(f"{name} {getattr(self, name)} is negative; the least is 0")
        if not 0 <= self.rest_milli < MILLI:
            raise BadRequest(f"rest_milli {self.rest_milli} is not between 0 and 999; whole GPUs go to whole")
        if self.gpu_mem_ppm > PPM:
            raise BadRequest(f"gpu_mem_ppm {self.gpu_mem_ppm} is more than a device; the most is {PPM}")
        if self.devices > 1 and (self.labels.affinity or self.gpu_id):
            what = f'affinity "{self.labels.affinity}"' if self.labels.affinity else f'vGPU "{self.gpu_id}"'
            raise BadRequest(
                f"{what} means one device, {format_milli(self.milli)} GPUs are on {self.devices}; "
                f"ask for at most 1.0 or leave it out"
            )


@lru_cache(maxsize=4096)
def model_matches(asked: str, model: str) -> bool:
    """Whether a device's model answers to a name: its words in a row, whatever stands between words, in any case.

    `V100` and `tesla-v100` are `Tesla V100-SXM2-16GB`; `A10` is not `NVIDIA A100-SXM4-80GB`.
    """
    words = f" {_APART.sub(' ', asked.lower()).strip()} "
    return words in f" {_APART.sub(' ', model.lower()).strip()} "
