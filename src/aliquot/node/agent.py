"""The node agent: its parts, started one after the other, each with a name and a line in the log.

The arbiter is no part of it: a process (and container) of its own that goes on while the agent is restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import structlog

from aliquot.kube.api import Api
from aliquot.kube.errors import KubeError
from aliquot.kube.names import GPU_PERCENT, PLAN, PLAN_STATUS
from aliquot.kube.plan import BadPlan, read_plan
from aliquot.kube.resources import PODS
from aliquot.model.errors import AliquotError
from aliquot.model.ids import GpuUuid
from aliquot.node.allotments import Allotments
from aliquot.node.cdi import remove_spec, write_spec
from aliquot.node.check import Finding, findings
from aliquot.node.checkpoint import Allotment, CheckpointError, PodKey, read_checkpoint
from aliquot.node.desk import Outcome, ShareDesk
from aliquot.node.driver import follow, open_driver
from aliquot.node.events import Events
from aliquot.node.health import watch
from aliquot.node.holders import Holders, tell_taken
from aliquot.node.identity import Noted
from aliquot.node.kubelet import PodResources, noted
from aliquot.node.leaving import containers_ended, sweep
from aliquot.node.machine import Machine
from aliquot.node.plugin import DevicePlugin
from aliquot.node.pods import NodePod, Pods
from aliquot.node.recovery import Known, recover
from aliquot.node.seating import Seating
from aliquot.node.settings import Settings
from aliquot.node.status import NodeStatus
from aliquot.node.telling.server import PortTaken, application, serving
from aliquot.node.telling.wiring import tell_pods, telling_of
from aliquot.node.volume.following import NodeDriver

_LOG: Final = structlog.get_logger("aliquot.node")
SYNC_S: Final = 20.0
MISSES: Final = 2
HOLDERS_S: Final = 1.0


class Agent:
    """One node's agent. `run` is its life; `steps` are the names of its start-up in order."""

    machine: Machine
    driver: NodeDriver
    seating: Seating
    pods: Pods
    desk: ShareDesk
    plugin: DevicePlugin

    def __init__(self, settings: Settings, api: Api) -> None:
        self.settings = settings
        self.api = api
        self.node = settings.name
        self.events = Events(api, self.node)
        self.status = NodeStatus(api, self.node)
        self.allotments = Allotments(settings.checkpoint, self.node)
        self.resources = PodResources(settings.pod_resources)
        self.sick: dict[GpuUuid, str] = {}
        self.refused: dict[str, str] = {}
        self.holders: Holders | None = None
        self._described = False
        self._misses = 0
        self._missing: set[str] = set()
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
        self._tasks: set[asyncio.Task[Any]] = set()
        self._opened = contextlib.AsyncExitStack()
        self._failed: asyncio.Future[None] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Start everything, go on until `stop` is set, and end in order.

        Raises:
            AliquotError: a part could not start, or failed.
        """
        self._failed = asyncio.get_running_loop().create_future()
        try:
            for name, step in self.steps:
                began_s = time.monotonic()
                said = await step()
                _LOG.info("started", part=name, what=said, took_ms=round(1000 * (time.monotonic() - began_s)))
            _LOG.info("ready", node=self.node)
            stopped = asyncio.ensure_future(stop.wait())
            either: set[asyncio.Future[Any]] = {stopped, self._failed}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if self._failed.done():
                self._failed.result()
        finally:
            await self._end()

    # -- the parts, in the order in which they start ---------------------------------------------------------------

    async def _find_driver(self) -> str:
        self.machine, self.driver = await asyncio.to_thread(open_driver, self.settings)
        first = self.machine.gpus[0]
        return f"{len(self.machine.gpus)} x {first.model}, driver {first.driver or '?'}, {self.driver.current.name}"

    async def _follow_pods(self) -> str:
        self.pods = Pods(self.api, self.node, self._gone)
        self._keep("pods", self.pods.reflector.run())
        self._keep("node-watch", self.status.reflector.run())
        try:
            await asyncio.wait_for(self.pods.reflector.synced.wait(), SYNC_S)
        except TimeoutError:
            why = self.pods.reflector.counts.last_failure or "no answer"
            return f"the API server does not answer ({why}); going on with what is on disk"
        return f"{len(self.pods.reflector)} pods on {self.node}"

    async def _open_tenants(self) -> str:
        runtime = Path(self.settings.runtime_dir)
        runtime.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.settings.tenants.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.seating = Seating(self.node, self.machine, self.settings.tenants, runtime, self.driver)
        self.seating.sick = lambda: self.sick
        if self.settings.gpus == "coexist":
            holders = Holders.of(self.settings, self.api, self.pods, self.machine)
            self._opened.push_async_callback(holders.close)
            self.holders = holders
            self.seating.offered = lambda: self.machine.only(holders.held)
        self.desk = ShareDesk(self.settings, self.seating, self.pods, self.allotments, self.resources, self._on_outcome)
        why = await asyncio.to_thread(self.seating.look_at_arbiter)
        return why or "the arbiter answers"

    async def _see_topology(self) -> str:
        links = {link for row in self.machine.topology.links for link in row if link != "X"}
        return ", ".join(sorted(links)) or "one GPU"

    async def _recover(self) -> str:
        content, trouble = await asyncio.to_thread(read_checkpoint, self.settings.checkpoint)
        if trouble:
            await self.events.about_node("CheckpointLost", trouble)
        kept = content.allotments if content.node in ("", self.node) else ()
        try:
            held = await self.resources.held()
        except OSError:
            held = []
        entries = await asyncio.to_thread(noted, self.settings.device_plugins)
        known = {
            pod.metadata.uid: Known(pod.key, pod.metadata.annotations.get(PLAN, ""), pod.ended) for pod in self.pods
        }
        found = recover(held, entries, kept, known if self.pods.reflector.synced.is_set() else None)
        for difference in found.differences:
            _LOG.warning("difference", what=difference)
            await self.events.about_node("BooksDiffer", difference)
        await self.allotments.start_with(found.allotments)
        seated = 0
        for allotment in found.allotments:
            seated += await self._seat_again(allotment)
        swept = await asyncio.to_thread(sweep, Path(self.settings.cdi_dir), self.allotments, self.seating)
        return f"{seated} seats, {len(found.differences)} differences, {swept} left-overs removed"

    async def _serve_plugin(self) -> str:
        def registered() -> None:
            _LOG.info("registered", resource=GPU_PERCENT, times=self.plugin.registrations)

        if self.holders is not None:
            await self.holders.look()
        await self._look()
        self.plugin = DevicePlugin(self.settings.device_plugins, GPU_PERCENT, self.desk, on_registered=registered)
        self._keep("device-plugin", self.plugin.run())
        return f"{GPU_PERCENT}, {self.settings.ids_per_gpu} ids a GPU"

    async def _tell_node(self) -> str:
        self._keep("look", self._every(self.settings.health_period_s, self._look))
        self._keep("health", self._watch_health())
        self._keep("driver", follow(self.seating, self.allotments, self._redriven, self.settings.health_period_s))
        if self.holders is not None:
            self._keep("holders", self._every(HOLDERS_S, self._look_at_holders))
        self._keep("check", self._every(self.settings.allocation_check_period_s, self._check))
        try:
            await self._describe()
        except KubeError as error:
            return f"not yet: {error}"
        return f"{self._memory_mib() or 0} MiB of GPU memory"

    async def _open_display(self) -> str:
        where, port = self.settings.display_address, self.settings.display_port
        sources, auditing = telling_of(self.settings, self.seating, self.pods, self.events, lambda: self.sick)
        self._keep("notices", tell_pods(sources, self.events, self.settings.health_period_s))
        self._keep("audit", auditing.run(self.settings.health_period_s))
        if not port:
            return "not asked for"
        try:
            await self._opened.enter_async_context(serving(application(sources, self.settings.aliases), port, where))
        except PortTaken as error:
            return f"not served: {error}"  # nobody's share hangs on it
        return f"http://{where}:{port}/graph"

    # -- what goes on --------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Is everything there that a new tenant needs? Tells kubelet and the API server when that changed."""
        before = (self.desk.unfit, dict(self.sick))
        self.desk.unfit = await self._unfit()
        if before != (self.desk.unfit, self.sick):
            _LOG.info("fit" if not self.desk.unfit else "unfit", why=self.desk.unfit, sick=len(self.sick))
            if hasattr(self, "plugin"):
                await self.plugin.tell()
        if hasattr(self, "plugin"):
            with contextlib.suppress(KubeError):
                await self.status.advertise(self._memory_mib())

    async def _unfit(self) -> str:
        why = await asyncio.to_thread(self.seating.look_at_arbiter)
        # One miss is an arbiter that is being restarted: a pod that is on its way here would fail for good.
        self._misses = self._misses + 1 if why else 0
        if why and (self._misses > MISSES or self.desk.unfit):
            return why
        if self.allotments.failure:
            with contextlib.suppress(CheckpointError):
                await self.allotments.write()
        return self.allotments.failure

    async def _watch_health(self) -> None:
        async for sick in watch(self.machine):
            for uuid in sick.keys() - self.sick.keys():
                await self.events.about_node("GpuSick", f"{uuid} {sick[uuid]}; it is withdrawn")
            for uuid in self.sick.keys() - sick.keys():
                await self.events.about_node("GpuWell", f"{uuid} is well again", "Normal")
            if dict(sick) != self.sick:
                self.sick = dict(sick)
                await self.plugin.tell()
                with contextlib.suppress(KubeError):
                    await self._describe()

    async def _redriven(self, version: str) -> None:
        self.machine = self.seating.machine = self.machine.redriven(version)
        with contextlib.suppress(KubeError):
            await self._describe()

    async def _describe(self) -> None:
        self._described = False
        offered, labels = self.seating.offered(), self.settings.node_labels
        await self.status.describe(self.machine, self.sick, offered=offered, labels=labels)
        await self.status.advertise(self._memory_mib())
        self._described = True

    async def _look_at_holders(self) -> None:
        """GPUs come from the stock plugin and go back to it; what the API server did not take is told again."""
        gained, lost = await self.holders.look() if self.holders is not None else (frozenset(), frozenset())
        if gained or lost:
            await self.plugin.tell()
        if gained or lost or not self._described:
            with contextlib.suppress(KubeError):
                await self._describe()
        if lost:
            await tell_taken(self.seating.seats.values(), lost, self.events)

    async def _check(self) -> None:
        """The allocation check; see `check`."""
        try:
            held = await self.resources.held()
        except OSError:
            return
        entries = await asyncio.to_thread(noted, self.settings.device_plugins)
        for found in findings(self.pods, held, entries, self.refused):
            await self._act(found)
        await self._tidy(entries)

    async def _act(self, found: Finding) -> None:
        owner, where = found.owner, f"container {found.container}: " if found.container else ""
        replace = found.replace and self.settings.replace_pods and found.kind != "slipped"
        reason = "GpuShareMissing" if found.kind == "slipped" else "GpuShareReplaced" if replace else "GpuShareFailed"
        what = "; the pod is deleted, so that its controller makes another" if replace else ""
        await self.events.about_pod(
            owner.namespace, owner.pod, owner.uid, reason, f"{where}{found.why}{what}", "Warning"
        )
        if replace:
            with contextlib.suppress(KubeError):
                await self.api.delete(PODS, owner.pod, namespace=owner.namespace, uid=owner.uid)

    async def _tidy(self, entries: list[Noted] | None) -> None:
        """Forget names that kubelet does not have (any more): twice in a row, for it writes them after we answer."""
        if entries is None:
            return
        known = {name for entry in entries for name in entry.names}
        missing = {allotment.name for allotment in self.allotments if allotment.name not in known}
        gone = [name for name in missing & self._missing if (a := self.allotments.get(name)) and not self._lives(a)]
        self._missing = missing
        for name in gone:
            remove_spec(Path(self.settings.cdi_dir), name)
        with contextlib.suppress(CheckpointError):
            await self.allotments.drop(gone)

    def _lives(self, allotment: Allotment) -> bool:
        pod = self.pods.get(allotment.uid) if allotment.uid else None
        return pod is not None and not pod.ended

    def _memory_mib(self) -> int | None:
        """What the node has to give; None while nothing may be given."""
        if self.desk.unfit:
            return None
        return sum(gpu.memory_mib for gpu in self.seating.offered().gpus if GpuUuid(gpu.uuid) not in self.sick)

    def _gone(self, pod: NodePod) -> None:
        """A pod has ended or was deleted: its seats, names and files go."""
        if hasattr(self, "desk"):
            self._keep(f"gone-{pod.metadata.uid}", self._clear(pod.key), lasting=False)

    async def _clear(self, owner: PodKey) -> None:
        self.refused.pop(owner.uid, None)
        ids = {frozenset(allotment.ids) for allotment in self.allotments if allotment.uid == owner.uid}
        await containers_ended(owner, ids, self.resources, self.pods)
        names = [allotment.name for allotment in self.allotments if allotment.uid == owner.uid]
        seats = await asyncio.to_thread(self.seating.leave_pod, owner.uid)
        for name in names:
            remove_spec(Path(self.settings.cdi_dir), name)
        with contextlib.suppress(CheckpointError):
            await self.allotments.drop(names)
        if names or seats:
            _LOG.info("cleared", pod=str(owner), seats=len(seats), devices=len(names))

    async def _seat_again(self, allotment: Allotment) -> int:
        owner = allotment.owner
        if owner is None or not allotment.plan:
            return 0
        try:
            plan = read_plan({PLAN: allotment.plan})
            assert plan is not None
            had = allotment.driver
            seat = await asyncio.to_thread(self.seating.take, owner, allotment.container, plan, driver=had, again=True)
            write_spec(Path(self.settings.cdi_dir), allotment.name, seat.edits)
        except (AliquotError, BadPlan) as error:
            _LOG.warning("not-seated-again", pod=str(owner), container=allotment.container, why=str(error))
            await self.events.about_pod(
                owner.namespace,
                owner.pod,
                owner.uid,
                "GpuShareLost",
                f"container {allotment.container}: {error}",
                "Warning",
            )
            return 0
        return 1

    async def _on_outcome(self, owner: PodKey, container: str, outcome: Outcome, why: str) -> None:
        if outcome == "refused":
            self.refused[owner.uid] = why
        if outcome != "seated":
            reason = "GpuShareRefused" if outcome == "refused" else "GpuShareWaits"
            message = f"container {container} does not get its share: {why}"
            await self.events.about_pod(owner.namespace, owner.pod, owner.uid, reason, message, "Warning")
        text = f"{container}: {outcome}" + (f" ({why})" if why else "")
        self._keep(f"plan-status-{owner.uid}-{container}", self._write_outcome(owner, text), lasting=False)

    async def _write_outcome(self, owner: PodKey, text: str) -> None:
        body = {"metadata": {"uid": owner.uid, "annotations": {PLAN_STATUS: text[:1000]}}}
        with contextlib.suppress(KubeError):
            await self.api.patch(PODS, owner.pod, body, namespace=owner.namespace)

    # -- inside ------------------------------------------------------------------------------------------------

    async def _every(self, period_s: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(period_s)
            await work()

    def _keep(self, name: str, work: Coroutine[Any, Any, None], *, lasting: bool = True) -> None:
        """Run a task; one that fails ends the agent, so that it is started again as a whole."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None and self._failed is not None and not self._failed.done():
                self._failed.set_exception(error)

        task.add_done_callback(ended)

    async def _end(self) -> None:
        """Withdraw what only the agent can withdraw, then end every part; tenants keep what they have."""
        with contextlib.suppress(KubeError, TimeoutError):
            await asyncio.wait_for(self.status.advertise(None), 3)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._opened.aclose()
        await self.resources.close()
        _LOG.info("ended", node=self.node)
