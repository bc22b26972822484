"""Facts of one machine: the engine's ledger, the SharePods, and the arbiter's status.

Read once a second while a page is open, and every five seconds for the history otherwise: each reading costs
the arbiter some microseconds a tenant in which it grants nothing. Events are streamed, not polled.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from aliquot.arbiter.client import ArbiterClient, ArbiterError
from aliquot.arbiter.records import Status
from aliquot.driver.discovery import gpu_topology
from aliquot.driver.sensors import SensorReader
from aliquot.model.ids import TenantName, split_key
from aliquot.model.requests import GpuRequest
from aliquot.placement.machine import MachineLedger
from aliquot.standalone.engine import Engine
from aliquot.standalone.pods import Pods
from aliquot.status.sums import node_sums, pool_of, quota_of
from aliquot.status.workloads import PENDING
from aliquot.web import trial
from aliquot.web.api import Event, Explanation, Gpu, TopologyFacts, Trial
from aliquot.web.eventlog import EventLog
from aliquot.web.gather import PlacedTenant, gpus_of, workloads_of
from aliquot.web.history.file import Limits
from aliquot.web.history.keeping import LongHistory, Past
from aliquot.web.history.records import Turns
from aliquot.web.history.sources import counts_of, readings, turns_of
from aliquot.web.log import defect
from aliquot.web.picture import Picture, PictureFacts
from aliquot.web.promise import PromiseHistory
from aliquot.web.wiring import topology_of_gpus

LOOK_S: Final = 1.0
UNSEEN_LOOK_S: Final = 5.0
UNSEEN_S: Final = 10.0
RECONNECT_S: Final = 1.0
MAX_HISTORY_BYTES: Final = 256 << 20
WINDOW_S: Final = 10.0  # until the arbiter has reported its own


class StandaloneFacts(PictureFacts):
    """Answers for an engine in this process. `start` begins reading, `close` ends it."""

    def __init__(self, engine: Engine, pods: Pods, *, history: Path | None = None) -> None:
        """`history` is the file of weeks; None keeps two hours in memory."""
        self._looked_s = time.monotonic()
        super().__init__(title=engine.ledger.node, program="aliquot", window_s=WINDOW_S, asked_s=self._looked_s)
        self._engine = engine
        self._pods = pods
        self._lock = threading.Lock()
        limits = Limits(max_bytes=MAX_HISTORY_BYTES) if history else None
        self._past = LongHistory(history, limits, turns=self._turns)
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

    def start(self) -> StandaloneFacts:
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
        self._past.close()

    @property
    def past(self) -> Past:
        """See `Facts`."""
        self._asked()
        return self._past

    def topology(self, node: str) -> TopologyFacts | None:
        """See `Facts`."""
        if node != self.title:
            return None
        return topology_of_gpus(node, self._topology, self._picture.gpus)

    def events(self, since: int) -> Sequence[Event]:
        """See `Facts`."""
        with self._lock:
            return self._events.since(since)

    def explain(self, name: str) -> Explanation | None:
        """See `Facts`."""
        tenant = TenantName(name)
        if tenant in self._engine.tenants:
            return self._engine.look(lambda ledger: trial.explain_tenant(ledger, tenant))
        workload = self._workload(name)
        if workload is None:
            return None
        request = self._pods.request_of(name)
        if request is None or workload.state != PENDING:
            return Explanation(name, f"{name} has ended ({workload.state}); it holds no GPU.")
        return self._engine.look(lambda ledger: trial.explain_request(ledger, name, request))

    def try_request(self, request: GpuRequest) -> Trial:
        """See `Facts`."""
        return self._engine.look(lambda ledger: trial.try_request(ledger, self._picture.gpus, request))

    def look(self) -> None:
        """Gather everything now."""
        self._looked_s = time.monotonic()
        status = self._status()
        tenants = self._tenants()
        pods = self._pods.facts()
        with self._lock:
            if status is not None:
                self._take_status(status)
            gpus = gpus_of(
                self.title,
                self._engine.gpus,
                tenants,
                status,
                self._promises.kept_percent,
                emulated=self._engine.emulated,
            )
            if sensed := self._sensors.now:
                gpus = [msgspec.structs.replace(gpu, sensors=sensed.get(gpu.uuid)) for gpu in gpus]
            now_s = time.time()
            for pod in pods:
                self._events.take_pod(pod.name, pod.events, now_s)
            self._events.forget_pods_but({pod.name for pod in pods})
            if self._looked_s >= self._hour.due_s:
                self._hour.add(self._looked_s, gpus)
        self._remember(status, gpus, {pod.name for pod in pods})
        self.as_of_s = now_s
        nodes = node_sums(gpus, with_topology=frozenset({self.title}))
        self._show(Picture(gpus, workloads_of(gpus, pods, tenants), nodes, quota_of(gpus), pool_of(gpus)))

    def _remember(self, status: Status | None, gpus: Sequence[Gpu], pods: set[str]) -> None:
        counts = {
            (gpu.uuid, tenant.name): counts_of(tenant)
            for gpu in (status.gpus if status else ())
            for tenant in gpu.tenants
        }
        found = readings(
            gpus,
            lambda gpu, share: counts.get((gpu.uuid, share.tenant)),
            lambda tenant: f"SharePod/{split_key(tenant)[1]}" if tenant in pods else "Run",
        )
        self._past.see(self._looked_s, found)

    def _turns(self, gpu: str) -> Turns | None:
        try:
            with ArbiterClient(self._engine.runtime.root, timeout_s=1.0) as client:
                return turns_of(gpu, client.turns(gpu), time.time())
        except (ArbiterError, OSError):
            return None

    def _asked(self) -> None:
        super()._asked()
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
                defect("looking at the engine failed", error)
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

    def _status(self) -> Status | None:
        try:
            return self._arbiter.status()
        except (ArbiterError, OSError):
            return None  # between two arbiters

    def _take_status(self, status: Status) -> None:
        if status.window_ms != round(self._promises.window_s * 1000):
            self.window_s = status.window_ms / 1000
            self._promises = PromiseHistory(self.window_s)
        present = set()
        for gpu in status.gpus:
            for tenant in gpu.tenants:
                self._promises.add(gpu.uuid, tenant, status.now_ns)
                present.add((gpu.uuid, tenant.name))
        self._promises.forget_all_but(present)

    def _tenants(self) -> list[PlacedTenant]:
        now_s = time.monotonic()
        tenants = self._engine.tenants
        names = self._engine.look(_gpu_ids)
        self._arrived_s = {name: self._arrived_s.get(name, now_s) for name in tenants}
        return [
            PlacedTenant(name, tenant.plan.slices, round(now_s - self._arrived_s[name], 0), names.get(name, ""))
            for name, tenant in tenants.items()
        ]


def _gpu_ids(ledger: MachineLedger) -> dict[TenantName, str]:
    """The vGPU of each tenant that named one."""
    residents = [resident for device in ledger.devices for resident in ledger.residents(device.uuid)]
    return {TenantName(resident.tenant): resident.gpu_id for resident in residents if resident.gpu_id}
