"""The node agent: its parts, started one after the other, each with a name and a line in the log.

The arbiter is separate: its own process (and container), which keeps running while the agent restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from aliquot.driver.gpu_lock import GpuLock
from aliquot.driver.sensors import SensorReader
from aliquot.http.listening import PortTaken
from aliquot.kube.api import Api
from aliquot.kube.dialects import foreign
from aliquot.kube.errors import KubeError
from aliquot.kube.names import GPU_PERCENT
from aliquot.kube.planstatus import Outcome
from aliquot.lib.log import Logger, set_up_log
from aliquot.model.errors import AliquotError
from aliquot.model.ids import GpuUuid
from aliquot.node.allocator import ShareAllocator
from aliquot.node.allotments import Allotments
from aliquot.node.calls import KubeletCalls
from aliquot.node.check import AllocationCheck
from aliquot.node.checkpoint import CheckpointError, PodKey
from aliquot.node.driver import follow, open_driver
from aliquot.node.events import Events
from aliquot.node.health import Health, HealthWatch
from aliquot.node.holders import Holders, tell_taken
from aliquot.node.kubelet import PodResources
from aliquot.node.leaving import Leaving
from aliquot.node.machine import Machine
from aliquot.node.outcomes import Outcomes
from aliquot.node.peers import started
from aliquot.node.plugin import DevicePlugin
from aliquot.node.pods import NodePod, NodePods
from aliquot.node.provisioner import TenantProvisioner
from aliquot.node.recovery import Recovering
from aliquot.node.settings import NodeSettings
from aliquot.node.status import OF_GPU_MANAGER, OF_GPUSHARE, OWN, NodePublisher, labels_of, resources_of
from aliquot.node.tasks import Tasks, every
from aliquot.node.telling.server import application, serving
from aliquot.node.telling.wiring import arbiter_status, tell_pods, telling_of
from aliquot.node.volume.following import NodeDriver
from aliquot.node.volume.names import SUBSTITUTED
from aliquot.tracing.spans import Spans, tracing

_LOG: Final = Logger("node")
SYNC_S: Final = 20.0
MISSES: Final = 2
HOLDERS_S: Final = 1.0
AWAITED_S: Final = 0.2
"""How often kubelet is asked which GPUs holder pods have, and while one was not told its GPU yet."""


class GpuReturned(AliquotError):
    """A GPU that was lost when the agent started is available again: the agent restarts to include it."""


class Agent:
    """One node's agent. `run` runs it; `steps` are the names of its start-up in order."""

    machine: Machine
    driver: NodeDriver
    health: HealthWatch
    provisioner: TenantProvisioner
    pods: NodePods
    recovering: Recovering
    check: AllocationCheck
    leaving: Leaving
    allocator: ShareAllocator
    plugin: DevicePlugin

    def __init__(self, settings: NodeSettings, api: Api, spans: Spans | None = None) -> None:
        self.settings = settings
        self.api = api
        self.node = settings.name
        self.events = Events(api, self.node)
        of_others = OF_GPUSHARE * settings.gpushare_inspect + OF_GPU_MANAGER * settings.vcuda_resources
        self.status = NodePublisher(api, self.node, OWN + of_others)
        self.allotments = Allotments(settings.checkpoint, self.node)
        self.resources = PodResources(settings.pod_resources)
        self.sick: dict[GpuUuid, str] = {}
        self.holders: Holders | None = None
        self.calls = KubeletCalls(self.node, spans)
        self._misses = 0
        self._holders_due_s = 0.0
        self.steps: tuple[tuple[str, Callable[[], Awaitable[str]]], ...] = (
            ("driver", self._find_driver),
            ("pods", self._follow_pods),
            ("tenants", self._open_tenants),
            ("topology", self._see_topology),
            ("recovery", self._recover),
            ("device-plugin", self._serve_plugin),
            ("node", self._tell_node),
            ("display", self._open_display),
        )
        self._tasks = Tasks()
        self._opened = contextlib.AsyncExitStack()

    async def run(self, stop: asyncio.Event) -> None:
        """Start everything, run until `stop` is set, and shut down in order.

        Raises:
            AliquotError: a part could not start, or failed.
        """
        try:
            for name, step in self.steps:
                began_s = time.monotonic()
                said = await step()
                _LOG.info("started", part=name, what=said, took_ms=round(1000 * (time.monotonic() - began_s)))
            _LOG.info("ready", node=self.node)
            await self._tasks.until(stop)
        finally:
            await self._end()

    # -- the parts, in the order in which they start ---------------------------------------------------------------

    async def _find_driver(self) -> str:
        self.machine, self.driver = await asyncio.to_thread(open_driver, self.settings)
        gpu_lock = GpuLock(self.driver.source.library(SUBSTITUTED[1]).file, self.machine.gpus)
        self._opened.callback(gpu_lock.close)
        for silent in self.machine.silent:
            _LOG.warning("gpu-silent", why=silent)
        for uuid, why in self.machine.left_out.items():
            _LOG.info("gpu-left-out", gpu=uuid, why=why)
        self.health = HealthWatch(self.machine)
        first = self.machine.gpus[0]
        return f"{len(self.machine.gpus)} x {first.model}, driver {first.driver or '?'}, {self.driver.current.name}"

    async def _follow_pods(self) -> str:
        self.pods = NodePods(self.api, self.node, self._gone)
        self._tasks.last("pods", self.pods.reflector.run())
        self._tasks.last("node-watch", self.status.reflector.run())
        try:
            await asyncio.wait_for(self.pods.reflector.synced.wait(), SYNC_S)
        except TimeoutError:
            why = self.pods.reflector.counts.last_failure or "no answer"
            return f"the API server does not answer ({why}); continuing with the state on disk"
        return f"{len(self.pods.reflector)} pods on {self.node}"

    async def _open_tenants(self) -> str:
        runtime = Path(self.settings.runtime_dir)
        runtime.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.settings.tenants.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.provisioner = TenantProvisioner(self.node, self.machine, self.settings.tenants, runtime, self.driver)
        self.provisioner.sick = lambda: self.sick
        if self.settings.gpus == "coexist":
            holders = Holders.of(self.settings, self.api, self.pods, self.machine)
            self._opened.push_async_callback(holders.close)
            self.holders = holders
            self.provisioner.offered = lambda: self.machine.only(holders.held)
        dialects = foreign(aliyun_unit=self.settings.aliyun_unit)
        self.outcomes = Outcomes(
            self.api, self.events, started=lambda owner: started(self.pods.get(owner.uid), dialects)
        )
        self._tasks.last("outcomes", self.outcomes.run())
        self.allocator = ShareAllocator(
            self.settings, self.provisioner, self.pods, self.allotments, self.resources, self._on_outcome, self.calls
        )
        if self.calls.starts is not None:
            first_grants = self.calls.starts.follow(lambda: arbiter_status(runtime), self.pods.lives)
            self._tasks.last("first-grants", first_grants)
        held = (self.pods, self.resources, self.allotments, self.provisioner)
        self.recovering = Recovering(self.settings, *held, self.events, self.outcomes.tell)
        self.check = AllocationCheck(
            self.settings, self.api, *held, self.events, self._leave, self.recovering, self.outcomes.tell
        )
        self.leaving = Leaving(
            Path(self.settings.cdi_dir), self.allotments, self.provisioner, self.resources, self.pods
        )
        why = await asyncio.to_thread(self.provisioner.check_arbiter)
        return why or "the arbiter answers"

    async def _see_topology(self) -> str:
        links = {link for row in self.machine.topology.links for link in row if link != "X"}
        return ", ".join(sorted(links)) or "one GPU"

    async def _recover(self) -> str:
        return await self.recovering.run()

    async def _serve_plugin(self) -> str:
        def registered() -> None:
            _LOG.info("registered", resource=GPU_PERCENT, times=self.plugin.registrations)

        def listed() -> None:
            self._tasks.once("listed", self._describe())

        if self.holders is not None:
            await self.holders.refresh()
        await self._check_state()
        self.plugin = DevicePlugin(
            self.settings.device_plugins, GPU_PERCENT, self.allocator, on_registered=registered, on_listed=listed
        )
        self._tasks.last("device-plugin", self.plugin.run())
        return f"{GPU_PERCENT}, {self.settings.ids_per_gpu} ids a GPU"

    async def _tell_node(self) -> str:
        self._tasks.last("look", every(self.settings.health_period_s, self._check_state))
        self._tasks.last("health", self._watch_health())
        self._tasks.last(
            "driver", follow(self.provisioner, self.allotments, self._redriven, self.settings.health_period_s)
        )
        if self.holders is not None:
            self._tasks.last("holders", every(AWAITED_S, self._refresh_holders))
        self._tasks.last("check", every(self.settings.allocation_check_period_s, self.check.look))
        try:
            await self._describe()
        except KubeError as error:
            return f"not yet: {error}"
        return "labels and inventory; the memory as soon as kubelet has the devices"

    async def _open_display(self) -> str:
        where, port = self.settings.display_address, self.settings.display_port
        sensors = SensorReader(self.machine.libnvml)
        self._opened.callback(sensors.close)
        sources, auditing = telling_of(
            self.settings, self.provisioner, self.pods, self.events, lambda: self.sick, sensors.read
        )
        self._tasks.last("notices", tell_pods(sources, self.events, self.settings.health_period_s))
        self._tasks.last("audit", auditing.run(self.settings.health_period_s))
        if not port:
            return "not requested"
        app = application(sources, self.settings.aliases, self.calls.collectors)
        try:
            await self._opened.enter_async_context(serving(app, port, where))
        except PortTaken as error:
            return f"not served: {error}"  # no share depends on it
        return f"http://{where}:{port}/graph"

    # -- periodic work -------------------------------------------------------------------------------------------

    async def _check_state(self) -> None:
        """Check everything that a new tenant needs; report a change to kubelet and the API server."""
        before = (self.allocator.unfit, dict(self.sick))
        self.allocator.unfit = await self._unfit()
        if before != (self.allocator.unfit, self.sick):
            _LOG.info("fit" if not self.allocator.unfit else "unfit", why=self.allocator.unfit, sick=len(self.sick))
            if hasattr(self, "plugin"):
                await self.plugin.tell()
        await self._leave_init()
        if hasattr(self, "plugin"):
            with contextlib.suppress(KubeError):  # reported again at the next check
                await self._describe()
                await self._hear_administrator()

    async def _leave_init(self) -> None:
        """Release what init containers had when they have ended, also where no later container requests a GPU."""
        tenants = list(self.provisioner.tenants.values()) if hasattr(self, "leaving") else []
        for uid in {provisioned.owner.uid for provisioned in tenants if provisioned.plan.init > 0}:
            pod = self.pods.get(uid)
            if pod is not None and pod.status.initialized:
                await asyncio.to_thread(self.provisioner.remove_init, uid)

    async def _unfit(self) -> str:
        why = await asyncio.to_thread(self.provisioner.check_arbiter)
        # A single failure is an arbiter that is being restarted: a pod that is on its way here would fail permanently.
        self._misses = self._misses + 1 if why else 0
        if why and (self._misses > MISSES or self.allocator.unfit):
            return why
        if self.allotments.failure:
            with contextlib.suppress(CheckpointError):
                await self.allotments.write()
        return self.allotments.failure

    async def _watch_health(self) -> None:
        async for found in self.health.run():
            await self._note_health(found)
            if found.others - self.machine.left_out.keys():
                raise GpuReturned(f"{', '.join(sorted(found.others))} answers and did not when the agent started")

    async def _note_health(self, found: Health) -> None:
        before, self.sick = self.sick, dict(found.sick)
        if before == self.sick:
            return
        await self.plugin.tell()  # first, because a hanging API server could delay the rest
        with contextlib.suppress(KubeError):
            await self._describe()
        for uuid in self.sick.keys() - before.keys():
            await self.events.about_node("GpuSick", f"{uuid} {self.sick[uuid]}; it is withdrawn")
        for uuid in before.keys() - self.sick.keys():
            await self.events.about_node("GpuWell", f"{uuid} is well again", "Normal")

    async def _hear_administrator(self) -> None:
        """Forget the XIDs of GPUs that the node's annotation declares healthy, and remove the annotation."""
        said = self.status.said_well
        if said:
            ours = {gpu.uuid for gpu in self.machine.gpus}
            await self.health.well(ours if said == {"all"} else ours & said)
            await self.status.heard_well()
            _LOG.info("gpu-said-well", gpus=sorted(said))

    async def _redriven(self, version: str) -> None:
        self.machine = self.provisioner.machine = self.machine.redriven(version)
        with contextlib.suppress(KubeError):
            await self._describe()

    async def _describe(self) -> None:
        offered, labels = self.provisioner.offered(), dict(self.settings.own_labels)
        if self.settings.node_labels:
            labels |= labels_of(self.machine)
        await self.status.describe(self.sick, offered=offered, labels=labels, kernels=self.provisioner.kernels)
        await self.status.advertise(self._resources())

    async def _refresh_holders(self) -> None:
        """Follow which GPUs holder pods take from the stock plugin and return to it."""
        now_s = time.monotonic()
        if self.holders is None or (now_s < self._holders_due_s and not self.holders.awaited):
            return
        self._holders_due_s = now_s + HOLDERS_S
        gained, lost = await self.holders.refresh()
        if gained or lost:
            await self.plugin.tell()
            with contextlib.suppress(KubeError):
                await self._describe()
        if lost:
            await tell_taken(self.provisioner.tenants.values(), lost, self.events)

    def _resources(self) -> dict[str, int]:
        """The GPUs that the node offers; none while kubelet would refuse their pods."""
        if self.allocator.unfit or not self.plugin.listed:
            return {}
        well = [gpu for gpu in self.provisioner.offered().gpus if GpuUuid(gpu.uuid) not in self.sick]
        unit = self.settings.aliyun_unit if self.settings.gpushare_inspect else None
        return resources_of(well, unit, vcuda=self.settings.vcuda_resources)

    def _gone(self, pod: NodePod) -> None:
        """Release the tenants, names and files of a pod that has ended or was deleted."""
        if hasattr(self, "leaving"):
            self.check.forget(pod.key)
            self.outcomes.forget(pod.key)
            self._leave(pod.key)

    def _leave(self, owner: PodKey) -> None:
        self._tasks.once(f"gone-{owner.uid}", self.leaving.clear(owner))

    async def _on_outcome(self, owner: PodKey, container: str, outcome: Outcome, why: str) -> None:
        self.check.note(owner, container, outcome, why)
        await self.outcomes.tell(owner, container, outcome, why)

    async def _end(self) -> None:
        """End every part, and withdraw what only the agent can withdraw; tenants keep their shares."""
        await self._tasks.end()  # first, or one of them would advertise again
        with contextlib.suppress(KubeError, TimeoutError):
            await asyncio.wait_for(self.status.advertise({}), 3)
        await self._opened.aclose()
        await self.resources.close()
        _LOG.info("ended", node=self.node)


def serve(settings: NodeSettings) -> None:
    """Run the agent until SIGTERM or SIGINT.

    Raises:
        AliquotError: it could not start, or a part of it failed.
    """
    set_up_log(settings.log_format)
    asyncio.run(_serve(settings))


async def _serve(settings: NodeSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    facts = {"k8s.node.name": settings.name}
    with tracing("aliquot-node", settings.otlp_endpoint, facts) as spans:
        async with Api.connect(settings.kubeconfig) as api:
            await Agent(settings, api, spans).run(stop)
