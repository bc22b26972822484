"""The node agent: its parts, built first and then started one after the other, each with a line in the log.

The arbiter is separate: its own process (and container), which keeps running while the agent restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path
from typing import Final

from aliquot.kube.api import Api
from aliquot.lib.log import Logger, set_up_log
from aliquot.node.allocation.lifecycle import Allocations
from aliquot.node.allocation.outcomes import Outcomes
from aliquot.node.claims import ClaimDriver
from aliquot.node.display.facts import arbiter_status
from aliquot.node.display.server import Display
from aliquot.node.driver import NodeDriver, open_driver
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
from aliquot.tracing.spans import Spans, tracing

_LOG: Final = Logger("node")
SYNC_S: Final = 20.0


class Agent:
    """One node's agent on a machine whose driver was found."""

    def __init__(
        self, settings: NodeSettings, api: Api, machine: Machine, driver: NodeDriver, spans: Spans | None = None
    ) -> None:
        node, runtime = settings.name, Path(settings.runtime_dir)
        self.settings = settings
        self.events = events = Events(api, node)
        self.pods = NodePods(
            api, node, lambda pod: self.allocations.pod_gone(pod.key),
            lambda: self._tasks.once("resizes", self.resizes.check()),
        )  # fmt: skip
        self.offer = NodeOffer(machine, coexist=settings.gpus == "coexist")
        self.provisioner = TenantProvisioner(node, self.offer, settings.tenants, runtime, driver)
        self.calls = KubeletCalls(node, spans)
        self._tasks = Tasks()
        self.allocations = Allocations(
            settings, self.pods, self.provisioner, events, Outcomes(settings, api, self.pods, events),
            self._tasks.once, self.calls,
        )  # fmt: skip
        self.resizes = self.allocations.resizes
        self.plugin = DevicePlugin(
            settings, self.allocations, on_listed=lambda: self._tasks.once("listed", self.status.describe())
        )
        self.claims = ClaimDriver(settings, api, self.allocations, self._tasks.once) if settings.claims else None
        self.status = NodeAdvertiser(
            settings, self.provisioner, self.allocations.records, self.plugin, HealthWatch(machine), api, events
        )
        self.holders = Holders.of(settings, api, self.pods, self.offer)
        self.display = Display(settings, self.provisioner, self.pods, events, self.calls.collectors)
        self._opened = contextlib.AsyncExitStack()

    async def run(self, stop: asyncio.Event) -> None:
        """Start everything, run until `stop` is set, and shut down in order.

        Raises:
            AliquotError: a part could not start, or failed.
        """
        try:
            await self._start()
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

    async def _start(self) -> None:
        settings, provisioner, pods, status = self.settings, self.provisioner, self.pods, self.status
        critical, period_s = self._tasks.critical, settings.health_period_s
        began_s = time.monotonic()

        def started(part: str, what: str) -> None:
            nonlocal began_s
            ended_s = time.monotonic()
            _LOG.info("started", part=part, what=what, took_ms=round(1000 * (ended_s - began_s)))
            began_s = ended_s

        machine, driver = self.offer.machine, provisioner.driver
        self._opened.callback(driver.lock(machine.gpus).close)
        first = machine.gpus[0]
        links = {link for row in machine.topology.links for link in row if link != "X"}
        wired = f" ({', '.join(sorted(links))})" if links else ""
        what = f"{len(machine.gpus)} x {first.model}{wired}, driver {first.driver or '?'}, {driver.current.name}"
        started("driver", what)

        critical("pods", pods.reflector.run())
        critical("node-watch", status.publisher.reflector.run())
        try:
            await asyncio.wait_for(pods.reflector.synced.wait(), SYNC_S)
            started("pods", f"{len(pods.reflector)} pods on {settings.name}")
        except TimeoutError:
            why = pods.reflector.counts.last_failure or "no answer"
            started("pods", f"the API server does not answer ({why}); continuing with the state on disk")

        settings.tenants.mkdir(mode=0o755, parents=True, exist_ok=True)
        critical("outcomes", self.allocations.outcomes.run())
        if self.calls.spans is not None:
            runtime = Path(settings.runtime_dir)
            critical("first-grants", self.calls.follow(lambda: arbiter_status(runtime), pods.lives))
        started("tenants", await asyncio.to_thread(provisioner.check_arbiter) or "the arbiter answers")

        started("recovery", await self.allocations.recover())
        await self.resizes.check()  # before the plugin reports its device ids to kubelet

        if self.offer.held is not None:
            await self.holders.refresh()
        await status.check_offer()
        # What an agent that was killed left on offer: kubelet would start pods without devices until it has them.
        await status.publisher.withdraw()
        critical("device-plugin", self.plugin.run())
        started("device-plugin", f"{self.plugin.resource}, {settings.ids_per_gpu} ids a GPU")

        if self.claims is not None:
            critical("claims", self.claims.run())
            started("claims", "the driver of ResourceClaims")

        critical("status", every(period_s, status.check))
        critical("resizes", every(period_s, self.resizes.check))
        critical("init", every(period_s, self.allocations.release_init))
        critical("health", status.watch_health())
        critical("driver", status.follow_driver(period_s))
        if self.offer.held is not None:
            critical("holders", self.holders.run(status.resend, provisioner, self.events))
        critical("check", every(settings.allocation_check_period_s, self.allocations.reconcile))
        started("node", await status.publish())

        for name, task in self.display.tasks:
            critical(name, task())
        started("display", await self.display.open(self._opened))


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
