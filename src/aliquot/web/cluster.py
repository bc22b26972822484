"""Facts of a cluster, from the ledger of its scheduler program.

The program calls `refresh` in its own thread, about once a second; only nodes that have changed in the ledger are read
again. Pages are answered from the last reading, from any thread. `explain` and `try_request` read the ledger itself
and so go through `calmly`, which runs a function while the ledger does not change (an event loop hops to its own
thread); see
`aliquot.web.explaining` for how little that is.

What the ledger does not contain the program adds as it learns it: waiting pods, measurements, events, quotas, vGPUs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from aliquot.arbiter.records import GpuTurns
from aliquot.model.requests import GpuRequest
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster
from aliquot.placement.decide import Decider
from aliquot.placement.ledger import ledger_gpus
from aliquot.status.gpus import measured
from aliquot.status.sums import node_sums, quota_of
from aliquot.status.workloads import Standing, placed
from aliquot.topology import Topology
from aliquot.web.agents import NodeMeasure, tenant_key
from aliquot.web.api import Event, Explanation, Gpu, Pool, QuotaLine, Share, TopologyFacts, Trial, Workload
from aliquot.web.explaining import COPY_S, Calmly, Explaining
from aliquot.web.history.keeping import LongHistory, Past
from aliquot.web.history.recorder import Counts
from aliquot.web.history.records import Turns
from aliquot.web.history.sources import OwnerOf, counts_of, readings, turns_of
from aliquot.web.picture import Picture, PictureFacts
from aliquot.web.trial import shown, trial
from aliquot.web.wiring import topology_of_gpus

WINDOW_S: Final = 10.0
"""Until a node has reported its own."""

NO_AGENT: Final = "no agent is known on the node"


@dataclass
class Beside:
    """Facts that are not in the ledger. The program replaces fields whenever it has news; each is read as a whole.

    A workload that waits comes with what each of its containers asks; `barred` says which nodes Kubernetes does not
    allow for it, and why. `measured` and `silent` are by node: its agent's answer, or why it is unknown;
    `answered_at_s` is the wall clock's time of a silent node's last answer.
    """

    waiting: Sequence[tuple[Workload, Sequence[Ask]]] = ()
    measured: Mapping[str, NodeMeasure] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    answered_at_s: Mapping[str, float] = field(default_factory=dict)
    events: Sequence[Event] = ()
    quota: Sequence[QuotaLine] | None = None
    pool: Pool = field(default_factory=lambda: Pool("on-demand", []))
    standing: Callable[[str], Standing] = lambda pod: Standing()
    barred: Callable[[str], Mapping[str, str]] = lambda pod: {}
    owner_of: OwnerOf = lambda tenant: f"Pod/{tenant.split('/')[1]}" if "/" in tenant else "Run"


class Taken(NamedTuple):
    """The ledger's content at one moment: the GPUs of each node by its name, as promised, and the nodes."""

    gpus: Mapping[str, Sequence[Gpu]]
    cordoned: frozenset[str]
    with_topology: frozenset[str]


class ClusterFacts(PictureFacts):
    """Answers for a cluster. `hidden` returns whether a tenant in the ledger is the program's own and not shown."""

    def __init__(
        self,
        decider: Decider,
        beside: Beside,
        *,
        title: str,
        calmly: Calmly = lambda work: work(),
        hidden: Callable[[str], bool] = lambda tenant: False,
        history: LongHistory | None = None,
    ) -> None:
        super().__init__(title=title, program="kubectl aliquot", window_s=WINDOW_S, asked_s=-math.inf)
        self._decider = decider
        self._beside = beside
        self._explaining = Explaining(decider, calmly)
        self._hidden = hidden
        self._barred: dict[str, Mapping[str, str]] = {}
        self._barred_until_s = -math.inf
        self._read: dict[str, tuple[int, list[Gpu]]] = {}  # node -> (version of its ledger, its GPUs)
        self._topologies: dict[str, Topology] = {}
        self._recorded = history or LongHistory(None)
        self._past: Past = self._recorded

    def refresh(self, now_s: float) -> None:
        """Read the ledger and the program's facts now, and show them; call it while the ledger does not change.

        `now_s` is of a clock that only goes forward, as `time.monotonic`.
        """
        self.show(self.take(), now_s)

    def take(self) -> Taken:
        """Read the ledger's changes; call it while the ledger does not change, which is short."""
        cluster = self._decider.cluster
        read = {spec.name: self._node(cluster, spec.name) for spec in cluster.nodes}
        self._topologies = {name: known for name, known in self._topologies.items() if name in read}
        self._read = read
        return Taken(
            {name: gpus for name, (_, gpus) in sorted(read.items())},
            frozenset(name for name in read if not bool(cluster.open[cluster.index[name]])),
            frozenset(self._topologies),
        )

    def show(self, taken: Taken, now_s: float) -> None:
        """Publish it with all other facts; one caller at a time, in any thread.

        `now_s` as in `refresh`.
        """
        heard, silent = self._beside.measured, self._beside.silent
        self.window_s = next((node.window_s for node in heard.values() if node.window_s), WINDOW_S)
        gpus = [_with_measures(gpu, heard.get(name)) for name, own in taken.gpus.items() for gpu in own]
        workloads = [workload for workload, _ in self._beside.waiting]
        workloads += _placed(gpus, self._beside.standing)
        nodes = [
            msgspec.structs.replace(
                node,
                cordoned=node.name in taken.cordoned,
                silent="" if node.name in heard else silent.get(node.name, NO_AGENT),
                silent_since_s=0.0 if node.name in heard else self._beside.answered_at_s.get(node.name, 0.0),
            )
            for node in node_sums(gpus, with_topology=taken.with_topology)
        ]
        self.as_of_s = time.time()
        if now_s >= self._hour.due_s:
            self._hour.add(now_s, gpus)
        self._recorded.see(now_s, readings(gpus, lambda gpu, share: _counts(heard, gpu, share), self._beside.owner_of))
        quota = self._beside.quota if self._beside.quota is not None else quota_of(gpus)
        self._show(Picture(gpus, workloads, nodes, quota, self._beside.pool), anew=self._explaining.forget())

    def read_past_from(self, past: Past) -> None:
        """From now on read the past from here instead of what this program records."""
        self._past = past

    def turns(self, gpu: str, ask: Callable[[str], Mapping[str, GpuTurns]]) -> Turns | None:
        """The last minute of a GPU, from its node's agent, with the names of the ledger; `ask` asks a node's."""
        known = next((each for each in self._picture.gpus if each.uuid == gpu), None)
        told = ask(known.node).get(gpu) if known is not None else None
        if known is None or told is None:
            return None
        return turns_of(gpu, told, time.time(), self.names_on(gpu))

    def names_on(self, gpu: str) -> dict[str, str]:
        """The tenants of a GPU, as its node's agent calls them: `namespace/pod/container` to the ledger's name."""
        known = next((each for each in self._picture.gpus if each.uuid == gpu), None)
        return {tenant_key(share.tenant): share.tenant for share in known.shares} if known is not None else {}

    @property
    def past(self) -> Past:
        """See `Facts`."""
        self._asked()
        return self._past

    def topology(self, node: str) -> TopologyFacts | None:
        """See `Facts`."""
        known = self._topologies.get(node)
        if known is None:
            return None
        _, gpus = self._read.get(node, (0, []))  # it may leave meanwhile
        return topology_of_gpus(node, known, gpus)

    def events(self, since: int) -> Sequence[Event]:
        """See `Facts`."""
        return [event for event in self._beside.events if event.id > since]

    def explain(self, name: str) -> Explanation | None:
        """See `Facts`."""
        for workload, asks in self._beside.waiting:
            if workload.name == name:
                barred = self._barred_for(name)
                found = [self._explaining.explain(ask, workload.namespace, barred) for ask in asks]
                first = min(found, key=lambda each: each.placement is not None)
                return shown(name, first, workload.message)
        placed = self._workload(name)
        if placed is None:
            return None
        where = " and ".join(f"GPU {piece.index} of {piece.node}" for piece in placed.pieces)
        return Explanation(name, f"{name} is on {where}.")

    def try_request(self, request: GpuRequest) -> Trial:
        """See `Facts`."""
        return trial(self._explaining.explain(Ask(request)), self._picture.gpus)

    def _barred_for(self, name: str) -> Mapping[str, str]:
        """The nodes that a waiting workload may not go to, and why, as they were at most `COPY_S` ago."""
        now_s = time.monotonic()
        if now_s >= self._barred_until_s:
            self._barred, self._barred_until_s = {}, now_s + COPY_S
        if name not in self._barred:
            self._barred[name] = self._beside.barred(name)
        return self._barred[name]

    def _node(self, cluster: Cluster, name: str) -> tuple[int, list[Gpu]]:
        number = cluster.index[name]
        version = int(cluster.version[number])
        known = self._read.get(name)
        if known is not None and known[0] == version:
            return known
        spec = cluster.spec(number)
        if spec.topology is not None:
            self._topologies[name] = spec.topology
        return version, ledger_gpus(cluster, name, self._hidden)


def _with_measures(gpu: Gpu, node: NodeMeasure | None) -> Gpu:
    """A GPU of the ledger with its node's measurements; a tenant that the node does not know uses nothing."""
    now = node.gpus.get(gpu.uuid) if node is not None else None
    if node is None or now is None:
        return gpu
    shares, holder = [], ""
    for share in gpu.shares:
        key = tenant_key(share.tenant)
        holder = share.tenant if now.holder and now.holder == key else holder
        shares.append(measured(share, now.of(key), node.kept.get((gpu.uuid, key), (None, 0))))
    return msgspec.structs.replace(
        gpu,
        shares=shares,
        busy_milli=now.busy_milli,
        memory_used_mib=min(gpu.memory_mib, sum(share.memory_used_mib for share in shares)),
        holder=holder,
        healthy=not now.sick,
        measured=True,
        bypassing=now.bypassing,
        sensors=now.sensors,
    )


def _counts(nodes: Mapping[str, NodeMeasure], gpu: Gpu, share: Share) -> Counts | None:
    node = nodes.get(gpu.node)
    now = node.gpus.get(gpu.uuid) if node is not None else None
    status = now.of(tenant_key(share.tenant)) if now is not None else None
    return counts_of(status) if status is not None else None


def _placed(gpus: Iterable[Gpu], standing: Callable[[str], Standing]) -> list[Workload]:
    """Every pod of the ledger with the pieces of its containers, by name."""
    owns: dict[str, list[tuple[Gpu, Share]]] = {}
    for gpu in gpus:
        for share in gpu.shares:
            owns.setdefault(share.workload, []).append((gpu, share))
    return [placed(name, own, standing(name)) for name, own in sorted(owns.items())]
