"""The node's small HTTP server, for reading only, and what goes with its facts: the audit, and events for pods' owners.

Its pages: `/metrics`, `/graph`, `/usage`, `/node.json`, `/turns.json`, `/version`, `/healthz`.

It listens on loopback unless told otherwise, answers nothing but GET, and takes no parameter. `/usage` is a table, or
gpu-manager's JSON for who accepts that, and for who says nothing where gpu-manager is among the aliases.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from aliquot.driver.sensors import SensorReader
from aliquot.http.exposition import exposition
from aliquot.http.listening import PortTaken, listening
from aliquot.http.server import HttpServer
from aliquot.lib import package
from aliquot.model.quantities import format_milli
from aliquot.node.audit import Audit, Auditing
from aliquot.node.display.aliases import by_container, gpu_manager_usage
from aliquot.node.display.facts import Sources, driver_of, owner_of, read_report, sources_of
from aliquot.node.display.metrics import registry_of
from aliquot.node.display.notices import report_notices
from aliquot.node.events import Events
from aliquot.node.pods import NodePods
from aliquot.node.processes import read_program
from aliquot.node.provisioner import TenantProvisioner
from aliquot.node.settings import NodeSettings
from aliquot.status.nodes import NodeGpu, NodeReport
from aliquot.topology import Topology, TreeNode

_LOCAL: Final = "127.0.0.1"


def application(sources: Sources, aliases: Sequence[str] = (), more: Iterable[Collector] = ()) -> Starlette:
    """The routes; every answer is drawn from a snapshot of that moment. `more` are further metrics.

    Raises:
        UserError: an alias that does not exist.
    """
    registry = registry_of(partial(read_report, sources, sensors=True), aliases)
    for collector in more:
        registry.register(collector)

    # Starlette calls plain functions in threads: reading facts blocks.
    def metrics(request: Request) -> Response:
        return exposition(registry, request.headers.get("accept", ""))

    def graph_page(_: Request) -> Response:
        return PlainTextResponse(graph(read_report(sources), sources.machine.topology))

    def usage_page(request: Request) -> Response:
        facts = read_report(sources)
        accept = request.headers.get("accept", "")
        if "application/json" in accept or ("gpu-manager" in aliases and "text/" not in accept):
            return Response(msgspec.json.encode(gpu_manager_usage(facts)), media_type="application/json")
        return PlainTextResponse(usage(facts))

    def node_json(_: Request) -> Response:
        body = node_body(read_report(sources, sensors=True))
        return Response(msgspec.json.encode(body), media_type="application/json")

    def turns_json(_: Request) -> Response:
        return Response(turns_body(sources), media_type="application/json")

    async def version(_: Request) -> Response:
        return PlainTextResponse(f"aliquot {package.version()}\ndriver {driver_of(sources) or 'unknown'}\n")

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    pages = {
        "/metrics": metrics, "/metric": metrics, "/graph": graph_page, "/usage": usage_page,
        "/node.json": node_json, "/turns.json": turns_json, "/version": version, "/healthz": healthz,
    }  # fmt: skip
    return Starlette(routes=[Route(path, page, methods=["GET"]) for path, page in pages.items()])


def node_body(facts: NodeReport) -> dict[str, Any]:
    """The node as JSON: GPUs with the containers on each, and each pod's uid with its containers' GPUs."""
    pods: dict[str, dict[str, list[int]]] = {}
    for owner, uses in by_container(facts).items():
        pods.setdefault(owner.uid or f"{owner.namespace}/{owner.pod}", {})[owner.container] = [g.index for g, _ in uses]
    return {
        "node": facts.node,
        "driver": facts.driver,
        "arbiter_answers": facts.answers,
        "window_ms": facts.window_ms,
        "turns": facts.turns,
        "now_ns": facts.now_ns,
        "audited": facts.audit.works,
        "gpus": [msgspec.to_builtins(gpu) | {"free_milli": gpu.free_milli} for gpu in facts.gpus],
        "pods": pods,
    }


def turns_body(sources: Sources) -> bytes:
    """By GPU the turns of the last minute as JSON, with the container that held it in each."""
    owners = dict(sources.owners())
    found = {}
    for gpu in sources.machine.gpus:
        held = sources.turns(gpu.uuid)
        if held is None:
            continue
        keys = {name: owners.get(name) or owner_of(name) for name in {turn.tenant for turn in held.turns}}
        turns = [msgspec.structs.replace(turn, tenant=keys[turn.tenant].tenant) for turn in held.turns]
        found[gpu.uuid] = msgspec.structs.replace(held, turns=turns)
    return msgspec.json.encode(found)


@contextlib.asynccontextmanager
async def serving(app: Starlette, port: int, host: str = _LOCAL) -> AsyncIterator[int]:
    """Serve in the running loop while inside; gives the port, which is a free one for 0.

    Raises:
        PortTaken: it cannot be had.
    """
    listener = listening(
        host, port, called=f"--display-port {port} of {host}", instead="set --display-address or --display-port"
    )
    up = asyncio.Event()
    server = HttpServer(app, listener, on_up=up.set)
    task = asyncio.create_task(server.serve())
    try:
        await up.wait()
        yield server.port
    finally:
        server.stop()
        await task


class Display:
    """The node's pages and what goes with their facts: the audit, and the events on pods that have news."""

    def __init__(
        self, settings: NodeSettings, provisioner: TenantProvisioner, pods: NodePods, events: Events,
        collectors: Iterable[Collector] = (),
    ) -> None:  # fmt: skip
        """`collectors` are further metrics."""
        self._settings = settings
        self._collectors = collectors
        self._sensors = SensorReader(provisioner.machine.libnvml)
        audit = Audit(read_program, settings.audit_grace_s)
        self._sources = sources_of(provisioner, Path(settings.runtime_dir), lambda: audit.totals, self._sensors.read)
        auditing = Auditing(audit, self._sources, pods, events, kill=settings.audit_kill)
        period_s = settings.health_period_s
        self.tasks: tuple[tuple[str, Callable[[], Coroutine[Any, Any, None]]], ...] = (
            ("notices", lambda: report_notices(self._sources, events, period_s)),
            ("audit", lambda: auditing.run(period_s)),
        )

    async def open(self, opened: contextlib.AsyncExitStack) -> str:
        """Serve the pages until `opened` is closed; returns their address, or why they are not served.

        No share depends on them.
        """
        where, port = self._settings.display_address, self._settings.display_port
        opened.callback(self._sensors.close)
        if not port:
            return "not requested"
        app = application(self._sources, self._settings.aliases, self._collectors)
        try:
            await opened.enter_async_context(serving(app, port, where))
        except PortTaken as error:
            return f"not served: {error}"
        return f"http://{where}:{port}/graph"


def graph(facts: NodeReport, topology: Topology) -> str:
    """Topology and use as text: one line for each topology node, GPU and container."""
    gpus = dict(enumerate(facts.gpus))  # the tree counts places, which are not indices where a GPU is left out
    lines = [f"{facts.node}: {len(facts.gpus)} GPU{'s' if len(facts.gpus) != 1 else ''}, driver {facts.driver or '?'}"]
    if not facts.answers:
        lines.append("The arbiter does not answer: what is used is not known.")
    lines += _tree(topology.tree, gpus, "", "", "")
    return "\n".join(lines) + "\n"


def usage(facts: NodeReport) -> str:
    """One line for each container and GPU, widths by content."""
    head = ("NAMESPACE", "POD", "CONTAINER", "GPU", "REQUEST", "LIMIT", "USAGE", "MEMORY", "THROTTLED", "HAND-OVERS")
    rows: list[Sequence[str]] = [head]
    for owner, uses in sorted(by_container(facts).items(), key=lambda pair: (pair[0].namespace, pair[0].pod)):
        for gpu, use in uses:
            now = use.status
            memory = f"{now.memory_used_mib}/{now.memory_limit_mib} MiB"
            share = [format_milli(now.request_milli), format_milli(now.limit_milli), f"{now.usage:.2f}"]
            last = (f"{now.waited_ns / 1e9:.1f} s", str(now.handovers))
            rows.append((owner.namespace, owner.pod, owner.container, str(gpu.index), *share, memory, *last))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def _tree(node: TreeNode, gpus: dict[int, NodeGpu], first: str, rest: str, mode: str) -> Iterator[str]:
    if node.gpu is not None:
        gpu = gpus[node.gpu]
        state = f"{format_milli(gpu.free_milli)} free, busy {gpu.busy:.0%}"
        state = f"unhealthy: {gpu.unhealthy}" if gpu.unhealthy else state
        yield f"{first}GPU {gpu.index}  {gpu.model}  {state}, memory {gpu.memory_used_mib}/{gpu.memory_mib} MiB"
        for use in gpu.uses:
            now, request = use.status, format_milli(use.status.request_milli)
            yield f"{rest}     {use.owner.tenant}  {request} used {now.usage:.2f}  {now.memory_used_mib} MiB"
        return
    yield f"{first}{node.mode or 'GPUs'} (cost {node.level_cost})"
    for child in node.children:
        last = child is node.children[-1]
        yield from _tree(child, gpus, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "), node.mode)
