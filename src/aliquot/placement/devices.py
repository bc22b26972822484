"""Which devices of a node can take a part of an ask, and the choice among them that most policies share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aliquot.model.quantities import MILLI
from aliquot.topology import best_set, set_cost

if TYPE_CHECKING:
    from aliquot.placement.asks import Shape
    from aliquot.placement.cluster import Cluster
    from aliquot.topology import Topology


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
