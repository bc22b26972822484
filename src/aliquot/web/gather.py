"""Makes the records of `aliquot.web.api` from the state of one machine's engine and arbiter: no clock, no socket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from aliquot.arbiter.records import GpuStatus, Status
from aliquot.driver.discovery import Gpu as Card
from aliquot.model.quantities import MILLI
from aliquot.model.requests import Slice
from aliquot.standalone.wire import PodFacts
from aliquot.status.tenants import TenantStatus
from aliquot.web.api import Gpu, GpuState, Piece, Pool, QuotaLine, Share, Vgpu, Workload

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


def workloads_of(gpus: Sequence[Gpu], pods: Sequence[PodFacts], seated: Sequence[Seated]) -> list[Workload]:
    """SharePods and single runs, waiting ones first."""
    places = {gpu.uuid: gpu for gpu in gpus}
    seats = {seat.tenant: seat for seat in seated}
    known = {pod.name for pod in pods}
    found = [_pod(pod, seats.get(pod.name), places) for pod in pods]
    found += [_run(seat, places) for seat in seated if seat.tenant not in known]
    return sorted(found, key=lambda workload: (workload.phase != "Pending", workload.name))


def _pod(pod: PodFacts, seat: Seated | None, places: Mapping[str, Gpu]) -> Workload:
    got = _got(seat, places)
    return Workload(
        name=pod.name,
        kind="SharePod",
        phase=pod.phase,
        request_milli=pod.request_milli,
        limit_milli=pod.limit_milli,
        pieces=_pieces(seat, places),
        age_s=pod.age_s,
        message=pod.message,
        restarts=pod.restarts,
        memory_mib=pod.memory_mib,
        events=pod.events,
        **got,  # type: ignore[arg-type]
    )


def _run(seat: Seated, places: Mapping[str, Gpu]) -> Workload:
    return Workload(
        name=seat.tenant,
        kind="Run",
        phase="Running",
        request_milli=sum(piece.request_milli for piece in seat.slices),
        limit_milli=sum(piece.limit_milli for piece in seat.slices),
        pieces=_pieces(seat, places),
        age_s=seat.age_s,
        memory_mib=sum(piece.memory_mib for piece in seat.slices),
        **_got(seat, places),  # type: ignore[arg-type]
    )


def _pieces(seat: Seated | None, places: Mapping[str, Gpu]) -> list[Piece]:
    pieces = seat.slices if seat else ()
    return [
        Piece(places[p.gpu].node, places[p.gpu].index, p.gpu, p.request_milli, p.limit_milli, p.memory_mib)
        for p in pieces
        if p.gpu in places
    ]


def _got(seat: Seated | None, places: Mapping[str, Gpu]) -> dict[str, object]:
    """What a tenant gets over all its GPUs; promises are kept where they are kept on the worst of them."""
    if seat is None:
        return {}
    gpus = [places[piece.gpu] for piece in seat.slices if piece.gpu in places]
    shares = [share for gpu in gpus for share in gpu.shares if share.tenant == seat.tenant]
    judged = [share for share in shares if share.kept_percent is not None]
    worst = min(judged, key=lambda share: share.kept_percent or 0.0, default=None)
    return {
        "usage_milli": sum(share.usage_milli for share in shares),
        "memory_used_mib": sum(share.memory_used_mib for share in shares),
        "model": gpus[0].model if gpus else "",
        "kept_percent": worst.kept_percent if worst else None,
        "windows": worst.windows if worst else 0,
        "measured": all(gpu.measured for gpu in gpus),
    }


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
