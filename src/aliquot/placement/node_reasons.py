"""Why nodes cannot take a request: the first constraint that fails, for all nodes at once.

The columns of the ledger are compared as a whole, which is fast enough for every call of kube-scheduler. Nodes of a
kind have the same record, because kube-scheduler counts equal reasons in its event. What stands against the request on
each device is in `reasons`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aliquot.lib.arrays import BoolArray
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster
from aliquot.placement.codes import Code, QuotaExcess, UnmetConstraint
from aliquot.placement.fits import FLUID, one_model

ALL: Final = slice(None)
OF_ONE_MODEL: Final = "one model"
"""The label of too few GPUs of one model on a node that has enough of several."""


@dataclass(frozen=True, slots=True)
class NodeReasons:
    """Which of the reasons stands against an ask on each node: int32 [N], -1 where it fits."""

    which: NDArray[np.int32]
    reasons: list[UnmetConstraint]


def node_reasons(
    cluster: Cluster,
    ask: Ask,
    fits: BoolArray,
    closed: Mapping[str, QuotaExcess],
    mixed: BoolArray | None = None,
    rows: slice = ALL,
) -> NodeReasons:
    """The first constraint of each node that an ask does not fit on, the same record for all of a kind.

    `fits` are the nodes that could take it now, `mixed` those that could if its GPUs may be of several models; `closed`
    are the models that a quota has closed, with what it is exceeded by. All are of the nodes in `rows`.
    """
    which = np.full(len(fits), -1, dtype=np.int32)
    found = NodeReasons(which, [])
    left = ~fits
    for chosen, reason in _node_constraints(cluster, ask, left, closed, mixed, rows):
        chosen = chosen & left
        if chosen.any():
            which[chosen] = len(found.reasons)
            found.reasons.append(replace(reason, wanted=ask))
            left &= ~chosen
            if not left.any():
                break
    return found


def _node_constraints(
    cluster: Cluster, ask: Ask, left: BoolArray, closed: Mapping[str, QuotaExcess], mixed: BoolArray | None, rows: slice
) -> Iterator[tuple[BoolArray, UnmetConstraint]]:
    """Every constraint with the nodes on which it fails, in their order; `left` are the nodes without one so far."""
    everywhere = np.ones(len(left), dtype=np.bool_)
    devices = ask.devices
    if devices:
        yield cluster.gpu_count[rows] == 0, UnmetConstraint(Code.NODE_NO_GPU, lasting=True)
        kinds = _suited(cluster, ask, rows)
        count = _most(kinds)
        several = np.logical_or.reduce(kinds).sum(axis=1) >= devices if len(kinds) > 1 else ~everywhere
        for have in np.unique(count[left & (count < devices)]).tolist():
            few = UnmetConstraint(Code.NODE_FEW_GPUS, asked=devices, have=have, lasting=True)
            yield (count == have) & several, replace(few, label=OF_ONE_MODEL)
            yield count == have, few
        if devices > 1 and ask.rest_milli and ask.gpu_mib:
            yield from _too_small(cluster, ask, left, kinds, rows)
    if ask.cpu_milli or ask.memory_mib:
        yield from _host(cluster, ask, left, rows)
    yield ~cluster.open[rows], UnmetConstraint(Code.NODE_CORDONED)
    if closed:
        models = [number for number, model in enumerate(cluster.models) if model in closed]
        allowed = _most(_suited(cluster, ask, rows, but=models))
        yield allowed < devices, UnmetConstraint(Code.QUOTA, excess=next(iter(closed.values())))
    if mixed is not None:
        yield mixed, UnmetConstraint(Code.NODE_ONE_MODEL, asked=devices)
    yield everywhere, UnmetConstraint(Code.NODE_GPUS, asked=devices)


def _suited(cluster: Cluster, ask: Ask, rows: slice, but: Sequence[int] = ()) -> list[BoolArray]:
    """The devices of these nodes that could serve the ask if they were empty, but for those of some models: [n, G].

    Several masks, one for each model, where the devices have to be of one model.
    """
    size, model = cluster.size_mib[rows], cluster.model[rows]
    good = (size >= 0) & ~np.isin(model, but) if but else size >= 0
    if ask.models:
        good = good & cluster.model_mask(ask.models)[model]
    if ask.gpu_mib and ask.devices == 1:
        good = good & (size >= ask.gpu_mib)
    if ask.gpu_uuid:
        named = np.zeros(cluster.size_mib.shape, dtype=np.bool_)
        for uuid in ask.gpu_uuid.split(","):
            if (cell := cluster.uuids.get(uuid.strip())) is not None:
                named[cell] = True
        good = good & named[rows]
    if ask.wake_us:
        turned = [cluster.index[name] for name, turns in cluster.measured.turns.items()
                  if turns != FLUID and name in cluster.index]  # fmt: skip
        keeping = np.ones(len(cluster.rank), dtype=np.bool_)
        keeping[turned] = False
        good = good & keeping[rows, None]
    if not one_model(cluster, ask):
        return [good]
    return [good & (model == number) for number in range(len(cluster.models))]


def _most(kinds: Sequence[BoolArray]) -> NDArray[np.int64]:
    """How many devices of a node one ask could get at most: int64 [n]."""
    counts = [kind.sum(axis=1) for kind in kinds]
    return np.asarray(counts[0] if len(counts) == 1 else np.max(counts, axis=0))


def _too_small(
    cluster: Cluster, ask: Ask, left: BoolArray, kinds: Sequence[BoolArray], rows: slice
) -> Iterator[tuple[BoolArray, UnmetConstraint]]:
    """Nodes that have devices enough, none of them large enough for the part of one GPU."""
    size = cluster.size_mib[rows]
    serving = [(kind.sum(axis=1) >= ask.devices) & (kind & (size >= ask.gpu_mib)).any(axis=1) for kind in kinds]
    small = left & ~np.logical_or.reduce(serving)
    largest = np.where(np.logical_or.reduce(kinds), size, 0).max(axis=1, initial=0)
    for have in np.unique(largest[small]).tolist():
        reason = UnmetConstraint(Code.NODE_GPU_SIZE, asked=ask.gpu_mib, have=have, lasting=True)
        yield small & (largest == have), reason


def _host(cluster: Cluster, ask: Ask, left: BoolArray, rows: slice) -> Iterator[tuple[BoolArray, UnmetConstraint]]:
    """Nodes whose CPU or memory is not enough."""
    for code, asked, free in (
        (Code.NODE_CPU, ask.cpu_milli, cluster.cpu_free[rows]),
        (Code.NODE_MEMORY, ask.memory_mib, cluster.memory_free[rows]),
    ):
        short = left & (free < asked)
        whole = np.zeros(len(free), dtype=np.int64)
        for number in np.flatnonzero(short).tolist():
            spec = cluster.spec(number + (rows.start or 0))
            whole[number] = spec.cpu_milli if code is Code.NODE_CPU else spec.memory_mib
        for have, lasting in {*zip(free[short].tolist(), (whole[short] < asked).tolist(), strict=True)}:
            chosen = short & (free == have) & ((whole < asked) == lasting)
            yield chosen, UnmetConstraint(code, asked=asked, have=have, lasting=lasting)
