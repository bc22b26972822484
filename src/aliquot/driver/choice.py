"""Which of a machine's GPUs are shared: those that were named, but for those that were excluded or are in MIG mode.

A GPU is named by its index, its UUID, or its model as pods name models (`V100`, `a100-80gb`); several with commas
between them. On a node a name without a matching GPU is ignored, since one list serves many nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from aliquot.driver.gpu import Gpu
from aliquot.model.errors import UserError
from aliquot.placement.asks import model_matches


class NoGpuLeft(UserError):
    """All GPUs of a machine are left out."""


@dataclass(frozen=True)
class Choice:
    """The GPUs that are shared, and why each other one (by UUID) is not."""

    gpus: tuple[Gpu, ...]
    left_out: dict[str, str]


def choose(gpus: Sequence[Gpu], *, only: str = "", excluded: str = "") -> Choice:
    """The GPUs that `only` names, all where it is empty, without those that `excluded` names and those in MIG mode.

    Raises:
        NoGpuLeft: there are GPUs, and none of them is left.
    """
    left_out: dict[str, str] = {}
    for gpu in gpus:
        if only and not _named(gpu, only):
            left_out[gpu.uuid] = f"is not among --only-gpus {only}"
        elif _named(gpu, excluded):
            left_out[gpu.uuid] = f"is among --not-gpus {excluded}"
        elif gpu.mig:
            left_out[gpu.uuid] = "is in MIG mode (nvidia-smi -mig 0 ends that)"
    if gpus and len(left_out) == len(gpus):
        reasons = "; ".join(f"GPU {gpu.index} ({gpu.model}) {left_out[gpu.uuid]}" for gpu in gpus)
        raise NoGpuLeft(f"no GPU is left to share: {reasons}; name others, by index, UUID or model")
    return Choice(tuple(some(gpus, {gpu.uuid for gpu in gpus} - left_out.keys())), left_out)


def check_named(gpus: Sequence[Gpu], names: str, option: str) -> None:
    """Refuse a list in which a name is no GPU's, for one machine of which it was written.

    Raises:
        UserError: the first such name, and what there is.
    """
    for word in filter(None, (word.strip() for word in names.split(","))):
        if not any(_named(gpu, word) for gpu in gpus):
            here = ", ".join(f"{gpu.index} ({gpu.model}, {gpu.uuid})" for gpu in gpus)
            raise UserError(f'{option} {names}: there is no GPU "{word}"; there are {here}')


def some(gpus: Sequence[Gpu], uuids: Collection[str]) -> list[Gpu]:
    """Some of a machine's GPUs, which keep their indices and the links among them."""
    kept = [place for place, gpu in enumerate(gpus) if gpu.uuid in uuids]
    rows = ([gpus[i].links[j] for j in kept] if gpus[i].links else [] for i in kept)
    return [msgspec.structs.replace(gpus[i], links=row) for i, row in zip(kept, rows, strict=True)]


def _named(gpu: Gpu, names: str) -> bool:
    words = [word.strip() for word in names.split(",") if word.strip()]
    return any(
        word == str(gpu.index) or word.lower() == gpu.uuid.lower()
        or (not word.isdigit() and model_matches(word, gpu.model))
        for word in words
    )  # fmt: skip
