"""gpushare: `aliyun.com/gpu-mem`, memory of one GPU and nothing else.

The unit is GiB, or MiB where gpushare's device plugin was started with `--memory-unit=MiB`; a manifest does not say
which. A pod is on one GPU, whatever number of containers share it. Compute is not divided by gpushare: here such a
container is guaranteed the least share and may use all that is idle.

Facts: AliyunContainerService/gpushare-scheduler-extender docs/userguide.md, pkg/utils/{const,pod}.go,
pkg/scheduler/{inspect,gpushare-inspect}.go; gpushare-device-plugin pkg/gpu/nvidia/{const,allocate}.go, cmd/inspect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from aliquot.kube.dialects.base import CanNotSay, Dialect, Owned, Words, asked, count, only_plain
from aliquot.kube.objects import Pod
from aliquot.kube.plan import PodPlan
from aliquot.kube.quantities import parse_count
from aliquot.kube.requests import LEAST_MILLI, ContainerAsk, PodAsk, containers_of
from aliquot.model.quantities import Memory
from aliquot.model.requests import Device, GpuRequest, Labels
from aliquot.status.gpus import Gpu

MEMORY: Final = "aliyun.com/gpu-mem"
COUNT: Final = "aliyun.com/gpu-count"
IDX: Final = "ALIYUN_COM_GPU_MEM_IDX"
POD: Final = "ALIYUN_COM_GPU_MEM_POD"
DEV: Final = "ALIYUN_COM_GPU_MEM_DEV"
CONTAINER: Final = "ALIYUN_COM_GPU_MEM_CONTAINER"
ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ASSUME_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
Unit = Literal["GiB", "MiB"]
MAX_GPU_MIB: Final = 512 * 1024
"""More memory than a GPU has (2026: at most 288 GiB)."""
UNIT_MIB: Final[Mapping[Unit, int]] = {"GiB": 1024, "MiB": 1}


class Aliyun(Dialect):
    """The words of gpushare, with memory counted in `unit`."""

    name = "aliyun"
    owned = Owned(frozenset({MEMORY}), ("ALIYUN_COM_GPU_MEM_",), (), ())

    def __init__(self, unit: Unit = "GiB") -> None:
        self.unit_mib = UNIT_MIB[unit]

    def asks(self, pod: Pod, faults: list[str]) -> tuple[list[ContainerAsk], list[str]]:
        """The pod's ask. Several containers of one pod are kept on one GPU, as gpushare does, by an affinity label."""
        found = [
            (c, role, amount) for c, role, path in containers_of(pod) if (amount := count(c, path, MEMORY, faults)) > 0
        ]
        several, uid = len(found) > 1, pod.metadata.uid
        together = Labels(affinity=f"pod-{uid}"[:63]) if several and uid else Labels()
        in_gib = self.unit_mib == UNIT_MIB["GiB"]
        notes = [note for _, _, amount in found if in_gib and (note := unit_note(amount * self.unit_mib))]
        several_notes = [
            f"{MEMORY} on several containers means one GPU in gpushare; only placed together, not converted so"
        ]
        asks = [
            ContainerAsk(
                c.name,
                GpuRequest(LEAST_MILLI, 1000, Memory(mib=amount * self.unit_mib), labels=together),
                role,
            )
            for c, role, amount in found
        ]
        return asks, [*notes, *(several_notes if several and not uid else ())]

    def write(self, ask: PodAsk) -> Words:
        """Memory alone can be said."""
        lone = len(ask.containers) == 1
        words = Words()
        if lone:
            only_plain(ask, self.name)
        for c in ask.containers:
            memory = c.request.memory.mib if c.request.memory is not None else None
            if c.request.request_milli > LEAST_MILLI or not memory:
                raise CanNotSay(f'container "{c.container}" asks for compute; {self.name} has words for memory only')
            if memory % self.unit_mib:
                raise CanNotSay(f'container "{c.container}" asks for {memory} MiB, no multiple of {self.unit_mib} MiB')
            words.resources[c.container] = {MEMORY: memory // self.unit_mib}
        return words

    def planned(self, pod: Pod, plan: PodPlan, devices: Mapping[str, Device], now_ns: int) -> dict[str, str]:
        """What gpushare's extender writes when it binds."""
        device = _first_device(plan, devices)
        if device is None:
            return {}
        return {
            IDX: str(device.index),
            DEV: str(device.memory_mib // self.unit_mib),
            POD: str(self._pod_total(pod, plan)),
            ASSIGNED: "false",
            ASSUME_TIME: str(now_ns),
        }

    def environment(self, pod: Pod, container: str, plan: PodPlan, devices: Mapping[str, Device]) -> dict[str, str]:
        """What gpushare's device plugin sets, but with the container's share as the device's memory.

        By gpushare's recipe a program takes CONTAINER / DEV of the memory that CUDA shows it as the GPU's. That is the
        whole GPU there, and the share here.
        """
        device = _first_device(plan, devices)
        everyone = [*pod.spec.init_containers, *pod.spec.containers]
        own = next((c for c in everyone if c.name == container), None)
        if device is None or own is None:
            return {}
        return {
            IDX: str(device.index),
            POD: str(self._pod_total(pod, plan)),
            CONTAINER: str(parse_count(asked(own, MEMORY) or 0) or self._planned(plan, container)),
            DEV: str(self._planned(plan, container)),
        }

    def started(self, pod: Pod) -> dict[str, str]:
        """What gpushare's device plugin writes when it allocates."""
        return {ASSIGNED: "true"}

    def _pod_total(self, pod: Pod, plan: PodPlan) -> int:
        """What the pod asks for; from the plan where admission has put our words in the place of these."""
        own = sum(parse_count(value) for c in pod.spec.containers if (value := asked(c, MEMORY)) is not None)
        return own or sum(self._planned(plan, name) for name, given in plan.containers.items() if not given.uses)

    def _planned(self, plan: PodPlan, container: str) -> int:
        given = plan.containers.get(container)
        return sum(piece.memory_mib for piece in given.slices) // self.unit_mib if given is not None else 0


def unit_note(memory_mib: int) -> str:
    """A sentence for memory that was probably meant in MiB and read as GiB; empty for other amounts."""
    amount, rest = divmod(memory_mib, UNIT_MIB["GiB"])
    if rest or memory_mib <= MAX_GPU_MIB:
        return ""
    return (
        f"{MEMORY} {amount} is read as {amount} GiB, more than any GPU has; where it means MiB, convert with "
        "--aliyun-unit MiB and install with scheduler.aliyunUnit=MiB"
    )


def _first_device(plan: PodPlan, devices: Mapping[str, Device]) -> Device | None:
    return devices.get(plan.slices[0].gpu) if plan.slices else None


def inspect(nodes: Iterable[tuple[str, Iterable[Gpu]]], unit: Unit = "GiB", error: str = "") -> bytes:
    """The answer of `GET /gpushare-scheduler/inspect`, byte for byte: order of fields, empty lists, no spaces.

    `nodes` are listed by name; what pods of other dialects hold is rounded up to units.
    """
    unit_mib = UNIT_MIB[unit]
    found = []
    for name, gpus in sorted(nodes, key=lambda node: node[0]):
        devs: list[dict[str, Any]] = []
        for gpu in sorted(gpus, key=lambda gpu: gpu.index):
            held_mib: dict[tuple[str, str], int] = {}
            for share in gpu.shares:
                namespace, pod, *_ = share.tenant.split("/")
                held_mib[namespace, pod] = held_mib.get((namespace, pod), 0) + share.memory_mib
            pods = [
                {"name": pod, "namespace": namespace, "usedGPU": -(-mib // unit_mib)}
                for (namespace, pod), mib in sorted(held_mib.items())
            ]
            used = sum(-(-mib // unit_mib) for mib in held_mib.values())
            devs.append({"id": gpu.index, "totalGPU": gpu.memory_mib // unit_mib, "usedGPU": used, "pods": pods})
        sums = {of: sum(dev[of] for dev in devs) for of in ("totalGPU", "usedGPU")}
        found.append({"name": name, **sums, "devs": devs})
    return msgspec.json.encode({"nodes": found, **({"error": error} if error else {})})
