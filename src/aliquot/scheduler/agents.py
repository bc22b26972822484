"""The measurements of nodes' agents, polled from each on its own schedule and dropped when they are old.

An agent is trusted only for its own node: its answer is matched with the GPUs and tenants that the ledger has
on that node, its numbers are clamped to valid ranges, and its answer has a limit of size and of time. One that does not
answer is polled less and less often, and its last answer is forgotten: unknown is not zero.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import httpx2
import msgspec

from aliquot.arbiter.records import GpuTurns
from aliquot.kube.claims import ResourceClaim
from aliquot.kube.objects import Pod
from aliquot.lib.backoff import doubled_s
from aliquot.lib.decoding import decode_json
from aliquot.lib.log import Logger
from aliquot.status.history import PromiseHistory
from aliquot.status.nodes import NodeGpu, NodeReport

R = TypeVar("R", bound=msgspec.Struct)
AGENT_LABELS: Final[Mapping[str, str]] = {
    "app.kubernetes.io/name": "aliquot",
    "app.kubernetes.io/component": "node",
}
"""The labels of the agents' pods, as the chart writes them."""

AGENT_PORT: Final = 5678
PAGE: Final = "/node.json"
TURNS_PAGE: Final = "/turns.json"
TURNS_KEPT_S: Final = 1.5
"""How long one answer about turns is reused for all viewers."""
MAX_BYTES: Final = 4 << 20
_CONNECT_S: Final = 1.0
_STOP_S: Final = 5.0
_LOG: Final = Logger("agents")

Fetch = Callable[[str], Awaitable[bytes]]
"""The body of an agent's page of facts, by its address; its exception is the reason for a failure."""

TICK_S: Final = 0.2
MAX_MIB: Final = 1 << 31
MAX_MS: Final = 1e9
_MAX_USED: Final = {
    "usage": 1,
    "memory_used_mib": MAX_MIB,
    "memory_lent_mib": MAX_MIB,
    "memory_called_mib": MAX_MIB,
    "wait_ms_p50": MAX_MS,
    "debt_ms": MAX_MS,
    "quota_ms": MAX_MS,
    "processes": MAX_MIB,
}
_MAX_GPU: Final = {"busy": 1, "bypassing": MAX_MIB}
_MAX_SENSED: Final = {"celsius": 1000, "watts": 1e6, "limit_watts": 1e6, "sm_mhz": 10**6, "memory_mhz": 10**6}


class UnreadableReport(Exception):
    """An agent's answer in an unknown form."""


@dataclass(frozen=True)
class Pace:
    """Polling intervals and limits. All agents together are polled at most `max_per_s` times a second."""

    seen_s: float = 2.0
    unseen_s: float = 10.0
    max_per_s: float = 50.0
    at_once: int = 16
    answer_s: float = 3.0
    backoff_max_s: float = 60.0
    kept_s: float = 15.0


_PACE: Final = Pace()


@dataclass(frozen=True)
class NodeMeasure:
    """The last report of one node: its GPUs by UUID, and by (UUID, tenant) percent of windows kept and their number."""

    gpus: Mapping[str, NodeGpu]
    window_s: float = 0.0
    kept: Mapping[tuple[str, str], tuple[float | None, int]] = field(default_factory=dict)


def read_report(body: bytes) -> NodeReport:
    """An agent's answer, its numbers as they are.

    Raises:
        UnreadableReport: it has another form, or its arbiter did not answer.
    """
    try:
        report = decode_json(body, NodeReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableReport(f"its answer cannot be read: {str(error)[:200]}") from None
    if not report.answers:
        raise UnreadableReport("its arbiter does not answer")
    return report


def measure_of(report: NodeReport, promises: PromiseHistory | None = None) -> NodeMeasure:
    """The report with its numbers within bounds; promises are evaluated where there is a record."""
    kept: dict[tuple[str, str], tuple[float | None, int]] = {}
    if promises is not None:
        uses = [(gpu.uuid, use) for gpu in report.gpus for use in gpu.uses]
        for uuid, use in uses if report.now_ns > 0 else ():
            promises.add(uuid, use.status, report.now_ns)
        kept = {(uuid, use.owner.tenant): promises.kept_percent(uuid, use.status.name) for uuid, use in uses}
        promises.forget_all_but({(uuid, use.status.name) for uuid, use in uses} if report.now_ns > 0 else set())
    gpus = {}
    for gpu in report.gpus:
        bounded = tuple(msgspec.structs.replace(use, status=_bounded(use.status, _MAX_USED)) for use in gpu.uses)
        sensors = None if gpu.sensors is None else _bounded(gpu.sensors, _MAX_SENSED)
        gpus[gpu.uuid] = msgspec.structs.replace(_bounded(gpu, _MAX_GPU), sensors=sensors, uses=bounded)
    return NodeMeasure(gpus, _within(report.window_ms / 1000, 3600.0), kept)


def _bounded(record: R, most: Mapping[str, float]) -> R:
    """A record with these of its numbers within bounds; those that are unknown stay so."""
    known = {name: value for name in most if (value := getattr(record, name)) is not None}
    return msgspec.structs.replace(record, **{name: type(v)(_within(v, most[name])) for name, v in known.items()})


def _within(value: float, most: float) -> float:
    return max(0, min(value, most))


def tenant_key(tenant: str, claim: ResourceClaim | None = None) -> str:
    """`namespace/pod/container` of a tenant's name in the ledger, where parts, namesakes and claims have others."""
    return claim.tenant if claim is not None else tenant.partition("#")[0].partition("@")[0]


@dataclass
class _Asked:
    """One node: its agent's address, its next poll, and its last answer."""

    address: str
    due_s: float = 0.0
    answered_s: float = 0.0
    answered_at_s: float = 0.0
    failures: int = 0
    why: str = "it was not queried yet"
    measure: NodeMeasure | None = None
    promises: PromiseHistory | None = None
    last_ns: int = 0


@dataclass
class Agents:
    """Polls the agents in `places` (node -> address), which the caller replaces as a whole.

    `measured`, `silent` (node -> why it is unknown) and `answered_at_s` (silent node -> the wall clock's time of its
    last answer) are replaced as a whole too and may be read from any thread.
    """

    fetch: Fetch
    pace: Pace = Pace()
    watched: Callable[[], bool] = lambda: True
    clock: Callable[[], float] = time.monotonic
    places: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[str, NodeMeasure] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    answered_at_s: Mapping[str, float] = field(default_factory=dict)
    asks: int = 0
    _asked: dict[str, _Asked] = field(default_factory=dict)
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def run(self) -> None:
        """Poll until cancelled; a defect is logged, and holds it up for a second."""
        try:
            while True:
                try:
                    self.step()
                except Exception as error:
                    _LOG.defect("asking the nodes' agents failed", error)
                    await asyncio.sleep(1.0)
                await asyncio.sleep(TICK_S)
        finally:
            for task in self._running.values():
                task.cancel()

    def step(self) -> None:
        """Poll the agents that are due, as many as allowed at once, and publish the results."""
        now_s, places = self.clock(), self.places
        for node in self._asked.keys() - places.keys():
            del self._asked[node]
        for number, (node, address) in enumerate(places.items()):
            if node not in self._asked:
                self._asked[node] = _Asked("")
            asked = self._asked[node]
            if asked.address != address:  # not all agents of a new cluster are polled at once
                asked.address, asked.due_s = address, now_s + number / self.pace.max_per_s
        due = sorted((asked.due_s, node) for node, asked in self._asked.items() if asked.due_s <= now_s)
        room = self.pace.at_once - len(self._running)
        for _, node in [each for each in due if each[1] not in self._running][: max(0, room)]:
            task = asyncio.get_running_loop().create_task(self._ask(node, self._asked[node]), name=node)
            self._running[node] = task
            task.add_done_callback(lambda done: self._running.pop(done.get_name(), None))
        kept_s = max(self.pace.kept_s, 3 * self.interval_s)
        for asked in self._asked.values():
            if asked.measure is not None and now_s - asked.answered_s > kept_s:
                asked.measure = None
        self.measured = {node: a.measure for node, a in self._asked.items() if a.measure is not None}
        self.silent = {node: a.why for node, a in self._asked.items() if a.measure is None}
        self.answered_at_s = {node: self._asked[node].answered_at_s for node in self.silent}

    @property
    def interval_s(self) -> float:
        """The interval between two polls of a node: longer while no page is open, and with many nodes."""
        wanted_s = self.pace.seen_s if self.watched() else self.pace.unseen_s
        return max(wanted_s, len(self._asked) / self.pace.max_per_s)

    async def _ask(self, node: str, asked: _Asked) -> None:
        asked.due_s = self.clock() + self.interval_s
        self.asks += 1
        try:
            async with asyncio.timeout(self.pace.answer_s):
                body = await self.fetch(asked.address)
            report = read_report(body)
            window_s = _within(report.window_ms / 1000, 3600.0)
            if asked.promises is None or asked.promises.window_s != window_s or report.now_ns < asked.last_ns:
                asked.promises = PromiseHistory(window_s) if window_s > 0 else None
            asked.last_ns = report.now_ns
            asked.measure = measure_of(report, asked.promises)
            asked.answered_s, asked.failures, asked.why = self.clock(), 0, ""
            asked.answered_at_s = time.time()
        except TimeoutError:
            self._failed(asked, f"it gave no complete answer within {self.pace.answer_s:g} s")
        except UnreadableReport as error:
            self._failed(asked, str(error))
        except Exception as error:
            self._failed(asked, str(error) or type(error).__name__)

    def _failed(self, asked: _Asked, why: str) -> None:
        asked.failures += 1
        asked.why = why[:200]
        asked.due_s = self.clock() + doubled_s(self.interval_s, self.pace.backoff_max_s, asked.failures - 1)


def is_agent(pod: Pod) -> bool:
    """Whether a pod is the agent of a node."""
    return bool(pod.spec.node_name) and not pod.ended and AGENT_LABELS.items() <= pod.metadata.labels.items()


def agent_addresses(pods: Iterable[Pod], *, namespace: str, port: int) -> dict[str, str]:
    """The address of each node's agent.

    Only pods of `namespace` count: users who may create pods elsewhere could give one the agents' labels.
    """
    found = {}
    for pod in pods:
        if pod.metadata.namespace == namespace and pod.status.pod_ip and is_agent(pod):
            host = f"[{pod.status.pod_ip}]" if ":" in pod.status.pod_ip else pod.status.pod_ip
            found[pod.spec.node_name] = f"http://{host}:{port}{PAGE}"
    return found


def bounded_get(client: httpx2.AsyncClient) -> Fetch:
    """A fetch that reads at most `MAX_BYTES`, decompresses nothing and follows no redirect."""

    async def fetch(address: str) -> bytes:
        body = bytearray()
        try:
            async with client.stream("GET", address, headers={"accept-encoding": "identity"}) as answer:
                if answer.status_code != 200:
                    raise UnreadableReport(f"it answers with status {answer.status_code}")
                if answer.headers.get("content-encoding", "identity") != "identity":
                    raise UnreadableReport("it answers with compressed content, which was not requested")
                async for piece in answer.aiter_raw():
                    body += piece
                    if len(body) > MAX_BYTES:
                        raise UnreadableReport(f"its answer is longer than {MAX_BYTES >> 20} MiB")
        except httpx2.TimeoutException:
            raise TimeoutError from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise UnreadableReport(f"it cannot be reached ({str(error) or type(error).__name__})") from None
        return bytes(body)

    return fetch


class AgentThread:
    """Agents that are polled in a thread while this is open; set `places`, read `measured` and `silent`."""

    def __init__(self, *, pace: Pace = _PACE, watched: Callable[[], bool] = lambda: True) -> None:
        limits = httpx2.Limits(max_connections=pace.at_once, max_keepalive_connections=pace.at_once)
        timeout = httpx2.Timeout(pace.answer_s, connect=_CONNECT_S)
        # No proxy from the environment, no client certificates: agents speak plain HTTP inside the cluster.
        self._client = httpx2.AsyncClient(limits=limits, timeout=timeout, trust_env=False, follow_redirects=False)
        self._turns: dict[str, tuple[float, Mapping[str, GpuTurns]]] = {}
        self.agents = Agents(bounded_get(self._client), pace, watched)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="web-agents", daemon=True)
        self._thread.start()

    def turns(self, node: str) -> Mapping[str, GpuTurns]:
        """The turns of the last minute on a node's GPUs, queried now; nothing if its agent does not answer."""
        address = self.agents.places.get(node)
        if address is None:
            return {}
        at_s, known = self._turns.get(node, (-math.inf, {}))
        if time.monotonic() - at_s < TURNS_KEPT_S:
            return known
        answer_s = self.agents.pace.answer_s
        fetched = asyncio.wait_for(self.agents.fetch(address.removesuffix(PAGE) + TURNS_PAGE), answer_s)
        try:
            body = asyncio.run_coroutine_threadsafe(fetched, self._loop).result(answer_s + 1)
            found = decode_json(body, dict[str, GpuTurns])
        except Exception:  # whatever goes wrong at the node, its turns are unknown
            found = {}
        self._turns = {name: each for name, each in self._turns.items() if name in self.agents.places}
        self._turns[node] = (time.monotonic(), found)
        return found

    def close(self) -> None:
        """Stop asking."""

        def cancel() -> None:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()

        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(cancel)
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        async def main() -> None:
            async with self._client:
                await self.agents.run()

        with contextlib.closing(self._loop):
            try:
                self._loop.run_until_complete(main())
            except asyncio.CancelledError:
                pass
            except Exception as error:
                _LOG.defect("asking the nodes' agents ended", error)
