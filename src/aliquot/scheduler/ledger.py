"""The scheduler's ledger: the nodes and the holders of their GPUs, kept up to date from the API server.

The API server is the truth, the ledger is derived: a pod's plan annotation says what it holds, and while it is
resized, what else may be in force. From a pod's bind on, before the watch shows the pod bound, an *allocation* keeps
its share. One pod may have allocations on several nodes while it is not known which of its binds arrived; then all but
the right one are forgotten.

Nothing here waits or does I/O; every method leaves the ledger consistent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from aliquot.kube.claims import ResourceClaim, claim_called, holder_of
from aliquot.kube.inventory import BadInventory, KernelLengthTracker, read_inventory
from aliquot.kube.names import GPUS
from aliquot.kube.objects import Node, Pod
from aliquot.kube.plan import Applied, BadPlan, PodPlan, larger, read_applied, read_plan
from aliquot.kube.reflector import Change
from aliquot.kube.requests import ClusterDevices, PodAsk
from aliquot.lib.bounded import Bounded
from aliquot.lib.log import Logger
from aliquot.model.requests import BadRequest
from aliquot.placement.cluster import Cluster
from aliquot.placement.codes import Code, UnmetConstraint
from aliquot.placement.decide import Decider
from aliquot.placement.entries import LedgerError, NodeSpec
from aliquot.placement.policy import POLICIES, Policy
from aliquot.placement.quota import QuotaExceeded
from aliquot.placement.read_model import ledger_gpu, ledger_gpus
from aliquot.placement.sentences import text_of
from aliquot.scheduler.allocations import (
    CLOSED,
    Allocation,
    closed_device,
    keeps_closed,
    pod_plan,
    reservations,
    why_not,
    why_not_resized,
    with_memory,
)
from aliquot.status.gpus import Gpu

log = Logger("scheduler")
_SEEN_MOST: Final = 100_000
UNKNOWN_NODE: Final = UnmetConstraint(Code.NODE_UNKNOWN, lasting=True)
FAULTY_NODE: Final = UnmetConstraint(Code.NODE_FAULTY, lasting=True)


class NodeFull(Exception):
    """The node cannot take the pod now, or never if it is `lasting`; the text gives the reason."""

    def __init__(self, why: str, lasting: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting


@dataclass
class Ledger:
    """Nodes, pods and allocations over one placement cluster."""

    policy: Policy
    seed: int = 0
    cluster: Cluster = field(default_factory=Cluster)
    allocations: dict[str, list[Allocation]] = field(default_factory=dict)
    inconsistent: dict[str, str] = field(default_factory=dict)
    """Pods (uid) whose plan does not fit the ledger, and why: another scheduler allocated what was taken."""
    claims: dict[str, ResourceClaim] = field(default_factory=dict)
    """All ResourceClaims, by `namespace/name`."""
    faulty: dict[str, str] = field(default_factory=dict)
    """Nodes whose inventory cannot be read, and why."""
    closed: set[str] = field(default_factory=set)
    """Devices (UUID) that accept no new tenants."""
    next_tried: Bounded[str, int] = field(default_factory=lambda: Bounded(_SEEN_MOST))
    """By pod (uid), the index of the node to begin with where nodes have to be tried and not all were."""
    _by_node: dict[str, dict[Allocation, None]] = field(default_factory=dict)
    """The same allocations, by node."""
    _duplicates: dict[str, Node] = field(default_factory=dict)
    """Nodes with a device that another node reports too; the first node is believed as long as it reports it."""
    _awaiting_node: dict[str, dict[str, Pod]] = field(default_factory=dict)
    _inventories: dict[str, str] = field(default_factory=dict)
    _ranks: int = 0
    _known: ClusterDevices | None = None
    _seen: Bounded[str, None] = field(default_factory=lambda: Bounded(_SEEN_MOST))

    def __post_init__(self) -> None:
        self.decider = Decider(self.cluster, self.policy, self.seed)
        self._kernel_lengths = KernelLengthTracker(self.cluster.measured)

    # What the API server says

    def node_changed(self, change: Change[Node]) -> None:
        """A node was added, changed or deleted."""
        node = change.object
        name = node.metadata.name
        self._kernel_lengths.take(node, gone=change.kind == "deleted")
        text = node.metadata.annotations.get(GPUS, "") if change.kind != "deleted" else ""
        if text == self._inventories.get(name, ""):
            if name in self._duplicates:
                self._duplicates[name] = node
            self._cordon(node)
            return
        self._inventory_changed(node, text)
        for other in [node for duplicate, node in self._duplicates.items() if duplicate != name]:
            self._inventory_changed(other, self._inventories[other.metadata.name])

    def pod_changed(self, change: Change[Pod]) -> None:
        """A pod was added, changed or deleted."""
        pod, uid = change.object, change.object.metadata.uid
        if change.kind == "deleted" or pod.ended:
            self._drop_all(uid)
            self.inconsistent.pop(uid, None)
            self._seen.pop(uid, None)
            waiting = self._awaiting_node.get(pod.spec.node_name, {})
            if waiting.pop(uid, None) is not None and not waiting:
                del self._awaiting_node[pod.spec.node_name]
        elif pod.spec.node_name:
            self._bound(pod)

    def claim_changed(self, change: Change[ResourceClaim]) -> None:
        """A ResourceClaim was added, changed or deleted: its devices are held as a bound pod's plan would hold them."""
        self.claims[change.object.metadata.key] = change.object
        if change.kind == "deleted":
            del self.claims[change.object.metadata.key]
        now = holder_of(change.object) if change.kind != "deleted" else None
        before = holder_of(change.old or change.object)
        if before is not None and (now is None or now.spec.node_name != before.spec.node_name):
            self.pod_changed(Change("deleted", before))
        elif change.kind == "deleted":  # what was reserved for it was never written
            self._drop_all(change.object.metadata.uid)
        if now is not None:
            self.pod_changed(Change(change.kind, now))

    def claim_of(self, name: str) -> ResourceClaim | None:
        """The claim that a tenant or a workload is of; None for those of pods."""
        return claim_called(name, self.claims)

    def _cordon(self, node: Node) -> None:
        name, cordoned = node.metadata.name, node.spec.unschedulable
        if name in self.cluster.index and bool(self.cluster.open[self.cluster.node_index(name)]) == cordoned:
            self.cluster.set_cordoned(name, cordoned)

    def _inventory_changed(self, node: Node, text: str) -> None:
        """Remove the node and add it again with its pods."""
        name = node.metadata.name
        self._known = None
        self.faulty.pop(name, None)
        self._duplicates.pop(name, None)
        staying = self.on_node(name)
        if name in self.cluster.index:
            for allocation in staying:
                self._release(allocation)
            self.cluster.remove_node(name)
        self._inventories.pop(name, None)
        if not text:
            return
        self._inventories[name] = text
        try:
            inventory = read_inventory({GPUS: text})
            assert inventory is not None
            self._ranks += 1
            # Devices that are not healthy stay, since pods may hold parts of them, and take no new ones.
            unhealthy = frozenset(inventory.unhealthy)
            self.cluster.add_node(
                NodeSpec(name, inventory.devices, topology=inventory.topology, rank=self._ranks, unhealthy=unhealthy)
            )
        except (BadInventory, LedgerError) as error:
            self.faulty[name] = str(error)
            if isinstance(error, LedgerError):
                self._duplicates[name] = node
            log.warning("node %s takes no pods: %s", name, error)
            return
        self._cordon(node)
        for allocation in staying:
            self._reserve(allocation)
        for device in inventory.devices:
            if device.uuid in self.closed:
                self.close(device.uuid)
        for pod in self._awaiting_node.pop(name, {}).values():
            self._bound(pod)

    def _bound(self, pod: Pod) -> None:
        """The pod is on a node: it holds what its plan says, and nothing else."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        try:
            plan = read_plan(pod.metadata.annotations)
        except BadPlan as error:
            self.inconsistent[uid] = str(error)
            return
        if plan is None:
            self._drop_all(uid)
            return
        plan = plan.reserved(read_applied(pod.metadata.annotations))
        right: Allocation | None = None
        for allocation in self.allocations.get(uid, []):
            same = allocation.plan == plan or allocation.confirmed
            if allocation.node == node and same and right is None:
                right = allocation
            else:
                self.forget(allocation)
        if right is not None and right.plan != plan and right.resized_from != pod.metadata.resource_version:
            self._replan(right, plan)
        if right is not None and right.tenants:
            self.inconsistent.pop(uid, None)
        if right is None:
            if node not in self.cluster.index:
                self._awaiting_node.setdefault(node, {})[uid] = pod
                return
            right = Allocation(uid, pod.metadata.key, node, plan, (), 0.0, initialized=pod.status.initialized)
            self._reserve(right)
            self._add(right)
        right.confirmed, right.in_doubt, right.assumed = True, False, False
        if right.initialized or not pod.status.initialized:
            return
        # What only the init containers had is released; they run again only where the pod restarts on its node.
        before = {tenant for tenant, _, _ in reservations(right)}
        right.initialized = True
        ended = before - {tenant for tenant, _, _ in reservations(right)}
        if leaving := [name for name in right.tenants if name.partition("@")[0] in ended]:
            for name in leaving:
                self.cluster.release(name)
            right.tenants = tuple(name for name in right.tenants if name not in leaving)
            self._reserve_inconsistent(node)

    def _add(self, allocation: Allocation) -> None:
        self.allocations.setdefault(allocation.uid, []).append(allocation)
        self._by_node.setdefault(allocation.node, {})[allocation] = None

    def _drop_all(self, uid: str) -> None:
        for allocation in self.allocations.get(uid, []):
            self.forget(allocation)

    def _reserve(self, allocation: Allocation) -> None:
        """Reserve what a plan says; a plan that does not fit is recorded as inconsistent and reserves nothing."""
        tenants: list[str] = []
        try:
            for tenant, placement, ask in reservations(allocation):
                name = self._free_name(tenant, allocation.uid)
                self.cluster.reserve(name, with_memory(self.cluster, placement), ask)
                tenants.append(name)
        except (LedgerError, BadRequest) as error:
            for name in tenants:
                self.cluster.release(name)
            tenants = []
            if self.inconsistent.get(allocation.uid) != str(error):
                log.warning("pod %s holds what the ledger does not have: %s", allocation.key, error)
            self.inconsistent[allocation.uid] = str(error)
        else:
            self.inconsistent.pop(allocation.uid, None)
        allocation.tenants = tuple(tenants)

    def _reserve_inconsistent(self, node: str) -> None:
        """A holder left: it may have kept another out, as when a list shows a pod before the end of the earlier one."""
        for allocation in self.on_node(node):
            if allocation.uid in self.inconsistent and not allocation.tenants:
                self._reserve(allocation)

    def _free_name(self, tenant: str, uid: str) -> str:
        number, name = 1, tenant
        while name in self.cluster.tenants:
            name = f"{tenant}@{uid[:8]}.{number}"
            number += 1
        return name

    def _replan(self, allocation: Allocation, plan: PodPlan) -> None:
        """Reserve another plan of the same pod on the same node."""
        for tenant in allocation.tenants:
            self.cluster.release(tenant)
        allocation.plan = plan
        self._reserve(allocation)
        self._reserve_inconsistent(allocation.node)

    def _release(self, allocation: Allocation) -> None:
        for tenant in allocation.tenants:
            self.decider.release(tenant)
        allocation.tenants = ()

    # What the scheduler does

    @property
    def known(self) -> ClusterDevices:
        """The models and devices of the cluster."""
        if self._known is None:
            specs = self.cluster.nodes
            models = sorted({device.model for spec in specs for device in spec.gpus})
            self._known = ClusterDevices(tuple(models), tuple(d.uuid for spec in specs for d in spec.gpus))
        return self._known

    def first_call(self, ask: PodAsk) -> bool:
        """Whether the extender is called for the pod for the first time, as far as is remembered."""
        uid = ask.uid or ask.key
        if uid in self._seen:
            return False
        self._seen[uid] = None
        return True

    def empty(self) -> Ledger:
        """A ledger without nodes, in which requests can be tried on nodes that need not exist."""
        return Ledger(POLICIES["binpack"]())

    def add_empty_node(self, spec: NodeSpec) -> None:
        """Add a node that need not exist, unless one of its name is here."""
        if spec.name not in self.cluster.index:
            self.cluster.add_node(spec)
            self._known = None

    def allocate(self, ask: PodAsk, node: str, now_s: float) -> Allocation:
        """Allocate the pod's share on a node, all of it or nothing.

        An allocation that the pod has there already is returned, so that the same bind again gives the same plan; it
        counts from now on, since a request that gives it away is about to be sent once more.

        Raises:
            NodeFull: it does not fit on the node (any more), or the namespace may have no more.
        """
        for allocation in self.allocations.get(ask.uid, []):
            if allocation.node == node:
                allocation.since_s, allocation.assumed = now_s, False
                return allocation
        if node not in self.cluster.index:
            raise NodeFull(f'node "{node}" {text_of(self.absent(node))}')
        units, refused = ask.units(self.known), [""]
        placements = self.decider.place_together(
            units, node, ask.namespace, lambda unit: refused.append(why_not(self.decider, unit, node, ask.namespace))
        )
        if placements is None:
            raise NodeFull(refused[-1])
        placed = list(zip(units, placements, strict=True))
        made = Allocation(
            ask.uid, ask.key, node, pod_plan(self.cluster, ask, node, placed, self.on_node(node)), (), now_s
        )
        asks = {unit.tenant: (placement.slices, unit.ask) for unit, placement in placed}
        try:
            for tenant, placement, part in reservations(made):
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

    def resize(self, allocation: Allocation, plan: PodPlan, *, dry_run: bool = False) -> None:
        """Reserve another size of a pod on its devices, and keep the size that it has until its node confirms.

        What grows is decided like a new request on the same devices; what only shrinks always fits.

        Raises:
            NodeFull: it does not fit; the text says what is missing and the smallest change that would help.
        """
        if any(larger(new, old) != old for new, old in zip(plan.slices, allocation.plan.slices, strict=True)):
            with self.cluster.trial():
                for tenant in allocation.tenants:
                    self.cluster.release(tenant)
                if refused := why_not_resized(self.decider, replace(allocation, plan=plan)):
                    raise NodeFull(*refused)
        if not dry_run:
            self._replan(allocation, plan.reserved(Applied()))

    def forget(self, allocation: Allocation) -> None:
        """Forget an allocation whose bind failed, or whose pod ended."""
        self._release(allocation)
        left = [other for other in self.allocations.get(allocation.uid, []) if other is not allocation]
        if left:
            self.allocations[allocation.uid] = left
        else:
            self.allocations.pop(allocation.uid, None)
        here = self._by_node.get(allocation.node, {})
        here.pop(allocation, None)
        if not here:
            self._by_node.pop(allocation.node, None)
        self._reserve_inconsistent(allocation.node)

    def on_node(self, node: str) -> list[Allocation]:
        """The allocations on a node, in the order of their creation."""
        return list(self._by_node.get(node, ()))

    def close(self, uuid: str) -> bool:
        """Accept no new tenant on a device; False, and nothing changed, if it has one."""
        if uuid in self.cluster.uuids and f"{CLOSED}{uuid}" not in self.cluster.tenants:
            try:
                self.cluster.reserve(*closed_device(self.cluster, uuid))
            except LedgerError:
                return False
        self.closed.add(uuid)
        return True

    def reopen(self, uuid: str) -> None:
        """Let pods onto a closed device again."""
        self.closed.discard(uuid)
        holding = self.cluster.release(f"{CLOSED}{uuid}")
        if holding is not None:
            self._reserve_inconsistent(holding.placement.node)

    def absent(self, node: str) -> UnmetConstraint:
        """Why a node is not in the ledger."""
        fault = self.faulty.get(node)
        return replace(UNKNOWN_NODE if fault is None else FAULTY_NODE, node=node, label=fault or "")

    def gpu(self, uuid: str) -> Gpu | None:
        """A device by its UUID; None when no node has it."""
        cell = self.cluster.uuids.get(uuid)
        return None if cell is None else ledger_gpu(self.cluster, *cell, keeps_closed)

    def gpus(self, node: str = "") -> Iterator[Gpu]:
        """All devices, or those of a node, in the order of the ledger."""
        for name in [spec.name for spec in self.cluster.nodes] if not node else [node]:
            if name in self.cluster.index:
                yield from ledger_gpus(self.cluster, name, keeps_closed)
