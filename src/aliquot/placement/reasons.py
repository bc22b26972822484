"""Why a request does not fit: for every node and device the first constraint that fails, with a stable code.

Order of the constraints: what no waiting changes first (name, model, size), then quota and labels, then room. Devices
are judged one by one, for people who ask; `node_reasons` has the nodes' own, which kube-scheduler is given too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from aliquot.model.quantities import MILLI
from aliquot.placement.asks import Ask, model_matches
from aliquot.placement.books import NodeSpec
from aliquot.placement.cluster import Cluster
from aliquot.placement.codes import Code, QuotaExcess, UnmetConstraint, Verdict
from aliquot.placement.fits import hold_rest, hold_whole, obstacle
from aliquot.placement.node_reasons import node_reasons

if TYPE_CHECKING:
    from aliquot.placement.quota import Quotas


class Infeasible:
    """No node can take the request now. Reasons are computed on demand, from the cluster's current state."""

    __slots__ = ("__dict__", "ask", "cluster", "namespace", "quotas")

    def __init__(self, cluster: Cluster, ask: Ask, quotas: Quotas | None = None, namespace: str = "") -> None:
        self.cluster, self.ask, self.quotas, self.namespace = cluster, ask, quotas, namespace

    def reasons(self) -> tuple[Verdict, ...]:
        """What stands against it on every node, by node index."""
        return self._verdicts

    @property
    def lasting(self) -> bool:
        """Whether no node could ever take it, even if all were empty."""
        return all(verdict.lasting for verdict in self._verdicts)

    @cached_property
    def _verdicts(self) -> tuple[Verdict, ...]:
        numbers = [self.cluster.node_index(spec.name) for spec in self.cluster.nodes]
        return _verdicts(self.cluster, self.ask, _closed(self.cluster, self.ask, self.quotas, self.namespace), numbers)


def judge(cluster: Cluster, ask: Ask, node: str, quotas: Quotas | None = None, namespace: str = "") -> Verdict:
    """What stands against an ask on one node."""
    return _verdicts(cluster, ask, _closed(cluster, ask, quotas, namespace), [cluster.node_index(node)])[0]


def fits_on(cluster: Cluster, ask: Ask, node: str, quotas: Quotas | None = None, namespace: str = "") -> bool:
    """Whether nothing stands against an ask on one node."""
    number = cluster.node_index(node)
    return _room(cluster, ask, number, _devices(cluster, ask, number, _closed(cluster, ask, quotas, namespace))).fits


def _closed(cluster: Cluster, ask: Ask, quotas: Quotas | None, namespace: str) -> dict[str, QuotaExcess]:
    return {} if quotas is None else quotas.closed(cluster, namespace, ask)


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
        which, name = found.which.item(number - rows.start), cluster.spec(number).name
        reason = None
        if which >= 0:
            reason = replace(found.reasons[which], node=name)
            if reason.code in (Code.NODE_GPUS, Code.NODE_ONE_MODEL):
                reason = replace(reason, have=have[number])
        verdicts.append(Verdict(name, reason, devices[number]))
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
    kinds = [left, *_by_model(left, ask, spec)]
    idle = [hold_whole(cluster, ask.shape, number, gpus) for gpus in kinds]
    rest = [hold_rest(cluster, ask.shape, number, gpus) for gpus in kinds]
    enough = [_suffice(ask, *each) for each in zip(idle, rest, strict=True)]
    room = [len({*a, *b}) for a, b in zip(idle, rest, strict=True)]
    have = max(room[1:], default=0) if enough[0] else room[0]
    free = cluster.open.item(number) and ask.cpu_milli <= cluster.cpu_free.item(number)
    free = free and ask.memory_mib <= cluster.memory_free.item(number)
    fits = bool(free) and any(enough[1:] or enough)
    return _Room(fits, len(kinds) > 1 and enough[0], max(0, min(have, ask.devices - 1)))


def _suffice(ask: Ask, idle: Sequence[int], rest: Sequence[int]) -> bool:
    """Whether so many idle devices, and one more for the rest where one is asked, are enough."""
    return len(idle) >= ask.whole and (not ask.rest_milli or any(len({*idle} - {g}) >= ask.whole for g in rest))


def _by_model(gpus: Sequence[int], ask: Ask, spec: NodeSpec) -> list[list[int]]:
    """These devices by model, where all that the ask gets must be of one model and the node has several."""
    models = {device.model for device in spec.gpus}
    if ask.devices < 2 or ask.mixed or len(models) < 2:
        return []
    return [[g for g in gpus if spec.gpus[g].model == model] for model in sorted(models)]


def _devices(
    cluster: Cluster, ask: Ask, number: int, closed: dict[str, QuotaExcess]
) -> tuple[UnmetConstraint | None, ...]:
    return tuple(_device(cluster, ask, number, g, closed) for g in range(cluster.gpu_count.item(number)))


def _device(cluster: Cluster, ask: Ask, number: int, g: int, closed: dict[str, QuotaExcess]) -> UnmetConstraint | None:
    spec = cluster.spec(number)
    device = spec.gpus[g]
    if ask.gpu_uuid and device.uuid not in [uuid.strip() for uuid in ask.gpu_uuid.split(",")]:
        return UnmetConstraint(Code.GPU_UUID, spec.name, device.index, lasting=True)
    if ask.models and not any(model_matches(model, device.model) for model in ask.models):
        return UnmetConstraint(Code.GPU_MODEL, spec.name, device.index, label=device.model, lasting=True)
    memory_mib = ask.slice_memory(device.memory_mib, whole=not ask.rest_milli)
    # Of several devices one that is too small for the rest can still be given whole.
    if memory_mib > device.memory_mib and not (ask.devices > 1 and cluster.free_milli.item(number, g) == MILLI):
        return UnmetConstraint(
            Code.GPU_SIZE, spec.name, device.index, memory_mib, device.memory_mib, lasting=ask.devices == 1
        )
    if (number, g) in cluster.unhealthy:
        return UnmetConstraint(Code.GPU_UNHEALTHY, spec.name, device.index)
    if device.model in closed:
        return UnmetConstraint(Code.QUOTA, spec.name, device.index, excess=closed[device.model])
    return _labels(cluster, ask, number, g) or _wake(cluster, ask, number, g) or _short(cluster, ask, number, g)


def _labels(cluster: Cluster, ask: Ask, number: int, g: int) -> UnmetConstraint | None:
    spec, cell, index = cluster.spec(number), (number, g), cluster.labels
    name, gpu = spec.name, spec.gpus[g].index
    affinity = index.affinity.get(ask.labels.affinity)
    if affinity and cell not in affinity:
        return UnmetConstraint(Code.GPU_AFFINITY, name, gpu, label=ask.labels.affinity)
    named = index.gpu_id.get(ask.gpu_id)
    if named and cell not in named:
        return UnmetConstraint(Code.GPU_NAMED_ELSEWHERE, name, gpu, label=ask.gpu_id)
    conflict = index.conflict(cell, ask, cluster.residents(number, g))
    if not conflict:
        return None
    code = {"exclusion": Code.GPU_EXCLUSION, "anti-affinity": Code.GPU_ANTI_AFFINITY, "name": Code.GPU_NAME}[conflict]
    label = {"exclusion": ask.labels.exclusion, "anti-affinity": ask.labels.anti_affinity, "name": ask.gpu_id}[conflict]
    return UnmetConstraint(code, name, gpu, label=label)


def _wake(cluster: Cluster, ask: Ask, number: int, g: int) -> UnmetConstraint | None:
    """Whether kernels of the tenants on it, or the turn policy, prevent a promise of waking."""
    spec = cluster.spec(number)
    found = obstacle(cluster, (number, g), ask.wake_us) if ask.wake_us else None
    if found is None:
        return None
    if found.turns:
        return UnmetConstraint(Code.GPU_TURNS, spec.name, spec.gpus[g].index, label=found.turns, lasting=True)
    asked, have = max(0, found.allowed_us), found.kernel_us
    return UnmetConstraint(Code.GPU_WAKE, spec.name, spec.gpus[g].index, asked, have, label=found.tenant)


def _short(cluster: Cluster, ask: Ask, number: int, g: int) -> UnmetConstraint | None:
    """Whether the device could take the smaller of what the ask brings: its rest, or a whole GPU."""
    spec = cluster.spec(number)
    name, gpu = spec.name, spec.gpus[g].index
    free, free_mib = cluster.free_milli.item(number, g), cluster.free_mib.item(number, g)
    asked = ask.rest_milli or MILLI
    if asked > free:
        return UnmetConstraint(Code.GPU_COMPUTE, name, gpu, asked, free)
    memory_mib = ask.slice_memory(cluster.size_mib.item(number, g), whole=not ask.rest_milli)
    if memory_mib > free_mib:
        if ask.devices > 1 and free == MILLI:
            return None  # too small for the rest, but it can be given whole
        return UnmetConstraint(Code.GPU_MEMORY, name, gpu, memory_mib, free_mib)
    return None
