"""Facts of one machine: the engine's ledger, the SharePods, and the arbiter's status.

Read once a second while a page is open, and every five seconds for the history otherwise: each reading costs
the arbiter some microseconds a tenant in which it grants nothing. Events are streamed, not polled.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from aliquot.arbiter.client import ArbiterClient, ArbiterError
from aliquot.arbiter.records import turns_of
from aliquot.driver.discovery import gpu_topology
from aliquot.driver.sensors import SensorReader
from aliquot.driver.wiring import topology_of_gpus
from aliquot.lib.log import Logger
from aliquot.model.ids import TenantName, split_key
from aliquot.model.requests import GpuRequest
from aliquot.placement.read_model import explain_request, explain_tenant, try_request
from aliquot.standalone.engine import Engine
from aliquot.standalone.explaining import promised_gpus
from aliquot.standalone.measured import measured_gpus, workloads_of
from aliquot.standalone.pods import Pods
from aliquot.status import (
    PENDING,
    Event,
    Explanation,
    Recorder,
    Snapshot,
    SnapshotSource,
    TopologyFacts,
    Trial,
    Turns,
)
from aliquot.status.gpus import node_sums, pool_of, quota_of
from aliquot.status.history import RUN, PromiseHistory, counts_of, readings

_LOG: Final = Logger("status")
LOOK_S: Final = 1.0
UNSEEN_LOOK_S: Final = 5.0
UNSEEN_S: Final = 10.0
RECONNECT_S: Final = 1.0
WINDOW_S: Final = 10.0  # until the arbiter has reported its own


class EngineSource(SnapshotSource):
    """Answers for an engine in this process. `start` begins reading, `close` ends it."""

    def __init__(self, engine: Engine, pods: Pods, recorder: Recorder) -> None:
        self._looked_s = time.monotonic()
        super().__init__(
            title=engine.ledger.node, program="aliquot", window_s=WINDOW_S, asked_s=self._looked_s,
            clock=time.monotonic, recorder=recorder,
        )  # fmt: skip
        self._engine = engine
        self._pods = pods
        self._lock = threading.Lock()
        self._promises = PromiseHistory(WINDOW_S)
        self._events = EventLog()
        self._arbiter = ArbiterClient(engine.runtime.root, timeout_s=3.0)
        self._arrived_s: dict[str, float] = {}
        self._topology = gpu_topology(engine.gpus)
        self._sensors = SensorReader(engine.machine.libnvml)
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="web-facts", daemon=True)
        self._follower = threading.Thread(target=self._follow, name="web-events", daemon=True)

    def start(self) -> EngineSource:
        """Read once, then continue in a thread."""
        self.look()
        self._thread.start()
        self._follower.start()
        return self

    def close(self) -> None:
        """Stop looking. Events are followed until the arbiter ends, which is after this."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._arbiter.close()
        self._sensors.close()

    def topology(self, node: str) -> TopologyFacts | None:
        """See `StatusSource`."""
        if node != self.title:
            return None
        return topology_of_gpus(node, self._topology, self._snapshot.gpus)

    def events(self, since: int) -> Sequence[Event]:
        """See `StatusSource`."""
        with self._lock:
            return self._events.since(since)

    def explain(self, name: str) -> Explanation | None:
        """See `StatusSource`."""
        tenant = TenantName(name)
        if tenant in self._engine.tenants:
            return self._engine.look(lambda ledger: explain_tenant(ledger, tenant))
        workload = self._workload(name)
        if workload is None:
            return None
        request = self._pods.request_of(name)
        if request is None or workload.state != PENDING:
            return Explanation(name, f"{name} has ended ({workload.state}); it holds no GPU.")
        return self._engine.look(lambda ledger: explain_request(ledger, name, request))

    def try_request(self, request: GpuRequest) -> Trial:
        """See `StatusSource`."""
        self._engine.check_context(request)
        return self._engine.look(lambda ledger: try_request(ledger, self._snapshot.gpus, request))

    def turns(self, gpu: str) -> Turns | None:
        """See `StatusSource`."""
        try:
            with ArbiterClient(self._engine.runtime.root, timeout_s=1.0) as client:
                return turns_of(gpu, client.turns(gpu), time.time())
        except (ArbiterError, OSError):
            return None

    def look(self) -> None:
        """Gather everything now."""
        self._looked_s = time.monotonic()
        status = None
        with contextlib.suppress(ArbiterError, OSError):  # between two arbiters
            status = self._arbiter.status()
        promised = promised_gpus(self._engine)
        pods = self._pods.facts()
        names = {pod.name for pod in pods}

        def owner_of(tenant: str) -> str:
            return f"SharePod/{split_key(tenant)[1]}" if tenant in names else RUN

        with self._lock:
            if status is not None:
                if status.window_ms != round(self._promises.window_s * 1000):
                    self.window_s = status.window_ms / 1000
                    self._promises = PromiseHistory(self.window_s)
                present = set()
                for gpu in status.gpus:
                    for tenant in gpu.tenants:
                        self._promises.add(gpu.uuid, tenant, status.now_ns)
                        present.add((gpu.uuid, tenant.name))
                self._promises.forget_all_but(present)
            gpus = measured_gpus(promised, status, self._promises.kept_percent, owner_of)
            if sensed := self._sensors.now:
                gpus = [msgspec.structs.replace(gpu, sensors=sensed.get(gpu.uuid)) for gpu in gpus]
            now_s = time.time()
            for pod in pods:
                self._events.take_pod(pod.name, pod.events, now_s)
            self._events.forget_pods_but(names)
        counts = {
            (gpu.uuid, tenant.name): counts_of(tenant)
            for gpu in (status.gpus if status else ())
            for tenant in gpu.tenants
        }
        if self.recorder is not None:
            read = readings(gpus, lambda gpu, share: counts.get((gpu.uuid, share.tenant)))
            self.recorder.see(self._looked_s, read)
        tenants = {share.tenant for gpu in gpus for share in gpu.shares}
        self._arrived_s = {name: self._arrived_s.get(name, self._looked_s) for name in tenants}
        ages_s = {name: round(self._looked_s - arrived_s, 0) for name, arrived_s in self._arrived_s.items()}
        self.as_of_s = now_s
        nodes = node_sums(gpus, with_topology=frozenset({self.title}))
        workloads = workloads_of(gpus, pods, ages_s)
        self._publish(Snapshot(gpus, workloads, nodes, quota_of(gpus), pool_of(gpus)))

    def _note_request(self) -> None:
        super()._note_request()
        self._sensors.start()
        if self.asked_s - self._looked_s > 1.5 * LOOK_S:
            self._wake.set()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            unseen = time.monotonic() - self.asked_s > UNSEEN_S
            self._wake.wait(UNSEEN_LOOK_S if unseen else LOOK_S)
            self._wake.clear()
            if self._stopping.is_set():
                return
            try:
                self.look()
            except Exception as error:
                _LOG.defect("looking at the engine failed", error)
                self._stopping.wait(RECONNECT_S)

    def _follow(self) -> None:
        """Take the arbiter's events as they come, of each arbiter in turn."""
        while not self._stopping.is_set():
            with contextlib.suppress(ArbiterError, OSError), ArbiterClient(self._engine.runtime.root) as client:
                boot_id = client.status().boot_id
                for event in client.events(follow=True):
                    with self._lock:
                        self._events.take_arbiter(boot_id, [event], time.time() - time.monotonic())
            self._stopping.wait(RECONNECT_S)


KEPT: Final = 500
_SENTENCES: Final[Mapping[str, str]] = {
    "tenant-added": "has a place",
    "tenant-removed": "gave its place back",
    "misbehaved": "process {pid} broke the protocol ({why}) and was cut off",
    "throttled": "process {pid} sends too many messages and is read again in a second",
    "too-many-processes": "process {pid} exceeds the maximum and was refused",
    "borrower-ended": "was ended: memory that was lent to it did not come back in time",
    "drain-timeout": "processes {pids} did not answer a revocation; the GPU went on without them",
    "out-of-descriptors": "the arbiter is out of file descriptors; new processes of it wait",
    "journal-not-written": "the arbiter cannot write its journal ({why}); debts would be forgotten at a restart",
    "tenant-lost": "could not be taken over from the last arbiter: {why}",
}


class EventLog:
    """Numbers events as they are first seen and keeps the last ones."""

    def __init__(self) -> None:
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._count = 0
        self._boot_id = self._last = 0
        self._of_arbiter: dict[int, Event] = {}  # by the arbiter's own id, the last of them
        self._pods: dict[str, list[str]] = {}

    def since(self, last: int) -> list[Event]:
        """Those with an id above `last`, oldest first."""
        return [event for event in self._kept if event.id > last]

    def take_arbiter(self, boot_id: int, events: Iterable[Mapping[str, Any]], clock_offset_s: float) -> None:
        """The arbiter's events; `clock_offset_s` is wall clock less its monotonic clock."""
        if boot_id != self._boot_id:
            self._boot_id, self._last = boot_id, 0
            self._of_arbiter.clear()
        for event in events:
            number, count, before = event["id"], event.get("count", 1), self._of_arbiter.get(event["id"])
            if number <= self._last and (before is None or count <= before.count):
                continue
            if before is not None and before in self._kept:
                self._kept.remove(before)
            self._last = max(self._last, number)
            kind = str(event["kind"])
            text = _SENTENCES.get(kind, kind.replace("-", " ")).format_map(defaultdict(lambda: "?", event))
            at_s = round(event.get("last_ns", event["now_ns"]) / 1e9 + clock_offset_s, 3)
            repeats = f" ({count} times)" if count > 1 else ""
            self._of_arbiter[number] = self._add(at_s, kind, str(event.get("tenant", "")), text + repeats, count)
            if len(self._of_arbiter) > KEPT:
                del self._of_arbiter[next(iter(self._of_arbiter))]

    def take_pod(self, name: str, notes: Sequence[str], now_s: float) -> None:
        """A SharePod's own notes, each `HH:MM:SS text`."""
        for note in fresh(self._pods.get(name, ()), notes):
            self._add(now_s, "sharepod", name, note.partition(" ")[2])
        self._pods[name] = list(notes)

    def forget_pods_but(self, names: set[str]) -> None:
        """Drop the notes of tenants that are gone."""
        for name in self._pods.keys() - names:
            del self._pods[name]

    def _add(self, at_s: float, kind: str, subject: str, text: str, count: int = 1) -> Event:
        self._count += 1
        self._kept.append(event := Event(self._count, at_s, kind, subject, text, count))
        return event


def fresh(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """The entries appended to a list that forgets its oldest entries."""
    for gone in range(len(before) + 1):
        kept = len(before) - gone
        if list(before[gone:]) == list(now[:kept]):
            return list(now[kept:])
    return list(now)
