"""The scheduler's ledger: the nodes and the holders of their GPUs, kept up to date from the API server.

The API server is the truth, the ledger is derived: a pod's plan annotation says what it holds. Between the moment a
share is promised and the moment the watch shows the pod bound, a *hold* keeps it; one pod may have holds on several
nodes while it is not known which of its binds arrived, and all but the right one are removed when it is known.

Nothing here waits or does I/O; every method leaves the ledger consistent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from aliquot.driver.cores import least_used
from aliquot.kube.inventory import BadInventory, Inventory, read_inventory
from aliquot.kube.names import GPUS
from aliquot.kube.objects import Node, Pod
from aliquot.kube.plan import BadPlan, ContainerPlan, PodPlan, read_plan
from aliquot.kube.reflector import Change
from aliquot.kube.requests import ClusterDevices, PlacementUnit, PodAsk
from aliquot.lib.bounded import Bounded
from aliquot.lib.log import Logger
from aliquot.model.ids import GpuUuid, split_key
from aliquot.model.quantities import MILLI
from aliquot.model.requests import BadRequest, GpuRequest, Slice
from aliquot.placement.asks import Ask
from aliquot.placement.books import LedgerError, NodeSpec, Placement
from aliquot.placement.cluster import Cluster
from aliquot.placement.codes import Code, UnmetConstraint
from aliquot.placement.decide import Decider
from aliquot.placement.policy import Policy
from aliquot.placement.quota import QuotaExceeded
from aliquot.placement.reasons import judge
from aliquot.placement.sentences import refusal, sentence_of, text_of
from aliquot.scheduler.fitting import fit
from aliquot.scheduler.holds import Hold, tenancies
from aliquot.scheduler.measures import Measures

log = Logger("scheduler")
_SEEN_MOST: Final = 100_000
_DEVICES_SHOWN: Final = 8
UNKNOWN_NODE: Final = UnmetConstraint(Code.NODE_UNKNOWN, lasting=True)
FAULTY_NODE: Final = UnmetConstraint(Code.NODE_FAULTY, lasting=True)
CLOSED: Final = "~closed/"
"""Tenants with this prefix are not pods: they keep devices that are about to leave the pool."""


class NodeFull(Exception):
    """The node cannot take the pod now; the text gives the reason."""


@dataclass
class Books:
    """Nodes, pods and holds over one placement cluster."""

    policy: Policy
    seed: int = 0
    cluster: Cluster = field(default_factory=Cluster)
    holds: dict[str, list[Hold]] = field(default_factory=dict)
    strays: dict[str, str] = field(default_factory=dict)
    """Pods (uid) whose plan does not fit the ledger, and why: another scheduler allocated what was taken."""
    faulty: dict[str, str] = field(default_factory=dict)
    """Nodes whose inventory cannot be read, and why."""
    closed: set[str] = field(default_factory=set)
    """Devices (UUID) that accept no new tenants."""
    _on: dict[str, dict[Hold, None]] = field(default_factory=dict)
    """The same holds, by node."""
    _twins: dict[str, Node] = field(default_factory=dict)
    """Nodes with a device that another node reports too; the first node is believed as long as it reports it."""
    _homeless: dict[str, dict[str, Pod]] = field(default_factory=dict)
    _inventories: dict[str, str] = field(default_factory=dict)
    _ranks: int = 0
    _known: ClusterDevices | None = None
    _seen: Bounded[str, None] = field(default_factory=lambda: Bounded(_SEEN_MOST))

    def __post_init__(self) -> None:
        self.decider, self._measures = Decider(self.cluster, self.policy, self.seed), Measures(self.cluster.measured)

    # What the API server says

    def node_changed(self, change: Change[Node]) -> None:
        """A node was added, changed or deleted."""
        node = change.object
        name = node.metadata.name
        self._measures.take(node, gone=change.kind == "deleted")
        text = node.metadata.annotations.get(GPUS, "") if change.kind != "deleted" else ""
        if text == self._inventories.get(name, ""):
            if name in self._twins:
                self._twins[name] = node
            self._cordon(node)
            return
        self._inventory_changed(node, text)
        for twin in [twin for other, twin in self._twins.items() if other != name]:
            self._inventory_changed(twin, self._inventories[twin.metadata.name])

    def pod_changed(self, change: Change[Pod]) -> None:
        """A pod was added, changed or deleted."""
        pod = change.object
        if change.kind == "deleted" or pod.ended:
            self._forget(pod)
        elif pod.spec.node_name:
            self._bound(pod)

    def _cordon(self, node: Node) -> None:
        name, cordoned = node.metadata.name, node.spec.unschedulable
        if name in self.cluster.index and bool(self.cluster.open[self.cluster.node_index(name)]) == cordoned:
            self.cluster.set_cordoned(name, cordoned)

    def _inventory_changed(self, node: Node, text: str) -> None:
        """Strike the node out and write it in again with its pods."""
        name = node.metadata.name
        self._known = None
        self.faulty.pop(name, None)
        self._twins.pop(name, None)
        staying = self._strike_out(name)
        self._inventories.pop(name, None)
        if not text:
            return
        self._inventories[name] = text
        try:
            inventory = read_inventory({GPUS: text})
            assert inventory is not None
            self.cluster.add_node(self._spec(name, inventory))
        except (BadInventory, LedgerError) as error:
            self.faulty[name] = str(error)
            if isinstance(error, LedgerError):
                self._twins[name] = node
            log.warning("node %s takes no pods: %s", name, error)
            return
        self._cordon(node)
        for hold in staying:
            self._write_hold(hold)
        for device in inventory.devices:
            if device.uuid in self.closed:
                self.close(device.uuid)
        for pod in self._homeless.pop(name, {}).values():
            self._bound(pod)

    def _spec(self, name: str, inventory: Inventory) -> NodeSpec:
        """Devices that are not healthy stay, since pods may hold parts of them, and take no new ones."""
        self._ranks += 1
        unhealthy = frozenset(inventory.unhealthy)
        return NodeSpec(name, inventory.devices, topology=inventory.topology, rank=self._ranks, unhealthy=unhealthy)

    def _strike_out(self, name: str) -> list[Hold]:
        """Remove a node from the ledger; returns the holds that were on it."""
        found = self.on_node(name)
        if name in self.cluster.index:
            for hold in found:
                self._release(hold)
            self.cluster.remove_node(name)
        return found

    def _forget(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self._drop_all(uid)
        self.strays.pop(uid, None)
        self._seen.pop(uid, None)
        self._at_home(pod)

    def _at_home(self, pod: Pod) -> None:
        """The pod waits for its node no more."""
        waiting = self._homeless.get(pod.spec.node_name, {})
        if waiting.pop(pod.metadata.uid, None) is not None and not waiting:
            del self._homeless[pod.spec.node_name]

    def _bound(self, pod: Pod) -> None:
        """The pod is on a node: it holds what its plan says, and nothing else."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        try:
            plan = read_plan(pod.metadata.annotations)
        except BadPlan as error:
            self.strays[uid] = str(error)
            return
        if plan is None:
            self._drop_all(uid)
            return
        right: Hold | None = None
        for hold in self.holds.get(uid, []):
            if hold.node == node and hold.plan == plan and right is None:
                right = hold
            else:
                self.let_go(hold)
        if right is not None and right.tenants:
            self.strays.pop(uid, None)
        if right is None:
            if node not in self.cluster.index:
                self._homeless.setdefault(node, {})[uid] = pod
                return
            right = Hold(uid, pod.metadata.key, node, plan, (), 0.0, initialized=pod.status.initialized)
            self._write_hold(right)
            self._add(right)
        right.settled, right.doubtful, right.assumed = True, False, False
        if not right.initialized and pod.status.initialized:
            self._init_ended(right)

    def _add(self, hold: Hold) -> None:
        self.holds.setdefault(hold.uid, []).append(hold)
        self._on.setdefault(hold.node, {})[hold] = None

    def _drop_all(self, uid: str) -> None:
        for hold in self.holds.get(uid, []):
            self.let_go(hold)

    def _write_hold(self, hold: Hold) -> None:
        """Record a hold by its plan; a plan that does not fit is recorded as inconsistent and holds nothing."""
        tenants: list[str] = []
        try:
            for tenant, placement, ask in tenancies(hold):
                name = self._free_name(tenant, hold.uid)
                self.cluster.reserve(name, placement, ask)
                tenants.append(name)
        except (LedgerError, BadRequest) as error:
            for name in tenants:
                self.cluster.release(name)
            tenants = []
            if self.strays.get(hold.uid) != str(error):
                log.warning("pod %s holds what the books do not have: %s", hold.key, error)
            self.strays[hold.uid] = str(error)
        else:
            self.strays.pop(hold.uid, None)
        hold.tenants = tuple(tenants)

    def _init_ended(self, hold: Hold) -> None:
        """Release what only the init containers had; they run again only where the pod restarts on its node."""
        before = {tenant for tenant, _, _ in tenancies(hold)}
        hold.initialized = True
        gone = before - {tenant for tenant, _, _ in tenancies(hold)}
        leaving = [name for name in hold.tenants if name.partition("@")[0] in gone]
        for name in leaving:
            self.cluster.release(name)
        hold.tenants = tuple(name for name in hold.tenants if name not in leaving)
        if leaving:
            self._seat_strays(hold.node)

    def _seat_strays(self, node: str) -> None:
        """A holder left: it may have kept another out, as when a list shows a pod before the end of the earlier one."""
        for hold in self.on_node(node):
            if hold.uid in self.strays and not hold.tenants:
                self._write_hold(hold)

    def _free_name(self, tenant: str, uid: str) -> str:
        number, name = 1, tenant
        while name in self.cluster.tenants:
            name = f"{tenant}@{uid[:8]}.{number}"
            number += 1
        return name

    def _release(self, hold: Hold) -> None:
        for tenant in hold.tenants:
            self.decider.release(tenant)
        hold.tenants = ()

    # What the scheduler does

    @property
    def known(self) -> ClusterDevices:
        """The models and devices of the cluster."""
        if self._known is None:
            specs = self.cluster.nodes
            models = sorted({device.model for spec in specs for device in spec.gpus})
            self._known = ClusterDevices(tuple(models), tuple(d.uuid for spec in specs for d in spec.gpus))
        return self._known

    def first_sight(self, ask: PodAsk) -> bool:
        """Whether the extender is called for the pod for the first time, as far as is remembered."""
        uid = ask.uid or ask.key
        if uid in self._seen:
            return False
        self._seen[uid] = None
        return True

    def suppose(self, node: Node) -> None:
        """Take a node in that need not exist, empty."""
        self.node_changed(Change("added", node))

    def suppose_like(self, others: Books, name: str) -> None:
        """Add an empty node of another ledger."""
        if name in others.cluster.index and name not in self.cluster.index:
            self.cluster.add_node(others.cluster.spec(others.cluster.node_index(name)))
            self._known = None

    def hold(self, ask: PodAsk, node: str, now_s: float) -> Hold:
        """Assume the pod's share on a node, all of it or nothing.

        A hold that the pod has there already is returned, so that the same bind again gives the same plan; it counts
        from now on, since a request that gives it away is about to be sent once more.

        Raises:
            NoRoom: it does not fit on the node (any more), or the namespace may have no more.
        """
        for known in self.holds.get(ask.uid, []):
            if known.node == node:
                known.since_s, known.assumed = now_s, False
                return known
        if node not in self.cluster.index:
            raise NodeFull(f'node "{node}" {text_of(self.absent(node))}')
        namespace = split_key(ask.key)[0]
        seats, reasons = ask.seats(self.known), [""]
        placed = fit(
            self.decider, seats, node, namespace, lambda seat: reasons.append(self._why(node, seat, namespace))
        )
        if placed is None:
            raise NodeFull(reasons[-1])
        made = Hold(ask.uid, ask.key, node, self._plan(ask, node, list(zip(seats, placed, strict=True))), (), now_s)
        asks = {seat.tenant: (found.slices, seat.ask) for seat, found in zip(seats, placed, strict=True)}
        try:
            for tenant, placement, part in tenancies(made):
                slices, whole = asks[tenant]
                name = self._free_name(tenant, ask.uid)
                self.decider.commit(name, placement, whole if placement.slices == slices else part)
                made.tenants += (name,)
        except (LedgerError, QuotaExceeded) as error:
            for name in made.tenants:
                self.cluster.release(name)
            raise NodeFull(str(error)) from None
        self._add(made)
        return made

    def let_go(self, hold: Hold) -> None:
        """Forget an assumed share whose bind failed, or which ended."""
        self._release(hold)
        left = [other for other in self.holds.get(hold.uid, []) if other is not hold]
        if left:
            self.holds[hold.uid] = left
        else:
            self.holds.pop(hold.uid, None)
        here = self._on.get(hold.node, {})
        here.pop(hold, None)
        if not here:
            self._on.pop(hold.node, None)
        self._seat_strays(hold.node)

    def on_node(self, node: str) -> list[Hold]:
        """The holds on a node, in the order of their creation."""
        return list(self._on.get(node, ()))

    def close(self, uuid: str) -> bool:
        """Accept no new tenant on a device; False, and nothing changed, if it has one."""
        cell = self.cluster.uuids.get(uuid)
        if cell is not None and f"{CLOSED}{uuid}" not in self.cluster.tenants:
            spec = self.cluster.spec(cell[0])
            whole = Slice(GpuUuid(uuid), MILLI, MILLI, spec.gpus[cell[1]].memory_mib)
            try:
                self.cluster.reserve(f"{CLOSED}{uuid}", Placement(spec.name, (whole,)), Ask(GpuRequest(MILLI, MILLI)))
            except LedgerError:
                return False
        self.closed.add(uuid)
        return True

    def reopen(self, uuid: str) -> None:
        """Let pods onto a closed device again."""
        self.closed.discard(uuid)
        holding = self.cluster.release(f"{CLOSED}{uuid}")
        if holding is not None:
            self._seat_strays(holding.placement.node)

    def unsettled(self, before_s: float) -> list[Hold]:
        """Holds from before a moment whose pods are not confirmed as bound."""
        return [h for holds in self.holds.values() for h in holds if not h.settled and h.since_s < before_s]

    def _why(self, node: str, seat: PlacementUnit, namespace: str) -> str:
        verdict = judge(self.cluster, seat.ask, node, self.decider.quotas, namespace)
        if verdict.reason is None:
            return f'container "{seat.container}" fits on node "{node}" no more'
        devices = f" ({refusal(verdict, _DEVICES_SHOWN)})" if any(verdict.devices) else ""
        return f'container "{seat.container}": node {sentence_of(verdict.reason)}{devices}'

    def absent(self, node: str) -> UnmetConstraint:
        """Why a node is not in the ledger."""
        fault = self.faulty.get(node)
        return replace(UNKNOWN_NODE if fault is None else FAULTY_NODE, node=node, label=fault or "")

    def _plan(self, ask: PodAsk, node: str, held: list[tuple[PlacementUnit, Placement]]) -> PodPlan:
        found: dict[str, ContainerPlan] = {}
        for seat, placed in sorted(held, key=lambda h: (h[0].container, h[0].part)):
            before = found.get(seat.container)
            slices = (before.slices if before else ()) + placed.slices
            asked = ask.container(seat.container)
            assert asked is not None
            found[seat.container] = ContainerPlan(
                slices,
                self._cores(node, slices[0].gpu, seat.ask.near_cores, found.values()),
                seat.ask.labels if asked.parts > 1 else asked.request.labels,
                asked.request.gpu_id,
                asked.parts,
                enforce=asked.enforced,
                init=asked.init,
                wake_us=asked.request.wake_us,
            )
        for asked in ask.containers:
            if asked.uses:
                host = found[asked.uses]
                found[asked.container] = replace(host, uses=asked.uses, init=asked.init)
        return PodPlan(node, found)

    def _cores(self, node: str, gpu: str, count: int, given: Iterable[ContainerPlan]) -> tuple[int, ...]:
        """The requested number of cores near a GPU, the least bound first; `given` are not recorded yet."""
        number, g = self.cluster.uuids[gpu]
        topology = self.cluster.spec(number).topology
        if topology is None or not count:
            return ()
        booked = (plan for hold in self.on_node(node) for plan in hold.plan.containers.values() if not plan.uses)
        used = Counter(core for plan in chain(booked, given) for core in plan.cores)
        return tuple(sorted(least_used(topology.cores[g], count, used)))
