"""Pods and claims with a later plan than their containers were started by: each gets its new size as it runs.

The arbiter comes first, then the checkpoint, then the pod's annotation or the claim's status, by which the scheduler
gives others what is free. Where this ends in between, all of it is done again from the record, and until the pod says
so the scheduler keeps room for either size.

Kube-scheduler and kubelet count a pod's resources as they were when it was created. What it has more or less since then
is made up for by the node's offer: fewer device ids and less memory, or more of them (`compensation`), for claims by
the published capacity (`node.slices`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from aliquot.kube.api import Api
from aliquot.kube.claims import RESOURCE_CLAIMS, ResourceClaim, holder_of, prepared_body
from aliquot.kube.clock import Clock, seconds_time
from aliquot.kube.errors import KubeError
from aliquot.kube.names import GPU_MEMORY, GPU_PERCENT, IN_PROGRESS, NODE, PENDING, PLAN_APPLIED, RESIZE, label_value
from aliquot.kube.objects import PODS
from aliquot.kube.plan import Applied, BadPlan, PodPlan, generation_of, read_plan, write_applied
from aliquot.kube.quantities import mib_up, parse_count
from aliquot.kube.reflector import Reflector
from aliquot.kube.requests import LEAST_MILLI
from aliquot.lib.log import Logger
from aliquot.model.ids import GpuUuid
from aliquot.model.quantities import MILLI, BadQuantity, format_mib
from aliquot.node.allocation.checkpoint import Allotments, CheckpointError, PodKey
from aliquot.node.events import Events
from aliquot.node.pods import NodePod, NodePods
from aliquot.node.provisioner import NotYet, TenantProvisioner
from aliquot.node.slices import MANAGER

_LOG: Final = Logger("node")


class Resizes:
    """Applies the later plans of a node's pods, and confirms them."""

    def __init__(
        self, api: Api, pods: NodePods, provisioner: TenantProvisioner, records: Allotments, events: Events
    ) -> None:
        self._api, self._pods, self._provisioner = api, pods, provisioner
        self._records, self._events = records, events
        self._lock = asyncio.Lock()
        self._failure = ""
        self._said: dict[str, str] = {}
        here = {"labelSelector": f"{NODE}={label_value(provisioner.node)}"}
        self.claims: Reflector[ResourceClaim] = Reflector(api, RESOURCE_CLAIMS, selectors=here)
        """Those whose share was resized, also where they are on other nodes by now."""
        self.compensation: Mapping[GpuUuid, tuple[int, int]] = {}
        """By GPU, the device ids and the MiB that are counted for its containers beyond what these have."""

    async def check(self) -> None:
        """Apply and confirm what has changed: plans, the memory that programs free, pods that have ended."""
        async with self._lock:
            pods, owners = [pod for pod in self._pods if not pod.ended], {a.uid: a.owner for a in self._records}
            held = [pod for pod in map(holder_of, self.claims) if pod is not None and pod.metadata.uid in owners]
            pods += [NodePod(pod.metadata, pod.spec) for pod in held]
            for pod in pods:
                owner = owners.get(pod.metadata.uid) or pod.key
                if generation_of(pod.plan):
                    await self._follow(pod, owner)
                if pod.resize.startswith(PENDING) and pod.resize != self._said.get(pod.metadata.uid):
                    await self._events.about_pod(owner, PENDING, pod.resize)
            self._said = {pod.metadata.uid: pod.resize for pod in pods if pod.resize}
            self.compensation = self._compensation()

    async def _follow(self, pod: NodePod, owner: PodKey) -> None:
        try:
            plan = read_plan(pod.metadata.annotations)
            assert plan is not None
            for record in [record for record in self._records if record.uid == owner.uid and record.plan]:
                if generation_of(record.plan) < plan.generation and record.container in plan.containers:
                    await asyncio.to_thread(self._provisioner.resize, owner, record.container, plan)
                    await self._records.settle(
                        record.name, owner, record.container, record.ids, pod.plan, record.driver, record.env
                    )
                    _LOG.info("resized", pod=str(owner), container=record.container, generation=plan.generation)
        except (NotYet, CheckpointError) as error:
            await self._events.about_pod(owner, IN_PROGRESS, str(error))
        except BadPlan:
            return
        else:
            await self._confirm(pod, plan)

    async def _confirm(self, pod: NodePod, plan: PodPlan) -> None:
        """Write to the pod or claim what is in force, unless it says so."""
        tenants = [one for one in self._provisioner.tenants.values() if one.owner.uid == pod.metadata.uid]
        pending = ((one.container, self._provisioner.pending_mib.get(one.record.name, 0)) for one in tenants)
        pending_mib = {container: mib for container, mib in pending if mib}
        applied = write_applied(Applied(plan.generation, pending_mib))
        notes: dict[str, str | None] = {PLAN_APPLIED: applied}
        if pod.resize.startswith(IN_PROGRESS):
            mib = sum(pending_mib.values())
            notes[RESIZE] = f"{IN_PROGRESS}: {format_mib(mib)} of memory is yet to be freed" if mib else None
        if any(pod.metadata.annotations.get(name) != note for name, note in notes.items()):
            body: dict[str, Any] = {"metadata": {"uid": pod.metadata.uid, "annotations": notes}}
            claim = next((claim for claim in self.claims if claim.metadata.uid == pod.metadata.uid), None)
            try:
                if claim is None:
                    await self._api.patch(PODS, pod.metadata.name, body, namespace=pod.metadata.namespace)
                elif tenants:
                    now = seconds_time(Clock().wall())
                    body = prepared_body(claim, plan, tenants[0].record.name, applied, now)
                    await self._api.apply(RESOURCE_CLAIMS, body, manager=MANAGER, sub="status")
            except KubeError as error:  # tried again at the next check
                if str(error) != self._failure:
                    _LOG.warning("size-not-confirmed", pod=str(pod.key), why=str(error))
                self._failure = str(error)

    def _compensation(self) -> dict[GpuUuid, tuple[int, int]]:
        found: dict[GpuUuid, tuple[int, int]] = {}
        pods = self._pods.by_uid()
        for tenant in self._provisioner.tenants.values():
            pod, pieces = pods.get(tenant.owner.uid), tenant.plan.slices
            container = next((c for c in pod.requesting() if c.name == tenant.container), None) if pod else None
            if container is None or len(pieces) != 1 or pieces[0].request_milli >= MILLI:
                continue
            limits, ids_and_mib = container.resources.limits, found.get(pieces[0].gpu, (0, 0))
            held_mib = pieces[0].memory_mib + self._provisioner.pending_mib.get(tenant.record.name, 0)
            with contextlib.suppress(BadQuantity):
                ids = parse_count(limits.get(GPU_PERCENT, 0)) - max(1, pieces[0].request_milli // LEAST_MILLI)
                mib = mib_up(limits[GPU_MEMORY]) - held_mib if GPU_MEMORY in limits else 0
                if ids or mib:
                    found[pieces[0].gpu] = ids_and_mib[0] + ids, ids_and_mib[1] + mib
        return found
