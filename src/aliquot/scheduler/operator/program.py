"""The operator's part of the scheduler process: caches of our own kinds, one work queue, and pods that are resized.

It shares the ledger and the lead with the extender: only the leader writes, and what it decides from is what binds are
made from. Where the cluster does not have our kinds of objects it resizes pods and does nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from itertools import chain
from typing import Any, Final

from aliquot.kube.api import Api
from aliquot.kube.custom import GPUQUOTAS, SHAREPODS, VGPU, VGPUS, GPUQuota, SharePod
from aliquot.kube.errors import Conflict, KubeError, NotFound
from aliquot.kube.objects import Node, Pod
from aliquot.kube.plan import BadPlan, read_plan
from aliquot.kube.quotas import quotas_of
from aliquot.kube.reflector import SLICE, Change, Index, Reflector, WorkQueue
from aliquot.lib.log import Logger
from aliquot.placement.quota import Quota, Quotas
from aliquot.scheduler.groups import HeldGroups
from aliquot.scheduler.ledger import Ledger
from aliquot.scheduler.operator.admission_check import FitsCheck, follow, served
from aliquot.scheduler.operator.claims import PLACE, ClaimAllocator
from aliquot.scheduler.operator.owners import PAUSE, Coexist, Own
from aliquot.scheduler.operator.sharepods import SharePods, has_ended
from aliquot.scheduler.operator.status import quota_body
from aliquot.scheduler.operator.vgpus import VgpuPool, WriteThroughCache
from aliquot.scheduler.resize import Resizer, size_changed
from aliquot.scheduler.settings import SchedulerSettings

log = Logger("scheduler")
WORKERS: Final = 8
ALL_AGAIN_S: Final = 30.0
CRDS_AGAIN_S: Final = 10.0
TOGETHER_S: Final = 0.2
"""Several changes in a moment, as of a pod that starts and its vGPU, are processed once."""
RECOVER_S: Final = 40.0
"""Longer than a reflector waits between two tries (30 s)."""
POOL: Final = "pool/"


class Operator:
    """Everything about SharePods, vGPUs, quotas and ResourceClaims; `run` until cancelled."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        nodes: Reflector[Node],
        pods: Reflector[Pod],
        leads: Callable[[], bool],
        settings: SchedulerSettings,
        held: HeldGroups,
        allocator: ClaimAllocator,
    ) -> None:
        self._api, self.ledger, self._nodes, self._pods, self._leads = api, ledger, nodes, pods, leads
        self.queue = WorkQueue(max_s=15.0)
        self.fits = FitsCheck(api, held, leads)
        self.sharepods: Reflector[SharePod] = Reflector(api, SHAREPODS, self._sharepod_changed)
        self.vgpus: Reflector[VGPU] = Reflector(api, VGPUS, self._vgpu_changed)
        self.quotas: Reflector[GPUQuota] = Reflector(api, GPUQUOTAS, self.quota_changed)
        self.allocator = allocator
        allocator.again = self.queue.add_after
        self._with_claims = settings.claims
        self.bounds: dict[str, list[Quota]] = {}
        place = {"namespace": settings.namespace, "image": settings.holder_image or PAUSE}
        coexist = Coexist(self.ledger, api, lambda: self._nodes, lambda: self._pods, **place)
        owner = coexist if settings.gpus == "coexist" else Own(self.ledger)
        self._by_node: Index[VGPU] = Index(lambda vgpu: [vgpu.spec.node_name])
        self._by_namespace: Index[GPUQuota] = Index(lambda quota: [quota.metadata.namespace])
        self._by_name: Index[SharePod] = Index(lambda s: [*s.status.gpu_id.split(","), s.spec.gpu.gpu_id])
        self.pool = VgpuPool(
            api,
            ledger,
            owner,
            settings.pool,
            WriteThroughCache(self.vgpus),
            node_is_there=lambda name: nodes.get(name) is not None,
            waited_for=lambda name: not all(map(has_ended, self._by_name.naming(name))),
        )
        naming = self._by_name.naming
        self._sharepod_reconciler = SharePods(api, ledger, self.pool, self.sharepods.get, pods.get, naming)
        self._resizer = Resizer(api, ledger, pods.get, settings.aliyun_unit)

    # What happens

    def pod_changed(self, change: Change[Pod]) -> None:
        """A pod changed, and the ledger knows it already."""
        pod = change.object
        if self._with_claims:
            self.allocator.pod_changed(change)
        if size_changed(change):
            self.queue.add(f"resize/{pod.metadata.key}")
        for owner in pod.metadata.owner_references:
            if owner.kind == SHAREPODS.kind and owner.api_version.startswith("aliquot.dev/"):
                self.queue.add_after(f"sharepod/{pod.metadata.namespace}/{owner.name}", TOGETHER_S)
        if name := self.pool.owner.held_by(pod):
            self.queue.add(f"vgpu/{name}")
        if pod.spec.node_name and len(self.vgpus):
            with contextlib.suppress(BadPlan):
                plan = read_plan(pod.metadata.annotations)
                uuids = {piece.gpu for piece in plan.slices} if plan is not None else set()
                for vgpu in chain.from_iterable(map(self.pool.known.on, uuids)):
                    self.queue.add_after(f"vgpu/{vgpu.metadata.name}", TOGETHER_S)
        for quota in self._by_namespace.naming(pod.metadata.namespace) if pod.spec.node_name else ():
            self.queue.add_after(f"quota/{quota.metadata.key}", TOGETHER_S)

    def nodes_changed(self, change: Change[Node]) -> None:
        """A node changed, and the ledger knows it already."""
        old, node = change.old, change.object
        offers = self.pool.owner.coexists and (old is None or old.status.allocatable != node.status.allocatable)
        for vgpu in self._by_node.naming(node.metadata.name):
            self.queue.add(f"vgpu/{vgpu.metadata.name}")
            for sharepod in self._by_name.naming(vgpu.metadata.name) if offers else ():
                self.queue.add(f"sharepod/{sharepod.metadata.key}")

    def quota_changed(self, change: Change[GPUQuota]) -> None:
        """A quota changed: the ledger's decider has the bounds of all that are there."""
        key = change.object.metadata.key
        self.bounds.pop(key, None)
        if change.kind != "deleted":
            self.queue.add(f"quota/{key}")
            if bounds := quotas_of(change.object):
                self.bounds[key] = bounds
        self.ledger.decider.quotas = Quotas(chain.from_iterable(self.bounds.values()))
        self._by_namespace.changed(change)

    async def recover(self) -> None:
        """Before the new leader may bind: what was being returned stays closed, what was promised held."""
        await self.fits.recover()
        while (there := await served(self._api, SHAREPODS)) is not False:
            if there is None:
                await asyncio.sleep(1.0)
                continue
            try:
                async with asyncio.timeout(RECOVER_S):
                    await self.vgpus.synced.wait()
                    await self.vgpus.renew()
                    self.pool.recover()
                    await self.quotas.synced.wait()
                return
            except TimeoutError:
                log.warning("vGPUs and quotas cannot be listed, so this leader does not bind yet")

    def all_again(self) -> None:
        """Reconcile everything."""
        self.fits.all_again()
        for key in self._keys():
            self.queue.add(key)
        for pod in self._pods:  # by the one that led before, or while none did
            if size_changed(Change("added", pod)):
                self.queue.add(f"resize/{pod.metadata.key}")

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """The tasks that run with the scheduler."""

        def failed(key: str, error: Exception) -> None:
            if isinstance(error, (Conflict, NotFound)):
                return
            if isinstance(error, KubeError):
                log.warning("%s: %s", key, error)
            else:
                log.error("%s: %s", key, error, exc_info=error)

        a = self.allocator
        claims = [a.claims.run(), a.templates.run(), a.slices.run()] if self._with_claims else []
        kinds = follow(self._api, SHAREPODS, CRDS_AGAIN_S, self.sharepods, self.vgpus)
        workers = [self.queue.work(self.reconcile, failed) for _ in range(WORKERS)]
        return [self.quotas.run(), kinds, self._again(), *workers, *self.fits.works(failed), *claims]

    # Inside

    async def _again(self) -> None:
        await self.vgpus.synced.wait()
        await self.sharepods.synced.wait()
        self.all_again()
        while True:  # little by little, so that news does not wait behind what is as it was
            keys = list(self._keys())
            slices = [keys[first : first + SLICE] for first in range(0, len(keys), SLICE)]
            for some in slices:
                await asyncio.sleep(ALL_AGAIN_S / len(slices))
                for key in some:
                    self.queue.add(key)

    async def reconcile(self, key: str) -> None:
        """Reconcile one key: `resize/`, `template/` or `sharepod/NAMESPACE/NAME`, `vgpu/NAME`, `quota/NAMESPACE/NAME`,
        `templates/NAMESPACE`, `place/` or `pool/`.
        """
        kind, _, name = key.partition("/")
        synced = self.vgpus.synced.is_set() and self.sharepods.synced.is_set()
        if not self._leads() or not (synced or kind in ("resize", "place", "template", "templates")):
            return
        wait_s: float | None = None
        with contextlib.suppress(NotFound):  # deleted meanwhile
            if kind == "resize":
                wait_s = await self._resizer.reconcile(name)
            elif key == PLACE:
                wait_s = await self.allocator.place()
            elif kind == "template":
                await self.allocator.make_templates(name)
            elif kind == "templates":
                await self.allocator.remove_templates(name)
            elif kind == "sharepod":
                wait_s = await self._sharepod_reconciler.reconcile(name)
            elif kind == "vgpu":
                wait_s = await self.pool.reconcile(name)
                self.queue.add_after(POOL, TOGETHER_S)
            elif kind == "quota":
                quota = self.quotas.get(name)
                usage = self.ledger.cluster.usage(quota.metadata.namespace) if quota is not None else {}
                if quota is not None and (patch := quota_body(quota, usage, self.pool.clock.wall())) is not None:
                    meta = quota.metadata
                    await self._api.patch(GPUQUOTAS, meta.name, patch, namespace=meta.namespace, sub="status")
            else:
                wait_s = await self.pool.balance()
        if wait_s is not None:
            self.queue.add_after(key, wait_s)

    def _keys(self) -> Iterable[str]:
        yield from [f"sharepod/{s.metadata.key}" for s in self.sharepods]
        yield from [f"vgpu/{v.metadata.name}" for v in self.vgpus]
        if self.pool.owner.coexists:  # a holder may have lost its VGPU
            yield from [f"vgpu/{name}" for pod in self._pods if (name := self.pool.owner.held_by(pod))]
        yield from [f"quota/{q.metadata.key}" for q in self.quotas]
        yield from self.allocator.keys() if self._with_claims else ()
        yield POOL

    def _sharepod_changed(self, change: Change[SharePod]) -> None:
        self._by_name.changed(change)
        self.queue.add(f"sharepod/{change.object.metadata.key}")
        if change.kind == "deleted":
            self.queue.add_after(POOL, TOGETHER_S)

    def _vgpu_changed(self, change: Change[VGPU]) -> None:
        self.pool.known.changed(change)
        self._by_node.changed(change)
        name = change.object.metadata.name
        self.queue.add(f"vgpu/{name}")
        if change.old is None or change.old.status.phase != change.object.status.phase or change.kind == "deleted":
            for sharepod in self._by_name.naming(name):
                self.queue.add(f"sharepod/{sharepod.metadata.key}")
