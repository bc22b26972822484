"""Parks, returns and moves over any history, in virtual time: of tenants, kills, neighbours and memory.

The driver, the arbiter, the GPU and the host are small models; what decides is the engine's own `Parking`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from aliquot.arbiter.client import ArbiterError, NoArbiter
from aliquot.arbiter.records import GpuStatus, ParkState, Status
from aliquot.driver.checkpoints import ENDED, PAIRS_VERSION, ProcessState, StepFailed
from aliquot.model.ids import GpuUuid, TenantName
from aliquot.model.quantities import Memory
from aliquot.model.requests import Device, GpuRequest, Plan
from aliquot.placement.cluster import LedgerError
from aliquot.placement.machine import MachineLedger, NeverFits, NoRoom
from aliquot.standalone import parking
from aliquot.standalone.parking import NotParked, Parking
from aliquot.status.tenants import TenantStatus

T = TypeVar("T")
GPU, OTHER, GPU_MIB, HOST_MIB = GpuUuid("GPU-0"), GpuUuid("GPU-1"), 16_384, 20_480
SIZES = st.integers(1, 12).map(lambda gib: gib * 1024)
DRAWS = st.integers(0, 99)
MOVE_S = 0.5
CHECKPOINTED, LOCKED, RUNNING = ProcessState.CHECKPOINTED, ProcessState.LOCKED, ProcessState.RUNNING


class EngineKilled(BaseException):
    """The engine is gone, in the middle of whatever it did."""


@dataclass
class Process:
    """A tenant's program, on `gpu`. `needs`: a call of it waits for its memory; `silent`: it is stopped."""

    pid: int
    mib: int
    state: ProcessState = RUNNING
    needs: bool = False
    parked: bool = False
    active_s: float = 0.0
    charged_s: float = 0.0
    silent: bool = False
    until_s: float = 0.0  # its memory is on its way
    gpu: GpuUuid = GPU
    at: GpuUuid = GPU  # where its memory is or was
    moves_from: str = ""


@dataclass
class World:
    """All there is but the engine."""

    now_s: float = 100.0
    processes: dict[TenantName, Process] = field(default_factory=dict)
    outside_mib: int = 0
    ledger: MachineLedger | None = None
    kills: dict[str, int] = field(default_factory=dict)
    arbiter_away: bool = False
    refuses: bool = False  # the driver: to restore onto another GPU

    def used_mib(self, gpu: GpuUuid = GPU) -> int:
        """Of a GPU; programs without a share are on the first."""
        own = sum(p.mib for p in self.processes.values() if p.state != CHECKPOINTED and p.at == gpu)
        return own + (self.outside_mib if gpu == GPU else 0)

    def host_mib(self) -> int:
        """Of the host's memory, by what is parked."""
        return sum(p.mib for p in self.processes.values() if p.state == CHECKPOINTED)

    def is_killed(self, what: str) -> bool:
        """Whether this is the call at which it is to be killed."""
        if what not in self.kills:
            return False
        self.kills[what] -= 1
        if self.kills[what] < 0:
            del self.kills[what]
            return True
        return False

    # -- in place of `time` ------------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """As `time.monotonic`."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """As `time.sleep`."""
        self.now_s += seconds


class FakeDriver:
    """As `Checkpoints`."""

    def __init__(self, world: World) -> None:
        self.world = world

    def room_mib(self, gpu: GpuUuid, pids: Any) -> int:
        """What is free, or these processes'."""
        processes = self.world.processes.values()
        own = sum(p.mib for p in processes if p.pid in pids and p.state != CHECKPOINTED and p.at == gpu)
        return GPU_MIB - self.world.used_mib(gpu) + own

    def do(self, step: Any, pid: int, more: int | str = 0) -> int:
        """Take the step; the helper or the engine may be killed just before it or just after.

        Another helper takes a step again that the first one may have taken, and finds its memory on the way.
        """
        if step == "Version":
            return PAIRS_VERSION
        for _ in range(2):
            if self._is_killed():
                continue
            answer = self._step(step, pid, more)
            if not self._is_killed():
                moved = [p for p in self.world.processes.values() if p.pid == pid and step != "GetState"]
                self.world.now_s = max([self.world.now_s, *(p.until_s for p in moved)])
                return answer
        raise StepFailed(step, pid, ENDED)

    def close(self) -> None:
        """As `Checkpoints`."""

    def _is_killed(self) -> bool:
        if self.world.is_killed("engine"):
            raise EngineKilled
        return self.world.is_killed("helper")

    def _step(self, step: Any, pid: int, more: int | str) -> int:
        found = [(name, p) for name, p in self.world.processes.items() if p.pid == pid]
        if not found:
            raise StepFailed(step, pid, 1)
        ((name, process),) = found
        if step == "GetState":
            between = {CHECKPOINTED: ProcessState.CHECKPOINTING, LOCKED: ProcessState.RESTORING}
            return between[process.state] if self.world.now_s < process.until_s else process.state
        wanted = {"Lock": RUNNING, "Checkpoint": LOCKED, "Restore": CHECKPOINTED, "Unlock": LOCKED}[step]
        if process.state != wanted:
            raise StepFailed(step, pid, 401)
        if step == "Restore":
            assert self.world.ledger is not None
            if more and self.world.refuses:
                raise StepFailed(step, pid, 1)
            one, other = str(more or ",").split(",")
            onto = GpuUuid({one: other, other: one}.get(process.at, process.at))
            reserved = sum(piece.memory_mib for piece in self.world.ledger.plans[name].slices if piece.gpu == onto)
            assert reserved >= process.mib, "a restore without reserved bytes"
            assert self.world.used_mib(onto) + process.mib <= GPU_MIB, (
                "a restore that finds no memory loses the process"
            )
            process.at = onto
        process.state = {"Lock": LOCKED, "Checkpoint": CHECKPOINTED, "Restore": LOCKED, "Unlock": RUNNING}[step]
        process.until_s = self.world.now_s + (MOVE_S if step in ("Checkpoint", "Restore") else 0.0)
        return 0


class FakeArbiter:
    """As `ArbiterClient`; what it was told it has written down."""

    world: World

    def __init__(self, *_: object) -> None:
        if self.world.arbiter_away:
            raise NoArbiter("no arbiter")

    def __enter__(self) -> FakeArbiter:
        return self

    def __exit__(self, *_: object) -> None:
        """As `ArbiterClient`."""

    def _process(self, name: str) -> Process:
        if self.world.is_killed("engine"):
            raise EngineKilled
        if self.world.is_killed("arbiter"):
            raise NoArbiter("the connection has ended")
        if TenantName(name) not in self.world.processes:
            raise ArbiterError(f"there is no tenant {name!r}")
        return self.world.processes[TenantName(name)]

    def park_tenant(self, name: str, *, busy: bool = False) -> ParkState:
        """Its calls wait from now on."""
        process = self._process(name)
        if not (process.parked or busy) and self.world.now_s - process.active_s < 0.05:
            raise ArbiterError(f"tenant {name!r} is busy on its GPU")
        process.parked = True
        return ParkState(not process.silent, process.needs, [process.pid], False)

    note_away = take_back = _process

    def unpark_tenant(self, name: str) -> None:
        """Its calls go on."""
        process = self._process(name)
        if process.parked:
            assert process.state == RUNNING, "a call would hang in the driver"
            process.parked = process.needs = False
            process.moves_from = ""
            process.active_s = self.world.now_s

    def change_gpu(self, name: str, to: GpuUuid) -> None:
        """As `resize_tenant` with another GPU."""
        process = self._process(name)
        if to != process.gpu:
            assert process.parked, "a tenant that is awake changes its GPU"
            process.moves_from = "" if to == process.moves_from else process.gpu
            process.gpu = to

    def status(self) -> Status:
        """All tenants."""
        gpus = {gpu: GpuStatus(gpu, None, 0.0, []) for gpu in (GPU, OTHER)}
        for name, p in self.world.processes.items():
            tenant = TenantStatus(
                name, 20, 1000, 0.0, int(p.charged_s * 1e9), p.mib, p.mib, 0, 0.0, 0.0, 0.0, 0, 1, waiting=False,
                stopped=p.parked, woken=p.parked and p.needs, idle_s=self.world.now_s - p.active_s,
                moves_from=p.moves_from,
            )  # fmt: skip
            gpus[p.gpu].tenants.append(tenant)
        return Status(0, 1, 1, 10_000, "fluid", 100.0, "auto", "pace", 0, list(gpus.values()))


class Engine:
    """The owner of a ledger, over the programs that there are."""

    def __init__(self, world: World, ledger: MachineLedger) -> None:
        self.world = world
        self.ledger = world.ledger = ledger
        self.parking = Parking(self, Path("/nowhere"), Path("/no/libcuda"), Path("/no/libnvml"), emulated=False)
        self.parking._driver = FakeDriver(world)  # type: ignore[assignment]

    def look(self, read: Callable[[MachineLedger], T]) -> T:
        """As `Engine`."""
        return read(self.ledger)

    def processes(self, name: TenantName) -> list[int]:
        """As `Engine`."""
        process = self.world.processes.get(name)
        return [process.pid] if process else []

    def change_gpu(self, name: TenantName, to: GpuUuid) -> None:
        """As `Engine`; an arbiter that is killed just after has written it down."""
        FakeArbiter().change_gpu(name, to)
        FakeArbiter()._process(name)
        self.ledger.change_gpu(name)

    def reconcile(self) -> None:
        """The arbiter's tenants are on the GPUs of the ledger's."""
        for name, process in self.world.processes.items():
            if process.gpu != (gpu := self.ledger.plans[name].uuids[0]):
                FakeArbiter().change_gpu(name, gpu)


class AnyPark(RuleBasedStateMachine):
    """Tenants of one GPU; `plans` is what each was promised."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.requests: dict[TenantName, GpuRequest] = {}
        self.number = 0
        FakeArbiter.world = self.world
        self.patches = [
            mock.patch.object(parking, "ArbiterClient", FakeArbiter),
            mock.patch.object(parking, "time", self.world),
            mock.patch.object(parking, "host_room_mib", lambda _: HOST_MIB - self.world.host_mib()),
        ]
        for patch in self.patches:
            patch.start()

    def teardown(self) -> None:
        """The real ones are back."""
        for patch in self.patches:
            patch.stop()

    @initialize(gpus=st.integers(1, 2))
    def starts(self, gpus: int) -> None:
        """An engine without tenants."""
        devices = [Device(number, uuid, "V100", GPU_MIB) for number, uuid in enumerate((GPU, OTHER)[:gpus])]
        self.engine = Engine(self.world, MachineLedger(devices))

    def _one(self, draw: int) -> TenantName:
        return sorted(self.requests)[draw % len(self.requests)]

    def _doing(self, work: Callable[[], object]) -> None:
        """Something that an engine does; one that is killed by it has a successor."""
        try:
            work()
        except (NoRoom, NeverFits, NotParked, ArbiterError):
            pass
        except EngineKilled:
            self.kill_engine()

    # -- what people and programs do ---------------------------------------------------------------------------------

    @rule(mib=SIZES, parkable=st.booleans(), part=st.integers(1, 10))
    def start(self, mib: int, parkable: bool, part: int) -> None:
        """A tenant comes where there is room, and holds a part of its memory."""
        request = GpuRequest(20, memory=Memory(mib=mib), park_after_s=30.0 if parkable else 0.0, movable=True)
        try:
            plan = self.engine.ledger.plan(request)
        except NoRoom:
            return
        self.number += 1
        name, held_mib, (gpu,) = TenantName(f"t{self.number}"), mib * part // 10, plan.uuids
        if self.world.used_mib(gpu) + held_mib > GPU_MIB:
            return  # its allocation fails, for a program without a share has the memory
        self.engine.ledger.reserve(name, plan, request)
        self.requests[name] = request
        self.world.processes[name] = Process(1000 + self.number, held_mib, active_s=self.world.now_s, gpu=gpu, at=gpu)

    @precondition(lambda self: self.requests)
    @rule(draw=DRAWS)
    def park(self, draw: int) -> None:
        """By hand."""
        self._doing(lambda: self.engine.parking.park(self._one(draw)))

    @precondition(lambda self: self.requests)
    @rule(draw=DRAWS)
    def unpark(self, draw: int) -> None:
        """By hand."""
        self._doing(lambda: self.engine.parking.unpark(self._one(draw)))

    @precondition(lambda self: self.requests)
    @rule(draw=DRAWS, refuses=st.booleans())
    def move(self, draw: int, refuses: bool) -> None:
        """By hand, to the other GPU, as `Engine.move` does it."""
        engine, name = self.engine, self._one(draw)
        self.world.refuses = refuses

        def work() -> None:
            source = engine.ledger.plans[name].uuids[0]
            to = engine.ledger.begin_move(name, "1" if source == GPU else "0")
            try:
                engine.parking.move(name, source, to, lambda gpu: engine.change_gpu(name, gpu))
            finally:
                engine.ledger.end_move(name)

        self._doing(work)

    @precondition(lambda self: self.requests)
    @rule(draw=DRAWS)
    def use(self, draw: int) -> None:
        """A program needs the GPU."""
        process = self.world.processes[self._one(draw)]
        process.active_s = self.world.now_s
        process.needs = process.parked

    @precondition(lambda self: self.requests)
    @rule(draw=DRAWS, needs=st.booleans())
    def says(self, draw: int, needs: bool) -> None:
        """A program says that it needs no GPU, or needs it."""
        phase = self.engine.parking.acquire_gpu if needs else self.engine.parking.yield_gpu
        self._doing(lambda: phase(self._one(draw)))

    @precondition(lambda self: self.requests)
    @rule(draw=DRAWS, mib=SIZES)
    def resize(self, draw: int, mib: int) -> None:
        """An awake one gets other memory, where there is room and it holds no more than that."""
        name, ledger = self._one(draw), self.engine.ledger
        if name in ledger.parked or self.world.processes[name].mib > mib or self.world.processes[name].parked:
            return
        request = replace(self.requests[name], memory=Memory(mib=mib))
        try:
            ledger.resize(name, ledger.without(name).plan_on(ledger.plans[name].uuids, request), request)
        except (NoRoom, LedgerError):
            return
        self.requests[name] = request

    @precondition(lambda self: self.requests)
    @rule(draw=DRAWS)
    def end(self, draw: int) -> None:
        """A program ends or is killed, wherever its memory is."""
        name = self._one(draw)
        del self.requests[name], self.world.processes[name]
        self.engine.ledger.release(name)

    @rule(seconds=st.sampled_from([0.1, 2.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        """And the engine looks."""
        self.world.now_s += seconds
        self._doing(self.engine.reconcile)
        self._doing(self.engine.parking.look)

    @rule(gib=st.integers(0, 6))
    def somebody_else_holds(self, gib: int) -> None:
        """A program without a share takes what is free, at most so much."""
        free_mib = GPU_MIB - (self.world.used_mib() - self.world.outside_mib)
        awake, parked = self.engine.ledger.plans.values(), self.engine.ledger.parked
        promised = sum(piece.memory_mib for plan in awake for piece in plan.slices if piece.gpu == GPU)
        held = sum(p.mib for n, p in self.world.processes.items() if n not in parked and p.gpu == GPU)
        self.world.outside_mib = min(gib * 1024, max(0, free_mib - max(0, promised - held)))

    # -- what is killed ----------------------------------------------------------------------------------------------

    @rule(what=st.sampled_from(["helper", "engine", "arbiter"]), calls=st.integers(0, 7))
    def kill_soon(self, what: str, calls: int) -> None:
        """At the call after so many."""
        self.world.kills[what] = calls

    @rule(away=st.booleans())
    def arbiter_goes_or_comes(self, away: bool) -> None:
        """While it is away nothing is moved."""
        self.world.arbiter_away = away

    @rule()
    def kill_engine(self) -> None:
        """The next one has the tenants as the driver and the arbiter say that they are."""
        self.world.kills.pop("engine", None)
        before, self.engine = self.engine, Engine(self.world, self.engine.ledger.empty())
        for name, request in self.requests.items():
            held = (before.ledger.parked.get(name) or before.ledger.plans[name]).slices[0]
            plan = Plan((structs.replace(held, gpu=self.world.processes[name].gpu),))
            kills, self.world.kills = self.world.kills, {}
            away = self.world.processes[name].parked and self.engine.parking.is_away(self.engine.processes(name))
            self.world.kills = kills
            self.engine.ledger.reserve(name, plan, request, parked=away)

    # -- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_given_twice(self) -> None:
        """What is promised to the awake fits, what is held is promised, and the host holds no more than it may."""
        if not hasattr(self, "engine"):
            return
        plans = self.engine.ledger.plans
        promised = {(name, piece.gpu): piece.memory_mib for name, plan in plans.items() for piece in plan.slices}
        for gpu in (GPU, OTHER):
            assert sum(mib for (_, on), mib in promised.items() if on == gpu) <= GPU_MIB
            assert self.world.used_mib(gpu) <= GPU_MIB
        assert plans.keys() == self.requests.keys(), "a place is left of a move"
        assert self.world.host_mib() <= HOST_MIB
        for name, process in self.world.processes.items():
            assert process.state == CHECKPOINTED or process.mib <= promised.get((name, process.at), 0), name

    @rule()
    def in_the_end_all_is_well(self) -> None:
        """Once nothing is killed any more, each is awake with all it has or parked, and waits only for want of room."""
        self.world.kills.clear()
        self.world.arbiter_away = False
        self.world.outside_mib = 0
        self.world.refuses = False
        for _ in range(4):
            self.world.now_s += 2.0
            self.engine.reconcile()
            self.engine.parking.look()
        ledger = self.engine.ledger
        for name, process in self.world.processes.items():
            if name in ledger.parked:
                assert process.parked and process.state == CHECKPOINTED
                assert not process.needs or not parking._has_room(name)(ledger)
            else:
                assert (RUNNING, False) == (process.state, process.parked), name
                assert [process.at] == [process.gpu] == ledger.plans[name].uuids


TestAnyPark = AnyPark.TestCase
TestAnyPark.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture
def case() -> Iterator[AnyPark]:
    """A world without tenants."""
    case = AnyPark()
    case.starts(gpus=1)
    yield case
    case.teardown()


def test_an_older_driver_moves_nothing(case: AnyPark):
    """It would not look at the pairs, and restore the memory where another tenant may have its own."""
    case.start(4_096, False, 5)
    older = mock.patch.object(case.engine.parking._driver, "do", lambda *_: 12_080)
    with older, pytest.raises(NotParked, match=r"driver 580\) or later, and this driver has 12.8"):
        case.engine.parking.move(TenantName("t1"), GPU, OTHER, lambda _: None)

    assert not case.world.processes[TenantName("t1")].parked


def test_a_process_that_stays_between_two_steps_keeps_no_other_from_coming_back(case: AnyPark):
    """Its own return is ended once it is through, and another's takes place at the same look."""
    for _ in range(2):
        case.start(4_096, False, 5)
    stuck, other = case.world.processes.values()
    case.time_passes(2.0)
    for draw in (0, 1):
        case.park(draw)
    case.engine.ledger.unpark(TenantName("t1"))
    stuck.state, other.needs = ProcessState.RESTORING, True
    case.time_passes(1.0)
    began_s = case.world.now_s
    case.engine.parking.look()
    waited_s = case.world.now_s - began_s
    states = stuck.state, other.state, other.parked
    stuck.state = LOCKED
    case.engine.parking.look()

    assert (states, waited_s) == ((ProcessState.RESTORING, RUNNING, False), 0.0)
    assert (stuck.state, stuck.parked) == (RUNNING, False)


def test_a_program_that_does_not_answer_keeps_no_other_from_coming_back(case: AnyPark):
    """While it is waited for, to be parked by hand, what is parked comes back; nobody takes the wait for one to end."""
    for _ in range(2):
        case.start(4_096, False, 5)
    silent, other = case.world.processes.values()
    case.time_passes(2.0)
    case.park(1)
    silent.silent, other.needs = True, True
    seen: list[tuple[bool, bool]] = []

    def meanwhile(_: float) -> None:
        if not seen:
            look = threading.Thread(target=case.engine.parking.look, daemon=True)
            look.start()
            look.join(5.0)
            seen.append((silent.parked, other.parked))
        case.world.now_s += 1.0

    with mock.patch.object(case.world, "sleep", meanwhile), pytest.raises(NotParked, match="within 5 s"):
        case.engine.parking.park(TenantName("t1"))

    assert (seen, silent.parked) == ([(True, False)], False)


def test_one_that_was_parked_by_hand_does_not_take_what_others_were_promised(case: AnyPark):
    """It has no promise of its own; what may be parked finds its memory again whenever it is used."""
    case.start(10_240, False, 5)
    case.time_passes(2.0)
    case.park(0)
    case.start(10_240, True, 5)
    case.time_passes(40.0)

    with pytest.raises(NoRoom, match='"t2", which may be parked, would not find its 10'):
        case.engine.parking.unpark(TenantName("t1"))
    case.end(1)
    assert case.engine.parking.unpark(TenantName("t1")) == 10_240


def test_the_next_turn_is_of_the_one_with_the_least_time_for_its_request(case: AnyPark):
    """Who asked first does not have more turns for that."""
    request = GpuRequest(20, memory=Memory(mib=12_288))
    for _ in range(3):
        case.engine.parking.make_room(lambda ledger: ledger.has_room(request))
        case.start(12_288, False, 5)
        case.time_passes(2.0)
        case.says(len(case.requests) - 1, needs=False)
        case.engine.parking.look()
    case.engine.parking.acquire_gpu(TenantName("t3"))
    case.world.processes[TenantName("t1")].charged_s = 5.0
    case.world.processes[TenantName("t2")].charged_s = 4.0
    for name in ("t1", "t2"):
        waits = case.engine.parking.acquire_gpu(TenantName(name))
        case.time_passes(2.0)
    still = {*case.engine.ledger.parked}
    case.engine.parking.yield_gpu(TenantName("t3"))
    case.engine.parking.look()

    assert (waits, still) == ('"t2" is on its way back', {"t1", "t2"})
    assert {*case.engine.ledger.parked} == {"t1", "t3"}


def test_what_is_not_parked_asks_for_no_room(case: AnyPark):
    """The answer is the ledger's alone."""
    case.start(10_240, True, 5)
    case.world.arbiter_away = True

    asked = mock.patch.object(case.engine.parking, "make_room", side_effect=AssertionError)
    with asked, pytest.raises(NotParked, match='"t1" is not parked'):
        case.engine.parking.unpark(TenantName("t1"))


def test_programs_that_do_not_answer_keep_others_waiting_rarely(case: AnyPark):
    """What cannot be parked costs a look five seconds; it is one at a time, and each is tried ever more rarely."""
    for _ in range(3):
        case.start(2_048, True, 5)
    for process in case.world.processes.values():
        process.silent = True
    waits = []
    for _ in range(3_600):
        began_s = case.world.now_s
        case.engine.parking.look()
        waits.append(case.world.now_s - began_s)
        case.world.now_s += 1.0

    assert parking.READY_S <= max(waits) <= parking.READY_S + 0.1
    assert 3 < sum(wait > 1.0 for wait in waits) <= 3 * 12
