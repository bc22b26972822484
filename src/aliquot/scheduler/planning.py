"""The plan of a pod: what its containers get on a node and which CPU cores near it, or why one of them gets none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from aliquot.driver.cores import least_used
from aliquot.kube.plan import ContainerPlan, PodPlan
from aliquot.kube.requests import PlacementUnit, PodAsk
from aliquot.placement.books import Placement
from aliquot.placement.cluster import Cluster
from aliquot.placement.decide import Decider
from aliquot.placement.reasons import judge
from aliquot.placement.sentences import refusal, sentence_of
from aliquot.scheduler.allocations import Allocation

_DEVICES_SHOWN: Final = 8


def pod_plan(
    cluster: Cluster,
    ask: PodAsk,
    node: str,
    placed: Sequence[tuple[PlacementUnit, Placement]],
    others: Iterable[Allocation],
) -> PodPlan:
    """The plan for a pod whose units have these places on a node; `others` are the allocations there."""
    found: dict[str, ContainerPlan] = {}
    booked = [plan for other in others for plan in other.plan.containers.values() if not plan.uses]
    for unit, placement in sorted(placed, key=lambda each: (each[0].container, each[0].part)):
        before = found.get(unit.container)
        slices = (before.slices if before else ()) + placement.slices
        asked = ask.container(unit.container)
        assert asked is not None
        found[unit.container] = ContainerPlan(
            slices,
            _cores(cluster, slices[0].gpu, unit.ask.near_cores, chain(booked, found.values())),
            unit.ask.labels if asked.parts > 1 else asked.request.labels,
            asked.request.gpu_id,
            asked.parts,
            enforce=asked.enforced,
            init=asked.init,
            wake_us=asked.request.wake_us,
        )
    for asked in ask.containers:
        if asked.uses:
            found[asked.container] = replace(found[asked.uses], uses=asked.uses, init=asked.init)
    return PodPlan(node, found)


def why_not(decider: Decider, unit: PlacementUnit, node: str, namespace: str) -> str:
    """Why a unit does not fit on a node, with the first of its devices."""
    verdict = judge(decider.cluster, unit.ask, node, decider.quotas, namespace)
    if verdict.reason is None:
        return f'container "{unit.container}" fits on node "{node}" no more'
    devices = f" ({refusal(verdict, _DEVICES_SHOWN)})" if any(verdict.devices) else ""
    return f'container "{unit.container}": node {sentence_of(verdict.reason)}{devices}'


def _cores(cluster: Cluster, gpu: str, count: int, plans: Iterable[ContainerPlan]) -> tuple[int, ...]:
    """The requested number of cores near a GPU, the least bound by these plans first."""
    number, g = cluster.uuids[gpu]
    topology = cluster.spec(number).topology
    if topology is None or not count:
        return ()
    used = Counter(core for plan in plans for core in plan.cores)
    return tuple(sorted(least_used(topology.cores[g], count, used)))
