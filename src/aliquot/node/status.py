"""What the node publishes about its GPUs: resources that no device plugin counts, labels, the annotation with devices;
and `NodeAdvertiser`, which withdraws GPUs and offers them again.

Besides `aliquot.dev/gpu-memory` these are, on request, the two that `kubectl inspect gpushare` reads of a node,
`aliyun.com/gpu-mem`, in units of each GPU, and `aliyun.com/gpu-count`; and the two of gpu-manager,
`tencent.com/vcuda-core`, in hundredths of GPUs, and `tencent.com/vcuda-memory`, in blocks of each GPU.

Source: gpushare-device-plugin cmd/inspect/nodeinfo.go; gpu-manager pkg/server/{vcore,vmemory}.go.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from aliquot.driver.gpu import Gpu
from aliquot.kube.api import Api
from aliquot.kube.dialects.aliyun import COUNT as ALIYUN_COUNT
from aliquot.kube.dialects.aliyun import MEMORY as ALIYUN_MEMORY
from aliquot.kube.dialects.aliyun import UNIT_MIB, Unit
from aliquot.kube.dialects.tencent import BLOCK_MIB
from aliquot.kube.dialects.tencent import CORE as TENCENT_CORE
from aliquot.kube.dialects.tencent import MEMORY as TENCENT_MEMORY
from aliquot.kube.errors import KubeError
from aliquot.kube.inventory import Inventory, write_inventory
from aliquot.kube.names import (
    GPU_HEALTHY,
    GPU_KERNELS,
    GPU_MEMORY,
    GPU_MODEL,
    GPUS,
    LABEL_LENGTH,
    PREFIX,
    label_value,
)  # fmt: skip
from aliquot.kube.objects import NODES, Node
from aliquot.kube.quantities import parse_quantity
from aliquot.kube.reflector import Change, Reflector
from aliquot.lib.log import Logger
from aliquot.model.errors import AliquotError
from aliquot.model.ids import GpuUuid
from aliquot.node.allocation.checkpoint import Allotments, CheckpointError
from aliquot.node.events import Events
from aliquot.node.health import HealthWatch
from aliquot.node.machine import Machine
from aliquot.node.plugin import DevicePlugin
from aliquot.node.provisioner import TenantProvisioner
from aliquot.node.settings import NodeSettings

_LOG: Final = Logger("node")
MIB: Final = 1 << 20
MISSES: Final = 2
"""Checks in a row in which the arbiter may not answer before the GPUs are withheld."""
OWN: Final = (GPU_MEMORY,)
OF_GPUSHARE: Final = (ALIYUN_MEMORY, ALIYUN_COUNT)
OF_GPU_MANAGER: Final = (TENCENT_CORE, TENCENT_MEMORY)
MIXED: Final = "mixed"
OF_MODEL: Final = f"{PREFIX}gpu-model."
"""Labels that begin so end with a model, and count the node's GPUs of that model."""
MODEL_LENGTH: Final = LABEL_LENGTH - len("gpu-model.")


def labels_of(machine: Machine) -> dict[str, str]:
    """The node's labels: models with their numbers, memory, driver, and how its GPUs are wired."""
    models = Counter(label_value(gpu.model) for gpu in machine.gpus)
    links = {link for row in machine.topology.links for link in row if link != "X"}
    wired = "nvlink" if any(link.startswith("NV") for link in links) else "pcie" if links else "single"
    return {
        GPU_MODEL: next(iter(models)) if len(models) == 1 else MIXED,
        f"{PREFIX}gpu-count": str(len(machine.gpus)),
        f"{PREFIX}gpu-memory-mib": str(min(gpu.memory_mib for gpu in machine.gpus)),
        f"{PREFIX}driver": label_value(machine.gpus[0].driver),
        f"{PREFIX}topology": wired,
    } | {f"{OF_MODEL}{model[:MODEL_LENGTH].rstrip('-._')}": str(count) for model, count in models.items()}


def described(machine: Machine, unhealthy: Mapping[GpuUuid, str]) -> str:
    """The annotation that the scheduler reads: devices, links, NUMA nodes, near cores, and unhealthy devices."""
    devices = machine.gpus
    here = {gpu.uuid for gpu in machine.gpus}
    reasons = {str(uuid): why for uuid, why in unhealthy.items() if uuid in here}
    return write_inventory(Inventory(devices, machine.topology if devices else None, reasons))


def resources_of(gpus: Sequence[Gpu], aliyun_unit: Unit | None = None, *, vcuda: bool = False) -> dict[str, int]:
    """The resources of these GPUs; with a unit also those of gpushare, with `vcuda` those of gpu-manager."""
    found = {GPU_MEMORY: sum(gpu.memory_mib for gpu in gpus) * MIB}
    if aliyun_unit is not None:
        unit_mib = UNIT_MIB[aliyun_unit]
        found |= {ALIYUN_MEMORY: sum(gpu.memory_mib // unit_mib for gpu in gpus), ALIYUN_COUNT: len(gpus)}
    if vcuda:
        found |= {TENCENT_CORE: 100 * len(gpus), TENCENT_MEMORY: sum(g.memory_mib // BLOCK_MIB for g in gpus)}
    return found


class NodePublisher:
    """Keeps what the node publishes up to date; of its resources only those named in `managed`."""

    def __init__(self, api: Api, node: str, managed: Sequence[str] = OWN) -> None:
        self._api = api
        self._node = node
        self._managed = managed
        self._now: Node | None = None
        self.reflector = Reflector(api, NODES, self._changed, selectors={"fieldSelector": f"metadata.name={node}"})

    @classmethod
    def of(cls, settings: NodeSettings, api: Api) -> NodePublisher:
        """The publisher of the node with these settings."""
        of_others = OF_GPUSHARE * settings.gpushare_inspect + OF_GPU_MANAGER * settings.vcuda_resources
        return cls(api, settings.name, OWN + of_others)

    async def withdraw(self) -> None:
        """Withdraw all resources, as far as the API server answers within three seconds."""
        with contextlib.suppress(KubeError, TimeoutError):
            await asyncio.wait_for(self.advertise({}), 3)

    async def describe(
        self, unhealthy: Mapping[GpuUuid, str], *, offered: Machine, labels: Mapping[str, str], kernels: str = ""
    ) -> bool:
        """Publish the labels, the annotation about the offered GPUs, and the one about their tenants' kernels.

        Returns whether anything was written: a node that is up to date is left alone, a recreated one is written again.

        Raises:
            KubeError: the API server refuses or is unavailable.
        """
        wanted: dict[str, dict[str, str | None]] = {"annotations": {GPUS: described(offered, unhealthy)}}
        if kernels:
            wanted["annotations"][GPU_KERNELS] = kernels
        if labels:  # those of models that the node no longer has go
            shown = self._now.metadata.labels if self._now is not None else {}
            stale = [key for key in shown if key.startswith(OF_MODEL) and key not in labels]
            wanted["labels"] = {**dict.fromkeys(stale), **labels}
        if self._now is not None:
            now = {"annotations": self._now.metadata.annotations, "labels": self._now.metadata.labels}
            if all(now[part].get(key) == value for part in wanted for key, value in wanted[part].items()):
                return False
        self._now = await self._api.patch(NODES, self._node, {"metadata": wanted})
        return True

    async def advertise(self, resources: Mapping[str, int]) -> bool:
        """Offer these of the managed resources and withdraw the others; whether anything had to be written.

        Raises:
            KubeError: the API server refuses or is unavailable.
        """
        if self._now is not None:
            shown = self._now.status.capacity
            if {n: int(parse_quantity(shown[n])) for n in self._managed if n in shown} == resources:
                return False
        capacity = {name: str(resources[name]) if name in resources else None for name in self._managed}
        self._now = await self._api.patch(NODES, self._node, {"status": {"capacity": capacity}}, sub="status")
        _LOG.info("capacity", **resources)
        return True

    @property
    def declared_healthy(self) -> frozenset[str]:
        """The GPUs (UUIDs, or `all`) that the administrator declares healthy, by the node's annotation."""
        said = self._now.metadata.annotations.get(GPU_HEALTHY, "") if self._now is not None else ""
        return frozenset(word.strip() for word in said.split(",") if word.strip())

    async def remove_declaration(self) -> None:
        """Remove that annotation.

        Raises:
            KubeError: the API server refuses or is unavailable.
        """
        self._now = await self._api.patch(NODES, self._node, {"metadata": {"annotations": {GPU_HEALTHY: None}}})

    def _changed(self, change: Change[Node]) -> None:
        self._now = None if change.kind == "deleted" else change.object


class GpuReturned(AliquotError):
    """A GPU that was lost when the agent started is available again: the agent restarts to include it."""


class NodeAdvertiser:
    """Checks what a new tenant needs, and tells kubelet and the API server what the node offers."""

    def __init__(
        self, settings: NodeSettings, provisioner: TenantProvisioner, allotments: Allotments, plugin: DevicePlugin,
        health: HealthWatch, api: Api, events: Events,
    ) -> None:  # fmt: skip
        self.publisher = NodePublisher.of(settings, api)
        self._settings = settings
        self._offer = provisioner.offer
        self._provisioner = provisioner
        self._allotments = allotments
        self._plugin = plugin
        self._health = health
        self._events = events
        self._misses = 0

    async def check(self) -> None:
        """Check everything that a new tenant needs, and report it; what is not taken is reported at the next check."""
        await self.check_offer()
        with contextlib.suppress(KubeError):
            await self.describe()
            if declared := self.publisher.declared_healthy:  # their XIDs are forgotten
                ours = {gpu.uuid for gpu in self._offer.machine.gpus}
                await self._health.forget_xids(ours if declared == {"all"} else ours & declared)
                await self.publisher.remove_declaration()
                _LOG.info("gpu-declared-healthy", gpus=sorted(declared))

    async def check_offer(self) -> None:
        """Withhold the node's GPUs while nothing can be given, and report a change of that to kubelet."""
        why = await asyncio.to_thread(self._provisioner.check_arbiter)
        # A single failure is an arbiter that is being restarted: a pod that is on its way here would fail permanently.
        self._misses = self._misses + 1 if why else 0
        if not why or (self._misses <= MISSES and not self._offer.withheld):
            if self._allotments.failure:
                with contextlib.suppress(CheckpointError):
                    await self._allotments.write()
            why = self._allotments.failure
        before, self._offer.withheld = self._offer.withheld, why
        if before != why:
            _LOG.info("unfit" if why else "fit", why=why, unhealthy=len(self._offer.unhealthy))
            await self._plugin.send_devices()

    async def watch_health(self) -> None:
        """Withdraw and restore GPUs by their health, until cancelled.

        Raises:
            GpuReturned: see there.
        """
        async for health in self._health.run():
            before, now = self._offer.unhealthy, dict(health.unhealthy)
            self._offer.unhealthy = now
            if before != now:
                await self.resend()
            for uuid in now.keys() - before.keys():
                await self._events.about_node("GpuUnhealthy", f"{uuid} {now[uuid]}; it is withdrawn")
            for uuid in before.keys() - now.keys():
                await self._events.about_node("GpuHealthy", f"{uuid} is healthy again", "Normal")
            if others := health.others - self._offer.machine.left_out.keys():
                raise GpuReturned(f"{', '.join(sorted(others))} answers and did not when the agent started")

    async def follow_driver(self, period_s: float) -> None:
        """Use a changed driver for new containers, and remove one that no container has; until cancelled."""
        failure = ""
        while True:
            await asyncio.sleep(period_s)
            try:
                changed = await asyncio.to_thread(self._provisioner.driver.refresh)
            except (AliquotError, OSError) as error:
                if failure != str(error):
                    _LOG.warning("driver-not-mirrored", why=str(error))
                failure = str(error)
            else:
                failure = ""
                if changed is not None:
                    _LOG.info("driver-changed", version=changed.version, generation=changed.name)
                    self._offer.machine = self._offer.machine.redriven(changed.version)
                    await self.resend()
            # Also after a failure: unused generations may be what fills the disk.
            named = [allotment.driver for allotment in self._allotments]
            if gone := await asyncio.to_thread(self._provisioner.prune, named):
                _LOG.info("driver-pruned", generations=gone)

    async def resend(self) -> None:
        """Report what is offered to kubelet and, as far as it answers, to the API server."""
        await self._plugin.send_devices()  # first, because a hanging API server could delay the rest
        with contextlib.suppress(KubeError):
            await self.describe()

    async def publish(self) -> str:
        """`describe` for the first time; returns what the log says of it."""
        try:
            await self.describe()
        except KubeError as error:
            return f"not yet: {error}"
        return "labels and inventory; the memory as soon as kubelet has the devices"

    async def describe(self) -> None:
        """Publish labels, inventory and resources.

        Raises:
            KubeError: the API server refuses or is unavailable.
        """
        offer, labels = self._offer, dict(self._settings.own_labels)
        if self._settings.node_labels:
            labels |= labels_of(offer.machine)
        kernels = self._provisioner.kernels
        await self.publisher.describe(offer.unhealthy, offered=offer.shared, labels=labels, kernels=kernels)
        resources = {}
        if not offer.withheld and self._plugin.listed:  # otherwise kubelet would refuse the pods
            unit = self._settings.aliyun_unit if self._settings.gpushare_inspect else None
            resources = resources_of(offer.healthy, unit, vcuda=self._settings.vcuda_resources)
            resources[GPU_MEMORY] += MIB * self._plugin.memory_more_mib(offer.healthy)
        await self.publisher.advertise(resources)
