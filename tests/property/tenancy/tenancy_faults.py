"""The engine and the node agent, driven through arrivals and departures while arbiter, disk and program fail.

Beside each runs an oracle that knows sums and names only. It is told what succeeded, and after every step it says what
must be in the ledger and, once arbiter and disk work again, on disk and at the arbiter.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kit.engine import GPU_MIB, UUIDS, engines_over, start_engine
from tenants import AT_ARBITER, ON_DISK, Crash, FakeArbiter, fake_hook, faulty, whole_folders

from aliquot.arbiter.records import TenantRecord
from aliquot.driver.cdi import Edits
from aliquot.driver.gpu import Gpu
from aliquot.kube.plan import ContainerPlan, PodPlan
from aliquot.model.errors import AliquotError
from aliquot.model.ids import GpuUuid, TenantName
from aliquot.model.quantities import Memory
from aliquot.model.requests import GpuRequest, Slice
from aliquot.node import provisioner as node_tenants
from aliquot.node.allocation.checkpoint import PodKey
from aliquot.node.machine import Machine as NodeMachine
from aliquot.node.machine import NodeOffer
from aliquot.placement.machine import NoRoom
from aliquot.tenancy import lifecycle

NODE = "node-1"
NAMES = st.sampled_from("abc")
SHARES = st.sampled_from([(0, 300, 1000), (0, 700, 9000), (1, 500, 9000), (1, 1000, 1000)])
"""A GPU, milli-GPU and MiB: few, so that a name comes back with the share that it had."""
AT_ARBITER_NOW = st.one_of(
    st.just([]),
    st.builds(lambda calls, fault: [""] * calls + [fault], st.integers(0, 3), st.sampled_from(AT_ARBITER)),
    st.lists(st.sampled_from(AT_ARBITER), max_size=4),
)
ON_DISK_NOW = st.lists(st.sampled_from(ON_DISK), max_size=1)


@dataclass
class Oracle:
    """Who is here: by name a GPU, a share and memory."""

    here: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def fits(self, gpu: int, milli: int, mib: int) -> bool:
        """Whether a GPU has that much left."""
        held = [(m, b) for g, m, b in self.here.values() if g == gpu]
        return sum(m for m, _ in held) + milli <= 1000 and sum(b for _, b in held) + mib <= GPU_MIB


class Faults(RuleBasedStateMachine):
    """What both programs do; `restart` is that of the program, after a crash or without."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="aq-"))
        self.stack.callback(shutil.rmtree, self.folder)
        self.tenants = self.folder / "tenants"
        self.tenants.mkdir()
        self.arbiter = FakeArbiter()
        self.disk = self.stack.enter_context(faulty(self.arbiter))
        self.hook = fake_hook(self.folder)
        self.oracle = Oracle()
        self.torn: set[str] = set()
        """Who is here, and has a folder or a place at the arbiter only after another start of its container."""

    def teardown(self) -> None:
        """Everything leaves, with everything working."""
        with self.stack:
            if self.arbiter.crashed:
                self.restart()
            self.heal()
            for name in list(self.oracle.here):
                self.remove_now(name)
            self.oracle.here.clear()
            self.torn.clear()
            self.heal()

    @abstractmethod
    def admit_now(self, name: str, gpu: int, milli: int, mib: int) -> bool:
        """Provision; whether it was done. Other than as an AliquotError nothing fails."""

    @abstractmethod
    def remove_now(self, name: str) -> None:
        """Remove a tenant."""

    @abstractmethod
    def reconcile_now(self) -> None:
        """Look at the arbiter, as is done every few seconds."""

    @abstractmethod
    def restart(self) -> None:
        """A new program, over what the old one has left."""

    @abstractmethod
    def reserved(self) -> set[str]:
        """The names in the ledger."""

    @abstractmethod
    def records(self) -> dict[str, TenantRecord]:
        """The tenants' records, by name."""

    @precondition(lambda self: not self.arbiter.crashed)
    @rule(name=NAMES, share=SHARES, asked=AT_ARBITER_NOW, made=ON_DISK_NOW)
    def admit(self, name: str, share: tuple[int, int, int], asked: list[str], made: list[str]) -> None:
        """A tenant comes; what fails on the way is given."""
        gpu, milli, mib = share
        self.arbiter.faults.extend(asked)
        self.disk.faults.extend(made)
        well = not any([*asked, *made])
        expected = name not in self.oracle.here and self.oracle.fits(gpu, milli, mib)
        try:
            done = self.admit_now(name, gpu, milli, mib)
        except Crash:
            return
        self.arbiter.faults.clear()
        self.disk.faults.clear()
        assert not done or expected
        assert done or not (expected and well)
        if done:
            self.oracle.here[name] = (gpu, milli, mib)

    @precondition(lambda self: not self.arbiter.crashed)
    @rule(name=NAMES, asked=AT_ARBITER_NOW)
    def remove(self, name: str, asked: list[str]) -> None:
        """A tenant leaves; that it is gone does not depend on the arbiter."""
        self.arbiter.faults.extend(asked)
        with contextlib.suppress(Crash):
            self.oracle.here.pop(name, None)
            self.torn.discard(name)
            self.remove_now(name)
        self.arbiter.faults.clear()

    @precondition(lambda self: not self.arbiter.crashed)
    @rule(asked=AT_ARBITER_NOW)
    def reconcile(self, asked: list[str]) -> None:
        """The program looks at the arbiter while something fails."""
        self.arbiter.faults.extend(asked)
        with contextlib.suppress(Crash):
            self.reconcile_now()
        self.arbiter.faults.clear()

    @rule(forget=st.booleans())
    def restart_arbiter(self, forget: bool) -> None:
        """Between two calls."""
        self.arbiter.restart(forget=forget)

    @rule()
    def start_again(self) -> None:
        """The program is killed and started; so it is after a crash."""
        self.restart()

    @precondition(lambda self: not self.arbiter.crashed)
    @rule()
    def heal(self) -> None:
        """While nothing fails two looks bring everything in order."""
        self.arbiter.faults.clear()
        self.disk.faults.clear()
        self.reconcile_now()
        self.reconcile_now()
        records = self.records()
        expected = {name for name in records if name not in self.torn}
        assert {records[name].name: records[name] for name in expected} == {
            name: record for name, record in self.arbiter.tenants.items() if name not in self.names(self.torn)
        }
        assert all(Path(records[name].socket).exists() for name in expected)
        folders = {Path(record.socket).parent.name for record in records.values()}
        torn = {Path(records[name].socket).parent.name for name in self.torn}
        assert folders - torn <= whole_folders(self.tenants, torn) <= folders

    def names(self, who: set[str]) -> set[str]:
        """The arbiter's names of tenants."""
        records = self.records()
        return {records[name].name for name in who}

    @precondition(lambda self: not self.arbiter.crashed)
    @invariant()
    def the_ledger_has_who_is_here(self) -> None:
        """Neither more nor less, and so does the program."""
        assert set(self.oracle.here) == self.reserved() == set(self.records())


class EngineFaults(Faults):
    """The engine: all of its tenants end with it."""

    def __init__(self) -> None:
        super().__init__()
        self.stack.enter_context(engines_over(self.arbiter, self.hook))
        self.restart()

    def restart(self) -> None:
        """Its folders are removed and its arbiter starts anew, as `Engine.start` has it."""
        self.arbiter.crashed = False
        self.arbiter.faults.clear()
        self.disk.faults.clear()
        self.oracle.here.clear()
        self.engine = start_engine(self.folder, self.arbiter)

    def admit_now(self, name: str, gpu: int, milli: int, mib: int) -> bool:
        """On a GPU of the oracle's choice."""
        request = GpuRequest(milli, 1000, Memory(mib=mib), gpu=str(gpu))
        try:
            self.engine.admit(TenantName(name), request)
        except NoRoom:
            assert not self.oracle.fits(gpu, milli, mib)
            return False
        except AliquotError:
            return False
        return True

    @precondition(lambda self: not self.arbiter.crashed)
    @rule(name=NAMES, share=SHARES, asked=AT_ARBITER_NOW)
    def resize(self, name: str, share: tuple[int, int, int], asked: list[str]) -> None:
        """A tenant has another share on its GPU, or that from before where something fails: nothing between them.

        A new arbiter that has lost it refuses until the engine has looked at it.
        """
        if name not in self.oracle.here:
            return
        (gpu, before, _), (_, milli, mib) = self.oracle.here[name], share
        others = Oracle({other: held for other, held in self.oracle.here.items() if other != name})
        expected = max(before, milli) < 1000 and others.fits(gpu, milli, mib)
        well = not any(asked) and name in self.arbiter.tenants
        self.arbiter.faults.extend(asked)
        try:
            self.engine.resize(TenantName(name), GpuRequest(milli, 1000, Memory(mib=mib), gpu=str(gpu)))
        except Crash:
            return
        except AliquotError:
            done = False
        else:
            done = True
            self.oracle.here[name] = (gpu, milli, mib)
        self.arbiter.faults.clear()
        assert not done or expected
        assert done or not (expected and well)
        self.heal()
        (piece,) = self.engine.tenants[TenantName(name)].plan.slices
        assert self.oracle.here[name][1:] == (piece.request_milli, piece.memory_mib)
        assert {} == self.engine.pending_mib()
        assert {
            TenantName(name): tenant.plan for name, tenant in self.engine.tenants.items()
        } == self.engine.ledger.plans

    def remove_now(self, name: str) -> None:
        """By what `admit` returned."""
        if name in self.engine.tenants:
            self.engine.release(self.engine.tenants[TenantName(name)], keep=True)

    def reconcile_now(self) -> None:
        """As the thread that watches the arbiter does."""
        self.engine._reconcile(self.arbiter.now())

    def reserved(self) -> set[str]:
        """By the ledger of this machine."""
        return set(self.engine.ledger.plans)

    def records(self) -> dict[str, TenantRecord]:
        """By the engine's list."""
        return {name: provisioned.record for name, provisioned in self.engine.tenants.items()}


@dataclass(frozen=True)
class Driver:
    """A generation of the node's driver."""

    name: str
    libcuda: Path
    libnvml: Path

    def edits(self, ours: Path | None) -> Edits:
        return Edits()


class Drivers:
    """The node's driver: a container keeps what it had until its driver is gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = 1

    def shown(self, had: str, *, again: bool) -> Driver:
        name = had if had and again else f"v{self.version}"
        return Driver(name, self.folder / name / "libcuda.so.1", self.folder / name / "libnvidia-ml.so.1")


class NodeFaults(Faults):
    """The node agent: its tenants outlive it, and a container starts more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.drivers = Drivers(self.folder)
        connect = mock.patch.object(node_tenants, "ArbiterClient", lambda *_, **__: self.arbiter.connect())
        for patch in (connect, mock.patch.object(lifecycle, "native_part", lambda _: self.hook)):
            self.stack.enter_context(patch)
        self.restart()

    def start(self) -> None:
        """An agent that knows no tenant yet."""
        gpus = tuple(Gpu(g, uuid, "Tesla V100", GPU_MIB) for g, uuid in enumerate(UUIDS))
        machine = NodeMachine(gpus, self.folder / "libcuda.so.1", self.folder / "libnvidia-ml.so.1", devices=None)
        drivers: Any = self.drivers
        self.provisioner = node_tenants.TenantProvisioner(NODE, NodeOffer(machine), self.tenants, self.folder, drivers)

    def restart(self) -> None:
        """It takes over what its checkpoint has, then removes the rest."""
        self.arbiter.crashed = False
        self.arbiter.faults.clear()
        self.disk.faults.clear()
        self.start()
        for name, (gpu, milli, mib) in self.oracle.here.items():
            self.take(name, gpu, milli, mib, again=True)
        self.provisioner.sweep()
        self.torn.clear()

    def take(self, name: str, gpu: int, milli: int, mib: int, *, again: bool = False) -> None:
        """A container of a pod of its own starts."""
        plan = PodPlan(NODE, {"main": ContainerPlan((Slice(GpuUuid(UUIDS[gpu]), milli, 1000, mib),))})
        self.provisioner.provision(PodKey(f"uid-{name}", "ns", name), "main", plan, again=again)

    def admit_now(self, name: str, gpu: int, milli: int, mib: int) -> bool:
        """A first start; a later one of a container that is here changes nothing."""
        if name in self.oracle.here:
            return False
        try:
            self.take(name, gpu, milli, mib)
        except node_tenants.NotYet as error:
            assert self.oracle.fits(gpu, milli, mib) or "does not fit" in str(error)
            return False
        return True

    @precondition(lambda self: not self.arbiter.crashed and self.oracle.here)
    @rule(data=st.data(), asked=AT_ARBITER_NOW, made=ON_DISK_NOW, again=st.booleans())
    def start_container_again(self, data: st.DataObject, asked: list[str], made: list[str], again: bool) -> None:
        """A container that is here starts again, or is taken over once more."""
        name = data.draw(st.sampled_from(sorted(self.oracle.here)))
        self.arbiter.faults.extend(asked)
        self.disk.faults.extend(made)
        try:
            self.take(name, *self.oracle.here[name], again=again)
            self.torn.discard(name)
        except node_tenants.NotYet:
            assert any([*asked, *made])
            self.torn.add(name)
        except Crash:
            self.torn.add(name)
        self.arbiter.faults.clear()
        self.disk.faults.clear()

    @rule()
    def upgrade_driver(self) -> None:
        """Containers that start from now on need another folder."""
        self.drivers.version += 1

    def remove_now(self, name: str) -> None:
        self.provisioner.remove_pod(f"uid-{name}")

    def reconcile_now(self) -> None:
        """As the agent does every few seconds."""
        self.provisioner.check_arbiter()

    def reserved(self) -> set[str]:
        """By the ledger of the node."""
        return {key.removeprefix("uid-").removesuffix("/main") for key in self.provisioner.ledger.tenants}

    def records(self) -> dict[str, TenantRecord]:
        """By the agent's list."""
        return {provisioned.owner.pod: provisioned.record for provisioned in self.provisioner.tenants.values()}
