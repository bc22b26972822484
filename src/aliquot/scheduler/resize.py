"""Pods and claims in use that are to have another size: the annotations say which, the plan what is in force.

    annotations and plan agree     nothing is done
    a smaller size                 a plan of the next generation is written; others get the rest when the node confirms
    a larger one that fits         the same, with the difference reserved before it is written
    one that does not              the reason is written to the pod (`PodResizePending`), and it is tried again

A ResourceClaim is a pod here (`holder_of`): it has the same annotations, and its status what its node has applied.

A plan is written with the version of the pod that was read as its precondition, and names the slices from before as
long as no node has confirmed it. So whichever of the two is in force, after a crash of this program, of the agent or of
the API server, the ledger that is read back from the pods keeps room for both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from aliquot.kube.api import Api
from aliquot.kube.claims import RESOURCE_CLAIMS, ResourceClaim, holder_of, written_to
from aliquot.kube.dialects import foreign, read
from aliquot.kube.dialects.aliyun import Unit
from aliquot.kube.dialects.base import Dialect, base_of
from aliquot.kube.errors import Busy, Conflict, KubeError, Unreachable
from aliquot.kube.names import IN_PROGRESS, NODE, PENDING, PLAN, RESIZE, SIZES, label_value
from aliquot.kube.objects import PODS, Pod
from aliquot.kube.plan import BadPlan, PodPlan, generation_of, read_applied, read_plan, write_plan
from aliquot.kube.reflector import Change
from aliquot.model.errors import UserError
from aliquot.model.quantities import MILLI, format_milli
from aliquot.model.requests import Slice
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster
from aliquot.scheduler.allocations import POST_S, Allocation
from aliquot.scheduler.ledger import Ledger, NodeFull

AGAIN_S: Final = 2.0
TRIES_PER_S: Final = 50
"""For sizes that wait for room: a decision may have to look for the smallest change that would help."""


class NeverResized(UserError):
    """A size that no node could give to a pod that runs."""


def size_changed(change: Change[Pod]) -> bool:
    """Whether the annotations that say a pod's size changed, or may have before the pod was known."""
    pod, old = change.object, change.old
    if not pod.spec.node_name or change.kind == "deleted":
        return False
    now, before = (
        {key: text for key, text in notes.items() if base_of(key) in SIZES}
        for notes in (pod.metadata.annotations, old.metadata.annotations if old is not None else {})
    )
    return now != before or (old is None and generation_of(pod.metadata.annotations.get(PLAN, "")) > 0)


def desired(pod: Pod, plan: PodPlan, cluster: Cluster, others: Mapping[str, Dialect]) -> PodPlan:
    """The plan with the sizes that the pod's annotations say; `cluster` has the sizes of devices.

    Raises:
        UserError: they contradict themselves, or would change something else than a part of one GPU.
    """
    ask, sizes, memory_limits = read(pod, others), dict[str, tuple[Slice, ...]](), dict[str, str]()
    for c in ask.containers if ask is not None else ():
        given, request = plan.containers.get(c.container), c.request
        if given is None or given.uses or not given.slices:
            continue
        (piece, *more), parts = given.slices, (given.parts, c.parts)
        if piece.request_milli < MILLI > c.total_milli and parts == (1, 1) and not more:
            gpu = piece.gpu
            mib = Ask(request).slice_memory(int(cluster.size_mib.item(*cluster.uuids[gpu])), whole=False)
            sizes[c.container] = (Slice(gpu, request.request_milli, request.ceiling_milli, mib),)
            # What is lent stays lent without a limit too, and is not yet to be freed: it may be called back.
            memory_limits[c.container] = request.memory_limit_text or (f"{mib}Mi" if given.memory_limit else "")
        elif c.total_milli != (held := sum(piece.request_milli for piece in given.slices)):
            raise NeverResized(
                f"container {c.container} has {format_milli(held)} GPU and is to have {format_milli(c.total_milli)}: "
                "a resize changes a part of one GPU, below 1; for whole GPUs and parts of several create the pod anew"
            )
    return plan.resized(sizes, memory_limits)


def resized(
    ledger: Ledger, pod: Pod, plan: PodPlan, allocation: Allocation, *, aliyun_unit: Unit = "GiB", dry_run: bool = False
) -> PodPlan:
    """The plan of the size that a pod is to have, reserved unless `dry_run`; `plan` itself if it has that size.

    Raises:
        UserError, NodeFull: it cannot have that size, ever or now.
    """
    wanted = desired(pod, plan, ledger.cluster, foreign(aliyun_unit=aliyun_unit))
    if wanted.containers == plan.containers:
        return plan
    in_force = plan.reserved(read_applied(pod.metadata.annotations)).containers
    before = {name: given.slices for name, given in in_force.items() if not given.uses}
    wanted = msgspec.structs.replace(wanted, generation=plan.generation + 1, before=before)
    ledger.resize(allocation, wanted, dry_run=dry_run)
    return wanted


@dataclass
class Resizer:
    """Resizes pods and claims; `find` gives a pod from the cache by its key."""

    api: Api
    ledger: Ledger
    find: Callable[[str], Pod | None]
    aliyun_unit: Unit = "GiB"
    _waiting: set[str] = field(default_factory=set)

    async def reconcile(self, key: str) -> float | None:
        """Bring one pod or claim to the size that its annotations say; returns the seconds until it is tried again.

        Raises:
            KubeError: the API server does not take it now; retry.
        """
        self._waiting.discard(key)
        claim = self.ledger.claim_of(key)
        pod = holder_of(claim) if claim is not None else self.find(key)
        if pod is None or pod.ended or pod.metadata.deletion_timestamp or not pod.spec.node_name:
            return None
        allocation = next((a for a in self.ledger.allocations.get(pod.metadata.uid, []) if a.confirmed), None)
        try:
            plan = read_plan(pod.metadata.annotations)
        except BadPlan:
            return None
        if plan is None or allocation is None or any(s.gpu not in self.ledger.cluster.uuids for s in plan.slices):
            return None
        notes, said = pod.metadata.annotations, ""
        try:
            wanted = resized(self.ledger, pod, plan, allocation, aliyun_unit=self.aliyun_unit)
        except (NodeFull, UserError) as error:
            lasting = isinstance(error, UserError) or (isinstance(error, NodeFull) and error.lasting)
            said, wanted = f"{PENDING}: {'Infeasible' if lasting else 'Deferred'}: {error}", plan
        if wanted is not plan:
            await self._write(pod, allocation, {PLAN: write_plan(wanted), RESIZE: IN_PROGRESS})
            return None
        if said != notes.get(RESIZE, "") and (said or notes.get(RESIZE, "").startswith(PENDING)):
            if not said and read_applied(notes).generation < plan.generation and written_to(pod)[0] is PODS:
                said = IN_PROGRESS
            await self._write(pod, allocation, {RESIZE: said or None})
        if not said.startswith(PENDING):
            return None
        self._waiting.add(key)
        return max(AGAIN_S, len(self._waiting) / TRIES_PER_S)

    async def _write(self, pod: Pod, allocation: Allocation, annotations: Mapping[str, str | None]) -> None:
        """Write annotations to the pod or claim as it was read.

        Where it is not known whether a plan arrived, or another version of the pod is there already, both sizes stay
        reserved until the watch shows the next version.
        """
        meta, (resource, name) = pod.metadata, written_to(pod)
        fixed = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        body: dict[str, Any] = {"metadata": {**fixed, "annotations": dict(annotations)}}
        if resource is RESOURCE_CLAIMS and PLAN in annotations:  # its node may not write annotations
            body["metadata"] |= {"labels": {NODE: label_value(pod.spec.node_name)}}
            body["metadata"]["annotations"][RESIZE] = None
        doubted = allocation.resized_from
        if PLAN in annotations:
            allocation.resized_from = meta.resource_version
        try:
            async with asyncio.timeout(POST_S):
                written = await self.api.patch(resource, name, body, namespace=meta.namespace, repeat=False)
        except TimeoutError:
            text = f"patch pod {meta.key}: no answer within {POST_S:g} s"
            raise Unreachable(text, may_have_happened=True) from None
        except (Unreachable, Busy, Conflict):
            raise
        except KubeError:
            if doubted != meta.resource_version:
                allocation.resized_from = doubted
                self.ledger.pod_changed(Change("modified", pod))
            raise
        now = holder_of(written) if isinstance(written, ResourceClaim) else written
        if now is not None:
            self.ledger.pod_changed(Change("modified", now))
