"""Which nodes and which of their devices can take an ask now, and the choice among devices that most policies share.

First room: the rules for many nodes at once, on the columns of the ledger, are those for the devices of one node. Then
what labels, names, quota and promises leave: a mask of the devices that an ask may still use, where that is not all of
them.

Whether a device can promise a tenant how soon it wakes depends on the measured kernels of the tenants on it: the
longest recent one of each. A tenant that was not measured prevents nothing, but a device where all are measured is
preferred.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from aliquot.lib.arrays import BoolArray, IntArray
from aliquot.model.quantities import MILLI
from aliquot.model.wake import longest_kernel_us
from aliquot.placement.asks import PPM, Ask, Shape
from aliquot.placement.cluster import Cluster
from aliquot.placement.entries import Cell
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
