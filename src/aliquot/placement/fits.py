"""Which nodes and which of their devices can take an ask now, and the choice among devices that most policies share.

First room: the rules for many nodes at once, on the columns of the ledger, are those for the devices of one node. Then
what labels, names, quota and promises leave: a mask of the devices that an ask may still use, where that is not all of
them.

Whether a device can promise a tenant how soon it wakes depends on the measured kernels of the tenants on it: the
longest recent one of each. A tenant that was not measured prevents nothing, but a device where all are measured is
preferred.

Where several asks fit at once, told for all nodes from the columns of the ledger and not by placing each ask.

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

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Final, NamedTuple

import numpy as np

from aliquot.lib.arrays import BoolArray, IntArray
from aliquot.model.quantities import MILLI, Memory
from aliquot.model.requests import GpuRequest, Labels, Slice
from aliquot.model.wake import longest_kernel_us
from aliquot.placement.asks import PPM, Ask, PlacementUnit, Shape
from aliquot.placement.cluster import Cluster
from aliquot.placement.entries import Cell, LedgerError, Placement
from aliquot.placement.kernels import MAX_AMOUNT
from aliquot.topology import Topology, best_set, set_cost

FLUID: Final = "fluid"
"""The order of turns that can promise when a tenant wakes."""


def rest_mask(cluster: Cluster, shape: Shape, nodes: IntArray) -> BoolArray:
    """Devices of these nodes that hold the rest by compute, memory and model: bool [n, G].

    Parts of memory are rounded down, so "size x part // whole <= free" is asked as "size x part < whole x (free + 1)":
    dividing arrays of integers would take most of a decision.
    """
    hold: BoolArray = cluster.free_milli[nodes] >= shape.rest_milli
    free = cluster.free_mib[nodes]
    if shape.gpu_mib:
        hold &= free >= shape.gpu_mib
    else:
        part, whole = (shape.gpu_mem_ppm, PPM) if shape.gpu_mem_ppm else (shape.rest_milli or MILLI, MILLI)
        hold &= cluster.size_mib[nodes] * part < (free + 1) * whole
    if shape.models:
        hold &= cluster.model_mask(shape.models)[cluster.model[nodes]]
    return hold


def whole_mask(cluster: Cluster, shape: Shape, nodes: IntArray) -> BoolArray:
    """Devices of these nodes that can be given whole: bool [n, G]."""
    hold: BoolArray = cluster.free_milli[nodes] == MILLI
    if shape.devices == 1 and shape.gpu_mib:
        hold &= cluster.size_mib[nodes] >= shape.gpu_mib
    if shape.models:
        hold &= cluster.model_mask(shape.models)[cluster.model[nodes]]
    return hold


def fitting_nodes(cluster: Cluster, shape: Shape, nodes: IntArray, allowed: BoolArray | None = None) -> BoolArray:
    """Which of these nodes can take the shape now: bool [n]; `allowed` [n, G] are the devices left by other rules."""
    fits: BoolArray = cluster.open[nodes] & (cluster.cpu_free[nodes] >= shape.cpu_milli)
    fits &= cluster.memory_free[nodes] >= shape.memory_mib
    if shape.devices == 0:
        return fits
    whole = rest = None
    if shape.whole:
        whole = whole_mask(cluster, shape, nodes)
        whole = whole if allowed is None else whole & allowed
    if shape.rest_milli:
        rest = rest_mask(cluster, shape, nodes)
        rest = rest if allowed is None else rest & allowed
    if whole is None:
        assert rest is not None
        return np.asarray(fits & rest.any(axis=1))
    count = whole.sum(axis=1)
    if rest is None:
        return np.asarray(fits & (count >= shape.whole))
    # The rest needs a device that the whole ones leave: a busy one, or one idle device more.
    apart = (rest & ~whole).any(axis=1) & (count >= shape.whole)
    return np.asarray(fits & (apart | ((rest & whole).any(axis=1) & (count > shape.whole))))


def hold_whole(cluster: Cluster, shape: Shape, node: int, gpus: Sequence[int]) -> list[int]:
    """Of these devices, those without tenants that are large enough to be given whole."""
    free = cluster.free_milli[node].tolist()
    idle = [g for g in gpus if free[g] == MILLI]
    if shape.devices > 1 or not shape.gpu_mib:
        return idle
    return [g for g in idle if shape.gpu_mib <= cluster.size_mib.item(node, g)]


def hold_rest(cluster: Cluster, shape: Shape, node: int, gpus: Sequence[int]) -> list[int]:
    """Of these devices, those that have the rest's compute and memory unreserved; none when no rest is asked."""
    if not shape.rest_milli:
        return []
    free, free_mib = cluster.free_milli[node].tolist(), cluster.free_mib[node].tolist()
    size = cluster.size_mib[node].tolist()
    return [g for g in gpus if free[g] >= shape.rest_milli and free_mib[g] >= shape.memory_on(size[g])]


def pick_devices(
    cluster: Cluster,
    shape: Shape,
    node: int,
    fitting: Sequence[int],
    prefers: Callable[[int, int], tuple[int, ...]],
) -> tuple[int, ...]:
    """Whole GPUs by Link, the rest on the one nearest to them; of equals what `prefers` orders first; then by id.

    Without a topology all devices are equally near, so whole GPUs are the first idle ones.
    """
    rest = hold_rest(cluster, shape, node, fitting)
    if shape.whole == 0:
        return (min(rest, key=lambda g: (*prefers(node, g), g)),) if rest else ()
    idle = hold_whole(cluster, shape, node, fitting)
    topology = cluster.spec(node).topology
    if not shape.rest_milli:
        return linked(topology, idle, shape.whole)
    options: list[tuple[int, tuple[int, ...], int, tuple[int, ...]]] = []
    for g in rest:
        others = [other for other in idle if other != g]
        if len(others) >= shape.whole:
            chosen = linked(topology, others, shape.whole)
            options.append((pair_cost(topology, (*chosen, g)), prefers(node, g), g, chosen))
    _, _, shared, wholes = min(options)
    return (*wholes, shared)


def linked(topology: Topology | None, idle: Sequence[int], count: int) -> tuple[int, ...]:
    """So many of the idle devices, close to each other; the first ones where nothing is known of their links."""
    if topology is None:
        return tuple(sorted(idle)[:count])
    return best_set(topology, idle, count)


def pair_cost(topology: Topology | None, gpus: Sequence[int]) -> int:
    """Sum of the link costs of all pairs; 0 without a topology."""
    return 0 if topology is None else set_cost(topology, gpus)


@dataclass(frozen=True, slots=True)
class Rules:
    """The nodes on which something is ruled out, and what is left there.

    `allowed` [n, G] is by the order of `nodes`; on nodes that are not listed every device is left, or none at all when
    `only` is set.
    """

    nodes: IntArray
    allowed: BoolArray
    only: bool

    def left_on(self, node: int, gpus: int) -> list[int]:
        """Devices left on one node."""
        (rows,) = np.nonzero(self.nodes == node)
        if len(rows):
            return [int(g) for g in np.flatnonzero(self.allowed[rows[0], :gpus])]
        return [] if self.only else list(range(gpus))

    def mask_for(self, nodes: IntArray, total: int, gpus: int) -> BoolArray:
        """Devices left on each of these nodes, of `total` there are: bool [n, gpus]."""
        everywhere = np.full((total, gpus), not self.only)
        everywhere[self.nodes] = self.allowed
        return np.asarray(everywhere[nodes])


def rules_for(cluster: Cluster, ask: Ask, closed_models: Collection[str], *, certain: bool) -> Rules | None:
    """The rules for an ask now; None when nothing is ruled out anywhere.

    With `certain`, devices on which a promise of waking cannot be judged yet are ruled out too.
    """
    rules = _ruled(cluster, ask, closed_models, certain=certain)
    return _of_one_model(cluster, ask, rules) if one_model(cluster, ask) else rules


def one_model(cluster: Cluster, ask: Ask) -> bool:
    """Whether the ask's GPUs have to be of one model, and some nodes have several."""
    return ask.devices > 1 and not ask.mixed and bool(cluster.mixed)


def models_apart(cluster: Cluster, node: int, gpus: Sequence[int]) -> list[list[int]]:
    """These devices of a node by model, models with less memory first."""
    spec = cluster.spec(node)
    found: dict[str, list[int]] = {}
    for g in sorted(gpus, key=lambda g: (spec.gpus[g].memory_mib, spec.gpus[g].model)):
        found.setdefault(spec.gpus[g].model, []).append(g)
    return [sorted(each) for each in found.values()]


def _of_one_model(cluster: Cluster, ask: Ask, rules: Rules | None) -> Rules:
    """The same rules, with the devices of one model only on each node that has several: the first that fits."""
    total, gpus = cluster.free_milli.shape
    mixed = np.array(sorted(cluster.mixed), dtype=np.int64)
    nodes = mixed if rules is None else np.union1d(rules.nodes, mixed)
    left = np.ones((len(nodes), gpus), dtype=np.bool_) if rules is None else rules.mask_for(nodes, total, gpus)
    for row, node in enumerate(nodes.tolist()):
        if node not in cluster.mixed:
            continue
        here = np.flatnonzero(left[row, : cluster.gpu_count.item(node)]).tolist()
        masks = [np.isin(np.arange(gpus), each) for each in models_apart(cluster, node, here)]
        one = np.array([node], dtype=np.int64)
        left[row] = next((mask for mask in masks if fitting_nodes(cluster, ask.shape, one, mask[None]).any()), False)
    return Rules(nodes, left, only=rules is not None and rules.only)


def _ruled(cluster: Cluster, ask: Ask, closed_models: Collection[str], *, certain: bool) -> Rules | None:
    """What labels, names, quota, health and a promise of waking rule out."""
    if not ask.devices or (ask.plain and not cluster.labels.exclusive and not cluster.unhealthy and not closed_models):
        return None
    pins: list[Mapping[Cell, int]] = list(cluster.labels.pins(ask))
    if ask.gpu_uuid:
        uuids = [uuid.strip() for uuid in ask.gpu_uuid.split(",")]
        pins.append({cluster.uuids[uuid]: 1 for uuid in uuids if uuid in cluster.uuids})
    # Devices that are unhealthy, and those that labels forbid where only the carriers need checking.
    labels, index = ask.labels, cluster.labels
    cells: set[Cell] = {*cluster.unhealthy} if labels.exclusion else {*cluster.unhealthy, *index.any_exclusive}
    if labels.anti_affinity:
        cells.update(index.anti_affinity.get(labels.anti_affinity, ()))
    if ask.gpu_id:
        cells.update(index.any_named.keys() - index.gpu_id.get(ask.gpu_id, {}).keys())
    if ask.wake_us:
        cells.update(barred(cluster, ask.wake_us, certain=certain))
    # Devices that are forbidden by what they are or lack: every busy one without the ask's exclusion label, and the
    # models closed by quota; bool [N, G].
    wide: BoolArray | None = None
    if labels.exclusion:
        wide = (cluster.free_milli >= 0) & (cluster.free_milli < MILLI)
        for cell in index.exclusion.get(labels.exclusion, ()):
            wide[cell] = False
    if closed_models:
        closed = np.array([*(model in closed_models for model in cluster.models), False])[cluster.model]
        wide = closed if wide is None else wide | closed
    if pins:
        left = {cell for cell in pins[0] if all(cell in pin for pin in pins)}.difference(cells)
        left = {cell for cell in left if wide is None or not wide[cell]}
        nodes = _nodes_of(left)
        return Rules(nodes, _mask(cluster, nodes, left), only=True)
    if wide is not None:
        for cell in cells:
            wide[cell] = True
        nodes = np.flatnonzero(wide.any(axis=1))
        return Rules(nodes, ~wide[nodes], only=False) if len(nodes) else None
    nodes = _nodes_of(cells)
    return Rules(nodes, ~_mask(cluster, nodes, cells), only=False) if len(nodes) else None


def _nodes_of(cells: Iterable[Cell]) -> IntArray:
    return np.array(sorted({node for node, _ in cells}), dtype=np.int64)


def _mask(cluster: Cluster, nodes: IntArray, cells: Iterable[Cell]) -> BoolArray:
    """True for these devices: bool [n, G] by the order of `nodes`."""
    row = {node: number for number, node in enumerate(nodes.tolist())}
    mask = np.zeros((len(nodes), cluster.free_milli.shape[1]), dtype=np.bool_)
    for node, g in cells:
        mask[row[node], g] = True
    return mask


class Obstacle(NamedTuple):
    """What stands against a promise on a device: a tenant whose kernels are too long, 0 for one not measured yet; or
    an order of turns."""

    tenant: str
    kernel_us: int
    allowed_us: int
    turns: str = ""


def obstacle(cluster: Cluster, cell: Cell, wake_us: int, *, certain: bool = False) -> Obstacle | None:
    """What stands against the promise on this device; with `certain` also a tenant that was not measured yet."""
    number, g = cell
    spec = cluster.spec(number)
    turns = cluster.measured.turns.get(spec.name, FLUID)
    if turns != FLUID:
        return Obstacle("", 0, 0, turns)
    residents = [resident.tenant for resident in cluster.residents(number, g)]
    if not residents:
        return None
    rivals = sum(cluster.tenants[tenant].ask.wake_us > 0 for tenant in residents)
    allowed_us = longest_kernel_us(wake_us, rivals)
    kernels = cluster.measured.kernels.get(spec.gpus[g].uuid, {})
    # A tenant is measured by the name of its container, without the number of a part or of a namesake.
    lengths = [(kernels.get(tenant.partition("#")[0].partition("@")[0], 0), tenant) for tenant in residents]
    longest_us, tenant = max(lengths)
    if longest_us > allowed_us:
        return Obstacle(tenant, longest_us, allowed_us)
    if allowed_us <= 0:
        return Obstacle(residents[0], 0, 0)
    unknown = [tenant for kernel_us, tenant in lengths if not kernel_us]
    return Obstacle(unknown[0], 0, allowed_us) if certain and unknown else None


def barred(cluster: Cluster, wake_us: int, *, certain: bool) -> Iterator[Cell]:
    """The devices that cannot promise it; with `certain` also those that may not be able to."""
    for number, g in np.argwhere((cluster.free_milli >= 0) & (cluster.free_milli < MILLI)).tolist():
        if obstacle(cluster, (number, g), wake_us, certain=certain):
            yield (number, g)
    for name, turns in cluster.measured.turns.items():
        if turns != FLUID and name in cluster.index:
            number = cluster.index[name]
            yield from ((number, g) for g in range(cluster.gpu_count.item(number)))


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
