"""Whether a device can promise a tenant how soon it wakes, by the measured kernels of the tenants on it.

The measurements give the longest recent kernel of each tenant. A tenant that was not measured prevents nothing,
but a device where all are measured is preferred.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from aliquot.model.quantities import MILLI
from aliquot.model.wake import longest_kernel_us
from aliquot.placement.cluster import Cluster
from aliquot.placement.labels import Cell

FLUID: Final = "fluid"
"""The order of turns that can promise when a tenant wakes."""


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
    lengths = [(kernels.get(_record(tenant), 0), tenant) for tenant in residents]
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


def _record(tenant: str) -> str:
    """The name by which a tenant is measured: that of its container, without the number of a part or of a namesake."""
    return tenant.partition("#")[0].partition("@")[0]
