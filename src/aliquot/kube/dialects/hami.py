"""HAMi: `nvidia.com/gpu` vGPUs, each with `gpumem` MiB or `gpumem-percentage` of its device and `gpucores` hundredths.

All vGPUs of a container are on different devices and alike. Without memory a vGPU has all of its device's, without
cores no guarantee and no limit; where only memory or cores are named, one vGPU is meant. Annotations of the pod name
models to use or not (`use-gputype`, `nouse-gputype`: comma lists; HAMi compares parts of words, Aliquot whole words)
and UUIDs to use or not.

Facts: Project-HAMi/HAMi examples/nvidia/*.yaml, pkg/device/nvidia/device.go, pkg/device/devices.go,
pkg/device-plugin/nvidiadevice/nvinternal/plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from aliquot.kube.dialects.base import ORDERED, CanNotSay, Dialect, Owned, Words, asked, count, names_any
from aliquot.kube.objects import Container, Pod
from aliquot.kube.plan import PodPlan
from aliquot.kube.quantities import Quantity
from aliquot.kube.requests import LEAST_MILLI, ContainerAsk, PodAsk, Role, containers_of
from aliquot.model.quantities import MILLI, Memory
from aliquot.model.requests import Device, GpuRequest, Slice

GPU: Final = "nvidia.com/gpu"
MEM: Final = "nvidia.com/gpumem"
MEM_PART: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"
PRIORITY: Final = "nvidia.com/priority"
USE_TYPE: Final = "nvidia.com/use-gputype"
NOUSE_TYPE: Final = "nvidia.com/nouse-gputype"
USE_UUID: Final = "nvidia.com/use-gpuuuid"
NOUSE_UUID: Final = "nvidia.com/nouse-gpuuuid"
ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"
_REQUESTS: Final = frozenset({GPU, MEM, MEM_PART, CORES})
_OWN_RESOURCES: Final = frozenset({MEM, MEM_PART, CORES, PRIORITY})
_OWN_ANNOTATIONS: Final = (USE_TYPE, NOUSE_TYPE, USE_UUID, NOUSE_UUID)
_NOT_KEPT: Final = {
    "nvidia.com/numa-bind": "GPUs and cores near each other are preferred anyway, not enforced",
    "nvidia.com/vgpu-mode": "Aliquot has one mode",
    "hami.io/gpu-scheduler-policy": "the policy is the scheduler's (--policy)",
    "hami.io/node-scheduler-policy": "the policy is the scheduler's (--policy)",
}
NOTED: Final = (*_OWN_ANNOTATIONS, *_NOT_KEPT)
"""Annotations that make a plain `nvidia.com/gpu` HAMi's."""


class Hami(Dialect):
    """The words of HAMi for NVIDIA's GPUs."""

    name = "hami"
    owned = Owned(
        _OWN_RESOURCES | {GPU}, (*_OWN_ANNOTATIONS, *_NOT_KEPT, "hami.io/"), (), (), frozenset({"hami-scheduler"})
    )

    def speaks(self, pod: Pod) -> bool:
        """A container names memory, cores or priority, or it counts GPUs and an annotation of HAMi is there."""
        containers = [c for c, _, _ in containers_of(pod)]
        if any(names_any(c, _OWN_RESOURCES) for c in containers):
            return True
        noted = any(key in pod.metadata.annotations for key in NOTED)
        return noted and any(names_any(c, frozenset({GPU})) for c in containers)

    def asks(self, pod: Pod, faults: list[str]) -> tuple[list[ContainerAsk], list[str]]:
        """The pod's request; HAMi's annotations apply to every container."""
        asks = [
            ask
            for c, role, path in containers_of(pod)
            if names_any(c, _REQUESTS) and (ask := _ask(pod, c, role, path, faults)) is not None
        ]
        notes = [f"{key} is not kept: {why}" for key, why in _NOT_KEPT.items() if key in pod.metadata.annotations]
        if any(ask.priority for ask in asks):
            notes.append(f"{PRIORITY} is not kept: {ORDERED}")
        notes += [
            f'{path}.resources.limits["{PRIORITY}"] asks for no GPU; add "{GPU}", or leave it out'
            for c, _, path in containers_of(pod)
            if asked(c, PRIORITY) is not None and not names_any(c, _REQUESTS)
        ]
        return asks, notes

    def write(self, ask: PodAsk) -> Words:
        """Equal vGPUs for each container; one choice of models and UUIDs for the pod."""
        words = Words()
        choices = {(c.request.model, c.models_not, c.request.gpu, c.uuids_not) for c in ask.containers}
        if len(choices) > 1:
            raise CanNotSay("hami has one choice of models and UUIDs for the whole pod")
        for c in ask.containers:
            request, labels, who = c.request, c.request.labels, f'container "{c.container}"'
            if labels.affinity or labels.anti_affinity or labels.exclusion or request.gpu_id or c.near_cores:
                raise CanNotSay(f"{who} has labels, a vGPU or near cores, for which hami has no words")
            if (request.whole and request.rest_milli) or request.request_milli % LEAST_MILLI:
                raise CanNotSay(f"{who} asks for {request.request_milli} milli-GPU; hami has equal vGPUs")
            unlimited = request.rest_milli == LEAST_MILLI and request.ceiling_milli == MILLI
            if request.rest_milli and request.ceiling_milli != request.request_milli and not unlimited:
                raise CanNotSay(f"{who} has a limit of its own; in hami the cores are request and limit")
            resources: dict[str, Quantity] = {GPU: request.whole or c.parts}
            if request.memory is not None and request.memory.mib:
                resources[MEM] = request.memory.mib
            elif request.memory is not None and request.memory.part is not None:
                resources[MEM_PART] = int(request.memory.part * 100)
            elif request.rest_milli:
                resources[MEM_PART] = request.rest_milli // LEAST_MILLI
            if request.rest_milli and not unlimited:
                resources[CORES] = request.request_milli // LEAST_MILLI
            elif not request.rest_milli and request.memory is not None:
                resources[CORES] = 100
            if c.priority:
                resources[PRIORITY] = 0
            words.resources[c.container] = resources
        for model, models_not, gpu, uuids_not in choices:
            said = {
                USE_TYPE: model.replace("|", ","),
                NOUSE_TYPE: ",".join(models_not),
                USE_UUID: gpu,
                NOUSE_UUID: ",".join(uuids_not),
            }
            words.annotations = {key: text for key, text in said.items() if text}
        return words

    def planned(self, pod: Pod, plan: PodPlan, devices: Mapping[str, Device], now_ns: int) -> dict[str, str]:
        """What HAMi's scheduler writes: `UUID,NVIDIA,MiB,cores:` for each device, `;` after each container."""
        text = ""
        for container in pod.spec.containers:
            given = plan.containers.get(container.name)
            for piece in given.slices if given else ():
                text += f"{piece.gpu},NVIDIA,{piece.memory_mib},{_cores(piece)}:"
            text += ";"
        seconds = str(now_ns // 10**9)
        return {
            "hami.io/vgpu-node": plan.node,
            "hami.io/vgpu-time": seconds,
            "hami.io/bind-time": seconds,
            "hami.io/bind-phase": "success",
            TO_ALLOCATE: text,
            ALLOCATED: text,
        }

    def environment(self, pod: Pod, container: str, plan: PodPlan, devices: Mapping[str, Device]) -> dict[str, str]:
        """The limits that HAMi's device plugin sets; 0 cores are no limit."""
        given = plan.containers.get(container)
        if given is None or not given.slices:
            return {}
        found = {f"CUDA_DEVICE_MEMORY_LIMIT_{i}": f"{piece.memory_mib}m" for i, piece in enumerate(given.slices)}
        return found | {"CUDA_DEVICE_SM_LIMIT": str(_cores(given.slices[0]))}

    def started(self, pod: Pod) -> dict[str, str]:
        """HAMi's device plugin takes what it has allocated out of what is to be allocated, container by container."""
        return {TO_ALLOCATE: ";" * len(pod.spec.containers)}


def _cores(piece: Slice) -> int:
    """Hundredths as HAMi counts them: none where only memory was asked for."""
    free = piece.request_milli <= LEAST_MILLI < piece.limit_milli
    return 0 if free else piece.request_milli // LEAST_MILLI


def _list(pod: Pod, key: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in pod.metadata.annotations.get(key, "").split(","))))


def _models(pod: Pod, key: str) -> tuple[str, ...]:
    """Models without the vendor that HAMi puts before NVML's name: `NVIDIA-Tesla V100-SXM2-16GB`."""
    return tuple(model.removeprefix("NVIDIA-") for model in _list(pod, key))


def _ask(pod: Pod, c: Container, role: Role, path: str, faults: list[str]) -> ContainerAsk | None:
    before = len(faults)
    number = count(c, path, GPU, faults) if asked(c, GPU) is not None else 1
    mib, part, cores = (count(c, path, name, faults) for name in (MEM, MEM_PART, CORES))
    priority = count(c, path, PRIORITY, faults) if asked(c, PRIORITY) is not None else 1
    for value, name in ((part, MEM_PART), (cores, CORES)):
        if value > 100:
            faults.append(f'{path}.resources.limits["{name}"] {value} is more than a device; the most is 100')
    if mib and part:
        faults.append(f'{path}.resources.limits has both "{MEM}" and "{MEM_PART}"; leave one of them out')
    if len(faults) > before or not number:
        return None
    use = _list(pod, USE_UUID)
    whole = cores == 100 or not (mib or part or cores)
    memory: Memory | None = Memory(mib=mib) if mib else Memory(part=Fraction(part or 100, 100))
    if whole and (number > 1 or (not mib and part in (0, 100))):
        memory = None
    request = GpuRequest(
        request_milli=number * MILLI if whole else max(cores, 1) * LEAST_MILLI,
        limit_milli=None if whole else (cores * LEAST_MILLI or MILLI),
        memory=memory,
        model="|".join(_models(pod, USE_TYPE)),
        gpu=",".join(use),
    )
    return ContainerAsk(
        c.name,
        request,
        role,
        1 if whole else number,
        _models(pod, NOUSE_TYPE),
        () if use else _list(pod, NOUSE_UUID),
        int(priority == 0),
    )
