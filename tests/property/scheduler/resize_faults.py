"""Pods that are resized while scheduler, node agent and API server fail between any two steps.

The truth is a plain API server and the shares that an arbiter enforces. A *step* is a write to one of the two or to the
agent's checkpoint; a program is killed before or after one, or has no answer, and what was under way arrives or not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kit.objects import node
from ledger import check

from aliquot.kube.dialects import read
from aliquot.kube.errors import Conflict, Unreachable
from aliquot.kube.names import GPU_MEMORY, GPU_PERCENT, GPU_REQUEST, PENDING, PLAN, RESIZE
from aliquot.kube.objects import ApiStatus, Pod
from aliquot.kube.plan import PodPlan, generation_of, larger, read_plan, write_plan
from aliquot.kube.reflector import Change
from aliquot.model.requests import Slice
from aliquot.node.allocation.checkpoint import Allotment, PodKey
from aliquot.node.allocation.resizing import Resizes
from aliquot.node.pods import NodePod
from aliquot.node.provisioner import NotYet
from aliquot.placement.policy import policy
from aliquot.scheduler.ledger import Ledger, NodeFull
from aliquot.scheduler.resize import Resizer

SIZE_MIB = 10_000
SHARES = st.tuples(st.sampled_from([100, 300, 400, 600, 800]), st.sampled_from([1000, 3000, 6000]))
FAULTS = st.sampled_from(["", "", "", "no answer", "lost", "killed before", "killed after"])
picks = st.integers(0, 1000)


class Killed(BaseException):
    """The program ended here."""


@dataclass
class TruePod:
    """A pod as the API server has it, and what its container has on the node."""

    uid: str
    notes: dict[str, str]
    percent: int
    memory: str
    version: int = 1
    slice: Slice | None = None
    """What the arbiter enforces."""
    pending_mib: int = 0
    checkpoint: str = ""
    """The text of the plan in the agent's record."""

    def body(self) -> dict[str, Any]:
        limits = {GPU_PERCENT: str(self.percent), GPU_MEMORY: self.memory}
        meta = {"name": self.uid, "namespace": "default", "uid": self.uid, "resourceVersion": str(self.version)}
        return {
            "metadata": meta | {"annotations": dict(self.notes)},
            "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": limits}}]},
            "status": {"phase": "Running"},
        }

    def pod(self) -> Pod:
        return msgspec.convert(self.body(), Pod)

    def plan(self) -> PodPlan:
        plan = read_plan(self.notes)
        assert plan is not None
        return plan


class Quiet:
    """Events that nobody reads."""

    async def about_pod(self, *_: object) -> None:
        """An event."""


@dataclass
class FakeNode:
    """The agent's pods, records and tenants, over what lasts: `pods` are those of the API server."""

    node = "node-1"
    pods: dict[str, TruePod]
    step: Callable[[Callable[[], None]], None]
    held_mib: int = 0
    """What a program does not free when its memory is reduced."""
    seen: dict[str, NodePod] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self.seen.values()))

    def by_uid(self) -> dict[str, NodePod]:
        return dict(self.seen)

    @property
    def tenants(self) -> dict[str, Any]:
        return {
            f"{pod.uid}/main": SimpleNamespace(
                owner=PodKey(pod.uid, "default", pod.uid), container="main", record=SimpleNamespace(name=pod.uid),
                plan=SimpleNamespace(slices=(pod.slice,)),
            )
            for pod in self.pods.values()
        }  # fmt: skip

    @property
    def pending_mib(self) -> dict[str, int]:
        return {pod.uid: pod.pending_mib for pod in self.pods.values() if pod.pending_mib}

    @property
    def records(self) -> Any:
        node = self

        class Records:
            def __iter__(self) -> Iterator[Allotment]:
                for pod in node.pods.values():
                    yield Allotment(pod.uid, (), pod.uid, "default", pod.uid, "main", pod.checkpoint)

            async def settle(self, name: str, owner: PodKey, container: str, ids: Any, plan: str, *_: Any) -> None:
                node.step(lambda: setattr(node.pods[name], "checkpoint", plan))

        return Records()

    def resize(self, owner: PodKey, container: str, plan: PodPlan) -> None:
        """As `TenantProvisioner`: what does not fit beside the others is not taken."""
        pod, (piece,) = self.pods[owner.uid], plan.containers[container].slices
        assert pod.slice is not None
        others = [other.slice for other in self.pods.values() if other is not pod and other.slice]
        held = sum(other.pending_mib for other in self.pods.values() if other is not pod)
        if (
            sum(o.request_milli for o in others) + piece.request_milli > 1000
            or sum(o.memory_mib for o in others) + held + piece.memory_mib > SIZE_MIB
        ):
            raise NotYet("it does not fit")
        used_mib = pod.slice.memory_mib + pod.pending_mib

        def apply() -> None:
            pod.slice, pod.pending_mib = piece, max(0, min(used_mib, self.held_mib) - piece.memory_mib)

        self.step(apply)


async def inline(function: Callable[..., Any], *args: Any) -> Any:
    """In place of `asyncio.to_thread`."""
    return function(*args)


class ResizeFaults(RuleBasedStateMachine):
    """One GPU, its pods, the scheduler and the node's agent."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(mock.patch.object(asyncio, "to_thread", inline))
        self.loop = asyncio.new_event_loop()
        self.stack.callback(self.loop.close)
        self.truth: dict[str, TruePod] = {}
        self.news: list[Pod] = []
        """Versions that the scheduler's watch has not delivered."""
        self.late: list[Callable[[], None]] = []
        """Writes whose sender has no answer, and which may still arrive."""
        self.fault, self.steps, self.count = "", 0, 0
        self.node = FakeNode(self.truth, self.step)
        self.start_scheduler()
        self.start_agent()

    def teardown(self) -> None:
        """When nothing fails any more every pod has what its annotations say, or says why not."""
        with self.stack:
            self.late.clear()
            self.start_scheduler()
            self.start_agent()
            self.node.held_mib = 0
            for pod in self.truth.values():
                pod.pending_mib = 0
            for _ in range(3 * len(self.truth) + 3):
                self.settle()
            for pod in self.truth.values():
                asked = read(pod.pod())
                assert asked is not None and pod.slice == pod.plan().containers["main"].slices[0]
                request = asked.containers[0].request
                wanted = (request.request_milli, request.memory_on(SIZE_MIB))
                has = (pod.slice.request_milli, pod.slice.memory_mib) == wanted
                assert has or pod.notes.get(RESIZE, "").startswith(PENDING)
                assert not has or RESIZE not in pod.notes
                assert self.reserved(pod.uid) == pod.slice

    def settle(self) -> None:
        """Everything that has to be done once, without a fault."""
        self.deliver_all()
        for uid in list(self.truth):
            self.do(self.resizer.reconcile(f"default/{uid}"))
            self.deliver_all()
        self.see_all()
        self.do(self.agent.check())
        self.deliver_all()

    # -- the programs -----------------------------------------------------------------------------------------------

    def step(self, write: Callable[[], None]) -> None:
        """A write of the agent to what lasts."""
        self.steps -= 1
        if self.steps == 0 and self.fault == "killed before":
            raise Killed
        write()
        if self.steps == 0 and self.fault == "killed after":
            raise Killed

    async def patch(self, resource: object, name: str, body: dict[str, Any], **_: object) -> Pod:
        """The API server takes a write, now, later or never."""
        pod, metadata = self.truth.get(name), body["metadata"]

        def arrive() -> Pod:
            if pod is None or self.truth.get(name) is not pod:
                raise Conflict(ApiStatus(message="gone", code=409), "patch")
            if metadata.get("resourceVersion") not in (None, str(pod.version)):
                raise Conflict(ApiStatus(message="another version", code=409), "patch")
            self.write(pod, metadata["annotations"])
            return pod.pod()

        self.steps -= 1
        fault = self.fault if self.steps == 0 else ""
        if fault in ("no answer", "lost"):
            if fault == "no answer":
                self.late.append(lambda: self.try_late(arrive))
            raise Unreachable("no answer", may_have_happened=True)
        if fault == "killed before":
            raise Killed
        made = arrive()
        if fault == "killed after":
            raise Killed
        return made

    def try_late(self, arrive: Callable[[], Pod]) -> None:
        with contextlib.suppress(Conflict):
            arrive()

    def write(self, pod: TruePod, notes: dict[str, str | None]) -> None:
        after = {key: text for key, text in {**pod.notes, **notes}.items() if text is not None}
        if after != pod.notes:
            pod.notes, pod.version = after, pod.version + 1
            self.news.append(pod.pod())

    def do(self, work: Coroutine[Any, Any, Any], fault: str = "", steps: int = 0) -> bool:
        """Whether it came to its end."""
        self.fault, self.steps = fault, steps
        try:
            self.loop.run_until_complete(work)
        except (Unreachable, Conflict):
            return True
        except Killed:
            return False
        finally:
            self.fault = ""
        return True

    def start_scheduler(self) -> None:
        """A scheduler that has listed everything; what its predecessor sent has arrived by then, or never does."""
        for write in self.late:
            write()
        self.late.clear()
        self.news.clear()
        self.ledger = Ledger(policy("binpack"))
        self.ledger.node_changed(Change("added", node("n", 1, "V100", SIZE_MIB)))
        self.cache = {uid: pod.pod() for uid, pod in self.truth.items()}
        for pod in self.cache.values():
            self.ledger.pod_changed(Change("added", pod))
        api: Any = self
        self.resizer = Resizer(api, self.ledger, lambda key: self.cache.get(key.partition("/")[2]))

    def start_agent(self) -> None:
        """An agent that restores what its record says, and then looks at the pods."""
        for pod in self.truth.values():
            recorded = read_plan({PLAN: pod.checkpoint})
            assert recorded is not None
            (piece,) = recorded.containers["main"].slices
            used_mib = (pod.slice or piece).memory_mib + pod.pending_mib
            pod.slice, pod.pending_mib = piece, max(0, min(used_mib, pod.pending_mib) - piece.memory_mib)
        api: Any = self
        node: Any = self.node
        self.agent = Resizes(api, node, node, node.records, Quiet())  # type: ignore[arg-type]

    def see_all(self) -> None:
        self.node.seen = {uid: msgspec.convert(pod.body(), NodePod) for uid, pod in self.truth.items()}

    def deliver_all(self) -> None:
        while self.news:
            self.deliver()

    # -- what happens -----------------------------------------------------------------------------------------------

    @rule(share=SHARES)
    def create(self, share: tuple[int, int]) -> None:
        """A pod comes, where the ledger has room, and starts at once."""
        self.count += 1
        uid = f"pod-{self.count}"
        pod = TruePod(uid, {}, share[0] // 10, f"{share[1]}Mi")
        ask = read(pod.pod())
        assert ask is not None
        try:
            allocation = self.ledger.allocate(ask, "n", 0.0)
        except NodeFull:
            return
        text = write_plan(allocation.plan)
        pod.notes[PLAN] = pod.checkpoint = text
        (pod.slice,) = allocation.plan.slices
        self.truth[uid] = pod
        self.news.append(pod.pod())

    @precondition(lambda self: self.truth)
    @rule(pick=picks, share=SHARES)
    def ask(self, pick: int, share: tuple[int, int]) -> None:
        """The author of a pod wants another size."""
        pod = list(self.truth.values())[pick % len(self.truth)]
        self.write(pod, {GPU_REQUEST: f"{share[0] / 1000:g}", GPU_MEMORY: f"{share[1]}Mi"})

    @precondition(lambda self: self.news)
    @rule()
    def deliver(self) -> None:
        """The scheduler's watch shows the next version of a pod."""
        pod = self.news.pop(0)
        if pod.metadata.uid in self.truth:
            self.cache[pod.metadata.uid] = pod
            self.ledger.pod_changed(Change("modified", pod))

    @precondition(lambda self: self.truth)
    @rule(pick=picks, fault=FAULTS)
    def decide(self, pick: int, fault: str) -> None:
        """The scheduler decides the size of a pod."""
        uid = list(self.truth)[pick % len(self.truth)]
        if not self.do(self.resizer.reconcile(f"default/{uid}"), fault, 1):
            self.start_scheduler()

    @precondition(lambda self: self.late)
    @rule()
    def arrive(self) -> None:
        """A write arrives whose sender has given up."""
        self.late.pop(0)()

    @rule(fault=FAULTS, steps=st.integers(1, 6), held=st.sampled_from([0, 2000, 9000]), sees=st.booleans())
    def apply(self, fault: str, steps: int, held: int, sees: bool) -> None:
        """The agent looks at the pods; it is killed, or gets no answer, at one of its steps."""
        self.node.held_mib = held
        if sees:
            self.see_all()
        self.node.seen = {uid: pod for uid, pod in self.node.seen.items() if uid in self.truth}
        if not self.do(self.agent.check(), fault, steps):
            self.start_agent()

    @precondition(lambda self: any(pod.pending_mib for pod in self.truth.values()))
    @rule()
    def free(self) -> None:
        """Programs free what they hold beyond their memory."""
        for pod in self.truth.values():
            pod.pending_mib //= 2

    @precondition(lambda self: self.truth)
    @rule(pick=picks)
    def end(self, pick: int) -> None:
        """A pod ends."""
        uid = list(self.truth)[pick % len(self.truth)]
        pod = self.truth.pop(uid)
        self.cache.pop(uid, None)
        self.ledger.pod_changed(Change("deleted", pod.pod()))

    @rule()
    def restart_scheduler(self) -> None:
        """Between two things that it does."""
        self.start_scheduler()

    @rule()
    def restart_agent(self) -> None:
        """Between two things that it does."""
        self.start_agent()

    # -- what holds -------------------------------------------------------------------------------------------------

    def reserved(self, uid: str) -> Slice | None:
        """What the ledger keeps for a pod."""
        held = [a.plan.slices[0] for a in self.ledger.allocations.get(uid, []) if a.tenants]
        return held[0] if held else None

    @invariant()
    def nothing_is_given_twice(self) -> None:
        """What is in force fits on the GPU, with what programs have yet to free."""
        slices = [pod.slice for pod in self.truth.values() if pod.slice]
        assert sum(piece.request_milli for piece in slices) <= 1000
        held_mib = sum(pod.pending_mib for pod in self.truth.values())
        assert sum(piece.memory_mib for piece in slices) + held_mib <= SIZE_MIB

    @invariant()
    def what_is_in_force_is_reserved(self) -> None:
        """The ledger keeps at least what each pod has on its node, whatever is under way."""
        check(self.ledger.cluster)
        assert {} == self.ledger.inconsistent
        for pod in self.truth.values():
            held, piece = self.reserved(pod.uid), pod.slice
            assert held is not None and piece is not None
            in_force = msgspec.structs.replace(piece, memory_mib=piece.memory_mib + pod.pending_mib)
            assert larger(held, in_force) == held, (pod, held)

    @invariant()
    def a_node_follows_plans_only(self) -> None:
        """What is in force is of a generation that was written."""
        assert all(generation_of(p.checkpoint) <= generation_of(p.notes[PLAN]) for p in self.truth.values())
