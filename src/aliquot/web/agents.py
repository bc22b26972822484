"""The measurements of nodes' agents, polled from each on its own schedule and dropped when they are old.

An agent is trusted only for its own node: its answer is matched with the GPUs and tenants that the ledger has
on that node, its numbers are clamped to valid ranges, and its answer has a limit of size and of time. One that does not
answer is polled less and less often, and its last answer is forgotten: unknown is not zero.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from aliquot.arbiter.records import TenantStatus
from aliquot.driver.sensors import Sensors
from aliquot.lib.backoff import doubled_s
from aliquot.model.quantities import MILLI
from aliquot.web.api import Share
from aliquot.web.history.recorder import Counts
from aliquot.web.history.sources import counts_of
from aliquot.web.log import defect
from aliquot.web.promise import PromiseBook

Fetch = Callable[[str], Awaitable[bytes]]
"""The body of an agent's page of facts, by its address; its exception is the reason for a failure."""

TICK_S: Final = 0.2
MAX_MIB: Final = 1 << 31
MAX_MS: Final = 1e9
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


class _Owner(msgspec.Struct):
    namespace: str
    pod: str
    container: str


class _Use(msgspec.Struct):
    owner: _Owner
    status: TenantStatus


class _Gpu(msgspec.Struct):
    uuid: str
    busy: float = 0.0
    holder: str = ""
    sick: str = ""
    uses: list[_Use] = []
    bypassing: int = 0
    sensors: Sensors | None = None


class NodeTold(msgspec.Struct):
    """As much of an agent's `/node.json` as is read here."""

    gpus: list[_Gpu]
    arbiter_answers: bool = True
    window_ms: int = 0
    now_ns: int = 0


@dataclass(frozen=True)
class GpuMeasure:
    """One GPU as its node measures it; tenants by `namespace/pod/container`, whose plan does not count."""

    busy_milli: int
    holder: str
    healthy: bool
    shares: Mapping[str, Share] = field(default_factory=dict)
    bypassing: int = 0
    counts: Mapping[str, Counts] = field(default_factory=dict)
    sensors: Sensors | None = None


@dataclass(frozen=True)
class NodeMeasure:
    """The last answer of one node, by the UUID of its GPUs."""

    gpus: Mapping[str, GpuMeasure]
    window_s: float = 0.0


def read_told(body: bytes) -> NodeTold:
    """An agent's answer.

    Raises:
        Unreadable: it has another form, or its arbiter did not answer.
    """
    try:
        told = msgspec.json.decode(body, type=NodeTold)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableReport(f"its answer cannot be read: {str(error)[:200]}") from None
    if not told.arbiter_answers:
        raise UnreadableReport("its arbiter does not answer")
    return told


def measure_of(told: NodeTold, promises: PromiseBook | None = None) -> NodeMeasure:
    """The answer as the pages use it, numbers clamped; promises are evaluated where there is a record."""
    present = set()
    gpus = {}
    for gpu in told.gpus:
        shares, counts = {}, {}
        for use in gpu.uses:
            now, owner = use.status, use.owner
            key = f"{owner.namespace}/{owner.pod}/{owner.container}"
            if promises is not None and told.now_ns > 0:
                promises.see(gpu.uuid, now, told.now_ns)
                present.add((gpu.uuid, now.name))
            kept = promises.kept(gpu.uuid, now.name) if promises is not None else (None, 0)
            shares[key], counts[key] = _share(now, kept), counts_of(now)
        gpus[gpu.uuid] = GpuMeasure(
            _milli(gpu.busy), gpu.holder, not gpu.sick, shares, int(_within(gpu.bypassing, MAX_MIB)), counts,
            _sensors(gpu.sensors),
        )  # fmt: skip
    if promises is not None:
        promises.forget_all_but(present)
    return NodeMeasure(gpus, _within(told.window_ms / 1000, 3600.0))


def _share(now: TenantStatus, kept: tuple[float | None, int]) -> Share:
    return Share(
        tenant="",
        request_milli=0,
        limit_milli=0,
        usage_milli=_milli(now.usage),
        memory_mib=0,
        memory_used_mib=int(_within(now.memory_used_mib, MAX_MIB)),
        wait_ms=round(_within(now.wait_ms_p50, MAX_MS), 1),
        debt_ms=round(_within(now.debt_ms, MAX_MS), 1),
        quota_ms=round(_within(now.quota_ms, MAX_MS), 1),
        processes=int(_within(now.processes, MAX_MIB)),
        waiting=now.waiting,
        kept_percent=kept[0],
        windows=kept[1],
        enforce=now.enforce,
    )


def _sensors(found: Sensors | None) -> Sensors | None:
    """What the node's NVML measures, within what a GPU can be."""
    if found is None:
        return None
    known = ((name, getattr(found, name), most) for name, most in _MAX_SENSED.items())
    return Sensors(**{name: type(value)(_within(value, most)) for name, value, most in known if value is not None})


def _within(value: float, most: float) -> float:
    return max(0, min(value, most))


def _milli(part: float) -> int:
    return round(_within(part, 1.0) * MILLI)


def tenant_key(tenant: str) -> str:
    """`namespace/pod/container` of a tenant's name in the ledger, where parts and namesakes have a suffix."""
    return tenant.partition("#")[0].partition("@")[0]


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
    promises: PromiseBook | None = None
    last_ns: int = 0


class Agents:
    """Polls the agents in `places` (node -> address), which the caller replaces as a whole.

    `measured`, `silent` (node -> why it is unknown) and `answered_at_s` (silent node -> the wall clock's time of its
    last answer) are replaced as a whole too and may be read from any thread.
    """

    def __init__(
        self, fetch: Fetch, *, pace: Pace | None = None, watched: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.places: Mapping[str, str] = {}
        self.measured: Mapping[str, NodeMeasure] = {}
        self.silent: Mapping[str, str] = {}
        self.answered_at_s: Mapping[str, float] = {}
        self.asks = 0
        self._fetch = fetch
        self._pace = pace or Pace()
        self._watched = watched
        self._clock = clock
        self._asked: dict[str, _Asked] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Poll until cancelled."""
        try:
            while True:
                self.step()
                await asyncio.sleep(TICK_S)
        finally:
            for task in self._running.values():
                task.cancel()

    def step(self) -> None:
        """Poll the agents that are due, as many as allowed at once, and publish the results."""
        now_s = self._clock()
        self._take_places(now_s)
        due = sorted((asked.due_s, node) for node, asked in self._asked.items() if asked.due_s <= now_s)
        room = self._pace.at_once - len(self._running)
        for _, node in [each for each in due if each[1] not in self._running][: max(0, room)]:
            task = asyncio.get_running_loop().create_task(self._ask(node, self._asked[node]), name=node)
            self._running[node] = task
            task.add_done_callback(lambda done: self._running.pop(done.get_name(), None))
        self._publish(now_s)

    def _take_places(self, now_s: float) -> None:
        places = self.places
        for node in self._asked.keys() - places.keys():
            del self._asked[node]
        for number, (node, address) in enumerate(places.items()):
            known = self._asked.get(node)
            if known is None:
                known = self._asked[node] = _Asked("")
            if known.address != address:  # not all agents of a new cluster are polled at once
                known.address, known.due_s = address, now_s + number / self._pace.max_per_s

    @property
    def interval_s(self) -> float:
        """The interval between two polls of a node: longer while no page is open, and with many nodes."""
        wanted_s = self._pace.seen_s if self._watched() else self._pace.unseen_s
        return max(wanted_s, len(self._asked) / self._pace.max_per_s)

    async def _ask(self, node: str, asked: _Asked) -> None:
        asked.due_s = self._clock() + self.interval_s
        self.asks += 1
        try:
            async with asyncio.timeout(self._pace.answer_s):
                body = await self._fetch(asked.address)
            self._take(asked, read_told(body))
        except TimeoutError:
            self._failed(asked, f"it gave no complete answer within {self._pace.answer_s:g} s")
        except UnreadableReport as error:
            self._failed(asked, str(error))
        except Exception as error:
            self._failed(asked, str(error) or type(error).__name__)

    def _take(self, asked: _Asked, told: NodeTold) -> None:
        window_s = _within(told.window_ms / 1000, 3600.0)
        anew = asked.promises is None or asked.promises.window_s != window_s or told.now_ns < asked.last_ns
        if anew:
            asked.promises = PromiseBook(window_s) if window_s > 0 else None
        asked.last_ns = told.now_ns
        asked.measure = measure_of(told, asked.promises)
        asked.answered_s, asked.failures, asked.why = self._clock(), 0, ""
        asked.answered_at_s = time.time()

    def _failed(self, asked: _Asked, why: str) -> None:
        asked.failures += 1
        asked.why = why[:200]
        asked.due_s = self._clock() + doubled_s(self.interval_s, self._pace.backoff_max_s, asked.failures - 1)

    def _publish(self, now_s: float) -> None:
        kept_s = max(self._pace.kept_s, 3 * self.interval_s)
        for asked in self._asked.values():
            if asked.measure is not None and now_s - asked.answered_s > kept_s:
                asked.measure = None
        self.measured = {node: a.measure for node, a in self._asked.items() if a.measure is not None}
        self.silent = {node: a.why for node, a in self._asked.items() if a.measure is None}
        self.answered_at_s = {node: self._asked[node].answered_at_s for node in self.silent}


async def keep_asking(agents: Agents) -> None:
    """`run`, again after a defect, which is logged."""
    while True:
        try:
            await agents.run()
        except Exception as error:
            defect("asking the nodes' agents failed", error)
            await asyncio.sleep(1.0)
