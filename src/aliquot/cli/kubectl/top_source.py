"""The data of `kubectl aliquot top`: the cluster followed by watches, in a ledger like the scheduler's, and its agents.

A thread follows nodes and pods; a snapshot costs one call to the API server, to check that it answers. Agents are
polled through its proxy, seldom enough that many viewers do no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from aliquot.cli.kubectl.scene import NoAnswer, Target
from aliquot.cli.kubectl.services import proxied
from aliquot.cli.top_views import Look, in_words
from aliquot.driver.policies import maker
from aliquot.kube.api import Api
from aliquot.kube.claims import RESOURCE_CLAIMS, ResourceClaim
from aliquot.kube.dialects import FOREIGN
from aliquot.kube.errors import Forbidden, KubeError, NotFound
from aliquot.kube.objects import NODES, PODS, Node, Pod
from aliquot.kube.reflector import Reflector
from aliquot.scheduler.agents import Agents, Pace, is_agent
from aliquot.scheduler.cluster_source import ClusterSource, LedgerReading
from aliquot.scheduler.ledger import Ledger
from aliquot.scheduler.status_source import standings, waiting_pods
from aliquot.status import NamespacedView, StatusSource

T = TypeVar("T")
FIRST_S: Final = 30.0
LOOK_S: Final = 10.0
PACE: Final = Pace(seen_s=5.0, max_per_s=20.0, at_once=8)


class WatchedCluster:
    """One snapshot at a time, from any thread, while this is open."""

    def __init__(self, target: Target, agent_port: int) -> None:
        """Begin to follow.

        Raises:
            BadKubeConfig: no API server is configured.
        """
        self._port = agent_port
        self._api: Api = target.connect()
        self._ledger = Ledger(maker("aliquot")())
        self._cluster = ClusterSource(self._ledger.decider, title=target.context or "cluster")
        only = "" if target.everywhere else target.namespace
        self._facts: StatusSource = NamespacedView(self._cluster, frozenset({only})) if only else self._cluster
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="top-source", daemon=True)
        self._lock = threading.Lock()

    def __enter__(self) -> WatchedCluster:
        async def fetch(address: str) -> bytes:
            return await self._api.request("GET", address, timeout_s=PACE.answer_s)

        async def begin() -> None:
            self._nodes: Reflector[Node] = Reflector(self._api, NODES, self._ledger.node_changed)
            self._pods: Reflector[Pod] = Reflector(self._api, PODS, self._ledger.pod_changed)
            self._claims: Reflector[ResourceClaim] = Reflector(self._api, RESOURCE_CLAIMS, self._ledger.claim_changed)
            self._cluster.claim_of = self._ledger.claim_of
            self._cluster.standing = standings(self._pods, self._ledger.claim_of)
            self._agents = Agents(fetch, pace=PACE)
            works = [self._nodes.run(), self._pods.run(), self._agents.run()]
            try:
                await self._api.request("GET", RESOURCE_CLAIMS.path(), params={"limit": "1"})
                works.append(self._claims.run())
            except (Forbidden, NotFound):  # an older cluster, or a viewer who may not
                self._claims.synced.set()
            self._tasks = [asyncio.create_task(work) for work in works]

        self._thread.start()
        self._run(begin())
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._api.close()

        with contextlib.suppress(TimeoutError):
            self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LOOK_S)

    def __call__(self) -> Look:
        """Everything now.

        Raises:
            NoAnswer: the API server refuses or does not answer.
        """
        with self._lock:
            try:
                self._cluster.show(self._run(self._take()), time.monotonic())
            except (KubeError, TimeoutError) as error:
                raise NoAnswer(str(error) or "the API server does not answer") from None
            facts = self._facts
            silent = {node.name: node.silent for node in facts.nodes() if node.silent}
            gpus = facts.gpus()
            sensors = in_words({gpu.uuid: gpu.sensors for gpu in gpus if gpu.sensors is not None})
            return Look(facts.title, facts.window_s, gpus, facts.workloads(), silent, sensors=sensors)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(FIRST_S + LOOK_S)

    async def _take(self) -> LedgerReading:
        await self._api.request("GET", "/version", timeout_s=LOOK_S)
        try:
            async with asyncio.timeout(FIRST_S):
                await asyncio.gather(*(each.synced.wait() for each in (self._nodes, self._pods, self._claims)))
        except TimeoutError:
            why = self._nodes.counts.last_failure or self._pods.counts.last_failure
            raise TimeoutError(why or "the API server did not list the objects in time") from None
        self._agents.places = {pod.spec.node_name: proxied(pod, self._port) for pod in self._pods if is_agent(pod)}
        self._cluster.measured, self._cluster.silent = self._agents.measured, self._agents.silent
        pods = [pod for pod in self._pods if not (pod.spec.node_name or pod.ended)]
        known, claims = self._ledger.known, self._ledger.claims.values()
        self._cluster.waiting = list(waiting_pods(pods, FOREIGN, known, time.time(), claims))
        return self._cluster.read_ledger()
