"""Making room by moving running pods: for one that fits nowhere, up to k pods of one node go elsewhere.

The fewest milli-GPU are moved; of equal plans that on the node with the smallest rank. Every pod moved must fit
elsewhere by the same policy before anything is changed for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final

import numpy as np

from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster, Placement
from aliquot.placement.decide import Decider

_CANDIDATES: Final = 12
"""Of a node's pods so many are considered, the smallest first; more would be tried for long and moved never."""


def make_room(decider: Decider, ask: Ask, most: int) -> dict[str, Placement] | None:
    """Move at most `most` pods so that the ask fits; where each went, None (and nothing changed) if that cannot be."""
    cluster = decider.cluster
    for _, _, node, tenants in sorted(_plans(cluster, ask, most)):
        moved = _try(decider, ask, node, tenants)
        if moved is not None:
            return moved
    return None


def _plans(cluster: Cluster, ask: Ask, most: int) -> Iterator[tuple[int, int, int, tuple[str, ...]]]:
    """(milli moved, rank, node, tenants) of all plans whose sums would give enough room."""
    shape = ask.shape
    near = cluster.open & (cluster.size_mib >= 0).any(axis=1) if shape.devices else cluster.open
    if shape.models:
        near = near & cluster.model_mask(shape.models)[cluster.model].any(axis=1)
    for node in np.flatnonzero(near & (cluster.gpu_count >= shape.devices)).tolist():
        here = sorted(cluster.tenants_on(node), key=lambda tenant: (cluster.tenants[tenant].ask.milli, tenant))
        for number in range(1, most + 1):
            for tenants in combinations(here[:_CANDIDATES], number):
                asks = [cluster.tenants[tenant].ask for tenant in tenants]
                milli = sum(gone.milli for gone in asks)
                if (
                    cluster.free_total.item(node) + milli >= shape.milli
                    and cluster.cpu_free.item(node) + sum(gone.cpu_milli for gone in asks) >= shape.cpu_milli
                    and cluster.memory_free.item(node) + sum(gone.memory_mib for gone in asks) >= shape.memory_mib
                ):
                    yield milli, cluster.rank.item(node), node, tenants


def _try(decider: Decider, ask: Ask, node: int, tenants: tuple[str, ...]) -> dict[str, Placement] | None:
    cluster, moved = decider.cluster, dict[str, Placement]()
    asks = {tenant: cluster.tenants[tenant].ask for tenant in reversed(tenants)}
    with cluster.trial():
        for tenant in tenants:
            cluster.release(tenant)
        if not decider.feasible(ask)[node]:
            return None
        cluster.set_cordoned(cluster.spec(node).name)
        for tenant, own in asks.items():
            found = decider.decide(own, again=True)
            if not isinstance(found, Placement):
                return None
            cluster.reserve(tenant, found, own)
            moved[tenant] = found
    for tenant in tenants:
        cluster.release(tenant)
    for tenant, place in moved.items():
        cluster.reserve(tenant, place, asks[tenant])
    return moved
