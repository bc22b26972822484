"""Answers kubelet: device ids and their health, an opaque name for allocated ids, and preparation before a container
starts.

Allocate returns only a fresh CDI device name, because it cannot know the container. PreStartContainer identifies it
(see `identity`), provisions the tenant that the pod's plan names, and only then writes the CDI file that the runtime
reads next. It waits within kubelet's limit for conditions that may resolve themselves, and refuses others with a
sentence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from aliquot.driver.gpu import Gpu
from aliquot.kube.dialects import foreign
from aliquot.kube.errors import KubeError
from aliquot.kube.names import GPU_PERCENT, PLAN
from aliquot.kube.plan import BadPlan, PodPlan, read_plan
from aliquot.kube.planstatus import Outcome
from aliquot.kube.quantities import parse_count
from aliquot.lib.log import Logger
from aliquot.model.errors import AliquotError
from aliquot.node.allotments import Allotments
from aliquot.node.calls import KubeletCalls
from aliquot.node.cdi import CdiError, Edits, qualified, write_spec
from aliquot.node.checkpoint import CheckpointError, PodKey
from aliquot.node.devices import DeviceId, device_ids, preferred
from aliquot.node.identity import Claim, UnknownOwner, identify
from aliquot.node.kubelet import PodResources, noted
from aliquot.node.peers import environment
from aliquot.node.pods import NodePod, NodePods
from aliquot.node.provisioner import NotYet, ProvisionedTenant, TenantProvisioner, UnusablePlan
from aliquot.node.settings import NodeSettings
from aliquot.node.spans import Start

_LOG: Final = Logger("node")
AGAIN_S: Final = 0.2


class Refused(AliquotError):
    """A container must not start; the text gives the reason."""


class ShareAllocator:
    """Serves kubelet's allocation calls. `on_outcome` is called with the outcome of each announced container."""

    def __init__(
        self,
        settings: NodeSettings,
        provisioner: TenantProvisioner,
        pods: NodePods,
        allotments: Allotments,
        resources: PodResources,
        on_outcome: Callable[[PodKey, str, Outcome, str], Awaitable[None]],
        calls: KubeletCalls | None = None,
    ) -> None:
        self.provisioner = provisioner
        self.pods = pods
        self.allotments = allotments
        self.resources = resources
        self._settings = settings
        self._on_outcome = on_outcome
        self._calls = calls if calls is not None else KubeletCalls(settings.name)
        self._cdi = Path(settings.cdi_dir)
        self._dialects = foreign(aliyun_unit=settings.aliyun_unit)

    def devices(self) -> list[DeviceId]:
        """All ids with their health; quick. While the agent is not ready, none is healthy."""
        offer = self.provisioner.offer
        gpus = offer.shared.gpus
        unhealthy = {gpu.uuid for gpu in gpus} if offer.withheld else set(offer.unhealthy)
        return device_ids(gpus, self._settings.ids_per_gpu, unhealthy)

    def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """A hint to kubelet which ids to take: those of the GPUs of the oldest waiting pod that requests this many."""
        for pod in sorted(self.pods, key=lambda pod: pod.metadata.creation_timestamp or ""):
            for container in pod.asking():
                key = f"{pod.metadata.uid}/{container.name}"
                percent = container.resources.limits.get(GPU_PERCENT, 0)
                if not pod.ended and key not in self.provisioner.tenants and parse_count(percent) == size:
                    return preferred(available, must, size, self._planned(pod, container.name))
        return preferred(available, must, size, [])

    async def allocate(self, ids: Sequence[str]) -> str:
        """The CDI device name for these ids.

        Raises:
            Refused, CheckpointError: none can be given.
        """
        if why := self.provisioner.offer.withheld:
            raise Refused(f"nothing can be given now: {why}")
        began_s = time.perf_counter()
        name = await self.allotments.give(ids)
        self._calls.allocated(name, time.perf_counter() - began_s)
        return qualified(name)

    async def before_start(self, ids: Sequence[str]) -> None:
        """Prepare what the container with these ids gets.

        Raises:
            AliquotError: it must not start.
        """
        began_s, claims, why = time.perf_counter(), list[Claim](), "cancelled"
        try:
            await self._before_start(ids, claims)
            why = ""
        except Refused as error:
            why = str(error)
            raise
        finally:
            self._note_prepared(claims, time.perf_counter() - began_s, why)

    async def _before_start(self, ids: Sequence[str], claims: list[Claim]) -> None:
        """Prepare the containers of these ids, which are put into `claims` as soon as they are known."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._settings.pre_start_wait_s
        while True:
            try:
                claims[:] = await self._claims(frozenset(ids))
                for claim in claims:
                    await self._prepare(claim, ids)
                return
            except (UnknownOwner, NotYet, CdiError, CheckpointError, KubeError, OSError) as error:
                if loop.time() > until_s:
                    _LOG.warning("not-started", ids=len(ids), why=str(error))
                    raise Refused(str(error)) from None
            await asyncio.sleep(AGAIN_S)

    async def _claims(self, ids: frozenset[str]) -> list[Claim]:
        held = await self.resources.held()
        entries = await asyncio.to_thread(noted, self._settings.device_plugins)
        uids = {entry.uid for entry in entries or () if entry.ids == ids}
        rows = {(row.namespace, row.pod) for row in held if row.ids == ids}
        known = {(key.namespace, key.pod) for key in self.pods.keys().values()}
        if not uids <= set(self.pods.keys()) or not rows <= known:
            await self.pods.refresh()
        return identify(ids, held, entries, self.allotments, self.pods.keys())

    async def _prepare(self, claim: Claim, ids: Sequence[str]) -> None:
        """Everything for one container; the outcome is reported at the end.

        Raises:
            NotYet, CdiError, CheckpointError, KubeError: it may succeed later.
            Refused: it will not.
        """
        try:
            plan, text = self._plan(claim)
            env = self._environment(claim, plan)
            provisioned = await asyncio.to_thread(self._provision, claim, plan, env)
            await self.allotments.settle(claim, ids, text, provisioned.driver, env)
        except (NotYet, CdiError, CheckpointError) as error:
            await self._on_outcome(claim.owner, claim.container, "waits", str(error))
            raise
        except (UnusablePlan, BadPlan) as error:
            await self._on_outcome(claim.owner, claim.container, "refused", str(error))
            raise Refused(str(error)) from None
        where = {"pod": str(claim.owner), "container": claim.container, "device": claim.name}
        _LOG.info("provisioned", **where, tenant=provisioned.key)
        await self._on_outcome(claim.owner, claim.container, "provisioned", "")

    def _note_prepared(self, claims: Sequence[Claim], seconds: float, why: str) -> None:
        now = list(self.provisioner.tenants.values())
        starts, names = [], {(each.owner.uid, each.container): each.record.name for each in now}
        for claim in claims:
            pod, settled = self.pods.get(claim.owner.uid), self.allotments.get(claim.name)
            if pod is not None:
                plan, tenant = settled.plan if settled else "", names.get((claim.owner.uid, claim.container), "")
                starts.append(Start(claim, pod.metadata, plan, tenant))
        self._calls.prepared(starts, seconds, why)

    def _plan(self, claim: Claim) -> tuple[PodPlan, str]:
        """The plan and its text: the one followed at an earlier start, or else the pod's own.

        Raises:
            UnusablePlan: the pod has no plan. BadPlan: it cannot be read.
        """
        settled = self.allotments.get(claim.name)
        pod = self.pods.get(claim.owner.uid)
        text = settled.plan if settled is not None and settled.plan else ""
        text = text or (pod.metadata.annotations.get(PLAN, "") if pod is not None else "")
        plan = read_plan({PLAN: text}) if text else None
        if plan is None:
            raise UnusablePlan(
                f"{claim.owner} requests {GPU_PERCENT} and has no {PLAN}: it was not scheduled by Aliquot; "
                "let it be scheduled by a scheduler with Aliquot's extender"
            )
        return plan, text

    def _environment(self, claim: Claim, plan: PodPlan) -> tuple[str, ...]:
        """The variables of its dialect, as they were at its first start."""
        settled = self.allotments.get(claim.name)
        if settled is not None and settled.plan:
            return settled.env
        pod, machine = self.pods.get(claim.owner.uid), self.provisioner.machine
        env = environment(pod, claim.container, plan, machine, self._dialects)
        if pod is not None and pod.privileged(claim.container):
            env += machine.variables(self._given(plan, claim.container), privileged=True)
        return env

    def _provision(self, claim: Claim, plan: PodPlan, env: tuple[str, ...]) -> ProvisionedTenant:
        settled = self.allotments.get(claim.name)
        provisioned = self.provisioner.provision(
            claim.owner, claim.container, plan, driver=settled.driver if settled else ""
        )
        write_spec(self._cdi, claim.name, provisioned.edits + Edits(env))
        return provisioned

    def _planned(self, pod: NodePod, container: str) -> list[int]:
        try:
            plan = read_plan(pod.metadata.annotations)
        except BadPlan:
            return []
        return [gpu.index for gpu in self._given(plan, container)] if plan is not None else []

    def _given(self, plan: PodPlan, container: str) -> list[Gpu]:
        """The GPUs of a container, which may be those of another that it uses."""
        given = plan.containers.get(container)
        host = plan.containers.get(given.uses or container) if given is not None else None
        gpus = [self.provisioner.machine.by_uuid(piece.gpu) for piece in host.slices] if host is not None else []
        return [gpu for gpu in gpus if gpu is not None]
