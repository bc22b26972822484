"""What one pod holds on one node: its plan, from where placement puts it, and the reservations that it stands for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from aliquot.driver.gpu import least_used
from aliquot.kube.plan import ContainerPlan, PodPlan, label_texts
from aliquot.kube.requests import PodAsk
from aliquot.model.ids import GpuUuid, split_key
from aliquot.model.quantities import MILLI
from aliquot.model.requests import GpuRequest, Slice
from aliquot.placement.asks import Ask, PlacementUnit
from aliquot.placement.changes import changes
from aliquot.placement.cluster import Cluster
from aliquot.placement.decide import Decider
from aliquot.placement.entries import LedgerError, Placement
from aliquot.placement.fits import AllocationPart, phases, reserved_parts
from aliquot.placement.quota import QuotaExceeded
from aliquot.placement.reasons import Infeasible, judge
from aliquot.placement.sentences import refusal, sentence_of, shortfall, suggestion

_DEVICES_SHOWN: Final = 8
POST_S: Final = 4.0
"""How long a bind or a resize is tried in all; shorter than the time between the end of one's lead and the beginning of
another's, so that nothing is sent when another leads."""
CLOSED: Final = "~closed/"
"""Tenants with this prefix are not pods: they keep devices that are about to leave the pool."""


@dataclass(eq=False)
class Allocation:
    """What one pod holds on one node. `confirmed` once the API server shows the pod bound there by this plan."""

    uid: str
    key: str
    node: str
    plan: PodPlan
    tenants: tuple[str, ...]
    since_s: float
    confirmed: bool = False
    in_doubt: bool = False
    """A bind was sent and its fate is not known."""
    assumed: bool = False
    """No bind was asked for yet: kube-scheduler places the pod's group (`groups`)."""
    resized_from: str | None = None
    """The version of the pod that a new size was written to, and it is not known whether that arrived: while the pod
    is shown with this version, the larger of both sizes stays reserved."""
    initialized: bool = False
    """The init containers have ended, and what only they had is given back."""

    @property
    def milli(self) -> int:
        """The milli-GPU that all its containers request."""
        return sum(piece.request_milli for piece in self.plan.slices)


def keeps_closed(tenant: str) -> bool:
    """Whether a tenant only keeps others off a device."""
    return tenant.startswith(CLOSED)


def closed_device(cluster: Cluster, uuid: str) -> tuple[str, Placement, Ask]:
    """The tenant that keeps others off a device, with its reservation of all of it."""
    number, gpu = cluster.uuids[uuid]
    spec = cluster.spec(number)
    whole = Slice(GpuUuid(uuid), MILLI, MILLI, spec.gpus[gpu].memory_mib)
    return f"{CLOSED}{uuid}", Placement(spec.name, (whole,)), Ask(GpuRequest(MILLI, MILLI))


def pod_plan(
    cluster: Cluster,
    ask: PodAsk,
    node: str,
    placed: Sequence[tuple[PlacementUnit, Placement]],
    others: Iterable[Allocation],
) -> PodPlan:
    """The plan for a pod whose units have these places on a node; `others` are the allocations there."""
    plans: dict[str, ContainerPlan] = {}
    by_name = {c.container: c for c in ask.containers}
    bound_cores = [plan for other in others for plan in other.plan.containers.values() if not plan.uses]
    for unit, placement in sorted(placed, key=lambda pair: (pair[0].container, pair[0].part)):
        before = plans.get(unit.container)
        slices = (before.slices if before else ()) + placement.slices
        asked = by_name[unit.container]
        cores: tuple[int, ...] = ()
        number, gpu = cluster.uuids[slices[0].gpu]
        topology = cluster.spec(number).topology
        if topology is not None and unit.ask.near_cores:  # the cores near the first GPU that are bound least
            used = Counter(core for plan in (*bound_cores, *plans.values()) for core in plan.cores)
            cores = tuple(sorted(least_used(topology.cores[gpu], unit.ask.near_cores, used)))
        plans[unit.container] = ContainerPlan(
            slices,
            cores,
            label_texts(unit.ask.labels if asked.parts > 1 else asked.request.labels),
            asked.request.gpu_id,
            asked.parts,
            enforce=asked.enforced,
            init=asked.init,
            wake_us=asked.request.wake_us,
            memory_limit=asked.request.memory_limit_text,
        )
    for asked in ask.containers:
        if asked.uses:
            plans[asked.container] = structs.replace(plans[asked.uses], uses=asked.uses, init=asked.init)
    return PodPlan(node, plans)


def why_not(decider: Decider, unit: PlacementUnit, node: str, namespace: str) -> str:
    """Why a unit does not fit on a node, with the first of its devices."""
    verdict = judge(decider.cluster, unit.ask, node, decider.quotas, namespace)
    if verdict.reason is None:
        return f'container "{unit.container}" fits on node "{node}" no more'
    devices = f" ({refusal(verdict, _DEVICES_SHOWN)})" if any(verdict.devices) else ""
    return f'container "{unit.container}": node {sentence_of(verdict.reason)}{devices}'


def why_not_resized(decider: Decider, wanted: Allocation) -> tuple[str, bool] | None:
    """Why a pod that has left the ledger cannot have these sizes on its devices, and whether it never can; None if not.

    The ledger is written into: call it in a trial.
    """
    namespace, cluster = split_key(wanted.key)[0], decider.cluster
    for tenant, placement, ask in reservations(wanted):
        here = ask.but(gpu=",".join(piece.gpu for piece in placement.slices))
        if isinstance(decider.place_on(here, wanted.node, namespace), Infeasible):
            verdict = judge(cluster, here, wanted.node, decider.quotas, namespace)
            ways = changes(cluster, here, [verdict], decider.quotas, namespace)
            nearest = next((f". Nearest: {suggestion(way)}" for way in ways if way.kind != "drop"), "")
            return f"{shortfall(here, verdict)}{nearest}", verdict.lasting
        try:
            decider.commit(f"{tenant}@{wanted.uid}", placement, ask)
        except (LedgerError, QuotaExceeded) as error:
            return str(error), False
    return None


def parts_of(key: str, plan: PodPlan) -> list[AllocationPart]:
    """What the containers of a pod have, one by one; those that use another's are left out."""
    parts = []
    for container, given in plan.containers.items():
        if given.uses or not given.slices:
            continue
        groups = [given.slices] if given.parts == 1 else [(piece,) for piece in given.slices]
        for number, slices in enumerate(groups):
            suffix = f"#{number + 1}" if number else ""
            name = f"{key}/{container}{suffix}"
            parts.append(AllocationPart(name, given.init, slices, given.labels, given.gpu_id, given.wake_us))
    return parts


def with_memory(cluster: Cluster, placement: Placement) -> Placement:
    """The same, with all the memory of whole GPUs: a claim does not say how much that is."""
    sizes = {device.uuid: device.memory_mib for device in cluster.spec(cluster.node_index(placement.node)).gpus}
    slices = [
        piece
        if piece.memory_mib or piece.request_milli < MILLI
        else Slice(piece.gpu, MILLI, MILLI, sizes.get(piece.gpu, 0))
        for piece in placement.slices
    ]
    return replace(placement, slices=tuple(slices))


def reservations(allocation: Allocation) -> list[tuple[str, Placement, Ask]]:
    """The reservations that a plan stands for, as they were when it was made."""
    parts = parts_of(allocation.key, allocation.plan)
    reserved = reserved_parts(phases(parts, 0 if allocation.initialized else None))
    return [(part.name, Placement(allocation.node, part.slices), part.ask) for part in reserved]
