"""Room for a more important pod where kube-scheduler sees no need: GPUs with enough left in sum, on none enough.

kube-scheduler counts hundredths of GPUs per node. When the sum is there but no single GPU has the share, its own
preemption finds nobody to evict and asks no extender. So a pod that no node can take although less important pods hold
what it needs is noted here; if it still waits after `PATIENCE_S`, the fewest and least important pods that make room on
one node are evicted, by the API's eviction, which heeds disruption budgets. The API server is asked about each of them
first, without effect: whom a budget keeps is left out, and others are chosen. The room is held for the pod until it is
bound or gone, so that nobody slips in between. Pods with `preemptionPolicy: Never` evict nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgspec

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock, RealClock
from aliquot.kube.errors import Conflict, KubeError, NotFound, Unreachable
from aliquot.kube.objects import Pod
from aliquot.kube.requests import PodAsk
from aliquot.kube.resources import PODS
from aliquot.lib.log import Logger
from aliquot.model.ids import split_key
from aliquot.scheduler.books import Books, NoRoom
from aliquot.scheduler.preempt import needed

log = Logger("scheduler")
PATIENCE_S: Final = 3.0
MOST_WAITING: Final = 1000
NODES_TRIED: Final = 64
GIVE_UP_S: Final = 120.0


@dataclass
class Wish:
    """One pod that waits for others to go. `leaving` are keys by uid, of pods that were asked to go from `node`; `kept`
    are keys of pods that may not be evicted now."""

    ask: PodAsk
    since_s: float
    nodes: list[str]
    node: str = ""
    held: bool = False
    leaving: dict[str, str] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)


@dataclass
class Evictor:
    """Makes room. `find` gives a pod from the cache by its key."""

    api: Api
    books: Books
    find: Callable[[str], Pod | None]
    leads: Callable[[], bool] = lambda: True
    clock: Clock = field(default_factory=RealClock)
    evicted: int = 0
    wishes: dict[str, Wish] = field(default_factory=dict)

    def waits(self, pod: Pod, ask: PodAsk, failed: Iterable[str]) -> None:
        """A filter found no node for the pod; on those in `failed` (names) others stand in its way."""
        may = pod.spec.priority > 0 and pod.spec.preemption_policy != "Never"
        if may and ask.uid not in self.wishes and len(self.wishes) < MOST_WAITING:
            nodes = list(islice(failed, NODES_TRIED))
            if nodes:
                self.wishes[ask.uid] = Wish(ask, self.clock.monotonic_s(), nodes)

    def gone(self, pod: Pod) -> None:
        """A pod has gone or ended: where it made room, the room is held at once."""
        for wish in list(self.wishes.values()):
            if pod.metadata.uid in wish.leaving:
                self._reserve(wish)

    async def run(self) -> None:
        """Look at the wishes until cancelled."""
        while True:
            await self.clock.sleep(0.5)
            if self.leads():
                await self.step()

    async def step(self) -> None:
        """One look at every wish, the most important first."""
        for uid, wish in sorted(self.wishes.items(), key=lambda item: -self._priority(item[1].ask.key)):
            pod = self.find(wish.ask.key)
            if pod is None or pod.metadata.uid != uid or pod.spec.node_name:
                self.wishes.pop(uid, None)
            elif wish.node:
                self._reserve(wish)
            elif self.clock.monotonic_s() - wish.since_s >= PATIENCE_S:
                await self._make_room(pod, wish)

    def _priority(self, key: str) -> int:
        pod = self.find(key)
        return pod.spec.priority if pod is not None else 0

    async def _make_room(self, pod: Pod, wish: Wish) -> None:
        """Choose the node where the least is lost, and ask those there to go."""
        best: tuple[tuple[int, int, int], str, dict[str, str]] | None = None
        for node in wish.nodes:
            await asyncio.sleep(0)
            if node not in self.books.cluster.index:
                continue
            going = needed(self.books, pod, wish.ask, node, lambda key: None if key in wish.kept else self.find(key))
            if going is None:
                continue
            if not going:
                self.wishes.pop(wish.ask.uid, None)  # there is room by now; kube-scheduler will find it
                return
            priorities = [self._priority(key) for key in going.values()]
            cost = (max(priorities), sum(priorities), len(going))
            if best is None or cost < best[0]:
                best = (cost, node, going)
        if best is None:
            self.wishes.pop(wish.ask.uid, None)  # asked again, it is noted again
            return
        if not await self._may_go(wish, best[2]) or not self.leads():
            return  # whoever leads by now may have chosen others
        _, wish.node, wish.leaving = best
        log.info("pod %s needs room on node %s: evicting %s", wish.ask.key, wish.node, ", ".join(wish.leaving.values()))
        await asyncio.gather(*(self._evict(key, uid) for uid, key in wish.leaving.items()))

    def _reserve(self, wish: Wish) -> None:
        """Hold the room as soon as it is there."""
        if self.books.holds.get(wish.ask.uid):
            return
        late = self.clock.monotonic_s() - wish.since_s > GIVE_UP_S
        if wish.held or late:
            self.wishes.pop(wish.ask.uid, None)  # held in vain, or somebody did not go: begin anew when asked again
            return
        if any(self.books.holds.get(uid) for uid in wish.leaving):
            return
        try:
            self.books.hold(wish.ask, wish.node, self.clock.monotonic_s())
            wish.held = True
        except NoRoom:
            self.wishes.pop(wish.ask.uid, None)

    async def _may_go(self, wish: Wish, leaving: Mapping[str, str]) -> bool:
        """Whether all of them may be evicted; who may not is not chosen again for this wish."""
        for uid, key in leaving.items():
            try:
                await self._ask(key, uid, dryRun=["All"])
            except (NotFound, Conflict):
                continue  # gone already
            except Unreachable:
                return False
            except KubeError as error:
                log.info("pod %s needs room, but %s may not be evicted: %s", wish.ask.key, key, error)
                wish.kept.add(key)
        return wish.kept.isdisjoint(leaving.values())

    async def _ask(self, key: str, uid: str, **options: Any) -> None:
        namespace, name = split_key(key)
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}, **options},
        }
        path = PODS.path(namespace=namespace, name=name, sub="eviction")
        await self.api.request("POST", path, content=msgspec.json.encode(body), repeat=False)

    async def _evict(self, key: str, uid: str) -> None:
        try:
            await self._ask(key, uid)
            self.evicted += 1
        except KubeError as error:
            log.warning("pod %s could not be evicted: %s", key, error)
