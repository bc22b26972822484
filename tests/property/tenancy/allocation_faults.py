"""The allocations of a node while pods come and go, kubelet forgets, and the agent is killed between any two steps.

Beside it runs a model that knows which containers run, and with what. A *step* is a write of the checkpoint or of a CDI
file, a call of the arbiter, or the making or removal of a folder; a crash falls before or after one of them, and from
then on the agent reaches nothing, until another starts over what it left.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tenancy_faults import GPU_MIB, NODE, SHARES, UUIDS, Drivers
from tenants import Crash, FakeArbiter, fake_hook, faulty, whole_folders

from aliquot.driver.cdi import written_names
from aliquot.driver.gpu import Gpu
from aliquot.kube.names import GPU_PERCENT, PLAN
from aliquot.kube.objects import (
    Container,
    ContainerStates,
    ContainerStatus,
    Meta,
    PodSpec,
    PodStatus,
    Resources,
    StateDetail,
)
from aliquot.kube.plan import ContainerPlan, PodPlan, write_plan
from aliquot.model.errors import AliquotError
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Slice
from aliquot.node import provisioner as node_tenants
from aliquot.node.allocation import checkpoint, lifecycle
from aliquot.node.allocation.checkpoint import PodKey
from aliquot.node.allocation.kubelet import ContainerDevices, PodDevicesEntry
from aliquot.node.allocation.outcomes import Outcomes
from aliquot.node.machine import Machine, NodeOffer
from aliquot.node.pods import NodePod
from aliquot.node.settings import NodeSettings
from aliquot.tenancy import lifecycle as tenancy
from aliquot.tenancy.removal import Answer

NAMES = st.sampled_from("abcd")
NO_CRASH = 1000
STEPS = st.one_of(st.just(NO_CRASH), st.integers(0, 12))
"""How many half steps are made before the agent is killed."""
RUNNING = ContainerStates(running=StateDetail())


@dataclass
class ModelPod:
    """A pod of one container; `ids` and `device` are what kubelet knows of it, if it still does."""

    key: PodKey
    share: tuple[int, int, int]
    ids: frozenset[str] = frozenset()
    device: str = ""
    """The CDI device name that its admission was answered with."""
    runs: bool = False
    deleted: bool = False
    """The API server has no such pod any more; its processes may not know that yet."""

    def body(self) -> NodePod:
        """As the API server has it."""
        gpu, milli, mib = self.share
        plan = PodPlan(NODE, {"main": ContainerPlan((Slice(GpuUuid(UUIDS[gpu]), milli, 1000, mib),))})
        meta = Meta(name=self.key.pod, namespace="ns", uid=self.key.uid, annotations={PLAN: write_plan(plan)})
        container = Container(name="main", resources=Resources(limits={GPU_PERCENT: str(milli // 10)}))
        statuses = [ContainerStatus("main", state=RUNNING)] if self.runs else []
        return NodePod(meta, PodSpec(containers=[container]), PodStatus(phase="Running", container_statuses=statuses))


class Pods:
    """The node's pods as the agent has them: none until they are listed, but for those of a query."""

    def __init__(self, bodies: Callable[[], dict[str, NodePod]]) -> None:
        self.synced = False
        self._bodies = bodies
        self._fetched: dict[str, NodePod] = {}

    def __iter__(self) -> Iterator[NodePod]:
        return iter(list(self.by_uid().values()))

    def by_uid(self) -> dict[str, NodePod]:
        return self._bodies() if self.synced else dict(self._fetched)

    def keys(self) -> dict[str, PodKey]:
        return {uid: pod.key for uid, pod in self.by_uid().items()}

    def get(self, uid: str) -> NodePod | None:
        return self.by_uid().get(uid)

    def says(self, uid: str) -> Answer:
        return "used" if uid in self.by_uid() else "gone" if self.synced else "silent"

    async def refresh(self) -> None:
        self._fetched = self._bodies()


class Silent:
    """An API server and events that take everything."""

    async def patch(self, *_: object, **__: object) -> None:
        """A write to a pod."""

    async def about_pod(self, *_: object) -> None:
        """An event."""

    async def about_node(self, *_: object) -> None:
        """An event."""


async def inline(function: Callable[..., Any], *args: Any, **how: Any) -> Any:
    """In place of `asyncio.to_thread`."""
    return function(*args, **how)


class AllocationFaults(RuleBasedStateMachine):
    """The node agent's allocations, with the real checkpoint, CDI files and ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="aq-"))
        self.stack.callback(shutil.rmtree, self.folder)
        self.settings = NodeSettings(
            node_name=NODE, runtime_dir=str(self.folder), state_dir=str(self.folder / "state"),
            cdi_dir=str(self.folder / "cdi"), kubelet_dir=str(self.folder / "kubelet"), pre_start_wait_s=0.0,
        )  # fmt: skip
        self.settings.tenants.mkdir()
        self.arbiter = FakeArbiter()
        self.stack.enter_context(faulty(self.arbiter))
        self.loop = asyncio.new_event_loop()
        self.stack.callback(self.loop.close)
        self.pods: dict[str, ModelPod] = {}
        self.number = 0
        self.devices: set[str] = set()
        """All CDI device names that were ever given."""
        self.steps_left = NO_CRASH
        hook = fake_hook(self.folder)
        call = self.arbiter._call
        for place, name, stand_in in (
            (node_tenants, "ArbiterClient", lambda *_, **__: self.arbiter.connect()),
            (tenancy, "native_part", lambda _: hook),
            (self.arbiter, "_call", lambda what: self.around(call(what))),
            (checkpoint, "write_checkpoint", self.stepped(checkpoint.write_checkpoint)),
            (lifecycle, "write_spec", self.stepped(lifecycle.write_spec)),
            (lifecycle, "remove_spec", self.stepped(lifecycle.remove_spec)),
            (lifecycle, "read_device_checkpoint", lambda _: self.entries()),
            (lifecycle, "pods_with_processes", lambda: {p.key.uid for p in self.pods.values() if p.runs}),
            (lifecycle, "AGAIN_S", 0.0),
            (lifecycle, "PROCESSES_S", 0.0),
            (lifecycle, "WAIT_S", 0.0),
            (asyncio, "to_thread", inline),
        ):
            self.stack.enter_context(mock.patch.object(place, name, stand_in))
        self.stack.enter_context(mock.patch("os.fsync"))
        self.start_agent(listed=True)

    def teardown(self) -> None:
        """When every pod has ended nothing is left of any of them, in no record and on no disk."""
        with self.stack:
            self.steps_left = NO_CRASH
            if self.arbiter.crashed:
                self.start_agent(listed=True)
            self.agent_pods.synced = True
            self.pods.clear()
            for _ in range(3):
                self.do(self.allocations.reconcile())
            self.provisioner.check_arbiter()
            assert not self.provisioner.tenants
            assert not self.arbiter.tenants
            assert not list(self.allocations.records)
            assert not written_names(self.folder / "cdi")
            assert not whole_folders(self.settings.tenants)

    # -- steps ---------------------------------------------------------------------------------------------------

    def step(self) -> None:
        if self.arbiter.crashed or self.steps_left == 0:
            self.arbiter.crashed = True
            raise Crash
        self.steps_left -= 1

    def stepped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, before and after which the agent may be killed."""

        def both(*args: Any, **how: Any) -> Any:
            self.step()
            result = function(*args, **how)
            self.step()
            return result

        return both

    @contextlib.contextmanager
    def around(self, call: Any) -> Iterator[None]:
        """A call of the arbiter."""
        self.step()
        with call:
            yield
        self.step()

    def do(self, work: Coroutine[Any, Any, Any], steps: int = NO_CRASH) -> Any:
        """The result of what the agent does, and of what it does in the background then."""
        self.steps_left = steps
        try:
            result = self.loop.run_until_complete(work)
            while self.background:
                self.loop.run_until_complete(self.background.pop(0))
        finally:
            for left in self.background:
                left.close()
            self.background.clear()
            self.steps_left = NO_CRASH
        return result

    # -- kubelet and the agent -----------------------------------------------------------------------------------

    def entries(self) -> list[PodDevicesEntry]:
        """Kubelet's checkpoint."""
        return [PodDevicesEntry(p.key.uid, "main", p.ids, (p.device,)) for p in self.pods.values() if p.ids]

    async def held(self) -> list[ContainerDevices]:
        """Kubelet's PodResources."""
        return [ContainerDevices("ns", p.key.pod, "main", p.ids) for p in self.pods.values() if p.ids]

    def start_agent(self, *, listed: bool) -> None:
        """An agent over what the one before left; `listed` is whether the API server answers it."""
        self.arbiter.crashed = False
        self.background: list[Coroutine[Any, Any, None]] = []
        gpus = tuple(Gpu(g, uuid, "Tesla V100", GPU_MIB) for g, uuid in enumerate(UUIDS))
        machine = Machine(gpus, self.folder / "libcuda.so.1", self.folder / "libnvidia-ml.so.1", devices=None)
        drivers: Any = Drivers(self.folder)
        self.provisioner = node_tenants.TenantProvisioner(
            NODE, NodeOffer(machine), self.settings.tenants, self.folder, drivers
        )
        pods: Any = Pods(lambda: {p.key.uid: p.body() for p in self.pods.values() if not p.deleted})
        silent: Any = Silent()
        self.agent_pods = pods
        pods.synced = listed
        outcomes = Outcomes(self.settings, silent, pods, silent)
        self.allocations = lifecycle.Allocations(
            self.settings, pods, self.provisioner, silent, outcomes, lambda _, work: self.background.append(work)
        )
        resources: Any = self
        self.allocations.resources = resources
        self.do(self.allocations.recover())
        self.provisioner.offer.withheld = ""

    # -- rules ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.arbiter.crashed)
    @rule(name=NAMES, share=SHARES, steps=STEPS)
    def admit(self, name: str, share: tuple[int, int, int], steps: int) -> None:
        """A pod is bound here, and kubelet admits it; one that the agent did not answer for fails for good."""
        if name in self.pods:
            return
        self.number += 1
        pod = ModelPod(PodKey(f"uid-{self.number}", "ns", name), share)
        taken = {device for other in self.pods.values() for device in other.ids}
        ids = [f"g0-{number:03}" for number in range(9) if f"g0-{number:03}" not in taken][:2]
        try:
            device = self.do(self.allocations.allocate(ids), steps).partition("=")[2]
        except Crash:
            return
        assert device not in self.devices
        self.devices.add(device)
        pod.ids, pod.device = frozenset(ids), device
        self.pods[name] = pod

    def startable(self) -> list[str]:
        """The containers that kubelet may start now, or start again."""
        return [name for name, pod in sorted(self.pods.items()) if pod.ids and not pod.deleted]

    @precondition(lambda self: not self.arbiter.crashed and self.startable())
    @rule(data=st.data(), steps=STEPS)
    def start(self, data: st.DataObject, steps: int) -> None:
        """Kubelet starts an admitted container, or starts it again."""
        self.start_now(data.draw(st.sampled_from(self.startable())), steps)

    def start_now(self, name: str, steps: int = NO_CRASH) -> None:
        """The container of that pod starts, where the agent takes it."""
        pod = self.pods[name]
        try:
            self.do(self.allocations.prepare(sorted(pod.ids)), steps)
        except (AliquotError, Crash):
            return
        pod.runs = True

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), steps=STEPS, forced=st.booleans())
    def delete(self, data: st.DataObject, steps: int, forced: bool) -> None:
        """A pod is deleted, by force while its processes go on: kubelet forgets it, and an agent that runs is told."""
        self.delete_now(data.draw(st.sampled_from(sorted(self.pods))), steps, forced=forced)

    def delete_now(self, name: str, steps: int = NO_CRASH, *, forced: bool = False) -> None:
        """That pod is deleted."""
        pod = self.pods[name]
        pod.deleted, pod.ids = True, frozenset()
        pod.runs = pod.runs and forced
        if not pod.runs:
            del self.pods[name]
        if not self.arbiter.crashed:
            with contextlib.suppress(Crash):
                self.allocations.pod_gone(pod.key)
                self.do(asyncio.sleep(0), steps)

    @precondition(lambda self: any(pod.deleted for pod in self.pods.values()))
    @rule()
    def processes_end(self) -> None:
        """The processes of pods that were deleted by force end, without a word to the agent."""
        self.pods = {name: pod for name, pod in self.pods.items() if not pod.deleted}

    @precondition(lambda self: any(pod.runs for pod in self.pods.values()))
    @rule()
    def kubelet_forgets(self) -> None:
        """Kubelet loses its checkpoint: what runs goes on, what does not never starts, and the ids are given again."""
        for pod in self.pods.values():
            pod.ids = frozenset()

    @rule(listed=st.booleans())
    def restart_agent(self, listed: bool) -> None:
        """The agent is killed between two things that it does, and started; so it is after a crash."""
        self.start_agent(listed=listed)

    @precondition(lambda self: not self.arbiter.crashed)
    @rule(steps=STEPS, listed=st.booleans())
    def reconcile(self, steps: int, listed: bool) -> None:
        """The periodic check; the API server may have answered by then."""
        self.agent_pods.synced |= listed
        with contextlib.suppress(Crash):
            self.do(self.allocations.reconcile(), steps)

    @rule(forget=st.booleans())
    def restart_arbiter(self, forget: bool) -> None:
        """Between two calls."""
        self.arbiter.restart(forget=forget)

    # -- invariants ----------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_given_twice(self) -> None:
        """What the containers that run were given fits on each GPU, whatever the agent has forgotten."""
        for gpu in range(len(UUIDS)):
            shares = [pod.share for pod in self.pods.values() if pod.runs and pod.share[0] == gpu]
            assert sum(milli for _, milli, _ in shares) <= 1000
            assert sum(mib for *_, mib in shares) <= GPU_MIB

    @invariant()
    def nothing_is_removed_that_runs(self) -> None:
        """Its folder is whole and its CDI file is there, also while no agent runs."""
        assert {pod.device for pod in self.pods.values() if pod.runs} <= written_names(self.folder / "cdi")
        names = {self.provisioner._folder(f"{p.key.uid}/main").name for p in self.pods.values() if p.runs}
        assert names <= {path.name for path in self.settings.tenants.iterdir()}

    @precondition(lambda self: not self.arbiter.crashed)
    @invariant()
    def what_runs_is_reserved(self) -> None:
        """An agent that has recovered has each container that runs in its ledger."""
        running = {f"{pod.key.uid}/main" for pod in self.pods.values() if pod.runs}
        assert running <= set(self.provisioner.tenants)
        assert set(self.provisioner.tenants) == set(self.provisioner.ledger.tenants)
