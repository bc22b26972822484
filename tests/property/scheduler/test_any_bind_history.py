"""The ledger in any history of binds whose answers may be lost, of nodes that go and come, and of crashes.

The truth is a plain API server: pods, where they are bound and by which plan, and the binds that are under way to it.
What the ledger has to hold is counted from that alone: each shown pod's plan, and each bind's that may still arrive.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kit.objects import node
from ledger import check

from aliquot.kube.dialects import read
from aliquot.kube.names import ANTI_AFFINITY, EXCLUSION, GPU_PERCENT, PLAN
from aliquot.kube.objects import Pod
from aliquot.kube.plan import PodPlan, read_plan, write_plan
from aliquot.kube.reflector import Change
from aliquot.model.ids import GpuUuid
from aliquot.placement.policy import policy
from aliquot.scheduler.allocations import Allocation
from aliquot.scheduler.ledger import Ledger, NodeFull

SIZE_MIB = 10_000
NODES = {"m": 1, "n": 2}
"""GPUs of each node."""
picks = st.integers(0, 1000)


@dataclass
class TruePod:
    """A pod as the API server has it."""

    uid: str
    percent: int
    anti_affinity: str
    exclusion: str
    node: str = ""
    plan: str = ""
    shown: bool = False

    def object(self) -> Pod:
        """The pod as a watch shows it."""
        notes = {ANTI_AFFINITY: self.anti_affinity, EXCLUSION: self.exclusion, PLAN: self.plan}
        document: dict[str, Any] = {
            "metadata": {
                "name": self.uid,
                "namespace": "default",
                "uid": self.uid,
                "annotations": {name: value for name, value in notes.items() if value},
            },
            "spec": {
                "containers": [{"name": "main", "resources": {"limits": {GPU_PERCENT: self.percent}}}],
                "nodeName": self.node,
            },
            "status": {"phase": "Running"},
        }
        return msgspec.convert(document, Pod)


@dataclass(eq=False)
class BindRequest:
    """A bind under way to the API server."""

    pod: TruePod
    allocation: Allocation
    plan: str = field(init=False)

    def __post_init__(self) -> None:
        self.plan = write_plan(self.allocation.plan)


class BindHistory(RuleBasedStateMachine):
    """The ledger beside a plain API server."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(policy("binpack"))
        self.nodes: set[str] = set()
        self.pods: list[TruePod] = []
        self.requests: list[BindRequest] = []
        self.allocations: dict[tuple[str, str], PodPlan] = {}
        """What the ledger has to hold, by pod and node."""
        self.count = 0

    @initialize()
    def begin(self) -> None:
        for name in NODES:
            self.tell_node("added", name)

    def tell_node(self, kind: str, name: str) -> None:
        (self.nodes.discard if kind == "deleted" else self.nodes.add)(name)
        self.ledger.node_changed(Change(kind, node(name, NODES[name], "V100", SIZE_MIB)))

    def on_gpu(self, uuid: str) -> list[tuple[int, TruePod]]:
        """The pods on a device, with their milli-GPU."""
        by_uid = {pod.uid: pod for pod in self.pods}
        return [
            (piece.request_milli, by_uid[uid])
            for (uid, _), plan in self.allocations.items()
            for given in plan.containers.values()
            for piece in given.slices
            if piece.gpu == uuid
        ]

    def has_room(self, pod: TruePod, name: str) -> bool:
        """Whether a device of the node has the compute, and no pod whose labels keep this one off."""
        for g in range(NODES[name]):
            residents = self.on_gpu(f"GPU-{name}-{g}")
            apart = any(
                other.exclusion != pod.exclusion or (pod.anti_affinity and other.anti_affinity == pod.anti_affinity)
                for _, other in residents
            )
            if sum(milli for milli, _ in residents) + 10 * pod.percent <= 1000 and not apart:
                return name in self.nodes
        return False

    def forget(self, pod: TruePod, node: str = "") -> None:
        """The model forgets a pod's allocations, or the one on a node."""
        for uid, name in list(self.allocations):
            if uid == pod.uid and node in ("", name):
                del self.allocations[uid, name]

    # Kube-scheduler and the binds that it asks for

    @rule(
        percent=st.sampled_from([10, 30, 50, 70, 100]),
        anti=st.sampled_from(["", "", "a"]),
        exclusion=st.sampled_from(["", "", "", "e"]),
        name=st.sampled_from(sorted(NODES)),
    )
    def create(self, percent: int, anti: str, exclusion: str, name: str) -> None:
        """A pod comes, and kube-scheduler chooses a node for it."""
        self.count += 1
        self.pods.append(TruePod(f"pod-{self.count}", percent, anti, exclusion))
        self.allocate(self.pods[-1], name)

    @precondition(lambda self: any(not pod.shown for pod in self.pods))
    @rule(pick=picks, name=st.sampled_from(sorted(NODES)))
    def bind_again(self, pick: int, name: str) -> None:
        """Kube-scheduler tries a pod again that it does not see bound, there or elsewhere."""
        waiting = [pod for pod in self.pods if not pod.shown]
        self.allocate(waiting[pick % len(waiting)], name)

    def allocate(self, pod: TruePod, name: str) -> None:
        """A share is allocated exactly where there is one; the same bind again keeps the one that it has."""
        ask = read(pod.object())
        assert ask is not None
        expected = (pod.uid, name) in self.allocations or self.has_room(pod, name)
        try:
            allocation = self.ledger.allocate(ask, name, 0.0)
        except NodeFull:
            assert not expected
            return
        assert expected and self.allocations.setdefault((pod.uid, name), allocation.plan) == allocation.plan
        allocation.in_doubt = True
        self.requests.append(BindRequest(pod, allocation))

    def take_request(self, pick: int) -> BindRequest:
        return self.requests.pop(pick % len(self.requests))

    @precondition(lambda self: self.requests)
    @rule(pick=picks, shown=st.booleans())
    def arrive(self, pick: int, shown: bool) -> None:
        """The API server binds a pod that is not bound yet; the ledger hears of it from the watch, now or later."""
        request = self.take_request(pick)
        if request.pod in self.pods and not request.pod.node:
            request.pod.node, request.pod.plan = request.allocation.node, request.plan
        if shown and request.pod in self.pods:
            self.show_pod(request.pod)

    @precondition(lambda self: self.requests)
    @rule(pick=picks)
    def lose(self, pick: int) -> None:
        """A request never arrives, and the ledger does not know."""
        self.take_request(pick)

    @precondition(lambda self: self.requests)
    @rule(pick=picks)
    def refuse(self, pick: int) -> None:
        """The API server refuses a bind while the pod is unbound: its allocation is forgotten."""
        request = self.take_request(pick)
        twin = any(other.allocation is request.allocation for other in self.requests)
        if request.pod in self.pods and not request.pod.node and not twin:
            self.ledger.forget(request.allocation)
            self.forget(request.pod, request.allocation.node)

    @precondition(lambda self: self.pods)
    @rule(pick=picks)
    def show(self, pick: int) -> None:
        """The watch shows a pod: where it is bound it holds what its plan says, and nothing elsewhere."""
        self.show_pod(self.pods[pick % len(self.pods)])

    def show_pod(self, pod: TruePod) -> None:
        self.ledger.pod_changed(Change("modified", pod.object()))
        if pod.node:
            pod.shown = True
            self.forget(pod)
            plan = read_plan({PLAN: pod.plan})
            assert plan is not None
            self.allocations[pod.uid, pod.node] = plan

    def unconfirmed(self) -> list[Allocation]:
        return [a for held in self.ledger.allocations.values() for a in held if not a.confirmed]

    @precondition(lambda self: self.unconfirmed())
    @rule()
    def settle(self) -> None:
        """Long unconfirmed allocations whose requests can arrive no more are looked up, and kept or forgotten."""
        under_way = [request.allocation for request in self.requests]
        for allocation in self.unconfirmed():
            pod = next((pod for pod in self.pods if pod.uid == allocation.uid), None)
            assert pod is not None
            if pod.node:
                self.show_pod(pod)
            elif allocation not in under_way:
                self.ledger.forget(allocation)
                self.forget(pod, allocation.node)

    # What ends

    @precondition(lambda self: self.pods)
    @rule(pick=picks)
    def end(self, pick: int) -> None:
        """A pod that is deleted holds nothing, whatever was under way for it."""
        pod = self.pods.pop(pick % len(self.pods))
        self.ledger.pod_changed(Change("deleted", pod.object()))
        self.forget(pod)

    @precondition(lambda self: any(name in self.nodes for _, name in self.allocations))
    @rule(pick=picks)
    def lose_node(self, pick: int) -> None:
        """A node goes that pods are on."""
        used = sorted({name for _, name in self.allocations} & self.nodes)
        self.tell_node("deleted", used[pick % len(used)])

    @precondition(lambda self: len(self.nodes) < len(NODES))
    @rule()
    def return_node(self) -> None:
        """A node comes back with what its pods hold."""
        self.tell_node("added", min(NODES.keys() - self.nodes))

    @precondition(lambda self: len(self.allocations) > 1)
    @rule(arrives=st.booleans())
    def crash(self, arrives: bool) -> None:
        """A new ledger that reads the API server anew holds what the one before held when all was settled."""
        while self.requests:
            if arrives:
                self.arrive(0, shown=False)
            else:
                self.lose(0)
        for pod in self.pods:
            self.show_pod(pod)
        self.settle()
        before = self.reservations()
        self.ledger = Ledger(policy("binpack"))
        for name in sorted(self.nodes):
            self.tell_node("added", name)
        for pod in sorted(self.pods, key=lambda pod: pod.uid):
            self.show_pod(pod)
        assert before == self.reservations()

    def reservations(self) -> dict[str, list[tuple[Any, ...]]]:
        """Who holds what of each device; a tenant is named by its container."""
        cluster = self.ledger.cluster
        return {
            uuid: sorted(
                (resident.tenant.partition("@")[0], resident.piece.request_milli, resident.piece.memory_mib,
                 resident.labels.anti_affinity, resident.labels.exclusion)
                for resident in cluster.residents(*cell)
            )
            for uuid, cell in cluster.uuids.items()
        }  # fmt: skip

    @invariant()
    def the_ledger_is_as_the_model_says(self) -> None:
        """No device is over its capacity, labels are those of its residents, and only what must be is allocated."""
        check(self.ledger.cluster)
        assert {} == self.ledger.inconsistent
        assert {
            (allocation.uid, allocation.node): allocation.plan
            for allocations in self.ledger.allocations.values()
            for allocation in allocations
        } == {key: plan for key, plan in self.allocations.items() if key[1] in self.nodes or key in self.kept_unseen()}
        expected = {f"GPU-{name}-{g}" for name in self.nodes for g in range(NODES[name])}
        assert expected == set(self.ledger.cluster.uuids)
        for uuid in expected:
            milli = sum(milli for milli, _ in self.on_gpu(uuid))
            assert 1000 - milli == self.ledger.cluster.free_milli.item(*self.ledger.cluster.uuids[GpuUuid(uuid)])

    def kept_unseen(self) -> set[tuple[str, str]]:
        """The allocations on nodes that are gone, which the ledger keeps for their return."""
        return {
            (allocation.uid, allocation.node)
            for allocations in self.ledger.allocations.values()
            for allocation in allocations
            if allocation.node not in self.nodes
        }


class TestBindHistory(BindHistory.TestCase):
    """Whatever becomes of binds, nodes and the scheduler, the ledger holds each share that a pod has or may get."""

    settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
