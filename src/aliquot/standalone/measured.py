"""A machine's GPUs and workloads: what its ledger promises and its SharePods say, with what the arbiter measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from aliquot.arbiter.records import Status
from aliquot.model.quantities import MILLI
from aliquot.standalone.wire import PodFacts
from aliquot.status import PENDING, RUNNING, Gpu, Share, Standing, Workload
from aliquot.status.gpus import with_measures
from aliquot.status.workloads import PARKED, placed

Kept = Callable[[str, str], tuple[float | None, int]]
"""(gpu, tenant) -> percent of windows kept and how many there were."""


def measured_gpus(
    gpus: Sequence[Gpu], status: Status | None, kept: Kept, owner_of: Callable[[str], str] = lambda tenant: ""
) -> list[Gpu]:
    """The ledger's GPUs with what the arbiter measures; without a status (it is being restarted) use is not known."""
    measures = {gpu.uuid: gpu for gpu in status.gpus} if status else {}
    measured = []
    for gpu in gpus:
        now = measures.get(gpu.uuid)
        tenants = {tenant.name: tenant for tenant in now.tenants} if now else {}
        laid_over = with_measures(
            gpu,
            busy_milli=round(now.busy * MILLI) if now else 0,
            holder=(now.holder or "") if now else "",
            now=tenants.get,
            kept=partial(kept, gpu.uuid),
            owner_of=owner_of,
        )
        measured.append(msgspec.structs.replace(laid_over, measured=status is not None))
    return measured


def workloads_of(gpus: Sequence[Gpu], pods: Sequence[PodFacts], ages_s: Mapping[str, float]) -> list[Workload]:
    """SharePods and single runs, waiting ones first; `ages_s` are those of the tenants that are known."""
    owns: dict[str, list[tuple[Gpu, Share]]] = {}
    for gpu in gpus:
        for share in gpu.shares:
            owns.setdefault(share.tenant, []).append((gpu, share))
    names = {pod.name for pod in pods}
    workloads = []
    for pod in pods:
        standing = Standing("SharePod", pod.state, pod.age_s, pod.restarts, pod.message)
        asked = {name: getattr(pod, name) for name in ("request_milli", "limit_milli", "memory_mib", "events")}
        workloads.append(msgspec.structs.replace(placed(pod.name, owns.get(pod.name, []), standing), **asked))
    workloads += [
        placed(name, own, Standing("Run", PARKED if own[0][1].memory_parked_mib else RUNNING, ages_s.get(name, 0.0)))
        for name, own in owns.items()
        if name not in names
    ]
    return sorted(workloads, key=lambda workload: (workload.state != PENDING, workload.name))
