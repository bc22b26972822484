"""What one pod holds on one node: where its containers get their places, the plan that these make, and what is booked.

Not all containers of a pod run at once. Init containers run one after another before the others, sidecars among them
from their start on. Each phase of a pod has to fit by itself; a GPU that one phase has is free for another, and is
preferred. So of each GPU a pod holds what the largest of its phases has there and not their sum, and no longer than
that phase may still come.

Source: Kubernetes, "Sidecar containers", resource sharing within containers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from typing import Final

from aliquot.driver.cores import least_used
from aliquot.kube.plan import ContainerPlan, PodPlan
from aliquot.kube.requests import PlacementUnit, PodAsk
from aliquot.model.quantities import MILLI, Memory
from aliquot.model.requests import GpuRequest, Labels, Slice
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster
from aliquot.placement.decide import Decider
from aliquot.placement.entries import LedgerError, Placement
from aliquot.placement.fits import models_apart
from aliquot.placement.reasons import Infeasible, judge
from aliquot.placement.sentences import refusal, sentence_of

_CHOICES_MOST: Final = 64
_DEVICES_SHOWN: Final = 8


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
    initialized: bool = False
    """The init containers have ended, and what only they had is given back."""


@dataclass(frozen=True)
class AllocationPart:
    """What one container, or one of its equal parts, has; `init` as in the plan."""

    name: str
    init: int
    slices: tuple[Slice, ...]
    labels: Labels
    gpu_id: str
    wake_us: int = 0

    @property
    def ask(self) -> Ask:
        """The ask that these slices meet, for the ledger."""
        milli = sum(piece.request_milli for piece in self.slices)
        shared = self.slices[-1].memory_mib if milli % MILLI or len(self.slices) == 1 else 0
        memory = Memory(mib=shared) if shared else None
        limit_milli = sum(piece.limit_milli for piece in self.slices)
        return Ask(GpuRequest(milli, limit_milli, memory, gpu_id=self.gpu_id, labels=self.labels, wake_us=self.wake_us))


# Places


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
    by_name = {c.container: c for c in ask.containers}
    booked = [plan for other in others for plan in other.plan.containers.values() if not plan.uses]
    for unit, placement in sorted(placed, key=lambda each: (each[0].container, each[0].part)):
        before = found.get(unit.container)
        slices = (before.slices if before else ()) + placement.slices
        asked = by_name[unit.container]
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


# Bookings


def phases(parts: Sequence[AllocationPart], init: int | None = None) -> list[list[AllocationPart]]:
    """Which of the parts run at the same time: the last phase first, then those of the init containers in order.

    With `init` only the phases in which a container of that place runs.
    """
    numbers = sorted(
        {part.init for part in parts if part.init > 0} | ({init} if init is not None and init > 0 else set())
    )
    found = [] if init is not None and init > 0 else [[part for part in parts if part.init <= 0]]
    for number in numbers:
        if init is None or init == number or -number < init < 0:
            beside = [part for part in parts if -number < part.init < 0]
            found.append([*beside, *(part for part in parts if part.init == number)])
    return found


def bookings(phases_: Iterable[Sequence[AllocationPart]]) -> list[AllocationPart]:
    """What to book so that of each GPU the largest of the phases is held: parts cut to what they add to it."""
    peak: dict[str, tuple[int, int]] = {}
    added: dict[str, tuple[AllocationPart, list[Slice]]] = {}
    for phase in phases_:
        level: dict[str, tuple[int, int]] = {}
        for part in phase:
            for piece in part.slices:
                milli, mib = level.get(piece.gpu, (0, 0))
                milli, mib = level[piece.gpu] = (milli + piece.request_milli, mib + piece.memory_mib)
                max_milli, max_mib = peak.get(piece.gpu, (0, 0))
                more_milli, more_mib = max(0, milli - max_milli), max(0, mib - max_mib)
                if more_milli or more_mib:
                    peak[piece.gpu] = (max_milli + more_milli, max_mib + more_mib)
                    cut = Slice(piece.gpu, more_milli, piece.limit_milli, more_mib)
                    added.setdefault(part.name, (part, []))[1].append(cut)
    return [_cut(part, tuple(slices)) for part, slices in added.values()]


def _cut(part: AllocationPart, slices: tuple[Slice, ...]) -> AllocationPart:
    """A part with only some of what it has: its pod's other containers answer for its labels there."""
    if slices == part.slices:
        return part
    return replace(part, slices=slices, labels=Labels(exclusion=part.labels.exclusion))


def parts_of(key: str, plan: PodPlan) -> list[AllocationPart]:
    """What the containers of a pod have, one by one; those that use another's are left out."""
    found = []
    for container, given in plan.containers.items():
        if given.uses or not given.slices:
            continue
        groups = [given.slices] if given.parts == 1 else [(piece,) for piece in given.slices]
        for number, slices in enumerate(groups):
            suffix = f"#{number + 1}" if number else ""
            name = f"{key}/{container}{suffix}"
            found.append(AllocationPart(name, given.init, slices, given.labels, given.gpu_id, given.wake_us))
    return found


def reservations(allocation: Allocation) -> list[tuple[str, Placement, Ask]]:
    """The bookings that a plan stands for, as they were when it was made."""
    parts = parts_of(allocation.key, allocation.plan)
    booked = bookings(phases(parts, 0 if allocation.initialized else None))
    return [(part.name, Placement(allocation.node, part.slices), part.ask) for part in booked]
