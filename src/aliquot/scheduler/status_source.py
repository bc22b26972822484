"""The status source of a cluster: its ledger, and what its programs know besides.

`ClusterSource` reads a ledger, of which only nodes that have changed are read again; the scheduler's own is filled by
`SchedulerSource`, that of `kubectl aliquot top` by watches. Snapshots are answered from any thread. `explain` and
`try_request` read the ledger itself and so go through `while_still`, which runs a function while the ledger does not
change (an event loop hops to its own thread). Whether a request fits is determined in the ledger: some milliseconds.
Why it does not takes 57 ms at 1,000 nodes and grows with them, and an open page asks again each second; so the calling
thread computes it in a copy of the ledger, one request at a time, and the answer is valid for as long as the copy is
used.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from aliquot.arbiter.records import GpuTurns, turns_of
from aliquot.driver.wiring import topology_of_gpus
from aliquot.kube.custom import SHAREPODS, VGPU
from aliquot.kube.dialects import read
from aliquot.kube.dialects.base import Dialect
from aliquot.kube.objects import Pod
from aliquot.kube.quotas import quotas_of
from aliquot.kube.reflector import Reflector
from aliquot.kube.requests import BadPod, ClusterDevices
from aliquot.lib.log import Logger
from aliquot.model.ids import split_key
from aliquot.model.quantities import MILLI, BadQuantity, parse_memory, parse_milli
from aliquot.model.requests import GpuRequest
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster
from aliquot.placement.decide import Decider
from aliquot.placement.explain import NOWHERE, PlacementExplanation, explain_fitting, explain_waiting
from aliquot.placement.ledger import ledger_gpus
from aliquot.placement.quota import Quota
from aliquot.placement.trial import shown, trial
from aliquot.scheduler.agents import AgentThread, NodeMeasure, agent_addresses, tenant_key
from aliquot.scheduler.ledger import CLOSED
from aliquot.scheduler.verdicts import closed_nodes
from aliquot.status import (
    PENDING,
    SCHEDULED,
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
    Vgpu,
    Workload,
    WorkloadKind,
)  # fmt: skip
from aliquot.status.gpus import with_measures
from aliquot.status.history import Counts, counts_of, readings
from aliquot.status.sums import node_sums, quota_of
from aliquot.status.workloads import placed
from aliquot.topology import Topology

if TYPE_CHECKING:
    from aliquot.scheduler.program import Scheduler

COPY_S: Final = 5.0
COPY_PART: Final = 20
"""The ledger is copied no more often than would take a twentieth of its owner's time."""
READ_S: Final = 1.0
READ_PART: Final = 4
UNSEEN_READ_S: Final = 5.0
ADDRESSES_S: Final = 5.0
UNSEEN_S: Final = 10.0
AGE_STEP_S: Final = 10.0
HOP_S: Final = 10.0
WINDOW_S: Final = 10.0
"""Until a node has reported its own."""
NO_AGENT: Final = "no agent is known on the node"

WhileStill = Callable[[Callable[[], Any]], Any]
_LOG: Final = Logger("status")


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
    controller, such as `Deployment/web`.
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
        read = {spec.name: self._node(cluster, spec.name) for spec in cluster.nodes}
        self._topologies = {name: known for name, known in self._topologies.items() if name in read}
        self._nodes = read
        return LedgerReading(
            {name: gpus for name, (_, gpus) in sorted(read.items())},
            frozenset(name for name in read if not bool(cluster.open[cluster.index[name]])),
            frozenset(self._topologies),
        )

    def show(self, ledger: LedgerReading, now_s: float) -> None:
        """Publish it with all other facts; one caller at a time, in any thread.

        `now_s` as in `refresh`.
        """
        heard, silent = self.measured, self.silent
        self.window_s = next((node.window_s for node in heard.values() if node.window_s), WINDOW_S)
        gpus = [_with_measures(gpu, heard.get(name)) for name, own in ledger.gpus.items() for gpu in own]
        workloads = [workload for workload, _ in self.waiting]
        workloads += _placed(gpus, self.standing)
        nodes = [
            msgspec.structs.replace(
                node,
                cordoned=node.name in ledger.cordoned,
                silent="" if node.name in heard else silent.get(node.name, NO_AGENT),
                silent_since_s=0.0 if node.name in heard else self.answered_at_s.get(node.name, 0.0),
            )
            for node in node_sums(gpus, with_topology=ledger.with_topology)
        ]
        self.as_of_s = time.time()
        if self._recorder is not None:
            self._recorder.see(now_s, readings(gpus, lambda gpu, share: _counts(heard, gpu, share), self.owner_of))
        quota = self.quotas if self.quotas is not None else quota_of(gpus)
        self._publish(Snapshot(gpus, workloads, nodes, quota, self.vgpus), changed=self._explanations.forget())

    def turns_from(self, gpu: str, query: Callable[[str], Mapping[str, GpuTurns]]) -> Turns | None:
        """The last minute of a GPU with the ledger's names; `query` returns the turns on a node's GPUs."""
        node = next((shown.node for shown in self._snapshot.gpus if shown.uuid == gpu), None)
        found = query(node).get(gpu) if node is not None else None
        return None if found is None else turns_of(gpu, found, time.time(), self.names_on(gpu))

    def turns(self, gpu: str) -> Turns | None:
        """See `StatusSource`."""
        return None

    def names_on(self, gpu: str) -> dict[str, str]:
        """The tenants of a GPU, as its node's agent calls them: `namespace/pod/container` to the ledger's name."""
        known = next((each for each in self._snapshot.gpus if each.uuid == gpu), None)
        return {tenant_key(share.tenant): share.tenant for share in known.shares} if known is not None else {}

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
                barred = self._barred_for(name)
                found = [self._explanations.explain(ask, workload.namespace, barred) for ask in asks]
                first = min(found, key=lambda each: each.placement is not None)
                return shown(name, first, workload.message)
        placed = self._workload(name)
        if placed is None:
            return None
        where = " and ".join(f"GPU {piece.index} of {piece.node}" for piece in placed.pieces)
        return Explanation(name, f"{name} is on {where}.")

    def try_request(self, request: GpuRequest) -> Trial:
        """See `StatusSource`."""
        return trial(self._explanations.explain(Ask(request)), self._snapshot.gpus)

    def _barred_for(self, name: str) -> Mapping[str, str]:
        """The nodes that a waiting workload may not go to, and why, as they were at most `COPY_S` ago."""
        now_s = time.monotonic()
        if now_s >= self._barred_until_s:
            self._barred, self._barred_until_s = {}, now_s + COPY_S
        if name not in self._barred:
            self._barred[name] = self.barred(name)
        return self._barred[name]

    def _node(self, cluster: Cluster, name: str) -> tuple[int, list[Gpu]]:
        number = cluster.index[name]
        version = int(cluster.version[number])
        known = self._nodes.get(name)
        if known is not None and known[0] == version:
            return known
        spec = cluster.spec(number)
        if spec.topology is not None:
            self._topologies[name] = spec.topology
        return version, ledger_gpus(cluster, name, lambda tenant: tenant.startswith(CLOSED))


class SchedulerSource(ClusterSource):
    """The source of a running scheduler program; it is made in the program's loop, and `run` keeps it current.

    `agents` polls the nodes' agents; without it no use is measured.
    """

    def __init__(
        self, scheduler: Scheduler, title: str, recorder: Recorder | None = None, agents: AgentThread | None = None
    ) -> None:
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self.agents = agents
        super().__init__(scheduler.ledger.decider, title=title, while_still=self._in_loop, recorder=recorder)
        self.standing, self.owner_of = standings(scheduler.pods), owners(scheduler.pods)
        self.barred = self._barred_nodes

    async def run(self) -> None:
        """Read once a second, less often while no page is open; a reading takes no more than a fifth of the time.

        Only what must not change meanwhile is read in the program's loop.
        """
        addresses_s = -math.inf
        while True:
            began_s = time.monotonic()
            try:
                rest = self.read_program(time.time())
                if self.agents is not None:
                    poller, settings = self.agents.agents, self._scheduler.settings
                    if began_s - addresses_s >= ADDRESSES_S:
                        addresses_s = began_s
                        poller.places = agent_addresses(
                            self._scheduler.pods, namespace=settings.namespace, port=settings.web_agent_port
                        )
                    self.measured, self.silent = poller.measured, poller.silent
                    self.answered_at_s = poller.answered_at_s
                ledger = self.read_ledger()
                await asyncio.to_thread(rest)
                await asyncio.to_thread(self.show, ledger, began_s)
            except Exception as error:
                _LOG.defect("reading the ledger failed", error)
            now_s = time.monotonic()
            await self._pause(now_s + READ_PART * (now_s - began_s), began_s + UNSEEN_READ_S)

    def read_program(self, now_s: float) -> Callable[[], None]:
        """Read the program's facts besides its ledger; returns the rest of the work, which may run in any thread."""
        scheduler = self._scheduler
        waiting = [pod for pod in scheduler.pods if _waits(pod)]
        bounds = [quota for held in scheduler.quotas for quota in quotas_of(held)]
        quotas = quota_lines(scheduler.ledger.cluster, bounds)
        vgpus = list(scheduler.operator.pool.known)

        def rest() -> None:
            self.waiting = list(waiting_pods(waiting, scheduler.binder.dialects, scheduler.ledger.known, now_s))
            self.quotas = quotas
            self.vgpus = Pool(scheduler.settings.pool, [vgpu_facts(vgpu) for vgpu in vgpus])

        return rest

    def turns(self, gpu: str) -> Turns | None:
        """See `StatusSource`; from the agent of its node."""
        return None if self.agents is None else self.turns_from(gpu, self.agents.turns)

    async def _pause(self, rested_s: float, max_s: float) -> None:
        """Wait until `rested_s`, for at least a second; while no page is open, until `max_s`."""
        while True:
            await asyncio.sleep(READ_S)
            now_s = time.monotonic()
            if now_s >= rested_s and (now_s >= max_s or now_s - self.asked_s < UNSEEN_S):
                return

    def _in_loop(self, work: Callable[[], Any]) -> Any:
        """The result of a function that runs in the program's loop, where the ledger does not change meanwhile."""
        hop: Future[Any] = Future()

        def run_there() -> None:
            if hop.set_running_or_notify_cancel():
                try:
                    hop.set_result(work())
                except Exception as error:
                    hop.set_exception(error)

        self._loop.call_soon_threadsafe(run_there)
        try:
            return hop.result(HOP_S)
        finally:
            hop.cancel()  # no work is left behind if the loop did not get to it

    def _barred_nodes(self, key: str) -> Mapping[str, str]:
        """The nodes that a pod may not go to; none for one that is gone or cannot be read."""
        scheduler = self._scheduler

        def closed() -> Callable[[], dict[str, str]] | None:
            pod = scheduler.pods.get(key)
            try:
                request = read(pod, scheduler.binder.dialects) if pod is not None else None
            except BadPod:
                return None
            if pod is None or request is None:
                return None
            return closed_nodes(scheduler.ledger, request, pod, scheduler.nodes, scheduler.pods)

        find = self._in_loop(closed)
        return {} if find is None else cast(dict[str, str], find())


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
        with self._lock:
            found: PlacementExplanation | None = self._while_still(lambda: self._look(ask, namespace, barred))
            if found is not None:
                return found
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

    def _look(self, ask: Ask, namespace: str, barred: Mapping[str, str]) -> PlacementExplanation | None:
        found = explain_fitting(self._decider, ask, namespace, barred)
        began_s = self._clock()
        if found is None and (self._copy is None or began_s >= self._good_until_s):
            self._copy = self._decider.cluster.copy()
            self._waiting.clear()
            now_s = self._clock()
            self._good_until_s = now_s + max(COPY_S, COPY_PART * (now_s - began_s))
        return found


def _with_measures(gpu: Gpu, node: NodeMeasure | None) -> Gpu:
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
        reported_as=tenant_key,
    )
    return msgspec.structs.replace(found, healthy=not now.unhealthy, bypassing=now.bypassing, sensors=now.sensors)


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


def waiting_pods(
    pods: Iterable[Pod], dialects: Mapping[str, Dialect], known: ClusterDevices, now_s: float
) -> Iterator[tuple[Workload, Sequence[Ask]]]:
    """Pods without a node that request GPUs, each with its requests and kube-scheduler's last message."""
    for pod in pods:
        if not _waits(pod):
            continue
        try:
            asked = read(pod, dialects)
        except BadPod:
            continue
        units = asked.units(known) if asked else ()
        if asked is None or not units:
            continue
        request = sum(unit.ask.milli for unit in units)
        limit = sum(unit.ask.ceiling_milli for unit in units)
        said = next((c.message for c in pod.status.conditions if c.type == "PodScheduled"), "")
        yield (
            Workload(asked.key, _kind_of(pod), PENDING, request, limit, [], pod.metadata.age_s(now_s), message=said),
            [unit.ask for unit in units],
        )


def _waits(pod: Pod) -> bool:
    return not (pod.spec.node_name or pod.ended)


def standings(pods: Reflector[Pod]) -> Callable[[str], Standing]:
    """How each pod with a place stands, by its key; its age in steps, so that a page is not new every second."""

    def standing(key: str) -> Standing:
        pod = pods.get(key)
        if pod is None or not pod.spec.node_name:  # its binding is under way
            return Standing(state=SCHEDULED)
        age_s = pod.metadata.age_s(time.time()) // AGE_STEP_S * AGE_STEP_S
        statuses = [*pod.status.init_container_statuses, *pod.status.container_statuses]
        message = next((why for status in statuses if (why := status.detail.message)), pod.status.message)
        message = message or pod.share_missing
        return Standing(_kind_of(pod), pod.state, age_s, pod.restarts, message)

    return standing


def _kind_of(pod: Pod) -> WorkloadKind:
    return "SharePod" if any(owner.kind == SHAREPODS.kind for owner in pod.metadata.owner_references) else "Pod"


def owners(pods: Reflector[Pod]) -> Callable[[str], str]:
    """The controller by tenant; of a ReplicaSet that a Deployment has made, the Deployment."""

    def owner_of(tenant: str) -> str:
        key = tenant.rpartition("/")[0]
        pod = pods.get(key)
        return controller_of(pod) if pod is not None else f"Pod/{split_key(key)[1]}"

    return owner_of


def controller_of(pod: Pod) -> str:
    """Kind and name of what has made a pod, or the pod itself."""
    meta = pod.metadata
    owner = next((each for each in meta.owner_references if each.controller), None)
    if owner is None:
        return f"Pod/{meta.name}"
    suffix = "-" + meta.labels.get("pod-template-hash", "")
    if owner.kind == "ReplicaSet" and len(suffix) > 1 and owner.name.endswith(suffix):
        return f"Deployment/{owner.name.removesuffix(suffix)}"
    return f"{owner.kind}/{owner.name}"


def quota_lines(cluster: Cluster, bounds: Iterable[Quota]) -> list[QuotaLine]:
    """Every bound with its use; a bound for all models is a line with the model `any`."""
    lines = []
    for bound in bounds:
        if bound.forbids:
            continue
        milli, mib = bound.counted(cluster.usage(bound.namespace))
        lines.append(QuotaLine(bound.namespace, bound.model or "any", milli, mib, bound.milli, bound.memory_mib))
    return sorted(lines, key=lambda line: (line.namespace, line.model))


def vgpu_facts(vgpu: VGPU) -> Vgpu:
    """A vGPU from its status."""
    status = vgpu.status
    return Vgpu(
        name=vgpu.metadata.name,
        node=vgpu.spec.node_name,
        phase=status.phase or "Creating",
        uuid=status.uuid,
        model=status.model or vgpu.spec.model,
        used_milli=_or_zero(parse_milli, status.requested)
        or sum(_or_zero(parse_milli, a.request) for a in status.attached),
        memory_mib=_mib(status.memory),
        memory_used_mib=sum(_mib(attached.memory) for attached in status.attached),
        attached=[attached.tenant for attached in status.attached],
    )


def _or_zero(parse: Callable[[str], int], text: str) -> int:
    try:
        return parse(text) if text else 0
    except BadQuantity:
        return 0


def _mib(text: str) -> int:
    return _or_zero(lambda words: parse_memory(words).on(MILLI), text)
