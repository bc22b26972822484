"""Which nodes can take an ask now: the columns' side of feasibility.

The same rules as `devices` has for one node, for many at once. Rules of labels, names and quota come as a mask of
devices.
"""

from __future__ import annotations

import numpy as np

from aliquot.model.quantities import MILLI
from aliquot.placement.asks import PPM, Shape
from aliquot.placement.cluster import Cluster
from aliquot.placement.policy import BoolArray, IntArray


def memory_needed(cluster: Cluster, shape: Shape, nodes: IntArray) -> IntArray:
    """MiB that the shared device would have to give, for each device of these nodes: [n, G]."""
    size = cluster.size_mib[nodes]
    if shape.gpu_mib:
        return np.full_like(size, shape.gpu_mib)
    if shape.gpu_mem_ppm:
        return size * shape.gpu_mem_ppm // PPM
    return size * (shape.rest_milli or MILLI) // MILLI


def rest_mask(cluster: Cluster, shape: Shape, nodes: IntArray) -> BoolArray:
    """Devices of these nodes that hold the rest by compute, memory and model: bool [n, G]."""
    hold: BoolArray = cluster.free_milli[nodes] >= shape.rest_milli
    hold &= cluster.free_mib[nodes] >= memory_needed(cluster, shape, nodes)
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
