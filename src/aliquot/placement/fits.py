"""Which nodes and which of their devices can take an ask now, and the choice among devices that most policies share.

The rules for many nodes at once, on the columns of the ledger, are those for the devices of one node. Rules of labels,
names and quota come as a mask of devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from aliquot.lib.arrays import BoolArray, IntArray
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import PPM, Shape
from aliquot.placement.cluster import Cluster
from aliquot.topology import Topology, best_set, set_cost


def _memory_fits(cluster: Cluster, shape: Shape, nodes: IntArray) -> BoolArray:
    """Devices of these nodes whose memory holds the rest: bool [n, G].

    Parts are rounded down, so "size x part // whole <= free" is asked as "size x part < whole x (free + 1)": dividing
    arrays of integers would take most of a decision.
    """
    free = cluster.free_mib[nodes]
    if shape.gpu_mib:
        return np.asarray(free >= shape.gpu_mib)
    part, whole = (shape.gpu_mem_ppm, PPM) if shape.gpu_mem_ppm else (shape.rest_milli or MILLI, MILLI)
    return np.asarray(cluster.size_mib[nodes] * part < (free + 1) * whole)


def rest_mask(cluster: Cluster, shape: Shape, nodes: IntArray) -> BoolArray:
    """Devices of these nodes that hold the rest by compute, memory and model: bool [n, G]."""
    hold: BoolArray = cluster.free_milli[nodes] >= shape.rest_milli
    hold &= _memory_fits(cluster, shape, nodes)
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
