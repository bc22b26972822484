"""Which nodes can take an ask now: the columns' side of feasibility.

The same rules as `devices` has for one node, for many at once. Rules of labels, names and quota come as a mask of
devices.
"""

from __future__ import annotations

import numpy as np

from aliquot.lib.arrays import BoolArray, IntArray
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import PPM, Shape
from aliquot.placement.cluster import Cluster


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
