"""Two ways to own the GPUs that vGPUs stand for.

`own`: Aliquot's device plugin has every GPU of the node; a vGPU is a name in the ledger, made and dropped at once.
`coexist`: the stock plugin has them; a vGPU holds one by a pod that requests `nvidia.com/gpu: 1` and sleeps. The node's
agent sees which GPU that is (PodResources), writes it on the holder pod and adds the device to the node's inventory. A
holder is not owned by its VGPU object: whatever happens to our objects, a GPU is never given back to the stock
plugin while it has a tenant.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aliquot.kube import names
from aliquot.kube.api import Api
from aliquot.kube.custom import VGPU
from aliquot.kube.dialects.nvidia import GPU
from aliquot.kube.errors import AlreadyExists
from aliquot.kube.manifest import read_yaml_file
from aliquot.kube.objects import PODS, Node, Pod
from aliquot.kube.plan import BadPlan, read_plan
from aliquot.kube.quantities import parse_count
from aliquot.kube.requests import effective
from aliquot.kube.sharepods import on_node
from aliquot.lib.log import Logger
from aliquot.model.quantities import BadQuantity
from aliquot.placement.asks import model_matches
from aliquot.scheduler.ledger import Ledger
from aliquot.tenancy.removal import Answer, Removable, Source, kept_by

log = Logger("scheduler")
PRODUCT: Final = "nvidia.com/gpu.product"
"""Label by which the stock plugin's feature discovery tells a node's model."""

PAUSE: Final = "registry.k8s.io/pause:3.10"


@dataclass(eq=False)
class Own:
    """How vGPUs get and release their devices where every GPU is ours; `Coexist` does it otherwise."""

    ledger: Ledger
    coexists = False

    def held_by(self, pod: Pod) -> str:
        """The name of the vGPU that a pod holds a device for; empty if it is not a holder of ours: here none is."""
        return ""

    async def acquire(self, vgpu: VGPU, taken: Iterable[str]) -> str:
        """The UUID of the vGPU's device, created if needed; empty while it is not known. `taken` have a name.

        Here it is an idle device of the node that has no name yet.
        """
        named = set(taken)
        for gpu in self.ledger.gpus(vgpu.spec.node_name):
            models = [model.strip() for model in vgpu.spec.model.split("|") if model.strip()]
            fits = not models or any(model_matches(model, gpu.model) for model in models)
            if fits and not gpu.shares and gpu.uuid not in named:
                return gpu.uuid
        return ""

    def close(self, vgpu: VGPU) -> bool:
        """Accept no new tenant on its device; False if it has one. A name is dropped, so the device is not closed."""
        gpu = self.ledger.gpu(vgpu.status.uuid)
        return gpu is None or not gpu.shares

    def reopen(self, vgpu: VGPU) -> None:
        """Accept pods on its device again; here it was never closed."""

    async def give_back(self, vgpu: VGPU) -> bool:
        """Give its device back; True once it is. Here there is nothing to give back."""
        return True

    async def orphan(self, name: str) -> tuple[str, str]:
        """Node and device held for a vGPU whose object was deleted, if it has a tenant; otherwise it is given back."""
        return "", ""

    def offers(self, node: str, pod: Pod) -> bool:
        """Whether kube-scheduler would find a pod's share on the node; here every GPU is offered from the start."""
        return True

    def places(self, models: Sequence[str], wanted: Iterable[VGPU]) -> list[str]:
        """Nodes on which one more vGPU of these models can be created, the best first; `wanted` are being created.

        Here those with an idle device for each that is wanted there.
        """
        under_way = [vgpu.spec.node_name for vgpu in wanted]
        free: dict[str, int] = {}
        for gpu in self.ledger.gpus():
            if not gpu.shares and (not models or any(model_matches(m, gpu.model) for m in models)):
                free[gpu.node] = free.get(gpu.node, 0) + 1
        left = {node: count - under_way.count(node) for node, count in free.items()}
        return sorted((node for node, count in left.items() if count > 0), key=lambda node: (left[node], node))


@dataclass(eq=False)
class Coexist(Own):
    """GPUs are the stock plugin's; we hold some by pods of ours in `namespace`."""

    api: Api
    nodes: Callable[[], Iterable[Node]]
    pods: Callable[[], Iterable[Pod]]
    namespace: str
    image: str = PAUSE
    coexists = True

    def held_by(self, pod: Pod) -> str:
        """The vGPU that a pod of ours holds a GPU for; empty for pods of others, whatever their labels."""
        return pod.metadata.labels.get(names.VGPU, "") if pod.metadata.namespace == self.namespace else ""

    def holder(self, name: str) -> str:
        """The name of a vGPU's holder pod."""
        return f"aliquot-vgpu-{name}"

    async def acquire(self, vgpu: VGPU, taken: Iterable[str]) -> str:
        """The UUID that the agent wrote on the holder pod, which is created if it does not exist."""
        name = self.holder(vgpu.metadata.name)
        pod = await self.api.find(PODS, name, namespace=self.namespace)
        if pod is not None and pod.ended:
            await self.api.delete(PODS, name, namespace=self.namespace, uid=pod.metadata.uid)
            return ""
        if pod is None:
            with contextlib.suppress(AlreadyExists):
                await self.api.create(PODS, self.holder_body(vgpu), namespace=self.namespace)
            return ""
        return pod.metadata.annotations.get(names.HOLDS, "")

    def holder_body(self, vgpu: VGPU) -> dict[str, Any]:
        """The pod that keeps one GPU of the stock plugin."""
        pod: dict[str, Any] = read_yaml_file(Path(__file__).with_name("holder.yaml"))
        pod["metadata"] |= {"name": self.holder(vgpu.metadata.name), "namespace": self.namespace}
        pod["metadata"]["labels"][names.VGPU] = vgpu.metadata.name
        pod["spec"]["containers"][0]["image"] = self.image
        on_node(pod["spec"], vgpu.spec.node_name)
        return pod

    def close(self, vgpu: VGPU) -> bool:
        """Keep the whole device, in the ledger that binds are made from."""
        return not vgpu.status.uuid or self.ledger.close(vgpu.status.uuid)

    def reopen(self, vgpu: VGPU) -> None:
        """Its device is in the pool: an earlier holder may have had the same device and ended."""
        self.ledger.reopen(vgpu.status.uuid)

    async def give_back(self, vgpu: VGPU) -> bool:
        """Delete the holder; done when it is gone and the agent has removed the device from the inventory."""
        name = self.holder(vgpu.metadata.name)
        pod = await self.api.find(PODS, name, namespace=self.namespace)
        if pod is not None:
            await self._release(pod, vgpu.status.uuid)
            return False
        if vgpu.status.uuid and self.ledger.gpu(vgpu.status.uuid) is not None:
            return False
        self.ledger.reopen(vgpu.status.uuid)
        return True

    async def orphan(self, name: str) -> tuple[str, str]:
        """The holder's device while it has a tenant; otherwise the holder is deleted."""
        pod = await self.api.find(PODS, self.holder(name), namespace=self.namespace)
        if pod is None:
            return "", ""
        uuid = pod.metadata.annotations.get(names.HOLDS, "")
        return ("", "") if await self._release(pod, uuid) else (pod.spec.node_name, uuid)

    async def _release(self, holder: Pod, uuid: str) -> bool:
        """Delete a holder, unless its device has a tenant; returns whether it was deleted.

        The ledger has no device of a node whose inventory is missing or damaged, though pods may run on it; their plans
        name it.
        """

        def has_share(pod: Pod) -> bool:
            if not uuid or pod.ended or not pod.spec.node_name:
                return False
            try:
                plan = read_plan(pod.metadata.annotations)
            except BadPlan:  # it may have one
                return uuid in pod.metadata.annotations[names.PLAN]
            return plan is not None and any(piece.gpu == uuid for piece in plan.slices)

        closed = not uuid or self.ledger.close(uuid)
        said: dict[Source, Answer] = {
            Source.API: "used" if any(map(has_share, self.pods())) else "gone",
            Source.LEDGER: "gone" if closed else "used",
        }
        if why := kept_by(Removable.HOLDER, said):
            log.warning("holder %s stays: %s", holder.metadata.name, why)
            return False
        await self.api.delete(PODS, holder.metadata.name, namespace=self.namespace, uid=holder.metadata.uid)
        return True

    def offers(self, node: str, pod: Pod) -> bool:
        """Whether kubelet offers the pod's share on the node: it does a moment after the agent has told of a new GPU.

        A pod that comes before is refused by kube-scheduler, and then waits out its back-off.
        """
        said = next((n.status.allocatable for n in self.nodes() if n.metadata.name == node), {})
        on_it = [other for other in self.pods() if other.spec.node_name == node and not other.ended]
        return all(
            sum(effective(each, resource, _count) for each in (*on_it, pod)) <= _count(said.get(resource, 0))
            for resource in names.RESOURCES
        )

    def places(self, models: Sequence[str], wanted: Iterable[VGPU]) -> list[str]:
        """Nodes with a GPU that no pod has requested from the stock plugin, the fullest first."""
        used: dict[str, int] = {}
        held = set()
        for pod in self.pods():
            if pod.spec.node_name and not pod.ended:
                used[pod.spec.node_name] = used.get(pod.spec.node_name, 0) + effective(pod, GPU, _count)
                held.add(self.held_by(pod))
        for vgpu in wanted:
            if vgpu.metadata.name not in held:
                used[vgpu.spec.node_name] = used.get(vgpu.spec.node_name, 0) + 1
        left = {}
        for node in self.nodes():
            name, labels = node.metadata.name, node.metadata.labels
            model = labels.get(PRODUCT, labels.get(names.GPU_MODEL, ""))
            spelled = (model, model.replace("-", " "))
            of_model = not models or any(model_matches(m, text) for m in models for text in spelled)
            free = _count(node.status.allocatable.get(GPU, 0)) - used.get(name, 0)
            if free > 0 and of_model and node.ready and not node.spec.unschedulable:
                left[name] = free
        return sorted(left, key=lambda name: (left[name], name))


def _count(value: str | int | float) -> int:
    try:
        return parse_count(value)
    except BadQuantity:
        return 0
