"""gpu-manager and gpu-admission: `tencent.com/vcuda-core` in hundredths, `tencent.com/vcuda-memory` in 256 MiB.

Below 100 cores a container shares a GPU; from 100 on it owns whole ones with all their memory, and the number is a
multiple of 100. The annotation `tencent.com/vcuda-core-limit` lets a sharing container use more than its request;
without it the request is the limit. The model is chosen by the node label `gaia.tencent.com/gpu-model`.

Facts: tkestack/gpu-manager README.md, pkg/types/types.go, pkg/services/virtual-manager; tkestack/gpu-admission.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aliquot.kube.dialects.base import CanNotSay, Dialect, Owned, Words, count, names_any, only_plain
from aliquot.kube.objects import Container, Pod
from aliquot.kube.plan import PodPlan
from aliquot.kube.quantities import Quantity
from aliquot.kube.requests import LEAST_MILLI, ContainerAsk, PodAsk, Role, containers_of
from aliquot.model.quantities import Memory
from aliquot.model.requests import Device, GpuRequest

CORE: Final = "tencent.com/vcuda-core"
MEMORY: Final = "tencent.com/vcuda-memory"
ASSIGNED: Final = "tencent.com/gpu-assigned"
LIMIT: Final = "tencent.com/vcuda-core-limit"
MODEL: Final = "gaia.tencent.com/gpu-model"
BLOCK_MIB: Final = 256


class Tencent(Dialect):
    """The words of gpu-manager."""

    name = "tencent"
    owned = Owned(frozenset({CORE, MEMORY}), ("tencent.com/",), (), (MODEL,))

    def asks(self, pod: Pod, faults: list[str]) -> tuple[list[ContainerAsk], list[str]]:
        """The pod's ask."""
        limit: int | None = None
        text, model = pod.metadata.annotations.get(LIMIT), pod.spec.node_selector.get(MODEL, "")
        if text is not None and text.strip().isdigit() and int(text):
            limit = min(int(text), 100) * LEAST_MILLI  # gpu-manager takes at most 100 hundredths of what is written
        elif text is not None:
            faults.append(
                f'metadata.annotations["{LIMIT}"] "{text}" is not a number of hundredths of a GPU; write 1 to 100'
            )
        return [
            ask
            for c, role, path in containers_of(pod)
            if names_any(c, self.owned.resources) and (ask := _ask(c, role, path, limit, model, faults)) is not None
        ], []

    def write(self, ask: PodAsk) -> Words:
        """One limit and one model for the whole pod; whole GPUs or a share of one."""
        only_plain(ask, self.name, models=True)
        words = Words()
        models = {c.request.model for c in ask.containers}
        limits = {c.request.ceiling_milli for c in ask.containers if c.request.rest_milli}
        elastic = any(
            c.request.rest_milli and c.request.ceiling_milli != c.request.request_milli for c in ask.containers
        )
        if len(models) > 1 or any(c.models_not for c in ask.containers) or "|" in "".join(models):
            raise CanNotSay(f"{self.name} has one model for the whole pod")
        if elastic and len(limits) > 1:
            raise CanNotSay(f"{self.name} has one limit for the whole pod, here are {sorted(limits)} milli-GPU")
        for c in ask.containers:
            request = c.request
            if request.request_milli % LEAST_MILLI or (request.rest_milli and request.whole):
                raise CanNotSay(
                    f'container "{c.container}" asks for {request.request_milli} milli-GPU; tencent knows hundredths '
                    "of one GPU, or whole ones"
                )
            resources: dict[str, Quantity] = {CORE: request.request_milli // LEAST_MILLI}
            if request.memory is not None and request.memory.mib:
                if request.memory.mib % BLOCK_MIB:
                    raise CanNotSay(
                        f'container "{c.container}" asks for {request.memory.mib} MiB; tencent counts in 256 MiB'
                    )
                resources[MEMORY] = request.memory.mib // BLOCK_MIB
            words.resources[c.container] = resources
        if elastic:
            words.annotations[LIMIT] = str(limits.pop() // LEAST_MILLI)
        if model := next(iter(models), ""):
            words.node_selector[MODEL] = model
        return words

    def planned(self, pod: Pod, plan: PodPlan, devices: Mapping[str, Device], now_ns: int) -> dict[str, str]:
        """What gpu-admission writes: time, node, and the GPU numbers of each container by its place in the pod."""
        found = {
            "tencent.com/predicate-time": str(now_ns),
            "tencent.com/predicate-node": plan.node,
            ASSIGNED: "false",
        }
        for place, container in enumerate(pod.spec.containers):
            if given := plan.containers.get(container.name):
                numbers = ",".join(str(devices[s.gpu].index) for s in given.slices)
                found[f"tencent.com/predicate-gpu-idx-{place}"] = numbers
        return found

    def started(self, pod: Pod) -> dict[str, str]:
        """What gpu-manager writes when it has allocated."""
        return {ASSIGNED: "true"}


def _ask(
    c: Container, role: Role, path: str, limit_milli: int | None, model: str, faults: list[str]
) -> ContainerAsk | None:
    before = len(faults)
    core, blocks = count(c, path, CORE, faults), count(c, path, MEMORY, faults)
    where = f'{path}.resources.limits["{CORE}"]'
    if len(faults) > before:
        return None
    if core > 100 and core % 100:
        faults.append(f"{where} {core} is neither below 100 nor a multiple of 100; {CORE} knows shares and whole GPUs")
        return None
    if core >= 100:
        return ContainerAsk(c.name, GpuRequest(core * LEAST_MILLI, model=model), role)
    request = max(core, 1) * LEAST_MILLI
    if limit_milli is not None and limit_milli < request:
        faults.append(
            f'metadata.annotations["{LIMIT}"] {limit_milli // LEAST_MILLI} is below {where} {core}; '
            "a limit is at least the request"
        )
        return None
    memory = Memory(mib=blocks * BLOCK_MIB) if blocks else None
    limit = limit_milli if limit_milli is not None else (request if core else 1000)
    return ContainerAsk(c.name, GpuRequest(request, limit, memory, model), role)
