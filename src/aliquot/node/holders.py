"""The GPUs of a stock plugin that Aliquot may share: those allocated to the scheduler's holder pods.

A holder pod requests `nvidia.com/gpu: 1` from the stock plugin and sleeps. PodResources reports which GPU kubelet gave
it, since the stock plugin's device ids are the GPUs' UUIDs; no log or environment is read. The UUID is written on the
holder pod, where the scheduler's pool reads it, and the node offers only that GPU.

A pod is a holder only in the one namespace where the scheduler creates them: anyone could set the label alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from aliquot.kube.api import Api
from aliquot.kube.dialects.nvidia import GPU
from aliquot.kube.errors import KubeError
from aliquot.kube.names import HOLDS, VGPU
from aliquot.kube.objects import PODS
from aliquot.lib.log import Logger, Repeats
from aliquot.model.ids import GpuUuid
from aliquot.node.allocation.kubelet import ContainerDevices, PodResources
from aliquot.node.events import Events
from aliquot.node.machine import NodeOffer
from aliquot.node.pods import NodePod
from aliquot.node.provisioner import TenantProvisioner
from aliquot.node.settings import NodeSettings

_LOG: Final = Logger("node")
STOCK: Final = GPU
"""The stock plugin's resource."""
PERIOD_S: Final = 1.0
AWAITED_S: Final = 0.2
"""How often kubelet is asked which GPUs holder pods have, and while one was not told its GPU yet."""


def held_gpus(
    pods: Iterable[NodePod], rows: Iterable[ContainerDevices], namespace: str, gpus: Collection[GpuUuid]
) -> tuple[dict[GpuUuid, NodePod], tuple[str, ...]]:
    """GPU -> its holder pod, and a sentence for each holder whose device is not a whole GPU of this node.

    Pure. `gpus` are the node's. A device that two pods hold is shared by the stock plugin, so it is not a whole GPU.
    """
    given: dict[tuple[str, str], frozenset[str]] = {}
    for row in rows:  # one for each container
        given[row.namespace, row.pod] = given.get((row.namespace, row.pod), frozenset()) | row.ids
    count: dict[str, int] = {}
    for ids in given.values():
        for name in ids:
            count[name] = count.get(name, 0) + 1
    found: dict[GpuUuid, NodePod] = {}
    faults = []
    for pod in pods:
        meta = pod.metadata
        ids = given.get((meta.namespace, meta.name), frozenset())
        if VGPU not in meta.labels or meta.namespace != namespace or pod.ended:
            continue
        written = meta.annotations.get(HOLDS, "")
        if not ids and written not in count and not meta.deletion_timestamp:
            # A kubelet that starts anew lists no pod at first: that does not take the GPU from the tenants on it.
            ids = frozenset({written} - {""})
        known = [GpuUuid(name) for name in ids if name in gpus and count.get(name, 1) == 1]
        if not ids:
            continue
        if len(ids) == 1 and known:
            found[known[0]] = pod
        else:
            faults.append(f"{pod.key} holds {', '.join(sorted(ids))}, not the UUID of a whole GPU on this node")
    return found, tuple(faults)


class Holders:
    """The GPUs held on one node; `refresh` updates them."""

    def __init__(
        self, api: Api, account: PodResources, pods: Iterable[NodePod], namespace: str, offer: NodeOffer
    ) -> None:
        self._api = api
        self._account = account
        self._pods = pods
        self._namespace = namespace
        self._offer = offer
        self._repeats = Repeats()

    @classmethod
    def of(cls, settings: NodeSettings, api: Api, pods: Iterable[NodePod], offer: NodeOffer) -> Holders:
        """The holder pods of the node with these settings, by its kubelet."""
        return cls(api, PodResources(settings.pod_resources, STOCK), pods, settings.holder_namespace, offer)

    @property
    def held(self) -> frozenset[GpuUuid]:
        """The GPUs that holder pods have, as the node offers them."""
        return self._offer.held or frozenset()

    async def run(
        self, on_change: Callable[[], Awaitable[None]], provisioner: TenantProvisioner, events: Events
    ) -> None:
        """Refresh every second, and more often while a holder pod has not been told its GPU; until cancelled.

        `on_change` is called after each change; the pods that are on a lost GPU by then get an event.
        """
        loop, due_s = asyncio.get_running_loop(), 0.0
        try:
            while True:
                await asyncio.sleep(AWAITED_S)
                if loop.time() < due_s and not self.awaited:
                    continue
                due_s = loop.time() + PERIOD_S
                gained, lost = await self.refresh()
                if gained or lost:
                    await on_change()
                    # A tenant may outlast its pod and even its holder for a moment: there is nothing left to tell it.
                    lives = {pod.key.uid for pod in self._pods if not pod.ended}
                    for tenant in [tenant for tenant in provisioner.tenants.values() if tenant.owner.uid in lives]:
                        if taken := [piece.gpu for piece in tenant.plan.slices if piece.gpu in lost]:
                            what = f"the holder pod of {taken[0]} is gone, so others may be given it"
                            why = f"container {tenant.container}: {what}"
                            await events.about_pod(tenant.owner, "GpuTakenAway", why)
        finally:
            await self._account.close()

    @property
    def awaited(self) -> bool:
        """Whether a holder pod starts and has not been told its GPU yet: a SharePod waits for that."""
        return any(
            VGPU in pod.metadata.labels
            and pod.metadata.namespace == self._namespace
            and pod.status.phase == "Pending"
            and HOLDS not in pod.metadata.annotations
            for pod in self._pods
        )

    async def refresh(self) -> tuple[frozenset[GpuUuid], frozenset[GpuUuid]]:
        """Which of the node's GPUs are newly held, and which are no longer held.

        While kubelet does not answer, nothing changes: a holder keeps its GPU.
        """
        try:
            rows = await self._account.held()
        except OSError:
            return frozenset(), frozenset()
        gpus = {GpuUuid(gpu.uuid) for gpu in self._offer.machine.gpus}
        found, faults = held_gpus(self._pods, rows, self._namespace, gpus)
        if self._repeats.news(faults):
            for fault in faults:
                _LOG.warning("not-held", why=fault)
        before, self._offer.held = self.held, frozenset(found)
        if before != self.held:
            _LOG.info("holders", gained=sorted(self.held - before), lost=sorted(before - self.held))
        # On each holder is written what it holds; failed writes are retried at the next check.
        for uuid, pod in found.items():
            meta = pod.metadata
            if meta.annotations.get(HOLDS) == uuid:
                continue
            body = {"metadata": {"uid": meta.uid, "annotations": {HOLDS: uuid}}}
            try:
                await self._api.patch(PODS, meta.name, body, namespace=meta.namespace)
            except KubeError as error:
                if self._repeats.news(str(error), uuid):
                    _LOG.warning("holder-not-told", pod=str(pod.key), gpu=uuid, why=str(error))
                continue
            self._repeats.news("", uuid)
            _LOG.info("held", gpu=uuid, vgpu=meta.labels[VGPU])
        return self.held - before, before - self.held
