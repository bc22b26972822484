"""SharePods: reconciled one by one until the cluster has what was requested.

    no pod yet      the fields are checked; a GPU is made for it where the pool must (coexist); the pod is created
    pod, no node    kube-scheduler and the extender handle it; their messages are reported
    pod on a node   its plan names the device, the device gets its vGPU, and the status follows the pod

A pod is created once. A change of the SharePod's size goes to its annotations, and is decided like any pod's
(`scheduler.resize`). A deleted one is not created again, since its author's processes are gone with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import structs

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock
from aliquot.kube.custom import SHAREPODS, VGPU, SharePod, SharePodStatus
from aliquot.kube.dialects import read
from aliquot.kube.dialects.native import resized_words
from aliquot.kube.errors import AlreadyExists, Forbidden, Invalid
from aliquot.kube.names import SHAREPOD_GENERATION, SHAREPOD_SPEC
from aliquot.kube.objects import PODS, Pod, decoded
from aliquot.kube.plan import BadPlan, read_plan
from aliquot.kube.requests import BadPod, PodAsk
from aliquot.kube.sharepods import BadTemplate, ask_of, pod_of, scheduled_by_others, spec_digest
from aliquot.lib.log import Logger
from aliquot.model.quantities import MILLI, BadQuantity, parse_milli
from aliquot.model.sharepod import MEMORY_LIMIT, memory_limit_of
from aliquot.placement.asks import model_matches
from aliquot.placement.sentences import text_of
from aliquot.scheduler.ledger import Ledger
from aliquot.scheduler.operator.status import body, generation_of, lost, of_pod, waiting
from aliquot.scheduler.operator.vgpus import NAMED, VgpuPool
from aliquot.scheduler.verdicts import fits_now

log = Logger("scheduler")
LOOKS_PER_S: Final = 100
"""For waiting SharePods: each check may evaluate every node in the ledger."""


def _made_for(vgpu: VGPU) -> SharePodStatus:
    message = f'vGPU "{vgpu.metadata.name}" is being made on node {vgpu.spec.node_name}'
    return waiting("CreatingVGPU", message, gpu_id=vgpu.metadata.name)


def has_ended(sharepod: SharePod) -> bool:
    """Whether its pod has run to its end."""
    return sharepod.status.phase in ("Succeeded", "Failed")


@dataclass
class SharePods:
    """Reconciles one SharePod; `sharepod` and `pod` give objects from the caches by their key.

    `naming` gives the SharePods whose spec or status names a vGPU.
    """

    api: Api
    ledger: Ledger
    pool: VgpuPool
    sharepod: Callable[[str], SharePod | None]
    pod: Callable[[str], Pod | None]
    naming: Callable[[str], Iterable[SharePod]]
    clock: Clock = field(default_factory=Clock)
    look_again_s: float = 2.0
    """Seconds between two checks of a waiting one; more if so many wait that it would exceed `LOOKS_PER_S`."""
    _waiting: set[str] = field(default_factory=set)

    async def reconcile(self, key: str) -> float | None:
        """Bring one SharePod forward; returns the seconds until its next check, None if it needs none.

        Raises:
            KubeError: the API server is not reachable now; retry.
        """
        self._waiting.discard(key)
        sharepod = self.sharepod(key)
        if sharepod is None:
            return None
        state = await self._state(sharepod)
        if state is None:
            return None
        patch = body(sharepod, state, self.clock.wall())
        if patch is not None:
            meta = sharepod.metadata
            await self.api.patch(SHAREPODS, meta.name, patch, namespace=meta.namespace, sub="status")
        if state.phase != "Pending":
            return None
        self._waiting.add(key)
        return max(self.look_again_s, len(self._waiting) / LOOKS_PER_S)

    async def _state(self, sharepod: SharePod) -> SharePodStatus | None:
        meta = sharepod.metadata
        pod, over = self.pod(meta.key), has_ended(sharepod) or bool(meta.deletion_timestamp)
        if pod is None and sharepod.status.pod_name and not over:
            pod = await self.api.find(PODS, meta.name, namespace=meta.namespace)  # the cache may be behind
        if pod is not None and _is_of(pod, sharepod):
            state = await self._of_pod(sharepod, pod)
            state.observed_generation = generation_of(pod, sharepod)
            return state
        if over:
            return None
        if pod is not None:
            message = f'a pod "{meta.name}" is there already and is not of this SharePod; choose another name'
            return waiting("NameTaken", message)
        if sharepod.status.pod_name:
            return lost(sharepod, f'the pod "{sharepod.status.pod_name}" was deleted; create the SharePod again')
        gpu_id, node = sharepod.spec.gpu.gpu_id, sharepod.spec.node_name
        try:
            ask = ask_of(sharepod, pod_of(sharepod))
        except BadTemplate as error:
            return waiting("Invalid", "; ".join(error.faults), gpu_id=gpu_id)
        other = scheduled_by_others(sharepod)
        if other and not node:
            return waiting("WaitsForScheduler", f'scheduler "{other}" has not set spec.nodeName', gpu_id=gpu_id)
        vgpu = self.pool.known.get(gpu_id) if gpu_id else None
        if fault := self._contradiction(sharepod, vgpu):
            return waiting("Impossible", fault, gpu_id=gpu_id, node=node)
        if self.pool.owner.coexists:
            if (wanted := await self._gpu_exists(sharepod, ask, vgpu)) is not None:
                return wanted
        elif gpu_id and node and vgpu is None:
            vgpu = await self.pool.make(node, gpu_id, NAMED, sharepod.spec.gpu.model)
        return await self._create(sharepod, ask, vgpu)

    async def _gpu_exists(self, sharepod: SharePod, ask: PodAsk, vgpu: VGPU | None) -> SharePodStatus | None:
        """Make sure that a GPU exists for it (coexist); None if so, else what it waits for. `vgpu` is that it names."""
        gpu_id, node = sharepod.spec.gpu.gpu_id, sharepod.spec.node_name
        if vgpu is not None:
            return None if vgpu.status.uuid else _made_for(vgpu)
        if not gpu_id and fits_now(self.ledger, ask, node):
            return None
        units = ask.units()
        if any(unit.ask.devices > 1 for unit in units):
            return waiting(
                "TooMany", "a SharePod takes one GPU here; several whole ones are the stock plugin's (nvidia.com/gpu)"
            )
        waited = self._under_way(sharepod, ask)
        if waited is None:
            waited = await self.pool.one_more(gpu_id, node, units[0].ask.models if units else ())
        if waited is None:
            where = f'node "{node}" has' if node else "no node has"
            return waiting("NoGPU", f"{where} no GPU that the stock plugin could give, and no vGPU has room")
        return _made_for(waited)

    def _under_way(self, sharepod: SharePod, ask: PodAsk) -> VGPU | None:
        """A vGPU that is being created and has room for one more, besides those that wait for it already.

        Only SharePods without labels share one before it exists: only the ledger can evaluate labels together.
        """
        mine = self.pool.known.get(sharepod.status.gpu_id) if sharepod.status.gpu_id else None
        if mine is not None and mine.status.phase in (None, "Creating"):
            return mine
        if sharepod.spec.gpu.gpu_id or not all(unit.ask.plain and not unit.ask.models for unit in ask.units()):
            return None
        for vgpu in self.pool.known:
            if vgpu.status.phase not in (None, "Creating"):
                continue
            name, node = vgpu.metadata.name, sharepod.spec.node_name
            on_it = [s for s in self.naming(name) if s.status.gpu_id == name and not has_ended(s)]
            near = not node or node == vgpu.spec.node_name
            plain = all(not (s.spec.gpu.affinity or s.spec.gpu.anti_affinity or s.spec.gpu.exclusion) for s in on_it)
            total = sum(c.total_milli for c in ask.containers)
            for other in on_it:
                with contextlib.suppress(BadQuantity):
                    total += parse_milli(other.spec.gpu.request)
            if near and plain and total <= MILLI:
                return vgpu
        return None

    def _contradiction(self, sharepod: SharePod, vgpu: VGPU | None) -> str:
        """The errors in a node and a vGPU that the author named; a full GPU is not an error."""
        gpu_id, node, model = sharepod.spec.gpu.gpu_id, sharepod.spec.node_name, sharepod.spec.gpu.model
        if node and not self.pool.node_is_there(node):
            return f'spec.nodeName "{node}" is not a node of this cluster'
        if node and node not in self.ledger.cluster.index and not self.pool.owner.coexists:
            return f'spec.nodeName "{node}" {text_of(self.ledger.absent(node))}'
        if vgpu is None:
            return ""
        if node and vgpu.spec.node_name != node:
            return (
                f'spec.gpu.gpuID "{gpu_id}" is on node {vgpu.spec.node_name}, spec.nodeName says {node}; leave one '
                "of them out"
            )
        gpu = self.ledger.gpu(vgpu.status.uuid) if vgpu.status.uuid else None
        if gpu and model and not any(model_matches(m.strip(), gpu.model) for m in model.split("|")):
            return f'spec.gpu.gpuID "{gpu_id}" is a {gpu.model}, spec.gpu.model asks for {model}'
        if vgpu.status.phase == "Deleting":
            return f'spec.gpu.gpuID "{gpu_id}" is being given back; it can be had again in a moment'
        return ""

    async def _create(self, sharepod: SharePod, ask: PodAsk, vgpu: VGPU | None) -> SharePodStatus:
        node = sharepod.spec.node_name or (vgpu.spec.node_name if vgpu is not None else "")
        uuid = self.pool.must_be(vgpu) if vgpu is not None else ""
        made: dict[str, Any] = pod_of(sharepod, node=node, gpu_uuid=uuid)
        made["metadata"]["annotations"][SHAREPOD_SPEC] = spec_digest(sharepod)
        meta, gpu_id = sharepod.metadata, sharepod.spec.gpu.gpu_id or sharepod.status.gpu_id
        if (
            self.pool.owner.coexists and gpu_id
        ):  # a node that has room by the ledger must offer it to kube-scheduler too
            nodes, planned = [node] if node else [spec.name for spec in self.ledger.cluster.nodes], decoded(made, Pod)
            if not any(self.pool.owner.offers(n, planned) and fits_now(self.ledger, ask, n) for n in nodes):
                return waiting("CreatingVGPU", f'the node of vGPU "{gpu_id}" does not offer it yet', gpu_id=gpu_id)
        try:
            pod = await self.api.create(PODS, made, namespace=meta.namespace)
        except AlreadyExists:
            return waiting("Creating", "its pod is being read")
        except (Invalid, Forbidden) as error:
            return waiting("PodRefused", f"the API server does not take its pod: {error.status.message}")
        log.info("sharepod %s has its pod", meta.key)
        return await self._of_pod(sharepod, pod)

    async def _of_pod(self, sharepod: SharePod, pod: Pod) -> SharePodStatus:
        try:
            plan = read_plan(pod.metadata.annotations)
        except BadPlan:
            plan = None
        coexists, gpu_id = self.pool.owner.coexists, sharepod.status.gpu_id
        if not pod.spec.node_name:
            if coexists and not pod.metadata.deletion_timestamp:  # it may need a GPU that the stock plugin still has
                ask = ask_of(sharepod, pod_of(sharepod))
                vgpu = self.pool.known.get(sharepod.spec.gpu.gpu_id) if sharepod.spec.gpu.gpu_id else None
                state = await self._gpu_exists(sharepod, ask, vgpu)
                if state is not None:
                    state.pod_name = pod.metadata.name
                    return state
            # The vGPU that was made for it is waited for until it is bound, or it would be idle.
            return of_pod(pod, plan, gpu_id if coexists else "")
        if plan is not None and not pod.ended:
            pod = await self._resized(sharepod, pod)
        if not (pod.ended and gpu_id):  # the vGPUs of the plan, in its order; those without a name get one
            plans = [given for given in plan.containers.values() if not given.uses] if plan is not None else []
            node, wanted = plan.node if plan is not None else "", sharepod.spec.gpu.gpu_id
            vgpus = [await self.pool.name_device(piece.gpu, node, wanted) for given in plans for piece in given.slices]
            gpu_id = ",".join(dict.fromkeys(vgpus))
        return of_pod(pod, plan, gpu_id)

    async def _resized(self, sharepod: SharePod, pod: Pod) -> Pod:
        """The pod with the sizes of a SharePod that was changed since in its annotations, where they are decided."""
        generation, notes = str(sharepod.metadata.generation), pod.metadata.annotations
        with contextlib.suppress(BadTemplate, BadPod, BadQuantity):  # admitted without the webhook
            lent_as_before = memory_limit_of(sharepod.metadata.annotations) == memory_limit_of(notes)
            if SHAREPOD_SPEC not in notes or (notes.get(SHAREPOD_GENERATION) == generation and lent_as_before):
                return pod
            digest = spec_digest(sharepod)
            if digest != notes[SHAREPOD_SPEC] and notes[SHAREPOD_SPEC] in _other_sizes(sharepod, pod):
                (asked,) = ask_of(sharepod, pod_of(sharepod)).containers
                words = resized_words(asked) | {SHAREPOD_SPEC: digest, SHAREPOD_GENERATION: generation}
                body = {"metadata": {"uid": pod.metadata.uid, "annotations": words}}
                return await self.api.patch(PODS, pod.metadata.name, body, namespace=pod.metadata.namespace)
        return pod


def _other_sizes(sharepod: SharePod, pod: Pod) -> Iterator[str]:
    """The digest of a SharePod with the sizes of its pod, whose limit may be the cluster's default."""
    ask = read(pod)
    for request in [c.request for c in ask.containers] if ask is not None else []:
        memory, limit_text = request.memory and request.memory.quantity, pod.metadata.annotations.get(MEMORY_LIMIT)
        metadata = structs.replace(sharepod.metadata, annotations={MEMORY_LIMIT: limit_text} if limit_text else {})
        for limit_milli in {None, request.limit_milli}:
            limit = None if limit_milli is None else f"{limit_milli / MILLI:.3f}"
            gpu = structs.replace(
                sharepod.spec.gpu, request=f"{request.request_milli / MILLI:.3f}", limit=limit, memory=memory
            )
            spec = structs.replace(sharepod.spec, gpu=gpu)
            yield spec_digest(structs.replace(sharepod, spec=spec, metadata=metadata))


def _is_of(pod: Pod, sharepod: SharePod) -> bool:
    return any(owner.uid == sharepod.metadata.uid for owner in pod.metadata.owner_references)
