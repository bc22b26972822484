"""A pod's requests, container by container, in Aliquot's integers; and the requests that placement gets.

One container may ask for one request, or for several equal parts on different GPUs. Plain init containers run one after
another before the others start, so one that asks for no more than a later container uses that container's GPUs
(`uses`), and is counted with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal

from aliquot.kube.objects import Container, Pod
from aliquot.kube.quantities import Quantity
from aliquot.model.errors import UserError
from aliquot.model.ids import split_key
from aliquot.model.quantities import MILLI, BadQuantity
from aliquot.model.requests import MAX_GPU_MIB, Enforce, GpuRequest
from aliquot.placement.asks import Ask, PlacementUnit, model_matches

Role = Literal["app", "sidecar", "init"]
LEAST_MILLI: Final = 10
"""The compute of a request for memory only: one hundredth of a GPU, the least that a device id stands for."""


MAX_GPUS: Final = 64
CONTEXT_MIB: Final = 500
"""The context of an H100, the largest of the emulator's profiles."""
MAX_FAULTS: Final = 16
FAULT_LENGTH: Final = 500
"""Maximum length of one message; it may quote up to 256 KiB of user input."""
MAX_CONTAINERS: Final = 256
"""Containers, init containers among them, of a pod that asks for GPUs: a bound on what one pod costs."""
MAX_ANNOTATION_BYTES: Final = 256 * 1024
"""Kubernetes' own bound on a pod's annotations, which the API server checks after the webhooks."""


_PATH: Final = re.compile(r"(?<![\w.\"/])(metadata|spec)\.")
"""How the paths of a pod begin."""


class BadPod(UserError):
    """A pod whose GPU request contradicts itself or cannot be read; `faults` lists each with its path."""

    def __init__(self, pod: str, faults: Sequence[str]) -> None:
        told = [shortened(fault) for fault in faults[:MAX_FAULTS]]
        if len(faults) > MAX_FAULTS:
            told.append(f"and {len(faults) - MAX_FAULTS} more faults")
        super().__init__(f'pod "{pod}": {"; ".join(told)}')
        self.faults = tuple(told)

    def under(self, prefix: str) -> tuple[str, ...]:
        """The faults with the paths of a manifest that has the pod at `prefix`, such as `spec.template.`."""
        return tuple(_PATH.sub(rf"{prefix}\1.", fault) for fault in self.faults)


def shortened(text: str) -> str:
    """A sentence as long as it may be."""
    return text if len(text) <= FAULT_LENGTH else f"{text[: FAULT_LENGTH - 3]}..."


def too_many(containers: int) -> str:
    """Why a pod with so many containers and a request for GPUs is refused."""
    return f"spec has {containers} containers and init containers; a pod with GPUs has {MAX_CONTAINERS} at most"


def require_readable(pod: Pod) -> None:
    """Refuse a pod that would take long to read, before it is read.

    Raises:
        BadPod: it has too many containers, or annotations that Kubernetes does not allow.
    """
    spec = pod.spec
    if (containers := len(spec.init_containers) + len(spec.containers)) > MAX_CONTAINERS:
        raise BadPod(pod.metadata.key, [too_many(containers)])
    if (size := sum(len(k) + len(v) for k, v in pod.metadata.annotations.items())) > MAX_ANNOTATION_BYTES:
        text = f"metadata.annotations have {size} characters; Kubernetes allows {MAX_ANNOTATION_BYTES}"
        raise BadPod(pod.metadata.key, [text])


@dataclass(frozen=True)
class ClusterDevices:
    """The cluster's models, for requests that are expressed as exclusions."""

    models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()


@dataclass(frozen=True)
class ContainerAsk:
    """The request of one container. `request` is that of one part; all parts are on different GPUs.

    `priority` is the other project's value, for translations; it orders nothing here.
    """

    container: str
    request: GpuRequest
    role: Role = "app"
    parts: int = 1
    models_not: tuple[str, ...] = ()
    uuids_not: tuple[str, ...] = ()
    priority: int = 0
    near_cores: int = 0
    uses: str = ""
    init: int = 0
    """Its place among the pod's init containers, from 1 on; negative for a sidecar, 0 for those that start last."""

    @property
    def total_milli(self) -> int:
        """Milli-GPU of all parts."""
        return self.request.request_milli * self.parts

    @property
    def percent(self) -> int:
        """Device ids that stand for it: hundredths of a GPU, rounded down, at least 1."""
        return max(1, self.total_milli // LEAST_MILLI)

    @property
    def enforced(self) -> Enforce:
        """What is enforced; the library in the program does the binding to cores."""
        return self.request.enforced(library=self.near_cores > 0)

    def ask(self, known: ClusterDevices, apart: str) -> Ask:
        """The ask of one part; `apart` is a label that keeps the parts on different GPUs."""
        labels = self.request.labels
        if self.parts > 1:
            labels = replace(labels, anti_affinity=labels.anti_affinity or apart)
        model, gpu = self.request.model, self.request.gpu
        if self.models_not:
            wanted = [
                m
                for m in known.models
                if not self.request.models or any(model_matches(a, m) for a in self.request.models)
            ]
            fine = [m for m in wanted if not any(model_matches(refused, m) for refused in self.models_not)]
            model = "|".join(fine) or "none but " + ", ".join(self.models_not)
        if self.uuids_not:
            gpu = ",".join(u for u in (gpu.split(",") if gpu else known.uuids) if u not in self.uuids_not) or "none"
        return Ask(replace(self.request, labels=labels, model=model, gpu=gpu), near_cores=self.near_cores)


@dataclass(frozen=True)
class PodAsk:
    """All requests of a pod for GPUs; CPU and memory of the node are kube-scheduler's to count.

    `notes` name the pod's fields that have no counterpart here and are therefore not kept, one sentence each.
    """

    key: str
    uid: str
    containers: tuple[ContainerAsk, ...]
    notes: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        """The namespace of the pod."""
        return split_key(self.key)[0]

    def units(self, known: ClusterDevices | None = None) -> tuple[PlacementUnit, ...]:
        """The requests to place on one node, largest first, since small ones fit more easily."""
        found: list[PlacementUnit] = []
        for c in self.containers:
            if c.uses:
                continue
            ask = c.ask(known or ClusterDevices(), f"{self.uid or self.key}/{c.container}")
            for part in range(c.parts):
                suffix = f"#{part + 1}" if part else ""
                found.append(PlacementUnit(f"{self.key}/{c.container}{suffix}", c.container, part, ask, c.init))
        found.sort(key=lambda unit: -unit.ask.milli)
        return tuple(found)


def improbable(c: ContainerAsk, gpus: str, memory: str, amount: Quantity | None, unit: str) -> list[str]:
    """A sentence for each amount that is allowed, but that no machine has or no program can use.

    `gpus` and `memory` are paths; `amount` is the memory as written, in `unit` where it has only digits.
    """
    mib = (c.request.memory.mib if c.request.memory is not None else None) or CONTEXT_MIB
    if (devices := c.parts * -(-c.request.request_milli // MILLI)) > MAX_GPUS:
        return [f"{gpus} asks for {devices} GPUs of one node, more than any node has; it waits for ever"]
    if mib > MAX_GPU_MIB:
        return [f"{memory} {amount} is more memory than any GPU has; it waits for ever"]
    if mib < CONTEXT_MIB and str(amount).isdigit():
        return [f"{memory} {amount} is in {unit}, too little for a CUDA context; did you mean {amount}Gi?"]
    if mib < CONTEXT_MIB:
        context = f"a CUDA context alone takes 250 MiB (T4) to {CONTEXT_MIB} MiB (H100)"
        return [f"{memory} {amount} leaves little or nothing to a program: {context}"]
    return []


def role_of(container: Container, *, init: bool) -> Role:
    """An init container that is restarted always is a sidecar: it keeps running beside the others."""
    if not init:
        return "app"
    return "sidecar" if container.restart_policy == "Always" else "init"


def containers_of(pod: Pod) -> list[tuple[Container, Role, str]]:
    """Every container with its role and its path, in the order in which they start."""
    found = [(c, role_of(c, init=True), f"spec.initContainers[{c.name}]") for c in pod.spec.init_containers]
    return found + [(c, role_of(c, init=False), f"spec.containers[{c.name}]") for c in pod.spec.containers]


def pod_ask(pod: Pod, containers: Iterable[ContainerAsk], notes: Iterable[str]) -> PodAsk:
    """A pod's ask from those of its containers, with what plain init containers can share worked out.

    Raises:
        BadPod: two containers have one name, which no API server lets through, or there are too many parts.
    """
    places = {c.name: number for number, c in enumerate(pod.spec.init_containers, 1)}
    containers = [replace(c, init=places.get(c.container, 0) * (-1 if c.role == "sidecar" else 1)) for c in containers]
    if (parts := sum(c.parts for c in containers)) > MAX_CONTAINERS:
        raise BadPod(pod.metadata.key, [f"it asks for {parts} parts of GPUs in all; {MAX_CONTAINERS} is the most"])
    if len({c.container for c in containers}) != len(containers):
        raise BadPod(pod.metadata.key, ["two containers have the same name; each needs one of its own"])
    return PodAsk(pod.metadata.key, pod.metadata.uid, tuple(shared_in_time(containers)), tuple(notes))


def shared_in_time(asks: list[ContainerAsk]) -> list[ContainerAsk]:
    """Lets each plain init container use the GPUs of a container that starts later and asks for as much.

    A sidecar's GPUs are taken from its start on, and another init container may have other sidecars beside it, so they
    are no choice.
    """
    hosts = [a for a in asks if a.role == "app"]
    found = []
    for ask in asks:
        host = next((h for h in hosts if _covers(h, ask)), None) if ask.role == "init" else None
        found.append(replace(ask, uses=host.container if host is not None else ""))
    return found


def _covers(host: ContainerAsk, guest: ContainerAsk) -> bool:
    """Would the guest be content with the host's slices?"""
    a, b = host.request, guest.request
    same = (a.model, a.gpu, a.gpu_id, a.labels) == (b.model, b.gpu, b.gpu_id, b.labels)
    same = same and (host.models_not, host.uuids_not) == (guest.models_not, guest.uuids_not)
    same = same and (b.enforce is None or host.enforced == guest.enforced)
    same = same and (b.mixed or not a.mixed) and (not b.wake_us or 0 < a.wake_us <= b.wake_us)
    same = same and b.memory_limit in (None, a.memory_limit)
    enough = host.parts == guest.parts and a.request_milli >= b.request_milli and a.ceiling_milli >= b.ceiling_milli
    return same and enough and _memory_covers(a, b)


def _memory_covers(a: GpuRequest, b: GpuRequest) -> bool:
    """Is a's memory at least b's on any device? Bytes and parts of a device cannot be compared before it is known."""
    if a.rest_milli == 0 and a.memory is None:
        return True
    if (a.memory is not None and a.memory.mib) or (b.memory is not None and b.memory.mib):
        both = a.memory is not None and b.memory is not None and a.memory.mib and b.memory.mib
        return bool(both) and a.memory_on(0) >= b.memory_on(0)
    return _part(a) >= _part(b)


def _part(request: GpuRequest) -> Fraction:
    if request.memory is not None and request.memory.part is not None:
        return request.memory.part
    return Fraction(request.rest_milli or MILLI, MILLI)


def effective(pod: Pod, name: str, convert: Callable[[Quantity], int]) -> int:
    """What kube-scheduler counts of one resource for a pod, in the unit of `convert`.

    The larger of what runs at the same time: all app containers and sidecars, or one plain init container and the
    sidecars before it; and the overhead of its runtime class. Source: Kubernetes, "Sidecar containers", resource
    sharing within containers.

    Raises:
        BadQuantity: one of the amounts is not a quantity, or the sum is negative.
    """

    def need(container: Container) -> int:
        resources = container.resources
        return convert(resources.requests.get(name, resources.limits.get(name, 0)))

    sidecars, peak = 0, 0
    for container in pod.spec.init_containers:
        if role_of(container, init=True) == "sidecar":
            sidecars += need(container)
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + need(container))
    running = sidecars + sum(need(c) for c in pod.spec.containers)
    found = max(peak, running) + convert(pod.spec.overhead.get(name, 0))
    if found < 0:
        raise BadQuantity(f"its {name} is negative; the least is 0")
    return found
