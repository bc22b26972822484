"""A short way to write what is asked of a cluster."""

from fractions import Fraction

from aliquot.model.quantities import MILLI, Memory
from aliquot.model.requests import GpuRequest, Labels
from aliquot.placement.asks import PPM, Ask

NONE = Labels()


def asking(
    whole: int = 0,
    rest_milli: int = 0,
    limit_milli: int | None = None,
    *,
    gpu_mib: int = 0,
    gpu_mem_ppm: int = 0,
    models: tuple[str, ...] = (),
    gpu_uuid: str = "",
    gpu_id: str = "",
    labels: Labels = NONE,
    mixed: bool = False,
    wake_us: int = 0,
    **host: int,
) -> Ask:
    """An ask for whole GPUs and a part of one more; `host` are CPU, memory and priority."""
    memory = Memory(part=Fraction(gpu_mem_ppm, PPM)) if gpu_mem_ppm else None
    memory = Memory(mib=gpu_mib) if gpu_mib else memory
    request = GpuRequest(
        whole * MILLI + rest_milli, limit_milli, memory, "|".join(models), gpu_uuid, gpu_id, labels,
        mixed=mixed, wake_us=wake_us,
    )  # fmt: skip
    return Ask(request, **host)
