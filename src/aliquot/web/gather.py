"""Makes the read model's records from the state of one machine's engine and arbiter: no clock, no socket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from aliquot.arbiter.records import GpuStatus, Status
from aliquot.driver.gpu import Gpu as Card
from aliquot.model.quantities import MILLI
from aliquot.model.requests import Slice
from aliquot.standalone.wire import PodFacts
from aliquot.status.gpus import Gpu, Share, gpu_state, measured, promised
from aliquot.status.workloads import PENDING, Standing, Workload, placed

Kept = Callable[[str, str], tuple[float | None, int]]
"""(gpu, tenant) -> percent of windows kept and how many there were."""


@dataclass(frozen=True)
class PlacedTenant:
    """A tenant with its slices; `gpu_id` is the vGPU it named."""

    name: str
    slices: tuple[Slice, ...]
    age_s: float = 0.0
    gpu_id: str = ""


def gpus_of(
    node: str,
    cards: Iterable[Card],
    tenants: Sequence[PlacedTenant],
    status: Status | None,
    kept: Kept,
    *,
    emulated: bool,
) -> list[Gpu]:
    """Every GPU of one machine; without a status (the arbiter is being restarted) its use is unknown."""
    now = {gpu.uuid: gpu for gpu in status.gpus} if status else {}
    made = [_gpu(node, card, tenants, now.get(card.uuid), kept, emulated) for card in cards]
    return made if status else [msgspec.structs.replace(gpu, measured=False) for gpu in made]


def _gpu(
    node: str, card: Card, tenants: Sequence[PlacedTenant], now: GpuStatus | None, kept: Kept, emulated: bool
) -> Gpu:
    measures = {tenant.name: tenant for tenant in now.tenants} if now else {}
    here = [(tenant, piece) for tenant in tenants for piece in tenant.slices if piece.gpu == card.uuid]
    shares = [
        measured(promised(tenant.name, piece), measures.get(tenant.name), kept(piece.gpu, tenant.name))
        for tenant, piece in here
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
        vgpu=next((tenant.gpu_id for tenant, _ in here if tenant.gpu_id), ""),
        emulated=emulated,
    )


def workloads_of(gpus: Sequence[Gpu], pods: Sequence[PodFacts], tenants: Sequence[PlacedTenant]) -> list[Workload]:
    """SharePods and single runs, waiting ones first."""
    places = {(gpu.uuid, share.tenant): (gpu, share) for gpu in gpus for share in gpu.shares}
    owns = {
        tenant.name: [places[at] for piece in tenant.slices if (at := (piece.gpu, tenant.name)) in places]
        for tenant in tenants
    }
    known = {pod.name for pod in pods}
    found = [_pod(pod, owns.get(pod.name, [])) for pod in pods]
    runs = [tenant for tenant in tenants if tenant.name not in known]
    found += [placed(run.name, owns[run.name], Standing("Run", age_s=run.age_s)) for run in runs]
    return sorted(found, key=lambda workload: (workload.state != PENDING, workload.name))


def _pod(pod: PodFacts, own: Sequence[tuple[Gpu, Share]]) -> Workload:
    made = placed(pod.name, own, Standing("SharePod", pod.state, pod.age_s, pod.restarts, pod.message))
    return msgspec.structs.replace(
        made,
        request_milli=pod.request_milli,
        limit_milli=pod.limit_milli,
        memory_mib=pod.memory_mib,
        events=pod.events,
    )
