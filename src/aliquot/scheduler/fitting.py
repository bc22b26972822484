"""Places for the containers of one pod on one node, when not all of them run at once, and the plan that they make.

Init containers run one after another before the others, sidecars among them from their start on. Each phase of a pod
has to fit by itself; a GPU that one phase has is free for another, and is preferred, so that a pod holds the largest of
its phases and not their sum.

Source: Kubernetes, "Sidecar containers", resource sharing within containers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, product
from typing import Final

from aliquot.driver.cores import least_used
from aliquot.kube.plan import ContainerPlan, PodPlan
from aliquot.kube.requests import PlacementUnit, PodAsk
from aliquot.placement.asks import Ask
from aliquot.placement.books import LedgerError, Placement
from aliquot.placement.cluster import Cluster
from aliquot.placement.decide import Decider
from aliquot.placement.reasons import Infeasible, judge
from aliquot.placement.rules import models_apart
from aliquot.placement.sentences import refusal, sentence_of
from aliquot.scheduler.allocations import Allocation, AllocationPart, bookings, phases

_CHOICES_MOST: Final = 64
_DEVICES_SHOWN: Final = 8


def fit(
    decider: Decider,
    units: Sequence[PlacementUnit],
    node: str,
    namespace: str,
    refused: Callable[[PlacementUnit], None] = lambda _: None,
) -> list[Placement] | None:
    """A placement for each of the requests if all fit on the node; otherwise None.

    The ledger is unchanged afterwards; `refused` is called with what did not fit while the others are still in it.
    """
    for choice in one_model_each(decider.cluster, units, node):
        placed = _fit(decider, choice, node, namespace, refused)
        if placed is not None:
            return placed
    return None


def _fit(
    decider: Decider,
    units: Sequence[PlacementUnit],
    node: str,
    namespace: str,
    refused: Callable[[PlacementUnit], None],
) -> list[Placement] | None:
    trial = _Trial(decider, node, namespace)
    with decider.cluster.trial():
        for number, unit in enumerate(units, 1):
            if not trial.place(unit, last=number == len(units)):
                refused(unit)
                return None
        return trial.placements


class _Trial:
    """The requests of a pod that have a place so far, those of them in the ledger that run beside the next one."""

    def __init__(self, decider: Decider, node: str, namespace: str) -> None:
        self.placements: list[Placement] = []
        self._decider = decider
        self._node = node
        self._namespace = namespace
        self._parts: list[AllocationPart] = []
        self._names: list[str] = []
        self._phased = False

    def place(self, unit: PlacementUnit, *, last: bool) -> bool:
        """Whether a place exists for it; the last one need not be in the ledger, since no other has to fit with it."""
        try:
            return self._place(unit, last=last)
        except LedgerError:
            return False

    def _place(self, unit: PlacementUnit, *, last: bool) -> bool:
        self._phased = self._phased or unit.init > 0
        apart: set[str] = set()
        if self._phased:
            beside = phases(self._parts, unit.init)
            apart = _gpus(self._parts) - _gpus([part for phase in beside for part in phase])
            while self._names:
                self._decider.cluster.release(self._names.pop())
            for part in bookings(beside):
                self._reserve(part)
        ask = unit.ask
        placed = self._on(_within(ask, apart)) if apart else None
        placed = placed or self._on(ask)
        if placed is None:
            return False
        self.placements.append(placed)
        part = AllocationPart(unit.tenant, unit.init, placed.slices, ask.labels, ask.gpu_id, ask.wake_us)
        self._parts.append(part)
        if not (self._phased or last):
            self._reserve(part)
        return True

    def _on(self, ask: Ask | None) -> Placement | None:
        found = self._decider.place_on(ask, self._node, self._namespace) if ask is not None else None
        return None if isinstance(found, Infeasible) else found

    def _reserve(self, part: AllocationPart) -> None:
        name = f"{self._namespace}/~trial/{len(self._names)}"
        self._decider.cluster.reserve(name, Placement(self._node, part.slices), part.ask)
        self._names.append(name)


def _gpus(parts: Collection[AllocationPart]) -> set[str]:
    return {str(piece.gpu) for part in parts for piece in part.slices}


def _within(ask: Ask, gpus: Collection[str]) -> Ask | None:
    """The request for these GPUs only; None where it names others."""
    named = [uuid.strip() for uuid in ask.gpu_uuid.split(",")] if ask.gpu_uuid else sorted(gpus)
    kept = [uuid for uuid in named if uuid in gpus]
    return ask.but(gpu=",".join(kept)) if kept else None


def one_model_each(cluster: Cluster, units: Sequence[PlacementUnit], node: str) -> Iterator[Sequence[PlacementUnit]]:
    """The asks as they are, or where equal parts of one container would be on different models of the node, once for
    each choice of the models that these containers' parts are on."""
    number = cluster.index[node]
    apart = sorted({unit.container for unit in units if unit.part and not unit.ask.mixed})
    if number not in cluster.mixed or not apart:
        yield units
        return
    spec = cluster.spec(number)
    kinds = [[spec.gpus[g].uuid for g in gpus] for gpus in models_apart(cluster, number, range(len(spec.gpus)))]
    for choice in islice(product(kinds, repeat=len(apart)), _CHOICES_MOST):
        on = dict(zip(apart, choice, strict=True))
        yield [_among(unit, on[unit.container]) if unit.container in on else unit for unit in units]


def _among(unit: PlacementUnit, uuids: Sequence[str]) -> PlacementUnit:
    """The same request on some of the devices that it allows."""
    return replace(unit, ask=_within(unit.ask, uuids) or unit.ask.but(gpu="none"))


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
