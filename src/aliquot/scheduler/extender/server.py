"""The extender over HTTP: verbs for kube-scheduler, facts for people and peers' tools.

A body that cannot be understood is answered with one sentence and a status of 4xx, and changes nothing. Verbs are not
answered before the caches are whole (503), because a filter on half the ledger would allocate what is taken. A replica
that does not lead answers from its own ledger, binds nothing, and closes the connection: the next one reaches the
leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aliquot.http.exposition import exposition
from aliquot.http.server import RequestLimits
from aliquot.kube.dialects import read
from aliquot.kube.dialects.aliyun import Unit, inspect
from aliquot.kube.objects import Meta, Node, Pod
from aliquot.kube.reflector import Change, turn
from aliquot.kube.requests import BadPod, PodAsk
from aliquot.lib.package import version
from aliquot.placement.codes import Code, UnmetConstraint
from aliquot.placement.read_model import ledger_facts, ledger_gpus
from aliquot.scheduler.allocations import keeps_closed, reservations
from aliquot.scheduler.extender.bind import Binder, CanNotBind
from aliquot.scheduler.extender.metrics import PodSpans, SchedulerMetrics
from aliquot.scheduler.extender.preempt import victims
from aliquot.scheduler.extender.wire import (
    Args,
    BadMessage,
    BindingArgs,
    BindingResult,
    FilterResult,
    Numbering,
    PreemptionArgs,
    PreemptionResult,
    Wording,
    filter_result,
    host_priorities,
)
from aliquot.scheduler.extender.wire import read as read_message
from aliquot.scheduler.groups import Groups, GroupSizes, HeldGroups, PodGroups, group_of, held_group_of, only
from aliquot.scheduler.ledger import Ledger
from aliquot.scheduler.verdicts import FITS, LASTS, UNKNOWN, Judged, judge, scores
from aliquot.status.gpus import Gpu
from aliquot.tracing.spans import Spans

LIMITS: Final = RequestLimits(body_bytes=64 * 1024 * 1024)
"""Of a cluster whose nodes are sent whole."""
CATCH_UP_S: Final = 0.002
LATE_S: Final = 0.5
"""How long a retry waits for a ledger that is behind; kube-scheduler asks about one pod at a time."""
HANGS_S: Final = 10.0
"""How long no retry waits for one that was not there by then."""
IDLE_US: Final = 1000
IDLE_EVERY_S: Final = 0.025
"""A slice of learning and the time between two while something is due: what a call waits for one at most, about."""
IDLE_LOOK_S: Final = 1.0
MAX_PREEMPTORS: Final = 1000
"""Pods whose victims are remembered."""
_ENCODER: Final = msgspec.json.Encoder()
Verb = Callable[[bytes], Awaitable[Any]]


@dataclass
class Extender:
    """The verbs over one ledger."""

    ledger: Ledger
    binder: Binder
    find: Callable[[str], Pod | None]
    synced: Callable[[], bool]
    leads: Callable[[], bool] = lambda: True
    """Whether this is the leader. Other replicas answer, and make the client reconnect."""
    webhook_answers: Callable[[], bool] = lambda: True
    """Whether this replica's webhook answers, or it has none: a pod that is made before that is made without it."""
    metrics: SchedulerMetrics = field(default_factory=SchedulerMetrics)
    tracer: Spans | None = None
    """Where the spans of pods go; None where nothing is traced."""
    aliyun_unit: Unit = "GiB"
    wording: Wording = field(default_factory=Wording)
    has_seen: Callable[[str], bool] = lambda version: True
    """Whether the ledger knows what happened to pods up to a resource version."""
    on_scrape: Callable[[], None] = lambda: None
    on_waiting: Callable[[Pod, PodAsk, Iterable[str]], None] = lambda pod, ask, failed: None

    def __post_init__(self) -> None:
        self.spans = PodSpans(self.tracer) if self.tracer is not None else None
        if self.tracer is not None:
            self.metrics.registry.register(self.tracer.backlog.dropped)
        self._numbering = Numbering(self.ledger.cluster)
        self._hangs_until_s = float("-inf")
        self._arrived = asyncio.Event()
        self._victims: dict[str, dict[str, list[str]]] = {}
        now_s, api = self.binder.clock.monotonic_s, self.binder.api
        self.groups = Groups(self.ledger, now_s, PodGroups(api).needed)
        self.held = HeldGroups(self.ledger, now_s, GroupSizes(api, now_s).needed, dialects=self.binder.dialects)

    def app(self) -> Starlette:
        """The routes."""
        posts: dict[str, Verb] = {
            "filter": self.filter,
            "prioritize": self.prioritize,
            "preempt": self.preempt,
            "bind": self.bind,
            "dry-run": self.dry_run,
        }
        routes = [
            Route(f"{prefix}/{name}", self._verb(name, verb), methods=["POST"])
            for name, verb in posts.items()
            for prefix in ("", "/scheduler")
        ]
        facts: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/healthz": self._health,
            "/readyz": self._health,
            "/leadz": self._health,
            "/metrics": self._metrics,
            "/version": self._version,
            "/inspect": self._inspect,
            "/gpushare-scheduler/inspect": self._gpushare,
            "/gpushare-scheduler/inspect/{node}": self._gpushare,
        }
        return Starlette(routes=[*routes, *(Route(path, answer) for path, answer in facts.items())])

    # Verbs

    async def filter(self, body: bytes) -> FilterResult:
        """All nodes that fit, and a reason for each other."""
        args: Args = read_message(body, Args)
        names, nodes = args.names()
        try:
            ask = read(args.pod, self.binder.dialects)
        except BadPod as error:
            reason = UnmetConstraint(Code.POD_FAULTY, label=str(error), lasting=True)
            return filter_result(Judged(np.full(len(names), UNKNOWN, dtype=np.int32), [reason]), names, nodes)
        if ask is None:
            return FilterResult(args.nodes, args.node_names)
        await self.groups.begin(args.pod)
        if self.ledger.first_call(ask):
            for unit in ask.units(self.ledger.known):
                self.ledger.policy.arrived(unit.ask.shape)
            self._arrived.set()
        version, clock = args.pod.metadata.resource_version, self.binder.clock
        if self.wording.retried(ask.key, version):
            # Wait until the ledger is as new as kube-scheduler was; not for long, nor soon again for one that hangs.
            began_s = clock.monotonic_s()
            while not self.has_seen(version) and began_s >= self._hangs_until_s:
                if clock.monotonic_s() - began_s > LATE_S:
                    self._hangs_until_s = clock.monotonic_s() + HANGS_S
                    break
                await clock.sleep(CATCH_UP_S)
        share = await self.held.place(args.pod, ask)
        numbers = self._numbering(names)
        judged = judge(self.ledger, ask, numbers, names.__getitem__)
        if isinstance(share, str):
            group = UnmetConstraint(Code.POD_GROUP, label=share, lasting=True)  # an eviction for one would be in vain
            judged = Judged(np.full(len(names), UNKNOWN, dtype=np.int32), [group])
        elif share is not None:
            here = np.flatnonzero(numbers == self.ledger.cluster.index.get(share.node, -2))
            if len(here):
                judged = only(judged, judged.codes == FITS, here.item(0))
            else:  # kube-scheduler has ruled the node out: the pod goes where it may
                self.held.drop(held_group_of(args.pod), ask.uid)
        elif group_of(args.pod):
            judged = self.groups.assume(args.pod, ask, numbers, judged)
        if self.spans is not None:
            fitting = int((judged.codes == FITS).sum())
            self.spans.note(args.pod.metadata, {"aliquot.nodes": len(names), "aliquot.nodes_fitting": fitting})
        if not (judged.codes == FITS).any():
            places = np.flatnonzero(judged.codes & LASTS == 0).tolist()
            self.on_waiting(args.pod, ask, (names[place] for place in places))
            if places and self.wording.next_is_second(ask.key, version):  # no freed share changes the other reasons
                judged = replace(judged, again=" now")
        return filter_result(judged, names, nodes)

    async def prioritize(self, body: bytes) -> msgspec.Raw:
        """Each node's score; the node that placement would choose has the highest."""
        args: Args = read_message(body, Args)
        names, _ = args.names()
        ask = self._ask(args.pod)
        none = np.zeros(len(names), dtype=np.int32)
        near = args.pod.spec.prefers_nodes
        values = scores(self.ledger, ask, self._numbering(names), near=near) if ask is not None else none
        return host_priorities((group, value) for value, group in names.grouped(values).items())

    async def preempt(self, body: bytes) -> PreemptionResult:
        """Nodes on which evictions help, and their victims."""
        args: PreemptionArgs = read_message(body, PreemptionArgs)
        ask = self._ask(args.pod)
        if ask is None:
            return PreemptionResult(args.proposed())
        evicted = self._victims.get(ask.uid, {}).get(args.pod.status.nominated_node_name, ())
        if any(victim in self.ledger.allocations for victim in evicted):
            # kube-scheduler has seen them go and our watch has not, so the filter refused the room they left: a second
            # set of victims would be evicted in vain. The refusal wakes the pod again (decision 0021).
            return PreemptionResult({})
        found = await victims(self.ledger, args.pod, ask, args.proposed(), self.find)
        self._victims[ask.uid] = {node: [pod.uid for pod in victims.pods or []] for node, victims in found.items()}
        if len(self._victims) > MAX_PREEMPTORS:
            del self._victims[next(iter(self._victims))]
        return PreemptionResult(found)

    async def bind(self, body: bytes) -> BindingResult:
        """Bind, or report why not."""
        args: BindingArgs = read_message(body, BindingArgs)
        why = ""
        try:
            await self.binder.bind(args)
        except CanNotBind as error:
            why = str(error)
        if self.spans is not None:  # the pod, its node, and the GPUs that it has there
            meta = Meta(name=args.pod_name, namespace=args.pod_namespace, uid=args.pod_uid)
            pod = self.find(meta.key)
            if pod is not None and pod.metadata.uid == meta.uid:
                meta = pod.metadata
            bound = [a for a in self.ledger.allocations.get(meta.uid, ()) if a.node == args.node and not why]
            gpus = {str(piece.gpu) for a in bound for _, placement, _ in reservations(a) for piece in placement.slices}
            self.spans.note(meta, {"k8s.node.name": args.node, "aliquot.gpu.uuids": sorted(gpus)}, error=why)
        return BindingResult(why)

    async def dry_run(self, body: bytes) -> FilterResult:
        """A filter on nodes that need not exist, all of them empty: for autoscalers that think about new ones."""
        args: Args = read_message(body, Args)
        names, nodes = args.names()
        ask = self._ask(args.pod)
        if ask is None:
            return FilterResult(args.nodes, args.node_names)
        empty = self.ledger.empty()
        for raw in (nodes or {}).values():
            empty.node_changed(Change("added", read_message(bytes(raw), Node)))
        for name in names.strings():
            if (not nodes or name not in nodes) and (number := self.ledger.cluster.index.get(name)) is not None:
                empty.add_empty_node(self.ledger.cluster.spec(number))
        judged = judge(empty, ask, Numbering(empty.cluster)(names), names.__getitem__)
        return filter_result(judged, names, nodes)

    async def learn(self) -> None:
        """Let the policy learn between calls, until cancelled."""
        while True:
            if self.synced() and self.ledger.policy.idle(IDLE_US):
                await asyncio.sleep(IDLE_EVERY_S)
            else:
                self._arrived.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), IDLE_LOOK_S)

    def _ask(self, pod: Pod) -> PodAsk | None:
        try:
            return read(pod, self.binder.dialects)
        except BadPod as error:
            raise BadMessage(str(error)) from None

    def _verb(self, name: str, verb: Verb) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            began_s = time.perf_counter()
            code: int = 503
            result: Any = {"Error": "the caches are not whole yet; try again"}
            if self.synced():
                try:
                    code, result = 200, await verb(await request.body())
                except BadMessage as error:
                    code, result = 400, {"Error": str(error)}
            took_s = time.perf_counter() - began_s
            exemplar = self.spans.record(name, took_s) if self.spans is not None else None
            outcome = "refused" if getattr(result, "error", "") else "ok"
            self.metrics.verb_s.labels(name).observe(took_s, exemplar)
            self.metrics.verbs.labels(name, outcome if code == 200 else str(code)).inc()
            headers = None if self.leads() else {"Connection": "close"}
            return Response(_ENCODER.encode(result), code, headers, "application/json")

        return answer

    # Facts

    async def _health(self, request: Request) -> Response:
        """Whether the process runs (`/healthz`), it and its webhook can answer (`/readyz`) and it leads (`/leadz`)."""
        webhook = "" if self.webhook_answers() else "the webhook does not answer yet"
        fault = {
            "/healthz": "",
            "/readyz": webhook if self.synced() else "the caches are not whole yet",
            "/leadz": "" if self.synced() and self.leads() else "this scheduler does not lead",
        }[request.url.path]
        return Response(f"{fault or 'ok'}\n", 503 if fault else 200, media_type="text/plain")

    async def _version(self, request: Request) -> Response:
        return Response(version(), media_type="text/plain")

    async def _metrics(self, request: Request) -> Response:
        self.metrics.measure(self.ledger, leads=self.binder.leads())
        self.on_scrape()
        return exposition(self.metrics.registry, request.headers.get("accept", ""))

    async def _inspect(self, request: Request) -> Response:
        """Every device with its tenants; each node as of its own moment."""
        nodes = []
        async for name, gpus in self._gpus(sorted(self.ledger.cluster.index)):
            nodes.append(_ENCODER.encode({"name": name, "devices": [ledger_facts(gpu) for gpu in gpus]}))
        whole = msgspec.Raw(b"[%b]" % b",".join(nodes))
        facts = {"nodes": whole, "inconsistent_pods": self.ledger.inconsistent, "unreadable_nodes": self.ledger.faulty}
        return Response(_ENCODER.encode(facts), media_type="application/json")

    async def _gpus(self, names: Iterable[str], *hidden: Callable[[str], bool]) -> AsyncIterator[tuple[str, list[Gpu]]]:
        """The GPUs of these nodes, each as of its own moment, but of those that have left by then."""
        for number, name in enumerate(names, 1):
            if name in self.ledger.cluster.index:
                yield name, ledger_gpus(self.ledger.cluster, name, *hidden)
            await turn(number)

    async def _gpushare(self, request: Request) -> Response:
        """The inspect of gpushare's own extender."""
        wanted = request.path_params.get("node", "")
        known = sorted(self.ledger.cluster.index)
        error = f"node {wanted} is not known" if wanted and wanted not in known else ""
        names = [name for name in known if not wanted or name == wanted]
        nodes = [node async for node in self._gpus(names, keeps_closed)]
        text = await asyncio.to_thread(inspect, nodes, self.aliyun_unit, error)  # a second's work, of facts that stay
        return Response(text, media_type="application/json")
