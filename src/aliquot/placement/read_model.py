"""The ledger, requests that people try, and explanations, as the read model has them.

What every program shows of the ledger, and the pages and the API of a request, is drawn from these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from aliquot.model.ids import TenantName
from aliquot.model.requests import GpuRequest
from aliquot.placement.cluster import Cluster
from aliquot.placement.explain import PlacementExplanation
from aliquot.placement.machine import MachineLedger, NeverFits
from aliquot.placement.sentences import FITS, FREE_NOW, never, not_counted, reported
from aliquot.status import Explanation, Gpu, Reason, Trial
from aliquot.status.gpus import gpu_state, grown, promised
from aliquot.status.workloads import piece_of

YOURS = TenantName("your-request")
THIS: Final = "It"
"""The name of a request that has none."""
REASONS: Final = 50
_OF_GPU: Final = ("index", "uuid", "model", "memory_mib", "free_milli", "free_mib")
_OF_SHARE: Final = ("tenant", "request_milli", "limit_milli", "memory_mib")
Hidden = Callable[[str], bool]
"""Whether a tenant is a program's own and not shown."""


def ledger_gpu(cluster: Cluster, node: int, gpu: int, hidden: Hidden = lambda tenant: False) -> Gpu:
    """A device by the index of its node and its place there, with its tenants in the order of arrival.

    Nothing of it is measured; `vgpu` is the name by which its tenants requested it.
    """
    spec = cluster.spec(node)
    device = spec.gpus[gpu]
    residents = [resident for resident in cluster.residents(node, gpu) if not hidden(resident.tenant)]
    return Gpu(
        uuid=device.uuid,
        index=device.index,
        node=spec.name,
        model=device.model,
        memory_mib=device.memory_mib,
        state=gpu_state([resident.piece.request_milli for resident in residents]),
        free_milli=cluster.free_milli.item(node, gpu),
        free_mib=cluster.free_mib.item(node, gpu),
        busy_milli=0,
        memory_used_mib=0,
        shares=[promised(resident.tenant, resident.piece) for resident in residents],
        vgpu=next((resident.gpu_id for resident in residents if resident.gpu_id), ""),
        measured=False,
    )


def ledger_gpus(cluster: Cluster, node: str, hidden: Hidden = lambda tenant: False) -> list[Gpu]:
    """The devices of a node, in the order of the ledger; it is a node of the cluster."""
    number = cluster.node_index(node)
    return [ledger_gpu(cluster, number, gpu, hidden) for gpu in range(len(cluster.spec(number).gpus))]


def ledger_facts(gpu: Gpu) -> dict[str, Any]:
    """What the ledger says of a GPU as plain values, for JSON; its node is the reader's to add."""
    residents = [{name: getattr(share, name) for name in _OF_SHARE} for share in gpu.shares]
    return {name: getattr(gpu, name) for name in _OF_GPU} | {"residents": residents}


def shown(name: str, found: PlacementExplanation, said: str = "") -> Explanation:
    """An explanation as the API has it; `said` is what kube-scheduler says of a pod that it has not placed."""
    reasons = [Reason(each.where, each.text, each.lasting) for each in found.place_reasons[:REASONS]]
    sentence = found.headline(name, fits=FREE_NOW if said else FITS)
    why = [*found.account, *not_counted(found.barred)]
    if said and found.placement is not None:
        why.append(reported(said))
    return Explanation(name, sentence, why, reasons, found.nearest, found.ways)


def trial(found: PlacementExplanation, gpus: Iterable[Gpu]) -> Trial:
    """Where a request would be placed, and what would be left of the GPUs there."""
    it = shown(THIS, found)
    slices = found.placement.slices if found.placement is not None else ()
    known = {gpu.uuid: gpu for gpu in gpus}
    touched = [(known[piece.gpu], piece) for piece in slices if piece.gpu in known]
    pieces = [piece_of(gpu, piece) for gpu, piece in touched]
    before, after = [gpu for gpu, _ in touched], [grown(gpu, YOURS, piece) for gpu, piece in touched]
    fits = found.placement is not None
    place = " and ".join(f"GPU {piece.index}" for piece in pieces)
    sentence = f"It fits on {place} of {pieces[0].node}." if pieces else it.sentence
    return Trial(fits, sentence, found.policy, pieces, before, after, it.why, it.reasons, it.nearest, it.ways)


def try_request(ledger: MachineLedger, gpus: Iterable[Gpu], request: GpuRequest) -> Trial:
    """Where a request would be placed; the ledger is unchanged."""
    try:
        return trial(ledger.explain(request), gpus)
    except NeverFits as error:
        return Trial(False, never(THIS, str(error)), ledger.policy)


def explain_request(ledger: MachineLedger, name: str, request: GpuRequest) -> Explanation:
    """Why a request waits, device by device, and the smallest change that would let it in."""
    try:
        return shown(name, ledger.explain(request))
    except NeverFits as error:
        return Explanation(name, never(name, str(error)))


def explain_tenant(ledger: MachineLedger, name: TenantName) -> Explanation:
    """Where a tenant is, and why it would be placed there again; a tenant without a place gets a message."""
    if name not in ledger.plans:
        return Explanation(name, f"{name} has ended; it holds no GPU.")
    return shown(name, ledger.explain_tenant(name))
