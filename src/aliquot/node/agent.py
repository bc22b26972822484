"""The node agent: its parts, built first and then started one after the other, each with a line in the log.

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

from aliquot.kube.api import Api
from aliquot.lib.log import Logger, set_up_log
from aliquot.node.allocation.lifecycle import Allocations
from aliquot.node.allocation.outcomes import Outcomes
from aliquot.node.display.facts import arbiter_status
from aliquot.node.display.server import Display
from aliquot.node.driver import follow, lock_gpus, open_driver
from aliquot.node.events import Events
from aliquot.node.health import HealthWatch
from aliquot.node.holders import Holders
from aliquot.node.machine import Machine, NodeOffer
from aliquot.node.plugin import DevicePlugin
from aliquot.node.pods import NodePods
from aliquot.node.provisioner import TenantProvisioner
from aliquot.node.settings import NodeSettings
from aliquot.node.spans import KubeletCalls
from aliquot.node.status import NodeAdvertiser, NodePublisher
from aliquot.node.tasks import Tasks, every
from aliquot.node.volume.following import NodeDriver
from aliquot.tracing.spans import Spans, tracing

_LOG: Final = Logger("node")
SYNC_S: Final = 20.0


class Agent:
    """One node's agent on a machine whose driver was found. `run` starts its parts in the order of `steps`."""

    def __init__(
        self, settings: NodeSettings, api: Api, machine: Machine, driver: NodeDriver, spans: Spans | None = None
    ) -> None:
        node, runtime = settings.name, Path(settings.runtime_dir)
        self.settings = settings
        self.events = events = Events(api, node)
        self.pods = NodePods(api, node, lambda pod: self.allocations.pod_gone(pod.key))
        self.offer = NodeOffer(machine, coexist=settings.gpus == "coexist")
        self.provisioner = TenantProvisioner(node, self.offer, settings.tenants, runtime, driver)
        self.calls = KubeletCalls(node, spans)
        self._tasks = Tasks()
        self.allocations = Allocations(
            settings, self.pods, self.provisioner, events, Outcomes(settings, api, self.pods, events),
            self._tasks.once, self.calls,
        )  # fmt: skip
        self.plugin = DevicePlugin(
            settings, self.allocations, on_listed=lambda: self._tasks.once("listed", self.status.describe())
        )
        self.status = NodeAdvertiser(
            settings, self.provisioner, self.allocations.records, self.plugin, HealthWatch(machine), api, events
        )
        self.holders = Holders.of(settings, api, self.pods, self.offer)
        self.display = Display(settings, self.provisioner, self.pods, events, self.calls.collectors)
        self.steps: tuple[tuple[str, Callable[[], Awaitable[str]]], ...] = (
            ("driver", self._lock_gpus),
            ("pods", self._follow_pods),
            ("tenants", self._open_tenants),
            ("recovery", self.allocations.recover),
            ("device-plugin", self._serve_plugin),
            ("node", self._publish),
            ("display", self._open_display),
        )
        self._opened = contextlib.AsyncExitStack()

    async def run(self, stop: asyncio.Event) -> None:
        """Start everything, run until `stop` is set, and shut down in order.

        Raises:
            AliquotError: a part could not start, or failed.
        """
        try:
            for name, step in self.steps:
                began_s = time.monotonic()
                what = await step()
                _LOG.info("started", part=name, what=what, took_ms=round(1000 * (time.monotonic() - began_s)))
            _LOG.info("ready", node=self.settings.name)
            await self._tasks.until(stop)
        finally:
            await self.end()

    async def end(self) -> None:
        """End every part, and withdraw what only the agent can withdraw; tenants keep their shares."""
        await self._tasks.end()  # first, or one of them would advertise again
        await self.status.publisher.withdraw()
        await self._opened.aclose()
        await self.allocations.resources.close()
        _LOG.info("ended", node=self.settings.name)

    # -- the steps, in the order in which they are made ------------------------------------------------------------

    async def _lock_gpus(self) -> str:
        machine, driver = self.offer.machine, self.provisioner.driver
        self._opened.callback(lock_gpus(machine, driver).close)
        first = machine.gpus[0]
        links = {link for row in machine.topology.links for link in row if link != "X"}
        wired = f" ({', '.join(sorted(links))})" if links else ""
        return f"{len(machine.gpus)} x {first.model}{wired}, driver {first.driver or '?'}, {driver.current.name}"

    async def _follow_pods(self) -> str:
        self._tasks.critical("pods", self.pods.reflector.run())
        self._tasks.critical("node-watch", self.status.publisher.reflector.run())
        try:
            await asyncio.wait_for(self.pods.reflector.synced.wait(), SYNC_S)
        except TimeoutError:
            why = self.pods.reflector.counts.last_failure or "no answer"
            return f"the API server does not answer ({why}); continuing with the state on disk"
        return f"{len(self.pods.reflector)} pods on {self.settings.name}"

    async def _open_tenants(self) -> str:
        self.settings.tenants.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._tasks.critical("outcomes", self.allocations.outcomes.run())
        if self.calls.starts is not None:
            runtime = Path(self.settings.runtime_dir)
            first_grants = self.calls.starts.follow(lambda: arbiter_status(runtime), self.pods.lives)
            self._tasks.critical("first-grants", first_grants)
        return await asyncio.to_thread(self.provisioner.check_arbiter) or "the arbiter answers"

    async def _serve_plugin(self) -> str:
        if self.offer.held is not None:
            await self.holders.refresh()
        await self.status.check_offer()
        # What an agent that was killed left on offer: kubelet would start pods without devices until it has them.
        await self.status.publisher.withdraw()
        self._tasks.critical("device-plugin", self.plugin.run())
        return f"{self.plugin.resource}, {self.settings.ids_per_gpu} ids a GPU"

    async def _publish(self) -> str:
        period_s = self.settings.health_period_s
        self._tasks.critical("status", every(period_s, self.status.check))
        self._tasks.critical("init", every(period_s, self.allocations.release_init))
        self._tasks.critical("health", self.status.watch_health())
        self._tasks.critical("driver", follow(self.provisioner, self.allocations.records, self.status.resend, period_s))
        if self.offer.held is not None:
            self._tasks.critical("holders", self.holders.run(self.status.resend, self.provisioner, self.events))
        self._tasks.critical("check", every(self.settings.allocation_check_period_s, self.allocations.reconcile))
        return await self.status.publish()

    async def _open_display(self) -> str:
        for name, task in self.display.tasks:
            self._tasks.critical(name, task())
        return await self.display.open(self._opened)


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
            try:
                machine, driver = await asyncio.to_thread(open_driver, settings)
            except BaseException:
                await NodePublisher.of(settings, api).withdraw()
                raise
            await Agent(settings, api, machine, driver, spans).run(stop)
