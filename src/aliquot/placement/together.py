"""Where several asks fit at once, told for all nodes from the columns of the ledger and not by placing each ask.

A device has *slots* for an ask: how often that ask fits on it. Another ask takes some of them wherever it is placed:
at least as many as the smaller, at most as many as the larger of the quotients of their compute and memory. Where the
slots of a node are fewer than all asks take at least, they do not fit; where there is a slot left for each after those
before it took the most, they fit, whatever devices a policy chooses. For equal asks the two are the same number. Nodes
between the two have to be tried: one ask after the other is placed there.

Not all asks are at the same time. Init containers run one after another before the others, sidecars among them from
their start on. Each phase of a pod has to fit by itself; a GPU that one phase has is free for another, and is
preferred. So of each GPU a pod holds what the largest of its phases has there and not their sum, and no longer than
that phase may still come.

Source: Kubernetes, "Sidecar containers", resource sharing within containers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Final

import numpy as np

from aliquot.lib.arrays import BoolArray, IntArray
from aliquot.model.quantities import MILLI, Memory
from aliquot.model.requests import GpuRequest, Labels, Slice
from aliquot.placement.asks import PPM, Ask, PlacementUnit
from aliquot.placement.cluster import Cluster
from aliquot.placement.columns import MAX_AMOUNT
from aliquot.placement.entries import LedgerError, Placement
from aliquot.placement.fits import Rules, models_apart, one_model, rest_mask, whole_mask

_CHOICES_MOST: Final = 64


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


@dataclass(frozen=True, slots=True)
class _Takes:
    """What asks take of devices, for devices of each size in `sizes` [S]: `whole` [n] devices in full, and of one more
    `milli` [n] and `mib` [n, S]; of `devices` [n] in all."""

    sizes: IntArray
    devices: IntArray
    whole: IntArray
    milli: IntArray
    mib: IntArray

    @classmethod
    def of(cls, asks: Sequence[Ask], sizes: IntArray) -> _Takes:
        one = [ask.devices == 1 and ask.whole == 1 for ask in asks]
        return cls(
            sizes,
            np.array([ask.devices for ask in asks]),
            np.array([0 if alone else ask.whole for ask, alone in zip(asks, one, strict=True)]),
            np.array([MILLI if alone else ask.rest_milli for ask, alone in zip(asks, one, strict=True)]),
            np.array([
                [ask.shape.memory_on(size) if alone or ask.rest_milli else 0 for size in sizes.tolist()]
                for ask, alone in zip(asks, one, strict=True)
            ]),
        )  # fmt: skip

    def slots(self, number: int) -> tuple[IntArray, IntArray]:
        """How many slots of this ask each ask takes at least and at most: [n] each. Of an ask with whole devices these
        are idle devices."""
        if not (milli := int(self.milli[number])) or self.whole[number] or milli == MILLI:
            return self.whole + (self.milli == MILLI), self.devices
        mib = np.maximum(self.mib[number], 1)
        full = np.minimum(MILLI // milli, self.sizes // mib)
        least = self.whole * int(full.min()) + np.minimum(self.milli // milli, (self.mib // mib).min(axis=1))
        most = self.whole * int(full.max()) + np.maximum(-(-self.milli // milli), (-(-self.mib // mib)).max(axis=1))
        return least, most


def bounds(
    cluster: Cluster, units: Sequence[PlacementUnit], nodes: IntArray, rules: Callable[[Ask], Rules | None]
) -> tuple[BoolArray, BoolArray]:
    """On which of the nodes the asks fit together under any policy, and on which they may: bool [n] each.

    They are placed in this order, and each fits alone. Quotas are not looked at but for what `rules` leave of each
    ask's devices now.
    """
    asks = [(unit.ask, unit.init) for unit in units]
    surely, maybe = np.ones((2, len(nodes)), dtype=np.bool_)
    wanted = [ask for ask, _ in asks]
    takes = _Takes.of(wanted, np.unique(cluster.size_mib[cluster.size_mib > 0]))
    lasting = np.array([init <= 0 for _, init in asks])
    maybe &= cluster.free_total[nodes] >= sum(ask.milli for ask, init in asks if init <= 0)
    plain = len({_kind(ask) for ask in wanted}) == 1 and not wanted[0].labels.anti_affinity and not wanted[0].wake_us
    if any(ask.labels.affinity or ask.gpu_id for ask in wanted):
        surely[:] = False  # where the first of them goes the others have to go
    if any(ask.devices > 1 or ask.labels.anti_affinity for ask in wanted):
        surely &= ~np.isin(nodes, sorted(cluster.mixed))  # several devices of one ask are to be of one model
    for number in sorted({each: number for number, each in enumerate(asks)}.values()):
        left = np.flatnonzero(maybe)
        ask, init = asks[number]
        before = np.array([_beside(other, init) for _, other in asks[:number]], dtype=np.bool_)
        alike = lasting & np.array([_kind(other) == _kind(ask) for other in wanted])
        mask, often = _devices(cluster, ask, nodes[left], rules(ask))
        least, most = takes.slots(number)
        devices = takes.devices[:number][before]
        sure = mask.sum(axis=1) >= ask.devices + int(devices.sum())
        if plain and not ask.whole:
            # Of each device that an ask is on it takes all slots at most.
            taken = np.minimum(most[:number][before], devices * often.max(axis=1, initial=0)[:, None]).sum(axis=1)
            sure |= often.sum(axis=1) > taken
        surely[left] &= sure
        if ask.labels.anti_affinity and not ask.whole:
            often, least = mask.astype(np.int64), np.minimum(least, 1)
        if ask.gpu_mib and ask.whole:  # of several devices the whole ones may be smaller than that
            alike &= np.array([ask.devices == one.devices == 1 and one.gpu_mib >= ask.gpu_mib for one in wanted])
        if not one_model(cluster, ask):
            maybe[left] &= often.sum(axis=1) >= int(least[alike].sum())
    return surely & maybe, maybe


def _kind(ask: Ask) -> tuple[object, ...]:
    """What decides which devices are ruled out for an ask; those of one kind have the same devices."""
    return (ask.models, ask.gpu_uuid, ask.gpu_id, ask.labels, ask.wake_us)


def _beside(one: int, other: int) -> bool:
    """Whether containers of these places among the init containers run at the same time."""
    first, last = sorted((one, other))
    return last <= 0 or first == last or -last < first < 0


def _devices(cluster: Cluster, ask: Ask, nodes: IntArray, rules: Rules | None) -> tuple[BoolArray, IntArray]:
    """The devices of these nodes that an ask may use, idle ones where it takes whole ones, and how many slots for it
    each has: [n, G]."""
    shape, size = ask.shape, cluster.size_mib[nodes]
    mask = whole_mask(cluster, shape, nodes) if shape.whole else rest_mask(cluster, shape, nodes)
    if shape.devices > 1 and shape.gpu_mib:
        mask &= size >= shape.gpu_mib
    if rules is not None:
        mask &= rules.mask_for(nodes, *cluster.free_milli.shape)
    if shape.whole:
        return mask, mask.astype(np.int64)
    part, whole = (shape.gpu_mem_ppm, PPM) if shape.gpu_mem_ppm else (shape.rest_milli, MILLI)
    mib = np.full_like(size, min(shape.gpu_mib, MAX_AMOUNT)) if shape.gpu_mib else size * part // whole
    often = np.minimum(cluster.free_milli[nodes] // shape.rest_milli, cluster.free_mib[nodes] // np.maximum(mib, 1))
    return mask, often * mask


class PodTrial:
    """The requests of a pod that have a place so far, those of them in the ledger that run beside the next one.

    `place_on` decides for one ask on the node as it is.
    """

    def __init__(
        self, cluster: Cluster, node: str, namespace: str, place_on: Callable[[Ask], Placement | None]
    ) -> None:
        self.placements: list[Placement] = []
        self._cluster, self._node, self._namespace, self._place_on = cluster, node, namespace, place_on
        self._parts: list[AllocationPart] = []
        self._names: list[str] = []
        self._phased = False

    def place(self, unit: PlacementUnit, *, last: bool) -> bool:
        """Whether a place exists for it; the last one need not be in the ledger, since no other has to fit with it."""
        self._phased = self._phased or unit.init > 0
        apart: set[str] = set()
        if self._phased:
            beside = phases(self._parts, unit.init)
            apart = _gpus(self._parts) - _gpus([part for phase in beside for part in phase])
            while self._names:
                self._cluster.release(self._names.pop())
            if not all(self._reserve(part) for part in reserved_parts(beside)):
                return False
        ask = unit.ask
        kept = _within(ask, apart) if apart else None
        placed = (self._place_on(kept) if kept is not None else None) or self._place_on(ask)
        if placed is None:
            return False
        self.placements.append(placed)
        part = AllocationPart(unit.tenant, unit.init, placed.slices, ask.labels, ask.gpu_id, ask.wake_us)
        self._parts.append(part)
        return self._phased or last or self._reserve(part)

    def _reserve(self, part: AllocationPart) -> bool:
        name = f"{self._namespace}/~trial/{len(self._names)}"
        try:
            self._cluster.reserve(name, Placement(self._node, part.slices), part.ask)
        except LedgerError:
            return False
        self._names.append(name)
        return True


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
        yield [
            replace(unit, ask=_within(unit.ask, on[unit.container]) or unit.ask.but(gpu="none"))
            if unit.container in on
            else unit
            for unit in units
        ]


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


def reserved_parts(phases_: Iterable[Sequence[AllocationPart]]) -> list[AllocationPart]:
    """What to reserve so that of each GPU the largest of the phases is held: parts cut to what they add to it."""
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
    return [
        part
        if tuple(slices) == part.slices  # else its pod's other containers answer for its labels there
        else replace(part, slices=tuple(slices), labels=Labels(exclusion=part.labels.exclusion))
        for part, slices in added.values()
    ]
