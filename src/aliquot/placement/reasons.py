"""Why a request does not fit: for every node and device the first constraint that fails, with a stable code.

Order of the constraints: what no waiting changes first (name, model, size), then quota and labels, then room.

For nodes the columns of the ledger are compared as a whole, which is fast enough for every call of kube-scheduler.
Nodes of a kind have the same record, because kube-scheduler counts equal reasons in its event. Devices are judged one
by one, for people who ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aliquot.lib.arrays import BoolArray
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import Ask, model_matches
from aliquot.placement.cluster import Cluster
from aliquot.placement.codes import EXCLUSIVE, UNHEALTHY, Code, QuotaExcess, UnmetConstraint, Verdict
from aliquot.placement.fits import FLUID, fitting_nodes, hold_rest, hold_whole, obstacle, one_model
from aliquot.placement.quota import NO_QUOTAS, Quotas

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
            # Nodes that have devices enough, none of them large enough for the part of one GPU.
            size = cluster.size_mib[rows]
            serving = [(kind.sum(axis=1) >= devices) & (kind & (size >= ask.gpu_mib)).any(axis=1) for kind in kinds]
            small = left & ~np.logical_or.reduce(serving)
            largest = np.where(np.logical_or.reduce(kinds), size, 0).max(axis=1, initial=0)
            for have in np.unique(largest[small]).tolist():
                reason = UnmetConstraint(Code.NODE_GPU_SIZE, asked=ask.gpu_mib, have=have, lasting=True)
                yield small & (largest == have), reason
    if ask.cpu_milli or ask.memory_mib:
        yield from _host(cluster, ask, left, rows)
    yield ~cluster.open[rows], UnmetConstraint(Code.NODE_CORDONED)
    if closed:
        models = [number for number, model in enumerate(cluster.models) if model in closed]
        allowed = _most(_suited(cluster, ask, rows, but=models))
        excess = next(iter(closed.values()))
        yield allowed < devices, UnmetConstraint(Code.QUOTA, excess=excess, lasting=bool(excess.label))
    if mixed is not None:
        yield mixed, UnmetConstraint(Code.NODE_ONE_MODEL, asked=devices)
    if (cluster.unhealthy or cluster.labels.any_exclusive) and not ask.wake_us and ask.plain:
        nodes = np.arange(len(cluster.rank))[rows]
        room = fitting_nodes(cluster, ask.shape, nodes)
        for label, cells in ((UNHEALTHY, cluster.unhealthy), (EXCLUSIVE, cluster.labels.any_exclusive)):
            barred = np.isin(nodes, [node for node, _ in cells])
            yield room & barred, UnmetConstraint(Code.NODE_GPUS, asked=devices, label=label)
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


class Infeasible:
    """No node can take the request now. Reasons are computed on demand, from the cluster's current state."""

    __slots__ = ("ask", "cluster", "namespace", "quotas")

    def __init__(self, cluster: Cluster, ask: Ask, quotas: Quotas = NO_QUOTAS, namespace: str = "") -> None:
        self.cluster, self.ask, self.quotas, self.namespace = cluster, ask, quotas, namespace

    def reasons(self) -> tuple[Verdict, ...]:
        """What stands against it on every node, by node index."""
        numbers = [self.cluster.node_index(spec.name) for spec in self.cluster.nodes]
        return _verdicts(self.cluster, self.ask, self.quotas.closed(self.cluster, self.namespace, self.ask), numbers)


def judge(cluster: Cluster, ask: Ask, node: str, quotas: Quotas = NO_QUOTAS, namespace: str = "") -> Verdict:
    """What stands against an ask on one node."""
    return _verdicts(cluster, ask, quotas.closed(cluster, namespace, ask), [cluster.node_index(node)])[0]


def fits_on(cluster: Cluster, ask: Ask, node: str, quotas: Quotas, namespace: str) -> bool:
    """Whether nothing stands against an ask on one node."""
    number = cluster.node_index(node)
    return _room(cluster, ask, number, _devices(cluster, ask, number, quotas.closed(cluster, namespace, ask))).fits


def _verdicts(
    cluster: Cluster, ask: Ask, closed: dict[str, QuotaExcess], numbers: Sequence[int]
) -> tuple[Verdict, ...]:
    """What stands against an ask on these nodes, device by device."""
    if not numbers:
        return ()
    rows = slice(min(numbers), max(numbers) + 1)
    fits, mixed = np.zeros((2, rows.stop - rows.start), dtype=np.bool_)
    devices, have = {}, {}
    for number in numbers:
        devices[number] = _devices(cluster, ask, number, closed)
        room = _room(cluster, ask, number, devices[number])
        fits[number - rows.start], mixed[number - rows.start], have[number] = room.fits, room.mixed, room.have
    found = node_reasons(cluster, ask, fits, closed, mixed, rows)
    verdicts = []
    for number in numbers:
        which, spec = found.which.item(number - rows.start), cluster.spec(number)
        reason = None
        if which >= 0:
            reason = replace(found.reasons[which], node=spec.name)
            if reason.code in (Code.NODE_GPUS, Code.NODE_ONE_MODEL):
                reason = replace(reason, have=have[number])
        verdicts.append(Verdict(spec.name, reason, devices[number], tuple(device.index for device in spec.gpus)))
    return tuple(verdicts)


def usable(devices: Sequence[UnmetConstraint | None]) -> list[int]:
    """Devices that nothing but room stands against."""
    room = (Code.GPU_COMPUTE, Code.GPU_MEMORY, Code.GPU_SIZE)
    return [g for g, reason in enumerate(devices) if reason is None or reason.code in room]


@dataclass(frozen=True, slots=True)
class _Room:
    """Whether an ask fits on a node, whether it would on devices of several models, and how many devices have room."""

    fits: bool
    mixed: bool
    have: int


def _room(cluster: Cluster, ask: Ask, number: int, devices: Sequence[UnmetConstraint | None]) -> _Room:
    spec = cluster.spec(number)
    left = usable(devices)
    kinds = [left]
    models = {device.model for device in spec.gpus}
    if ask.devices > 1 and not ask.mixed and len(models) > 1:  # all that it gets must be of one model
        kinds += [[g for g in left if spec.gpus[g].model == model] for model in sorted(models)]
    idle = [hold_whole(cluster, ask.shape, number, gpus) for gpus in kinds]
    rest = [hold_rest(cluster, ask.shape, number, gpus) for gpus in kinds]
    enough = [
        len(wholes) >= ask.whole
        and (not ask.rest_milli or any(len({*wholes} - {g}) >= ask.whole for g in rests))  # one more for the rest
        for wholes, rests in zip(idle, rest, strict=True)
    ]
    room = [len({*a, *b}) for a, b in zip(idle, rest, strict=True)]
    have = max(room[1:], default=0) if enough[0] else room[0]
    free = cluster.open.item(number) and ask.cpu_milli <= cluster.cpu_free.item(number)
    free = free and ask.memory_mib <= cluster.memory_free.item(number)
    fits = bool(free) and any(enough[1:] or enough)
    return _Room(fits, len(kinds) > 1 and enough[0], max(0, min(have, ask.devices - 1)))


def _devices(
    cluster: Cluster, ask: Ask, number: int, closed: dict[str, QuotaExcess]
) -> tuple[UnmetConstraint | None, ...]:
    return tuple(_device(cluster, ask, number, g, closed) for g in range(cluster.gpu_count.item(number)))


def _device(cluster: Cluster, ask: Ask, number: int, g: int, closed: dict[str, QuotaExcess]) -> UnmetConstraint | None:
    spec, cell, index = cluster.spec(number), (number, g), cluster.labels
    device = spec.gpus[g]
    unmet = partial(UnmetConstraint, node=spec.name, gpu=device.index)
    if ask.gpu_uuid and device.uuid not in [uuid.strip() for uuid in ask.gpu_uuid.split(",")]:
        return unmet(Code.GPU_UUID, lasting=True)
    if ask.models and not any(model_matches(model, device.model) for model in ask.models):
        return unmet(Code.GPU_MODEL, label=device.model, lasting=True)
    free, free_mib = cluster.free_milli.item(cell), cluster.free_mib.item(cell)
    memory_mib = ask.slice_memory(device.memory_mib, whole=not ask.rest_milli)
    # Of several devices one that is too small for the rest can still be given whole.
    givable = ask.devices > 1 and free == MILLI
    if memory_mib > device.memory_mib and not givable:
        return unmet(Code.GPU_SIZE, asked=memory_mib, have=device.memory_mib, lasting=ask.devices == 1)
    if cell in cluster.unhealthy:
        return unmet(Code.GPU_UNHEALTHY)
    if device.model in closed:
        return unmet(Code.QUOTA, excess=closed[device.model])
    labels = ask.labels
    affinity, named = index.affinity.get(labels.affinity), index.gpu_id.get(ask.gpu_id)
    if affinity and cell not in affinity:
        return unmet(Code.GPU_AFFINITY, label=labels.affinity)
    if named and cell not in named:
        return unmet(Code.GPU_NAMED_ELSEWHERE, label=ask.gpu_id)
    match index.conflict(cell, ask, cluster.residents(number, g)):
        case "exclusion":
            return unmet(Code.GPU_EXCLUSION, label=labels.exclusion)
        case "anti-affinity":
            return unmet(Code.GPU_ANTI_AFFINITY, label=labels.anti_affinity)
        case "name":
            return unmet(Code.GPU_NAME, label=ask.gpu_id)
    if ask.wake_us and (barrier := obstacle(cluster, cell, ask.wake_us)) is not None:
        if barrier.turns:
            return unmet(Code.GPU_TURNS, label=barrier.turns, lasting=True)
        return unmet(Code.GPU_WAKE, asked=max(0, barrier.allowed_us), have=barrier.kernel_us, label=barrier.tenant)
    # Whether it could take the smaller of what the ask brings: its rest, or a whole GPU.
    asked = ask.rest_milli or MILLI
    if asked > free:
        return unmet(Code.GPU_COMPUTE, asked=asked, have=free)
    if memory_mib > free_mib and not givable:
        return unmet(Code.GPU_MEMORY, asked=memory_mib, have=free_mib)
    return None
