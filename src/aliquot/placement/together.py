"""Where several asks fit at once, told for all nodes from the columns of the ledger and not by placing each ask.

A device has *slots* for an ask: how often that ask fits on it. Another ask takes some of them wherever it is placed:
at least as many as the smaller, at most as many as the larger of the quotients of their compute and memory. Where the
slots of a node are fewer than all asks take at least, they do not fit; where there is a slot left for each after those
before it took the most, they fit, whatever devices a policy chooses. For equal asks the two are the same number. Nodes
between the two have to be tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from aliquot.lib.arrays import BoolArray, IntArray
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import PPM, Ask
from aliquot.placement.cluster import Cluster
from aliquot.placement.fits import Rules, one_model, rest_mask, whole_mask


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
        most = self.whole * int(full.max()) + np.maximum(-(-self.milli // milli), -(-self.mib // mib).max(axis=1))
        return least, most


def bounds(
    cluster: Cluster, asks: Sequence[tuple[Ask, int]], nodes: IntArray, rules: Callable[[Ask], Rules | None]
) -> tuple[BoolArray, BoolArray]:
    """On which of the nodes the asks fit together under any policy, and on which they may: bool [n] each.

    Each ask has its place among the init containers, as `PlacementUnit.init`; they are placed in this order, and each
    fits alone. Quotas are not looked at but for what `rules` leave of each ask's devices now.
    """
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
    mib = np.full_like(size, shape.gpu_mib) if shape.gpu_mib else size * part // whole
    often = np.minimum(cluster.free_milli[nodes] // shape.rest_milli, cluster.free_mib[nodes] // np.maximum(mib, 1))
    return mask, often * mask
