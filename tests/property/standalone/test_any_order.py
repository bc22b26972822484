"""SharePods and runs on one machine, in any order, while programs, the engine and the arbiter are killed.

Beside the engine runs a model that knows names, shares and how programs end. After every step it says who must be
there; where they are is the engine's to choose.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kit.engine import GPU_MIB, engines_over, start_engine
from tenants import FakeArbiter, fake_hook
from waiting import eventually

from aliquot.model.errors import UserError
from aliquot.model.ids import TenantName
from aliquot.model.quantities import Memory
from aliquot.model.requests import GpuRequest
from aliquot.placement.machine import NoRoom
from aliquot.standalone import container
from aliquot.standalone import engine as standalone
from aliquot.standalone.pods import Pods, UnknownPod

NAMES = st.sampled_from("abc")
SHARES = st.sampled_from([(300, 1000), (500, 9000), (700, 9000), (1000, 1000)])
"""Milli-GPU and MiB: few, so that a SharePod is often applied as it was."""
POLICIES = st.sampled_from(["Always", "OnFailure", "Never"])
TOO_LARGE = (2500, 1000)
SOON_S = 10.0


class Program:
    """A program that runs until it is ended; with its engine it ends without a word to anybody."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.over = threading.Event()
        self.status: int | None = None

    def end(self, status: int | None) -> None:
        """End it with a status, None where its engine is killed."""
        if not self.over.is_set():
            self.status = status
            self.over.set()

    def wait(self) -> int:
        """As `Popen`; the thread of an engine that is killed goes no further."""
        self.over.wait()
        if self.status is None:
            raise SystemExit
        return self.status


class Machine:
    """All programs there ever were, in place of the system's processes."""

    def __init__(self) -> None:
        self.programs: dict[int, Program] = {}

    def start(self, *_: object, **__: object) -> Program:
        program = Program(len(self.programs) + 1)
        self.programs[program.pid] = program
        return program

    def signal(self, pid: int, number: int) -> None:
        """As `os.killpg`."""
        self.programs[pid].end(-number)

    @property
    def living(self) -> set[int]:
        """Those that have not ended."""
        return {pid for pid, program in self.programs.items() if not program.over.is_set()}


@dataclass
class Pod:
    """A SharePod of the model; `ended` is its phase once its program has ended for good."""

    milli: int
    mib: int
    policy: str
    ended: str = ""

    def manifest(self, name: str) -> str:
        gpu = {"request": str(self.milli / 1000), "memory": f"{self.mib}Mi"}
        pod = {"restartPolicy": self.policy, "containers": [{"name": "main", "command": ["true"]}]}
        spec = {"gpu": gpu, "template": {"spec": pod}}
        head = {"apiVersion": "aliquot.dev/v1alpha1", "kind": "SharePod", "metadata": {"name": name}}
        return json.dumps(head | {"spec": spec})

    def same_request(self, other: Pod) -> bool:
        """Whether applying the other changes nothing."""
        return (self.milli, self.mib, self.policy) == (other.milli, other.mib, other.policy)


@dataclass
class Model:
    """Who is there: SharePods and runs by name, and the SharePods that an engine took along when it was killed."""

    pods: dict[str, Pod] = field(default_factory=dict)
    runs: dict[str, tuple[int, int]] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)


class EngineInAnyOrder(RuleBasedStateMachine):
    """One engine after the other in the same directory."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="aq-"))
        self.stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.arbiter = FakeArbiter()
        self.machine = Machine()
        self.model = Model()
        self.stack.enter_context(engines_over(self.arbiter, fake_hook(self.folder)))
        for module, name, stand_in in [
            (container, "start_program", self.machine.start),
            (container, "BACKOFF_FIRST_S", 0.0),
            (os, "killpg", self.machine.signal),
            (container, "end_orphans", lambda *_, **__: []),
            (standalone, "end_orphans", lambda *_, **__: []),
        ]:
            self.stack.enter_context(mock.patch.object(module, name, stand_in))
        self.start()

    def start(self) -> None:
        """Start an engine over what the one before has left."""
        self.engine = start_engine(self.folder, self.arbiter)
        self.pods = Pods(self.engine, remembers=True)

    def teardown(self) -> None:
        """Everything ends in order, and leaves nothing."""
        with self.stack:
            self.stop_engine()
            assert not self.machine.living

    # -- what people and programs do ---------------------------------------------------------------------------------

    @rule(name=NAMES, share=SHARES, policy=POLICIES, restart=st.booleans())
    def apply(self, name: str, share: tuple[int, int], policy: str, restart: bool) -> None:
        """One that runs is resized in place, or refused unless a new start is asked for; nothing has changed then."""
        before, new = self.model.pods.get(name), Pod(*share, policy)
        running = self.facts(name).phase == "Running" if before else False
        changes = before is None or not before.same_request(new)
        resizes = (
            running and changes and not restart and before.policy == policy and max(before.milli, new.milli) < 1000
        )
        programs = self.machine.living
        try:
            self.pods.apply(new.manifest(name), restart=restart)
        except NoRoom:
            assert resizes and not self.has_room_on_its_gpu(name, new)
            assert programs == self.machine.living
            return
        except UserError:
            assert running and changes and not restart and not resizes
            assert programs == self.machine.living
            return
        assert not (running and changes) or restart or resizes
        assert not resizes or programs == self.machine.living
        self.model.lost.discard(name)
        if changes:
            self.model.pods[name] = new

    @rule(name=NAMES)
    def apply_what_never_fits(self, name: str) -> None:
        """Refused, and nothing has changed."""
        with pytest.raises(UserError):
            self.pods.apply(Pod(*TOO_LARGE, "Always").manifest(name), restart=True)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        """Also one that an engine took along; of one that is not there the user is told."""
        known = name in self.model.pods or name in self.model.lost
        try:
            self.pods.delete(name)
        except UnknownPod:
            assert not known
        else:
            assert known
        if name in self.model.pods:
            del self.model.pods[name]
        else:
            self.model.lost.discard(name)

    @rule(name=NAMES, share=SHARES)
    def run(self, name: str, share: tuple[int, int]) -> None:
        """A run gets its place now or not at all."""
        if name in self.model.runs:
            return
        milli, mib = share
        room = self.has_room(milli, mib)
        try:
            self.engine.admit(TenantName(f"run-{name}"), GpuRequest(milli, 1000, Memory(mib=mib)))
        except NoRoom:
            assert not room
        else:
            assert room
            self.model.runs[name] = share

    @rule(name=NAMES)
    def end_run(self, name: str) -> None:
        """Its place is free."""
        if self.model.runs.pop(name, None) is not None:
            self.engine.release(self.engine.tenants[TenantName(f"run-{name}")])

    @rule(name=NAMES, status=st.sampled_from([0, 1, -9]))
    def end_program(self, name: str, status: int) -> None:
        """A program ends, or is killed: it is started again by its policy, or its share is free."""
        pod = self.model.pods.get(name)
        if pod is None or self.facts(name).phase != "Running":
            return
        (before,) = self.facts(name).containers
        assert before.pid is not None
        self.machine.programs[before.pid].end(status)
        if pod.policy == "Always" or (pod.policy == "OnFailure" and status != 0):
            eventually(
                lambda: self.facts(name).containers[0].pid not in (None, before.pid), "it is started again", SOON_S
            )
            assert before.restarts + 1 == self.facts(name).restarts
        else:
            pod.ended = "Succeeded" if status == 0 else "Failed"
            eventually(lambda: TenantName(f"default/{name}") not in self.engine.tenants, "its share is back", SOON_S)

    # -- what fails --------------------------------------------------------------------------------------------------

    @rule(forget=st.booleans())
    def kill_arbiter(self, forget: bool) -> None:
        """A new one, which knows the tenants or does not; the engine looks at it."""
        self.arbiter.restart(forget=forget)
        self.engine._reconcile(self.arbiter.now())

    @rule()
    def kill_engine(self) -> None:
        """Its programs end with it, and the next engine knows which SharePods there were."""
        self.model.lost |= {name for name, pod in self.model.pods.items() if not pod.ended}
        for pid in self.machine.living:
            self.machine.programs[pid].end(None)
        self.model.pods.clear()
        self.model.runs.clear()
        self.start()

    @rule()
    def stop_engine(self) -> None:
        """An end in order loses nothing, so nothing is told of as lost."""
        self.pods.stop()
        self.engine.stop()
        assert not self.engine.tenants and not self.arbiter.tenants
        self.model = Model()
        self.start()

    # -- what must hold ----------------------------------------------------------------------------------------------

    def facts(self, name: str):
        """What the engine says of a SharePod."""
        return self.pods.facts(name)[0]

    def settle(self) -> None:
        """Wait for the threads of containers: there is one for each program that lives, and no other."""

        def is_settled() -> bool:
            running = [facts for facts in self.pods.facts() if facts.phase == "Running"]
            threads = [thread for thread in threading.enumerate() if thread.name == "container-main"]
            living = self.machine.living
            return len(threads) == len(living) and {facts.containers[0].pid for facts in running} == living

        eventually(is_settled, "programs that ended are seen to have, and those of placed SharePods run", SOON_S)

    def has_room(self, milli: int, mib: int) -> bool:
        """Whether a GPU has that much that is promised to nobody."""
        return any(
            sum(m for m, _ in held) + milli <= 1000 and sum(b for _, b in held) + mib <= GPU_MIB
            for held in self.promised()
        )

    def has_room_on_its_gpu(self, name: str, new: Pod) -> bool:
        """Whether the GPU of a SharePod has room for another size of it."""
        plans = {tenant: plan.slices[0] for tenant, plan in self.engine.ledger.plans.items()}
        mine = plans.pop(TenantName(f"default/{name}")).gpu
        held = [(piece.request_milli, piece.memory_mib) for piece in plans.values() if piece.gpu == mine]
        return sum(m for m, _ in held) + new.milli <= 1000 and sum(b for _, b in held) + new.mib <= GPU_MIB

    def promised(self) -> list[list[tuple[int, int]]]:
        """By GPU, what each tenant is promised of it."""
        slices = [piece for plan in self.engine.ledger.plans.values() for piece in plan.slices]
        return [
            [(piece.request_milli, piece.memory_mib) for piece in slices if piece.gpu == gpu.uuid]
            for gpu in self.engine.gpus
        ]

    @invariant()
    def no_gpu_is_promised_twice(self) -> None:
        """The requests of a GPU's tenants are at most the GPU, and so is their memory."""
        self.settle()
        for held in self.promised():
            assert sum(milli for milli, _ in held) <= 1000
            assert sum(mib for _, mib in held) <= GPU_MIB

    @invariant()
    def everybody_is_there_or_gone(self) -> None:
        """SharePods run, wait for room that there is not, or have ended; ledger, engine and arbiter have who runs."""
        self.pods.place_waiting()
        self.settle()
        seen = {facts.name.removeprefix("default/"): facts for facts in self.pods.facts()}
        assert self.model.pods.keys() == seen.keys()
        assert self.model.lost == {name.removeprefix("default/") for name in self.pods.lost}
        tenants = {f"run-{name}": share for name, share in self.model.runs.items()}
        for name, pod in self.model.pods.items():
            if pod.ended:
                assert pod.ended == seen[name].phase
            elif seen[name].phase == "Pending":
                assert seen[name].message and not self.has_room(pod.milli, pod.mib)
            else:
                assert seen[name].phase == "Running" and seen[name].containers[0].pid in self.machine.living
                tenants[f"default/{name}"] = (pod.milli, pod.mib)
        plans = {name: plan.slices[0] for name, plan in self.engine.ledger.plans.items()}
        assert tenants == {name: (piece.request_milli, piece.memory_mib) for name, piece in plans.items()}
        assert tenants.keys() == self.engine.tenants.keys() == self.arbiter.tenants.keys()
        for name, record in self.arbiter.tenants.items():
            assert (plans[name].gpu, *tenants[name]) == (
                record.gpus[0].uuid,
                record.gpus[0].request_milli,
                record.gpus[0].memory_mib,
            )
            assert Path(record.socket).exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of threads of killed engines
class TestEngine(EngineInAnyOrder.TestCase):
    """No share is lost, none is given twice, and everybody is in the record or gone."""

    settings = settings(max_examples=20, stateful_step_count=25, suppress_health_check=list(HealthCheck))
