"""Parked tenants: their memory is in the host's, for others to have, and comes back when it is needed.

To park: the arbiter stops a tenant's calls of the driver, the driver locks its processes and takes their memory off the
GPU, and then the ledger frees it. Back: the memory is reserved in the ledger *first*, then restored and unlocked, for a
process whose restore finds no memory is lost (NVIDIA/cuda-checkpoint#44); the GPU's own free memory is looked at too,
since programs without a share may hold it. A call that needs the GPU asks for the way back; where there is no room, the
tenants that have been idle longest and may be parked go, or the call waits.

What was lent to a tenant beyond its guarantee, and is called back in vain, comes back by a park, also of one that is
busy. Its guarantee stays its own in the ledger; what it was lent is the arbiter's to lend again before it comes back.

A tenant may also say that it needs no GPU until further notice: it is parked before all others, once its memory is
needed, and not before. Of those that take such turns and wait, the one with the least GPU time for its request is next.

A tenant may be moved in the same way, busy or not: it has its place on both GPUs from before its memory leaves the one
until it is on the other, and the arbiter keeps which one it is on its way from, for the engine that brings it back.
Where the driver does not restore it there, it comes back to where it was.

What a crash leaves is read from the driver: a process has the state of the last step that was taken. A tenant is parked
where processes of it are checkpointed and none is between two steps, for all are locked before the first is
checkpointed, and all restored before the first is unlocked. Where the arbiter stops the calls of one that is not,
a park or a return was begun and not ended; it is brought back.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from aliquot.arbiter.client import ArbiterClient, ArbiterError, NoArbiter
from aliquot.arbiter.records import Status
from aliquot.driver.checkpoints import ABSENT, ENDED, GONE, PAIRS_VERSION, Checkpoints, ProcessState, StepFailed
from aliquot.lib.log import Logger
from aliquot.model.errors import AliquotError
from aliquot.model.ids import GpuUuid, TenantName
from aliquot.model.quantities import format_mib
from aliquot.placement.cluster import LedgerError
from aliquot.placement.machine import MachineLedger, NoRoom

if TYPE_CHECKING:
    from aliquot.status.tenants import TenantStatus

T = TypeVar("T")

READY_S: Final = 5.0
"""For so long the programs of a tenant may take to say that they make no calls of the driver."""
LOCK_MS: Final = 2_000
POLL_S: Final = 0.01
LOOK_S: Final = 0.05
REST_S: Final = 1.0
IDLE_S: Final = 1.0
"""Since when a tenant that may be parked is idle, before it makes room for another."""
AGAIN_S: Final = 10.0
AGAIN_MAX_S: Final = 600.0
"""What could not be parked is tried again after so long, twice as long each time: it keeps others from being moved."""
MOVE_S: Final = 30.0
"""For so long a tenant that is moved waits for what is lent of its new GPU: half the time after which that is ended."""
BACK_S: Final = 60.0
"""For so long who brings a tenant back by hand waits until it is; what takes longer is done even so."""
_AWAY: Final = frozenset({ProcessState.CHECKPOINTED, ProcessState.CHECKPOINTING})
_BETWEEN: Final = frozenset({ProcessState.CHECKPOINTING, ProcessState.RESTORING})
log = Logger("standalone")


class NotParked(AliquotError):
    """A tenant cannot be parked, or is not."""


class LedgerOwner(Protocol):
    """What the engine is to this: the ledger's owner."""

    def look(self, read: Callable[[MachineLedger], T]) -> T:
        """Call `read` with the ledger, which does not change meanwhile."""
        ...

    def processes(self, name: TenantName) -> list[int]:
        """All processes of a tenant, whatever they do."""
        ...


class Parking:
    """The parked tenants of an engine, and the thread that brings back those that are needed."""

    def __init__(self, engine: LedgerOwner, runtime: Path, libcuda: Path, libnvml: Path, *, emulated: bool) -> None:
        """`runtime` is the arbiter's folder. Of an `emulated` GPU the memory is the host's already."""
        self._engine = engine
        self._runtime = runtime
        self._emulated = emulated
        self._driver = Checkpoints(libcuda, libnvml)
        self._moves = threading.Lock()  # one tenant at a time, and not while one is waited for
        self._leaving: set[TenantName] = set()  # their programs are waited for, to be parked
        self._woken: dict[TenantName, float] = {}  # since when
        self._refused: dict[TenantName, tuple[float, float]] = {}  # until when it is not tried again, and for how long
        self._yielded: dict[TenantName, float] = {}  # they need no GPU, since when
        self._needed: set[TenantName] = set()  # they have said that they need it again
        self._phases: dict[TenantName, float] = {}  # GPU time for the request that each had before its first yield
        self._moves_back: dict[TenantName, tuple[float, Callable[[], None]]] = {}  # after what time, and how
        self._refusals: dict[TenantName, str] = {}  # why they have not come there
        self.waiting: dict[TenantName, str] = {}
        """Why those that need their memory do not have it back yet."""
        self.on_room: Callable[[], None] = lambda: None
        """Called when memory has become free for those that wait."""
        self._stopping = threading.Event()
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="parking", daemon=True)

    def start(self) -> None:
        """Begin to bring back those that need their memory."""
        self._thread.start()

    def stop(self) -> None:
        """Bring no tenant back any more."""
        self._stopping.set()
        self._changed.set()
        self._thread.join()
        self._driver.close()

    def can_park(self) -> bool:
        """Whether the driver has the calls for it."""
        try:
            self._driver.do("GetState", os.getpid())
        except StepFailed as error:
            return error.code not in (ABSENT, ENDED)
        return True

    def is_away(self, pids: Iterable[int]) -> bool:
        """Whether the memory of a tenant with these processes is off its GPUs."""
        states = {*self._states(pids).values()} - {ProcessState.RUNNING}
        return bool(states) and states <= _AWAY

    def park(self, name: TenantName, *, busy: bool = False) -> int:
        """Take a tenant's memory off its GPU, also where it is in use if it may be `busy`; returns how much, in MiB.

        Raises:
            NotParked: it is not here, is parked, is busy, or has memory that stays; nothing was changed then.
        """
        if self._engine.look(lambda ledger: name in ledger.parked or name not in ledger.plans):
            raise NotParked(f'"{name}" is parked, or has ended')
        with self._leaves(name), ArbiterClient(self._runtime) as arbiter:
            pids = self._stopped(arbiter, name, busy=busy)
            with self._moves:
                return self._take_off(name, pids, arbiter)

    @contextlib.contextmanager
    def _leaves(self, name: TenantName) -> Iterator[None]:
        """Take a tenant off its GPU in one thread at a time; after a failure it stays there.

        Raises:
            NotParked: it is being parked or moved already, or why it stays.
        """
        with self._moves:
            if name in self._leaving:
                raise NotParked(f'"{name}" is being parked or moved; try again when that has ended')
            self._leaving.add(name)
        try:
            yield
        except (ArbiterError, AliquotError, OSError) as error:
            self._moves_back.pop(name, None)
            self._leaving.discard(name)
            self._end_move(name)
            raise NotParked(f'"{name}" stays on its GPU: {error}') from None
        finally:
            self._leaving.discard(name)

    def move(self, name: TenantName, source: GpuUuid, to: GpuUuid, change: Callable[[GpuUuid], None]) -> None:
        """Take a tenant's memory to another GPU, and call back what is lent there.

        `change` makes one of the two its GPU while its memory is off both.

        Raises:
            NotParked: it has memory that stays, or the driver does not take it there; it is where it was.
            NoRoom: programs that the ledger does not know hold memory there.
        """
        if (version := self._driver.do("Version", 0)) < PAIRS_VERSION:
            has = f"{version // 1000}.{version % 1000 // 10}"
            raise NotParked(f"a move takes CUDA 13.0 (driver 580) or later, and this driver has {has}")
        with self._leaves(name), ArbiterClient(self._runtime) as arbiter:
            self._require_room(name, arbiter.status(), (), to)
            pids = self._stopped(arbiter, name, busy=True)
            with self._moves:
                self._copy_out(name, pids, arbiter.status())
                arbiter.note_away(name)
                self._moves_back[name] = time.monotonic() + MOVE_S, lambda: change(source)
                change(to)
        self._wait_for_end(name)
        self._moves_back.pop(name, None)
        why = self._refusals.pop(name, "it has not come there in time")
        if self._engine.look(lambda ledger: name in ledger.plans and to not in ledger.plans[name].uuids):
            raise NotParked(f'"{name}" stays on its GPU: {why}')

    def unpark(self, name: TenantName) -> int:
        """Bring a tenant's memory back, where it takes that by parking others; returns how much is reserved, in MiB.

        Waits while what is lent of it is called back.

        Raises:
            NoRoom: others that stay hold too much of its GPU.
            NotParked: it is not parked.
            ArbiterError: the arbiter is away.
        """
        until_s = time.monotonic() + BACK_S
        while True:
            try:
                mib = self._reserve(name)
                break
            except NoRoom:
                time.sleep(LOOK_S)
                with ArbiterClient(self._runtime) as arbiter:
                    called_back = any(each.memory_wait_s for each in _of(name, arbiter.status()))
                if not called_back or time.monotonic() > until_s:
                    raise
        self._wait_for_end(name)
        return mib

    def _wait_for_end(self, name: TenantName) -> None:
        until_s = time.monotonic() + BACK_S
        while not self._end_move(name) and time.monotonic() < until_s:
            time.sleep(POLL_S)

    def _reserve(self, name: TenantName) -> int:
        """Reserve the memory of a parked tenant, where it takes that by parking others; how much that is, in MiB.

        Raises:
            NoRoom, NotParked, ArbiterError: as `unpark`.
        """
        if (plan := self._engine.look(lambda ledger: ledger.parked.get(name))) is None:
            raise NotParked(f'"{name}" is not parked')
        if not _has_room(name)(self._engine.look(MachineLedger.copy)):
            self.make_room(_has_room(name), name)
        with self._moves, ArbiterClient(self._runtime) as arbiter:
            try:
                self._engine.look(MachineLedger.copy).unpark(name)  # first, as the rest takes longer
                arbiter.take_back(name)
                try:
                    self._require_room(name, arbiter.status(), self._processes(name, arbiter))
                    self._engine.look(lambda ledger: ledger.unpark(name))
                except (AliquotError, KeyError):
                    arbiter.note_away(name)
                    raise
            except NoArbiter:
                raise
            except (LedgerError, ArbiterError) as error:
                raise NoRoom(f'"{name}" has no room to come back: {error}') from None
            except KeyError:
                raise NotParked(f'"{name}" has ended, or is back') from None
            return sum(piece.memory_mib for piece in plan.slices)

    def _processes(self, name: TenantName, arbiter: ArbiterClient) -> set[int]:
        """Those of a tenant whose calls the arbiter has stopped."""
        return {*self._engine.processes(name), *arbiter.park_tenant(name).pids}

    def _require_room(self, name: TenantName, status: Status, pids: Collection[int], to: str = "") -> None:
        """Refuse a return, or a move `to` another GPU, for which the ledger has room and the GPU does not.

        Raises:
            NoRoom: programs hold memory that the ledger does not know.
        """
        lent_mib = sum(each.memory_lent_mib for gpu in status.gpus if gpu.uuid == to for each in gpu.tenants)
        for gpu in status.gpus:
            for held in (each for each in gpu.tenants if each.name == name):
                with contextlib.suppress(StepFailed):  # where NVML does not say, the ledger's word is all there is
                    room_mib = self._driver.room_mib(to or gpu.uuid, pids) + lent_mib
                    if room_mib < held.memory_used_mib:
                        where, which = ("there", "that") if to else ("to come back", "its")
                        raise NoRoom(
                            f'"{name}" has no room {where}: {format_mib(room_mib)} of {which} GPU are free and '
                            f"{format_mib(held.memory_used_mib)} are needed; what Aliquot did not give is held by "
                            "programs without a share. See them: nvidia-smi"
                        )

    def yield_gpu(self, name: TenantName) -> None:
        """A tenant needs no GPU until it says so or uses it; nothing is moved before others need its memory.

        Raises:
            NotParked: what keeps its memory on the GPU; nothing has changed then.
            ArbiterError: the arbiter is away.
        """
        until_s = time.monotonic() + IDLE_S
        with ArbiterClient(self._runtime) as arbiter:
            status = arbiter.status()
            while stays := next((each.stays for each in _of(name, status) if each.stays), ""):
                if time.monotonic() > until_s:  # what it launched last may have been under way
                    raise NotParked(f'"{name}" {stays}')
                time.sleep(POLL_S)
                status = arbiter.status()
        if name not in self._phases:  # what it had before is no claim of the others
            others = [self._turns_s(other, status) for other in self._phases if _of(other, status)]
            self._phases[name] = 0.0
            self._phases[name] = self._turns_s(name, status) - min(others, default=0.0)
        self._needed.discard(name)
        self._refused.pop(name, None)
        self._yielded[name] = time.monotonic()
        self._changed.set()

    def acquire_gpu(self, name: TenantName) -> str:
        """A tenant needs its GPU; why its memory is not there yet, or nothing once it is. To be asked again until then.

        Raises:
            ArbiterError: the arbiter is away.
        """
        self._yielded.pop(name, None)
        with ArbiterClient(self._runtime) as arbiter:
            if not any(each.stopped for each in _of(name, arbiter.status())):
                self._needed.discard(name)
                return ""
        self._needed.add(name)
        self._changed.set()
        return self.waiting.get(name) or f'"{name}" is on its way back'

    def _turns_s(self, name: TenantName, status: Status) -> float:
        """GPU time that a tenant had for its request since it first yielded; -1 for one that never has."""
        charged_s = sum(each.charged_ns / each.request_milli for each in _of(name, status) if each.request_milli) / 1e6
        return charged_s - self._phases[name] if name in self._phases else -1.0

    def make_room(self, fits: Callable[[MachineLedger], bool], but: str = "") -> bool:
        """Park those that have yielded or been idle longest, as few as it takes until `fits`; else none of them.

        `but` is a tenant that stays.
        """
        parkable = self._engine.look(lambda ledger: any(ledger.request_of(name).park_after_s for name in ledger.plans))
        if not parkable and not self._yielded:
            return False  # for a run that waits this is asked often
        with contextlib.suppress(ArbiterError, OSError), ArbiterClient(self._runtime) as arbiter:
            idle = sorted(
                self._parkable(arbiter.status()), key=lambda each: (each[1] in self._yielded, each), reverse=True
            )
            ledger = self._engine.look(MachineLedger.copy)
            victims: list[TenantName] = []
            for idle_s, name in idle:
                if (idle_s >= IDLE_S or name in self._yielded) and name != but and not fits(ledger):
                    ledger.park(name)
                    victims.append(name)
            if not victims or not fits(ledger):
                return False
            for name in [*victims]:  # one that was idle longer may be on another GPU
                trial = ledger.copy()
                trial.unpark(name)
                if fits(trial):
                    ledger = trial
                    victims.remove(name)
            return all(self._try_to_park(name) for name in victims)
        return False

    def _stopped(self, arbiter: ArbiterClient, name: TenantName, *, busy: bool = False) -> list[int]:
        """The processes of a tenant once no call of the driver is under way in them."""
        until_s = time.monotonic() + READY_S
        while time.monotonic() < until_s:
            parking = arbiter.park_tenant(name, busy=True) if busy else arbiter.park_tenant(name)
            if parking.woken and not busy:
                raise NotParked("a program of it needs the GPU")
            if parking.ready:
                return parking.pids
            time.sleep(POLL_S)
        raise NotParked(f"its programs have not said within {READY_S:.0f} s that they make no calls of the driver")

    def _take_off(self, name: TenantName, pids: Collection[int], arbiter: ArbiterClient) -> int:
        """Take the memory of a tenant off its GPU, then free it in the ledger; returns how much that is, in MiB.

        Raises:
            NotParked, StepFailed: as `_copy_out`.
            ArbiterError: the arbiter is away.
        """
        held_mib = self._copy_out(name, pids, arbiter.status())
        arbiter.note_away(name)
        with contextlib.suppress(KeyError):  # it may have ended meanwhile
            self._engine.look(lambda ledger: ledger.park(name))
        self._refused.pop(name, None)
        self._changed.set()
        return held_mib

    def _copy_out(self, name: TenantName, pids: Collection[int], status: Status) -> int:
        """Lock and checkpoint the processes of a tenant; returns how much memory that is, in MiB.

        Raises:
            NotParked: the host has no room for it.
            StepFailed: the driver refuses a process; the others may have been taken off.
        """
        held_mib = sum(each.memory_used_mib for each in _of(name, status))
        if not self._emulated and held_mib > (room_mib := host_room_mib(pids)):
            raise NotParked(
                f"its {format_mib(held_mib)} do not fit in the host's memory, of which {format_mib(room_mib)} "
                "are left to it"
            )
        for pid in pids:
            self._driver.do("Lock", pid, LOCK_MS)
        for pid in pids:
            self._driver.do("Checkpoint", pid)
        return held_mib

    def _states(self, pids: Iterable[int]) -> dict[int, int]:
        """Of those that live and have started the driver.

        Raises:
            StepFailed: the driver does not say.
        """
        states = {}
        for pid in pids:
            try:
                states[pid] = self._driver.do("GetState", pid)
            except StepFailed as error:
                if error.code not in GONE:
                    raise
        return states

    def _bring_back(self, name: str, pids: Iterable[int], pairs: str) -> bool:
        """From whatever states they are in; False where that is to be called again, as a step of another is under way.

        `pairs` are the GPU that they were on and the one to restore them onto; empty for the same.

        A step is taken again as long as the state says that it was not taken.
        """
        failed: dict[int, int] = {}
        try:
            while moving := {pid: state for pid, state in self._states(pids).items() if state != ProcessState.RUNNING}:
                if moving.items() <= failed.items():
                    return True
                away = {pid for pid, state in moving.items() if state in _AWAY and failed.get(pid) != state}
                ready = {pid for pid in away or moving.keys() - failed.keys() if moving[pid] not in _BETWEEN}
                if not ready:
                    return False
                for pid in ready:
                    try:
                        if pid in away:
                            self._driver.do("Restore", pid, pairs or 0)
                        else:
                            self._driver.do("Unlock", pid)
                    except StepFailed as error:
                        if error.code == ENDED:
                            raise
                        log.warning("%s: %s", name, error)
                        if pairs:
                            self._refusals[TenantName(name)] = str(error)
                        failed[pid] = moving[pid]
        except StepFailed as error:
            log.warning("%s: %s", name, error)
            return False
        return True

    def _end_move(self, name: TenantName) -> bool:
        """Bring one back whose park or return was begun and not ended; whether there is nothing left to do.

        The arbiter has stopped its calls then, and the ledger says that it is awake.
        """
        with contextlib.suppress(ArbiterError, OSError), self._moves, ArbiterClient(self._runtime) as arbiter:
            status = arbiter.status()
            plan = self._engine.look(lambda ledger: None if name in ledger.parked else ledger.plans.get(name))
            on = {gpu.uuid: each for gpu in status.gpus for each in gpu.tenants if each.name == name}
            if plan is None or name in self._leaving or not any(each.stopped for each in on.values()):
                return True
            if {*plan.uuids} != {*on}:
                return False  # the arbiter is yet to be told that it has not moved, or that it has
            pairs = next((f"{each.moves_from},{uuid}" for uuid, each in on.items() if each.moves_from), "")
            pids = self._processes(name, arbiter)
            try:
                if _AWAY & {*self._states(pids).values()}:
                    try:
                        arbiter.take_back(name)
                    except ArbiterError as error:  # what is lent is called back for it
                        if name not in self._moves_back or time.monotonic() < self._moves_back[name][0]:
                            return False
                        raise NoRoom(f"{error}, and have not come back in {MOVE_S:.0f} s") from None
                    self._require_room(name, status, pids)  # again: it was reserved at an earlier time
                if not self._bring_back(name, pids, pairs):
                    return False
                if not (pairs and _AWAY & {*self._states(pids).values()}):
                    arbiter.unpark_tenant(name)
                    return True
            except NoRoom as error:
                if pairs:
                    self._refusals[name] = str(error)
            except AliquotError:
                return False
            if pairs and name in self._moves_back:
                arbiter.note_away(name)
                self._moves_back.pop(name)[1]()
        return False

    def _finish(self, status: Status) -> None:
        """Bring those back whose park or return was begun and not ended, by whatever was killed."""
        stopped = {TenantName(each.name) for gpu in status.gpus for each in gpu.tenants if each.stopped}
        for name in stopped - self._engine.look(lambda ledger: {*ledger.parked}):
            self._end_move(name)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._changed.wait(LOOK_S if self._engine.look(lambda ledger: len(ledger.parked)) else REST_S)
            self._changed.clear()
            self.look()

    def look(self) -> None:
        """Bring back those that need their memory, and park those that have been idle for as long as they said."""
        with contextlib.suppress(ArbiterError, AliquotError, OSError), ArbiterClient(self._runtime) as arbiter:
            parked = self._engine.look(lambda ledger: [*ledger.parked])  # first: they are parked at the arbiter too
            status = arbiter.status()
            self._finish(status)
            self._forget_turns(status)
            self._return(parked, status)
            self._put_away(status)
            for name in {TenantName(each.name) for gpu in status.gpus for each in gpu.tenants if each.memory_overdue}:
                self._try_to_park(name, busy=True)
            if any(idle_s >= IDLE_S or name in self._yielded for idle_s, name in self._parkable(status)):
                self.on_room()  # they make room for those that wait

    def _forget_turns(self, status: Status) -> None:
        """One that uses its GPU again has not yielded any more; of one that has ended nothing is kept."""
        here = self._engine.look(lambda ledger: {*ledger.plans})
        self._needed &= here
        self._phases = {name: before_s for name, before_s in self._phases.items() if name in here}
        for name, since_s in [*self._yielded.items()]:
            idle_s = min((each.idle_s for each in _of(name, status)), default=0.0)
            if name not in here or idle_s < time.monotonic() - since_s - IDLE_S:
                self._yielded.pop(name, None)

    def _return(self, parked: Iterable[TenantName], status: Status) -> None:
        """Bring back those that are needed: by the turns that they have had, then the longest waiting first."""
        now_s = time.monotonic()
        # An arbiter that could not write down that a tenant is parked lets its calls into the driver, where they hang.
        woken = {name for name in parked if any(each.woken or not each.stopped for each in _of(name, status))}
        woken |= self._needed & {*parked}
        self._woken = {name: self._woken.get(name, now_s) for name in woken}
        self.waiting = {name: why for name, why in self.waiting.items() if name in woken}
        for name in sorted(self._woken, key=lambda name: (self._turns_s(name, status), self._woken[name])):
            try:
                self._reserve(name)
                self._end_move(name)  # where it is not done now, it is at a later look
            except (AliquotError, ArbiterError) as error:
                self.waiting[name] = str(error)

    def _put_away(self, status: Status) -> None:
        """Park one that has been idle for as long as it said; those that need their memory are looked at in between."""
        requests = self._engine.look(lambda ledger: {name: ledger.request_of(name) for name in ledger.plans})
        self._refused = {name: refused for name, refused in self._refused.items() if name in requests}
        for idle_s, name in self._parkable(status):
            if name in requests and 0 < requests[name].park_after_s <= idle_s:
                if self._try_to_park(name):
                    self.on_room()
                return

    def _try_to_park(self, name: TenantName, *, busy: bool = False) -> bool:
        """Park a tenant if it can be; where its programs do not answer that takes seconds, so not soon again."""
        try:
            self.park(name, busy=busy)
        except NotParked as error:
            if self._engine.look(lambda ledger: name in ledger.plans):  # else it has ended, which is no news
                log.info("%s", error)
            again_s = min(AGAIN_MAX_S, 2 * self._refused.get(name, (0.0, AGAIN_S / 2))[1])
            self._refused[name] = (time.monotonic() + again_s, again_s)
            return False
        return True

    def _parkable(self, status: Status) -> Iterator[tuple[float, TenantName]]:
        """The tenants that may be parked, are awake and could leave their GPU, with the seconds they have been idle."""
        awake = self._engine.look(
            lambda ledger: {
                name
                for name in ledger.plans.keys() - ledger.parked.keys()
                if ledger.request_of(name).park_after_s or name in self._yielded
            }
        )
        for name in awake:
            on = _of(name, status)
            if on and not any(each.stays for each in on) and time.monotonic() >= self._refused.get(name, (0.0, 0))[0]:
                yield min(each.idle_s for each in on), name


def host_room_mib(pids: Iterable[int], root: Path = Path("/")) -> int:
    """MiB of the host's memory that is left to these processes: what is available, within their cgroups' limits."""
    words = (root / "proc/meminfo").read_text().partition("MemAvailable:")[2].split()
    rooms = [int(words[0]) >> 10]
    for pid in pids:
        lines = (root / f"proc/{pid}/cgroup").read_text().splitlines()
        group = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
        own = root / "sys/fs/cgroup" / (group or "")
        for folder in () if group is None else (own, *own.parents):
            with contextlib.suppress(OSError, ValueError):  # no limit, which is "max"; or above the cgroups
                limit, used = ((folder / name).read_text() for name in ("memory.max", "memory.current"))
                rooms.append((int(limit) - int(used)) >> 20)
    return max(0, min(rooms))


def _has_room(name: TenantName) -> Callable[[MachineLedger], bool]:
    """Whether a parked tenant could come back."""

    def fits(ledger: MachineLedger) -> bool:
        try:
            ledger.copy().unpark(name)
        except (LedgerError, KeyError):
            return False
        return True

    return fits


def _of(name: str, status: Status) -> list[TenantStatus]:
    return [each for gpu in status.gpus for each in gpu.tenants if each.name == name]
