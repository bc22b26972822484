"""A workload: a tenant with its shares and use on all of its GPUs, or one that waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from aliquot.model.ids import split_key
from aliquot.model.requests import Slice
from aliquot.status.gpus import Gpu, Share

WorkloadKind = Literal["SharePod", "Pod", "Run"]


class Piece(msgspec.Struct, frozen=True):
    """A part of one GPU in a plan."""

    node: str
    index: int
    uuid: str
    request_milli: int
    limit_milli: int
    memory_mib: int


class Workload(msgspec.Struct, frozen=True):
    """A SharePod, a pod with a share or a single run: state, place and promise; `message` says why it waits.

    `measured` is false where it has a place and not all of its GPUs are measured.
    """

    name: str
    kind: WorkloadKind
    phase: str
    request_milli: int
    limit_milli: int
    pieces: list[Piece]
    age_s: float
    model: str = ""
    message: str = ""
    restarts: int = 0
    usage_milli: int = 0
    memory_used_mib: int = 0
    memory_mib: int = 0
    kept_percent: float | None = None
    windows: int = 0
    events: list[str] = []
    measured: bool = True

    @property
    def namespace(self) -> str:
        """The part before the first slash; empty for a run."""
        return split_key(self.name)[0]


def piece_of(gpu: Gpu, part: Slice | Share) -> Piece:
    """A slice of a GPU as in a plan."""
    return Piece(gpu.node, gpu.index, gpu.uuid, part.request_milli, part.limit_milli, part.memory_mib)


def placed(name: str, kind: WorkloadKind, own: Sequence[tuple[Gpu, Share]], age_s: float) -> Workload:
    """A tenant with what it has and gets over all its GPUs; promises are kept where they are kept on the worst."""
    judged = [share for _, share in own if share.kept_percent is not None]
    worst = min(judged, key=lambda share: share.kept_percent or 0.0, default=None)
    return Workload(
        name=name,
        kind=kind,
        phase="Running",
        request_milli=sum(share.request_milli for _, share in own),
        limit_milli=sum(share.limit_milli for _, share in own),
        pieces=[piece_of(gpu, share) for gpu, share in own],
        age_s=age_s,
        model=own[0][0].model if own else "",
        usage_milli=sum(share.usage_milli for _, share in own),
        memory_used_mib=sum(share.memory_used_mib for _, share in own),
        memory_mib=sum(share.memory_mib for _, share in own),
        kept_percent=worst.kept_percent if worst else None,
        windows=worst.windows if worst else 0,
        measured=all(gpu.measured for gpu, _ in own),
    )
