"""Why a request does not fit: for every node and device the first constraint that fails, with a stable code.

Order of the constraints: what no waiting changes first (name, model, size), then quota and labels, then room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from aliquot.model.quantities import MILLI, format_mib, format_milli
from aliquot.model.wake import format_us
from aliquot.placement.asks import Ask, model_matches
from aliquot.placement.books import NodeSpec
from aliquot.placement.cluster import Cluster
from aliquot.placement.devices import hold_rest, hold_whole
from aliquot.placement.wakes import obstacle

if TYPE_CHECKING:
    from aliquot.placement.quota import Quotas


class Code(StrEnum):
    """Stable names of constraints; programs may rely on them."""

    NODE_CORDONED = "node-cordoned"
    NODE_CPU = "node-cpu"
    NODE_MEMORY = "node-memory"
    NODE_NO_GPU = "node-no-gpu"
    NODE_FEW_GPUS = "node-few-gpus"
    NODE_GPU_SIZE = "node-gpu-size"
    NODE_GPUS = "node-gpus"
    NODE_ONE_MODEL = "node-one-model"
    GPU_UUID = "gpu-uuid"
    GPU_MODEL = "gpu-model"
    GPU_SIZE = "gpu-size"
    GPU_UNHEALTHY = "gpu-unhealthy"
    QUOTA = "quota"
    GPU_AFFINITY = "gpu-affinity"
    GPU_NAMED_ELSEWHERE = "gpu-named-elsewhere"
    GPU_NAME = "gpu-name"
    GPU_EXCLUSION = "gpu-exclusion"
    GPU_ANTI_AFFINITY = "gpu-anti-affinity"
    GPU_WAKE = "gpu-wake"
    GPU_TURNS = "gpu-turns"
    GPU_COMPUTE = "gpu-compute"
    GPU_MEMORY = "gpu-memory"


@dataclass(frozen=True, slots=True)
class UnmetConstraint:
    """One constraint that fails on a node (`gpu` -1) or on the device of that index; numbers in the code's own unit.

    `lasting` means that it would fail on an empty node too.
    """

    code: Code
    node: str
    gpu: int = -1
    asked: int = 0
    have: int = 0
    label: str = ""
    lasting: bool = False

    @property
    def text(self) -> str:
        """The constraint in words, to follow the name of the node or device."""
        asked, have, label = self.asked, self.have, self.label
        texts = {
            Code.NODE_CORDONED: "takes no pods (cordoned)",
            Code.NODE_CPU: f"has {have / MILLI:g} CPU unreserved, {asked / MILLI:g} were asked",
            Code.NODE_MEMORY: f"has {format_mib(have)} of memory unreserved, {format_mib(asked)} were asked",
            Code.NODE_NO_GPU: "has no GPU",
            Code.NODE_FEW_GPUS: f"has {have} such GPU{'s' * (have != 1)}, {asked} were asked",
            Code.NODE_GPU_SIZE: f"has no GPU with {format_mib(asked)} of memory, its largest has {format_mib(have)}",
            Code.NODE_GPUS: f"has {have} GPU{'s' * (have != 1)} with room, {asked} were asked",
            Code.NODE_ONE_MODEL: f"has {have} GPU{'s' * (have != 1)} of one model with room, {asked} were asked",
            Code.GPU_UUID: "is not the one that was named",
            Code.GPU_MODEL: f'is "{label}", another model was asked',
            Code.GPU_SIZE: f"has {format_mib(have)} in all, {format_mib(asked)} were asked",
            Code.GPU_UNHEALTHY: "is not well",
            Code.QUOTA: label,
            Code.GPU_AFFINITY: f'is not where affinity "{label}" is',
            Code.GPU_NAMED_ELSEWHERE: f'is not the one that is called "{label}"',
            Code.GPU_NAME: "is called by another name",
            Code.GPU_EXCLUSION: f'has residents without exclusion "{label}"' if label else "is exclusive to others",
            Code.GPU_ANTI_AFFINITY: f'has a resident with anti-affinity "{label}" too',
            Code.GPU_WAKE: f'has "{label}" with kernels of {format_us(have)}, wake allows {format_us(asked)}'
            if have
            else f'has "{label}" with a wake of its own, too many to keep one as short as this',
            Code.GPU_TURNS: f"takes turns by {label}, wake is kept by fluid alone",
            Code.GPU_COMPUTE: f"has {format_milli(have)} unreserved, {format_milli(asked)} were asked",
            Code.GPU_MEMORY: f"has {format_mib(have)} unreserved, {format_mib(asked)} were asked",
        }
        return texts[self.code]

    def __str__(self) -> str:
        return f"{f'GPU {self.gpu}' if self.gpu >= 0 else self.node} {self.text}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stands against an ask on one node: `reason` for the node, None when it fits; one entry for each device."""

    node: str
    reason: UnmetConstraint | None
    devices: tuple[UnmetConstraint | None, ...]

    @property
    def lasting(self) -> bool:
        """Whether the ask would not fit if the node were empty."""
        return self.reason is not None and self.reason.lasting


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
        names = [spec.name for spec in self.cluster.nodes]
        return tuple(judge(self.cluster, self.ask, name, self.quotas, self.namespace) for name in names)


def judge(cluster: Cluster, ask: Ask, node: str, quotas: Quotas | None = None, namespace: str = "") -> Verdict:
    """What stands against an ask on one node."""
    number = cluster.node_index(node)
    closed = {} if quotas is None else quotas.closed_reasons(cluster, namespace, ask)
    devices = [_device(cluster, ask, number, g, closed) for g in range(cluster.gpu_count.item(number))]
    return Verdict(node, _node(cluster, ask, number, devices), tuple(devices))


def usable(devices: Sequence[UnmetConstraint | None]) -> list[int]:
    """Devices that nothing but room stands against."""
    room = (Code.GPU_COMPUTE, Code.GPU_MEMORY, Code.GPU_SIZE)
    return [g for g, reason in enumerate(devices) if reason is None or reason.code in room]


def _node(cluster: Cluster, ask: Ask, number: int, devices: Sequence[UnmetConstraint | None]) -> UnmetConstraint | None:
    spec = cluster.spec(number)
    name, cpu, memory = spec.name, cluster.cpu_free.item(number), cluster.memory_free.item(number)
    suited = _most([g for g, reason in enumerate(devices) if reason is None or not reason.lasting], ask, spec)
    if ask.devices and not devices:
        return UnmetConstraint(Code.NODE_NO_GPU, name, lasting=True)
    if ask.devices > len(suited):
        return UnmetConstraint(Code.NODE_FEW_GPUS, name, asked=ask.devices, have=len(suited), lasting=True)
    sizes = [spec.gpus[g].memory_mib for g in suited]
    if ask.rest_milli and not any(ask.shape.memory_on(size) <= size for size in sizes):
        return UnmetConstraint(Code.NODE_GPU_SIZE, name, asked=ask.gpu_mib, have=max(sizes), lasting=True)
    if ask.cpu_milli > cpu:
        return UnmetConstraint(
            Code.NODE_CPU, name, asked=ask.cpu_milli, have=cpu, lasting=ask.cpu_milli > spec.cpu_milli
        )
    if ask.memory_mib > memory:
        return UnmetConstraint(
            Code.NODE_MEMORY, name, asked=ask.memory_mib, have=memory, lasting=ask.memory_mib > spec.memory_mib
        )
    if not cluster.open[number]:
        return UnmetConstraint(Code.NODE_CORDONED, name)
    left = usable(devices)
    kinds = [left, *_by_model(left, ask, spec)]
    idle = [hold_whole(cluster, ask.shape, number, gpus) for gpus in kinds]
    rest = [hold_rest(cluster, ask.shape, number, gpus) for gpus in kinds]
    enough = [_suffice(ask, *each) for each in zip(idle, rest, strict=True)]
    if any(enough[1:] or enough):
        return None
    room = [len({*a, *b}) for a, b in zip(idle, rest, strict=True)]
    if enough[0]:
        return UnmetConstraint(Code.NODE_ONE_MODEL, name, asked=ask.devices, have=min(max(room[1:]), ask.devices - 1))
    return UnmetConstraint(Code.NODE_GPUS, name, asked=ask.devices, have=min(room[0], ask.devices - 1))


def _suffice(ask: Ask, idle: Sequence[int], rest: Sequence[int]) -> bool:
    """Whether so many idle devices, and one more for the rest where one is asked, are enough."""
    return len(idle) >= ask.whole and (not ask.rest_milli or any(len({*idle} - {g}) >= ask.whole for g in rest))


def _by_model(gpus: Sequence[int], ask: Ask, spec: NodeSpec) -> list[list[int]]:
    """These devices by model, where all that the ask gets must be of one model and the node has several."""
    models = {device.model for device in spec.gpus}
    if ask.devices < 2 or ask.mixed or len(models) < 2:
        return []
    return [[g for g in gpus if spec.gpus[g].model == model] for model in sorted(models)]


def _most(gpus: list[int], ask: Ask, spec: NodeSpec) -> list[int]:
    """The devices that one ask could get at most: all, or those of the model of which there are most."""
    return max(_by_model(gpus, ask, spec), key=len, default=gpus)


def _device(cluster: Cluster, ask: Ask, number: int, g: int, closed: dict[str, str]) -> UnmetConstraint | None:
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
        return UnmetConstraint(Code.QUOTA, spec.name, device.index, label=closed[device.model])
    return _labels(cluster, ask, number, g) or _wake(cluster, ask, number, g) or _room(cluster, ask, number, g)


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


def _room(cluster: Cluster, ask: Ask, number: int, g: int) -> UnmetConstraint | None:
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
