"""The status source of a cluster: its ledger, and what its programs know besides.

`ClusterSource` reads a ledger, of which only nodes that have changed are read again; the scheduler's own is filled by
`SchedulerSource` (`status_source`), that of `kubectl aliquot top` by watches. Snapshots are answered from any thread.
`explain` and `try_request` read the ledger itself and so go through `while_still`, which runs a function while the
ledger does not change (an event loop hops to its own thread). Whether a request fits is determined in the ledger: some
milliseconds. Why it does not takes 57 ms at 1,000 nodes and grows with them, and an open page asks again each second;
so the calling thread computes it in a copy of the ledger, one request at a time, and the answer is valid for as long as
the copy is used.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from aliquot.driver.wiring import topology_of_gpus
from aliquot.kube.claims import ResourceClaim
from aliquot.model.ids import split_key
from aliquot.model.requests import GpuRequest
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster
from aliquot.placement.decide import Decider
from aliquot.placement.explain import NOWHERE, PlacementExplanation, explain_fitting, explain_waiting
from aliquot.placement.read_model import ledger_gpus, shown, trial
from aliquot.scheduler.agents import NodeMeasure, tenant_key
from aliquot.scheduler.allocations import keeps_closed
from aliquot.status import (
    Event,
    Explanation,
    Gpu,
    Pool,
    QuotaLine,
    Recorder,
    Share,
    Snapshot,
    SnapshotSource,
    Standing,
    TopologyFacts,
    Trial,
    Turns,
    Workload,
)  # fmt: skip
from aliquot.status.gpus import node_sums, quota_of, with_measures
from aliquot.status.history import Counts, counts_of, readings
from aliquot.status.workloads import placed
from aliquot.topology import Topology

COPY_S: Final = 5.0
COPY_PART: Final = 20
"""The ledger is copied no more often than would take a twentieth of its owner's time."""
WINDOW_S: Final = 10.0
"""Until a node has reported its own."""
NO_AGENT: Final = "no agent is known on the node"

WhileStill = Callable[[Callable[[], Any]], Any]


class LedgerReading(NamedTuple):
    """The ledger's content at one moment: the GPUs of each node by its name, as promised, and the nodes."""

    gpus: Mapping[str, Sequence[Gpu]]
    cordoned: frozenset[str]
    with_topology: frozenset[str]


class ClusterSource(SnapshotSource):
    """Answers for a cluster.

    What the ledger does not contain is in public attributes, which the program replaces as it learns it; each is read
    as a whole. A workload in `waiting` comes with what each of its containers asks; `barred` says which nodes
    Kubernetes does not allow for it, and why. `measured` and `silent` are by node: its agent's answer, or why it is
    unknown; `answered_at_s` is the wall clock's time of a silent node's last answer. `owner_of` is a tenant's
    controller, such as `Deployment/web`; `claim_of` the ResourceClaim that a tenant or a workload is of.
    """

    def __init__(
        self,
        decider: Decider,
        *,
        title: str,
        while_still: WhileStill = lambda work: work(),
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(
            title=title, program="kubectl aliquot", window_s=WINDOW_S, asked_s=-math.inf, clock=time.monotonic,
            recorder=recorder,
        )  # fmt: skip
        self.waiting: Sequence[tuple[Workload, Sequence[Ask]]] = ()
        self.measured: Mapping[str, NodeMeasure] = {}
        self.silent: Mapping[str, str] = {}
        self.answered_at_s: Mapping[str, float] = {}
        self.latest_events: Sequence[Event] = ()
        self.quotas: Sequence[QuotaLine] | None = None
        self.vgpus = Pool("on-demand", [])
        self.standing: Callable[[str], Standing] = lambda pod: Standing()
        self.barred: Callable[[str], Mapping[str, str]] = lambda pod: {}
        self.claim_of: Callable[[str], ResourceClaim | None] = lambda name: None
        self.owner_of: Callable[[str], str] = lambda tenant: f"Pod/{split_key(tenant.rpartition('/')[0])[1]}"
        self._decider = decider
        self._explanations = LedgerExplanations(decider, while_still)
        self._barred: dict[str, Mapping[str, str]] = {}
        self._barred_until_s = -math.inf
        self._nodes: dict[str, tuple[int, list[Gpu]]] = {}  # node -> (version of its ledger, its GPUs)
        self._topologies: dict[str, Topology] = {}

    def refresh(self, now_s: float) -> None:
        """Read the ledger and the program's facts now, and show them; call it while the ledger does not change.

        `now_s` is of a clock that only goes forward, as `time.monotonic`.
        """
        self.show(self.read_ledger(), now_s)

    def read_ledger(self) -> LedgerReading:
        """Read the ledger's changes; call it while the ledger does not change, which is short."""
        cluster = self._decider.cluster
        nodes = {}
        for spec in cluster.nodes:
            name, version = spec.name, int(cluster.version[cluster.index[spec.name]])
            node = self._nodes.get(name)
            if node is None or node[0] != version:
                node = version, ledger_gpus(cluster, name, keeps_closed)
                if spec.topology is not None:
                    self._topologies[name] = spec.topology
            nodes[name] = node
        self._topologies = {name: topology for name, topology in self._topologies.items() if name in nodes}
        self._nodes = nodes
        return LedgerReading(
            {name: gpus for name, (_, gpus) in sorted(nodes.items())},
            frozenset(name for name in nodes if not bool(cluster.open[cluster.index[name]])),
            frozenset(self._topologies),
        )

    def show(self, ledger: LedgerReading, now_s: float) -> None:
        """Publish it with all other facts; one caller at a time, in any thread.

        `now_s` as in `refresh`.
        """
        reports, silent = self.measured, self.silent
        self.window_s = next((node.window_s for node in reports.values() if node.window_s), WINDOW_S)
        gpus = [
            self._with_measures(self._with_pods(gpu), reports.get(name))
            for name, own in ledger.gpus.items()
            for gpu in own
        ]
        shares: dict[str, list[tuple[Gpu, Share]]] = {}
        for gpu in gpus:
            for share in gpu.shares:
                shares.setdefault(share.workload, []).append((gpu, share))
        workloads = [workload for workload, _ in self.waiting]
        workloads += [placed(name, own, self.standing(name)) for name, own in sorted(shares.items())]
        nodes = [
            msgspec.structs.replace(
                node,
                cordoned=node.name in ledger.cordoned,
                silent="" if node.name in reports else silent.get(node.name, NO_AGENT),
                silent_since_s=0.0 if node.name in reports else self.answered_at_s.get(node.name, 0.0),
            )
            for node in node_sums(gpus, with_topology=ledger.with_topology)
        ]
        self.as_of_s = time.time()
        if self.recorder is not None:

            def counts(gpu: Gpu, share: Share) -> Counts | None:
                now = reports[gpu.node].gpus.get(gpu.uuid) if gpu.node in reports else None
                status = now.of(self.reported_as(share.tenant)) if now is not None else None
                return counts_of(status) if status is not None else None

            self.recorder.see(now_s, readings(gpus, counts))
        quota = self.quotas if self.quotas is not None else quota_of(gpus)
        self._publish(Snapshot(gpus, workloads, nodes, quota, self.vgpus), changed=self._explanations.forget())

    def reported_as(self, tenant: str) -> str:
        """What its node's agent calls a tenant of the ledger."""
        return tenant_key(tenant, self.claim_of(tenant))

    def _with_pods(self, gpu: Gpu) -> Gpu:
        """A GPU with the pods that use the claims on it."""
        pods = {s.tenant: [pod.name for pod in claim.pods] for s in gpu.shares if (claim := self.claim_of(s.tenant))}
        if not pods:
            return gpu
        shares = [msgspec.structs.replace(share, pods=pods.get(share.tenant, [])) for share in gpu.shares]
        return msgspec.structs.replace(gpu, shares=shares)

    def turns(self, gpu: str) -> Turns | None:
        """See `StatusSource`."""
        return None

    def names_on(self, gpu: str) -> dict[str, str]:
        """The tenants of a GPU, as its node's agent calls them: `namespace/pod/container` to the ledger's name."""
        shares = next((shown.shares for shown in self._snapshot.gpus if shown.uuid == gpu), ())
        return {self.reported_as(share.tenant): share.tenant for share in shares}

    def topology(self, node: str) -> TopologyFacts | None:
        """See `StatusSource`."""
        known = self._topologies.get(node)
        if known is None:
            return None
        _, gpus = self._nodes.get(node, (0, []))  # it may leave meanwhile
        return topology_of_gpus(node, known, gpus)

    def events(self, since: int) -> Sequence[Event]:
        """See `StatusSource`."""
        return [event for event in self.latest_events if event.id > since]

    def explain(self, name: str) -> Explanation | None:
        """See `StatusSource`."""
        for workload, asks in self.waiting:
            if workload.name == name:
                now_s = time.monotonic()
                if now_s >= self._barred_until_s:  # which nodes are barred is read once in `COPY_S`
                    self._barred, self._barred_until_s = {}, now_s + COPY_S
                if name not in self._barred:
                    self._barred[name] = self.barred(name)
                barred = self._barred[name]
                namespace = "" if workload.kind == "ResourceClaim" else workload.namespace  # no GPUQuota bounds claims
                explanations = [self._explanations.explain(ask, namespace, barred) for ask in asks]
                return shown(name, min(explanations, key=lambda e: e.placement is not None), workload.message)
        running = self._workload(name)
        if running is None:
            return None
        where = " and ".join(f"GPU {piece.index} of {piece.node}" for piece in running.pieces)
        return Explanation(name, f"{name} is on {where}.")

    def try_request(self, request: GpuRequest) -> Trial:
        """See `StatusSource`."""
        return trial(self._explanations.explain(Ask(request)), self._snapshot.gpus)

    def _with_measures(self, gpu: Gpu, node: NodeMeasure | None) -> Gpu:
        """A GPU of the ledger with its node's measurements; one that the node does not report stays unmeasured."""
        now = node.gpus.get(gpu.uuid) if node is not None else None
        if node is None or now is None:
            return gpu
        kept = node.kept
        found = with_measures(
            gpu,
            busy_milli=now.busy_milli,
            holder=now.holder,
            now=now.of,
            kept=lambda tenant: kept.get((gpu.uuid, tenant), (None, 0)),
            reported_as=self.reported_as,
            owner_of=self.owner_of,
        )
        return msgspec.structs.replace(found, healthy=not now.unhealthy, bypassing=now.bypassing, sensors=now.sensors)


class LedgerExplanations:
    """Explains by a ledger, from any thread; `while_still` runs a function while the ledger does not change."""

    def __init__(self, decider: Decider, while_still: WhileStill, clock: Callable[[], float] = time.monotonic) -> None:
        self._decider = decider
        self._while_still = while_still
        self._clock = clock
        self._lock = threading.Lock()
        self._copy: Cluster | None = None
        self._good_until_s = -math.inf
        self._waiting: dict[tuple[Ask, str, tuple[tuple[str, str], ...]], PlacementExplanation] = {}

    def explain(self, ask: Ask, namespace: str = "", barred: Mapping[str, str] = NOWHERE) -> PlacementExplanation:
        """The explanation of a request that may not go to the nodes in `barred`, for the reasons given there."""

        def fitting() -> PlacementExplanation | None:
            explanation = explain_fitting(self._decider, ask, namespace, barred)
            began_s = self._clock()
            if explanation is None and (self._copy is None or began_s >= self._good_until_s):
                self._copy = self._decider.cluster.copy()
                self._waiting.clear()
                now_s = self._clock()
                self._good_until_s = now_s + max(COPY_S, COPY_PART * (now_s - began_s))
            return explanation

        with self._lock:
            explanation: PlacementExplanation | None = self._while_still(fitting)
            if explanation is not None:
                return explanation
            key = (ask, namespace, tuple(sorted(barred.items())))
            if key not in self._waiting:
                assert self._copy is not None
                self._waiting[key] = explain_waiting(self._decider, ask, self._copy, namespace, barred)
            return self._waiting[key]

    def forget(self) -> bool:
        """Drop outdated answers; called now and then."""
        if self._copy is None or self._clock() < self._good_until_s or not self._lock.acquire(blocking=False):
            return False
        self._copy = None
        self._waiting.clear()
        self._lock.release()
        return True
