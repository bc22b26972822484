"""Makes the records of `aliquot.web.api` from the state of one machine's engine and arbiter: no clock, no socket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from aliquot.arbiter.records import GpuStatus, Status
from aliquot.driver.discovery import Gpu as Card
from aliquot.model.quantities import MILLI
from aliquot.model.requests import Slice
from aliquot.standalone.wire import PodFacts
from aliquot.status.tenants import TenantStatus
from aliquot.web.api import Gpu, GpuState, Piece, Pool, QuotaLine, Share, Vgpu, Workload, WorkloadKind

Kept = Callable[[str, str], tuple[float | None, int]]
"""(gpu, tenant) -> percent of windows kept and how many there were."""


@dataclass(frozen=True)
class Seated:
    """A tenant's slices and what else its place says; `gpu_id` is the vGPU it named."""

    tenant: str
    slices: tuple[Slice, ...]
    age_s: float = 0.0
    gpu_id: str = ""


def gpus_of(
    node: str, cards: Iterable[Card], seated: Sequence[Seated], status: Status | None, kept: Kept, *, emulated: bool
) -> list[Gpu]:
    """Every GPU of one machine; without a status (the arbiter is being restarted) its use is unknown."""
    now = {gpu.uuid: gpu for gpu in status.gpus} if status else {}
    made = [_gpu(node, card, seated, now.get(card.uuid), kept, emulated) for card in cards]
    return made if status else [msgspec.structs.replace(gpu, measured=False) for gpu in made]


def _gpu(node: str, card: Card, seated: Sequence[Seated], now: GpuStatus | None, kept: Kept, emulated: bool) -> Gpu:
    tenants = {tenant.name: tenant for tenant in now.tenants} if now else {}
    here = [(seat, piece) for seat in seated for piece in seat.slices if piece.gpu == card.uuid]
    shares = [
        measured(promised(seat.tenant, piece), tenants.get(seat.tenant), kept(piece.gpu, seat.tenant))
        for seat, piece in here
    ]
    requested_milli = sum(piece.request_milli for _, piece in here)
    return Gpu(
        uuid=card.uuid,
        index=card.index,
        node=node,
        model=card.model,
        memory_mib=card.memory_mib,
        state=gpu_state([piece.request_milli for _, piece in here]),
        free_milli=MILLI - requested_milli,
        free_mib=card.memory_mib - sum(piece.memory_mib for _, piece in here),
        busy_milli=round(now.busy * MILLI) if now else 0,
        memory_used_mib=sum(share.memory_used_mib for share in shares),
        shares=shares,
        holder=(now.holder or "") if now else "",
        vgpu=next((seat.gpu_id for seat, _ in here if seat.gpu_id), ""),
        emulated=emulated,
    )


def gpu_state(requests_milli: Sequence[int]) -> GpuState:
    """Whether one tenant has all of it, tenants have parts, or it has none."""
    if not requests_milli:
        return "idle"
    return "whole" if max(requests_milli) >= MILLI else "shared"


def measured(plan: Share, now: TenantStatus | None, kept: tuple[float | None, int]) -> Share:
    """A share as it was promised, with what is measured of it; one that the arbiter does not know uses nothing."""
    percent, windows = kept
    if now is None:
        return msgspec.structs.replace(plan, kept_percent=percent, windows=windows)
    return msgspec.structs.replace(
        plan,
        usage_milli=now.usage_milli,
        memory_used_mib=now.memory_used_mib,
        wait_ms=round(now.wait_ms_p50, 1),
        debt_ms=round(now.debt_ms, 1),
        quota_ms=round(now.quota_ms, 1),
        processes=now.processes,
        waiting=now.waiting,
        kept_percent=percent,
        windows=windows,
        enforce=now.enforce,
    )


def promised(tenant: str, piece: Slice) -> Share:
    """A share as the ledger has it, of which nothing is measured yet."""
    return Share(tenant, piece.request_milli, piece.limit_milli, 0, piece.memory_mib, 0, tenant)


def piece_of(gpu: Gpu, part: Slice | Share) -> Piece:
    """A part of a GPU as a plan has it."""
    return Piece(gpu.node, gpu.index, gpu.uuid, part.request_milli, part.limit_milli, part.memory_mib)


def grown(gpu: Gpu, tenant: str, part: Slice) -> Gpu:
    """A GPU as it would be with one more tenant, which is no workload yet."""
    shares = [*gpu.shares, Share(tenant, part.request_milli, part.limit_milli, 0, part.memory_mib, 0)]
    return msgspec.structs.replace(
        gpu,
        shares=shares,
        state=gpu_state([share.request_milli for share in shares]),
        free_milli=gpu.free_milli - part.request_milli,
        free_mib=gpu.free_mib - part.memory_mib,
    )


def workloads_of(gpus: Sequence[Gpu], pods: Sequence[PodFacts], seated: Sequence[Seated]) -> list[Workload]:
    """SharePods and single runs, waiting ones first."""
    places = {(gpu.uuid, share.tenant): (gpu, share) for gpu in gpus for share in gpu.shares}
    owns = {
        seat.tenant: [places[at] for piece in seat.slices if (at := (piece.gpu, seat.tenant)) in places]
        for seat in seated
    }
    known = {pod.name for pod in pods}
    found = [_pod(pod, owns.get(pod.name, [])) for pod in pods]
    found += [placed(seat.tenant, "Run", owns[seat.tenant], seat.age_s) for seat in seated if seat.tenant not in known]
    return sorted(found, key=lambda workload: (workload.phase != "Pending", workload.name))


def _pod(pod: PodFacts, own: Sequence[tuple[Gpu, Share]]) -> Workload:
    made = placed(pod.name, "SharePod", own, pod.age_s)
    return msgspec.structs.replace(
        made,
        phase=pod.phase,
        request_milli=pod.request_milli,
        limit_milli=pod.limit_milli,
        message=pod.message,
        restarts=pod.restarts,
        memory_mib=pod.memory_mib,
        events=pod.events,
    )


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


def pool_of(gpus: Iterable[Gpu]) -> Pool:
    """On one machine a vGPU is a GPU that a SharePod has named; it exists as long as it has a tenant."""
    vgpus = [
        Vgpu(
            name=gpu.vgpu,
            node=gpu.node,
            phase="Active",
            uuid=gpu.uuid,
            model=gpu.model,
            used_milli=MILLI - gpu.free_milli,
            memory_mib=gpu.memory_mib,
            memory_used_mib=gpu.memory_mib - gpu.free_mib,
            attached=[share.tenant for share in gpu.shares],
        )
        for gpu in gpus
        if gpu.vgpu
    ]
    return Pool("on-demand", vgpus)


def quota_of(gpus: Iterable[Gpu]) -> list[QuotaLine]:
    """What each namespace has of each model; one machine sets no limits."""
    used: dict[tuple[str, str], list[int]] = {}
    for gpu in gpus:
        for share in gpu.shares:
            line = used.setdefault((share.tenant.rpartition("/")[0], gpu.model), [0, 0])
            line[0] += share.request_milli
            line[1] += share.memory_mib
    return [QuotaLine(namespace, model, milli, mib) for (namespace, model), (milli, mib) in sorted(used.items())]
