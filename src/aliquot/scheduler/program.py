"""The scheduler as one program: caches, ledger, election and server in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aliquot.driver.policies import maker
from aliquot.http.listening import listening
from aliquot.http.server import BadCertificate, Certificate, ClientConnection, HttpServer
from aliquot.kube.api import Api
from aliquot.kube.dialects import foreign
from aliquot.kube.objects import NODES, PODS, Node, Pod
from aliquot.kube.reflector import Change, Reflector
from aliquot.lib.log import Logger
from aliquot.scheduler.admission.server import Webhook
from aliquot.scheduler.extender.bind import Binder
from aliquot.scheduler.extender.preempt import Evictor
from aliquot.scheduler.extender.server import LIMITS, Extender
from aliquot.scheduler.leader import Elector, LeaderEndpoint, LearnedConfigMap
from aliquot.scheduler.ledger import Ledger
from aliquot.scheduler.operator.claims import ClaimAllocator
from aliquot.scheduler.operator.program import Operator
from aliquot.scheduler.settings import SchedulerSettings, address
from aliquot.tracing.spans import Spans, tracing

log = Logger("scheduler")
SETTLE_EVERY_S: Final = 10.0
LEASE: Final = "aliquot-scheduler"


@dataclass
class Scheduler:
    """Everything that runs; `run` until `stop`."""

    settings: SchedulerSettings
    api: Api
    on_listening: Callable[[str], None] = lambda url: None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    spans: Spans | None = None
    _took_over: bool = False

    def __post_init__(self) -> None:
        settings = self.settings
        self.ledger = Ledger(maker(settings.policy)(), settings.seed)
        self.nodes: Reflector[Node] = Reflector(self.api, NODES, self._node_changed)
        self.pods: Reflector[Pod] = Reflector(self.api, PODS, self._pod_changed)
        lease = settings.lease_namespace, LEASE, settings.candidate
        self.elector = Elector(self.api, *lease, on_change=self._lead_changed)
        dialects = foreign(aliyun_unit=settings.aliyun_unit)
        self.binder = Binder(
            self.api,
            self.ledger,
            self.pods.get,
            self.leads,
            dialects=dialects,
            traced=self.spans is not None,
        )
        self.evictor = Evictor(self.api, self.ledger, self.pods.get, self.leads)
        self.learned = LearnedConfigMap(self.api, settings.lease_namespace, self.ledger.policy, self.leads)
        self.webhook = Webhook(self.api, settings, lambda namespace: self.ledger.cluster.usage(namespace), self.leads)
        self.extender = Extender(
            self.ledger,
            self.binder,
            self.pods.get,
            self.synced,
            self.leads,
            self.webhook.answers,
            tracer=self.spans,
            aliyun_unit=settings.aliyun_unit,
            has_seen=self.pods.has_seen,
            on_scrape=self._measure_watches,
            on_waiting=self.evictor.waits,
        )
        self.extender.held.nodes = lambda: self.nodes
        cluster = self.api, self.ledger, self.nodes, self.pods, self.leads
        self.allocator = ClaimAllocator(*cluster, self.evictor.waits, self.extender.groups, self.extender.held)
        self.evictor.find = self.allocator.holder
        self.operator = Operator(*cluster, settings, self.extender.held, self.allocator)
        self._certificate = (
            Certificate(settings.tls_cert, settings.tls_key, settings.client_ca) if settings.tls_cert else None
        )
        self._takeover: asyncio.Task[None] | None = None

    def synced(self) -> bool:
        """Are the caches whole?"""
        claims = self.allocator.synced() or not self.settings.claims
        return self.nodes.synced.is_set() and self.pods.synced.is_set() and claims

    def leads(self) -> bool:
        """May this process bind? A new leader may after it has seen all writes of the previous leader."""
        return self._took_over and (self.elector.leads() or not self.settings.leader_elect)

    async def run(self) -> None:
        """Serve until `stopping` is set, then give the lease back."""
        s = self.settings
        host, port = address(s.bind, "--bind")
        listener = listening(host, port, called=f"--bind {host}:{port}", instead="choose another address")
        url = f"{'https' if s.tls_cert else 'http'}://{host}:{listener.getsockname()[1]}"
        server = HttpServer(
            self.extender.app(),
            listener,
            limits=LIMITS,
            context=self._certificate.context if self._certificate else None,
            protocol=ClientConnection,
            keep_alive_s=120,
            grace_s=None,
            on_up=lambda: self.on_listening(url),
        )
        works = [self.nodes.run(), self.pods.run(), self._settle(), self._freeze()]
        works += [self.extender.learn(), self.learned.run(), self.evictor.run()]
        if s.leader_elect:
            works.append(self.elector.run())
        if s.leader_service:
            works.append(LeaderEndpoint(self.api, s, self.leads).run())
        if self._certificate is not None:
            works.append(self._certificate.follow(_renewed))
        works += [*self.operator.works(), *self.webhook.works(), server.serve()]
        tasks = [asyncio.create_task(work) for work in works]
        if not s.leader_elect:
            self._lead_changed(True)
        stop = asyncio.create_task(self.stopping.wait())
        done, _ = await asyncio.wait({*tasks, stop}, return_when=asyncio.FIRST_COMPLETED)
        takeover = self._takeover
        await self.learned.keep()
        for task in [*tasks, stop]:
            task.cancel()
        await asyncio.gather(*tasks, stop, return_exceptions=True)
        for task in done - {stop}:
            task.result()  # a task that ended by itself has failed
        if takeover is not None and takeover.done() and not takeover.cancelled():
            takeover.result()

    def _lead_changed(self, leads: bool) -> None:
        self._took_over = False
        log.info("this scheduler %s", "leads" if leads else "does not lead")
        if self._takeover is not None:
            self._takeover.cancel()  # what one lead has seen is not all that was there before the next
        self._takeover = asyncio.create_task(self._take_over()) if leads else None

    async def _take_over(self) -> None:
        """See everything that was bound before the lease was ours."""
        try:
            await self.pods.synced.wait()
            if self.settings.claims:
                for cache in (self.allocator.claims, self.allocator.templates, self.allocator.slices):
                    await cache.synced.wait()
            if self.settings.leader_elect:
                await self.pods.renew()
                if self.settings.claims:
                    await self.allocator.claims.renew()
            await self.learned.recall()
            await self.operator.recover()
        except Exception:
            self.stopping.set()  # this process would lead and never bind: another one can
            raise
        self._took_over = True
        self.operator.all_again()

    def _node_changed(self, change: Change[Node]) -> None:
        self.ledger.node_changed(change)
        self.operator.nodes_changed(change)

    def _pod_changed(self, change: Change[Pod]) -> None:
        self.ledger.pod_changed(change)
        self.extender.held.pods.changed(change)
        if change.kind == "deleted" or change.object.ended:
            self.evictor.gone(change.object)
        self.operator.pod_changed(change)

    async def _settle(self) -> None:
        while True:
            await asyncio.sleep(SETTLE_EVERY_S)
            self.extender.groups.settle()
            self.extender.held.settle()
            await self.binder.settle()

    async def _freeze(self) -> None:
        """Exclude the objects of the first lists from garbage collection: they stay, and collecting costs pauses."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 1000, 1000)
        await self.nodes.synced.wait()
        await self.pods.synced.wait()
        collect_rarely()
        await asyncio.Event().wait()  # the end of a task would be that of the program

    def _measure_watches(self) -> None:
        for kind, reflector in (("nodes", self.nodes), ("pods", self.pods), ("gpuquotas", self.operator.quotas)):
            counts = reflector.counts
            for name in ("lists", "watches", "events", "repeated", "undecodable", "failures"):
                self.extender.metrics.watch.labels(kind, name).set(getattr(counts, name))


def collect_rarely() -> None:
    """Leave out of garbage collection what is there, and collect the rest seldom.

    A collection holds up the first questions for as long as the lists took.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _renewed(fault: BadCertificate | None) -> None:
    if fault is None:
        log.info("the extender has a new certificate")
    else:
        log.error("the extender's new certificate is not used: %s", fault)


Beside = Callable[[Scheduler], contextlib.AbstractAsyncContextManager[object]]


async def serve(
    settings: SchedulerSettings,
    on_listening: Callable[[str], None],
    beside: Beside = lambda _: contextlib.nullcontext(),
) -> None:
    """Run until SIGTERM or SIGINT, with `beside` running beside the program, such as its pages.

    Raises:
        BadKubeConfig: no API server is configured.
        MissingExtra: OpenTelemetry is not installed.
    """
    with tracing("aliquot-scheduler", settings.otlp_endpoint) as spans:
        async with Api.connect(settings.kubeconfig, settings.context) as api:
            scheduler = Scheduler(settings, api, on_listening, spans=spans)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, scheduler.stopping.set)
            async with beside(scheduler):
                await scheduler.run()
