"""Polls node agents over HTTP in a separate thread, so that it never delays the extender."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import httpx2
import msgspec

from aliquot.arbiter.records import GpuTurns
from aliquot.kube.objects import Pod
from aliquot.web.agents import Agents, Fetch, Pace, UnreadableReport, keep_asking
from aliquot.web.log import defect

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


def is_agent(pod: Pod) -> bool:
    """Whether a pod is the agent of a node."""
    return bool(pod.spec.node_name) and not pod.ended and AGENT_LABELS.items() <= pod.metadata.labels.items()


def addresses(pods: Iterable[Pod], *, namespace: str, port: int) -> dict[str, str]:
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


class AskingThread:
    """Agents that are polled in a thread while this is open; set `places`, read `measured` and `silent`."""

    def __init__(self, *, pace: Pace | None = None, watched: Callable[[], bool] = lambda: True) -> None:
        self._pace = pace or Pace()
        limits = httpx2.Limits(max_connections=self._pace.at_once, max_keepalive_connections=self._pace.at_once)
        timeout = httpx2.Timeout(self._pace.answer_s, connect=_CONNECT_S)
        # No proxy from the environment, no client certificates: agents speak plain HTTP inside the cluster.
        self._client = httpx2.AsyncClient(limits=limits, timeout=timeout, trust_env=False, follow_redirects=False)
        self._fetch = bounded_get(self._client)
        self._turns: dict[str, tuple[float, Mapping[str, GpuTurns]]] = {}
        self.agents = Agents(self._fetch, pace=self._pace, watched=watched)
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
        fetched = self._fetch(address.removesuffix(PAGE) + TURNS_PAGE)
        try:
            body = asyncio.run_coroutine_threadsafe(asyncio.wait_for(fetched, self._pace.answer_s), self._loop).result(
                self._pace.answer_s + 1
            )
            found = msgspec.json.decode(body, type=dict[str, GpuTurns])
        except Exception:  # whatever goes wrong at the node, its turns are unknown
            found = {}
        self._turns = {name: each for name, each in self._turns.items() if name in self.agents.places}
        self._turns[node] = (time.monotonic(), found)
        return found

    def close(self) -> None:
        """Stop asking."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(_STOP_S)

    def _stop(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            try:
                self._loop.run_until_complete(self._main())
            except asyncio.CancelledError:
                pass
            except Exception as error:
                defect("asking the nodes' agents ended", error)

    async def _main(self) -> None:
        async with self._client:
            await keep_asking(self.agents)
