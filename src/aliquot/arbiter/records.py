"""Records of tenants as the arbiter receives and reports them: the JSON lines of its two local sockets.

Shares are milli-GPU, memory is MiB, times carry their unit in the name. Unknown fields are ignored, so an older reader
understands a newer arbiter.

Recent events and recent turns, in rings of bounded length.

Grants are turns and no events, since they are too many. An event that repeats is one record with a count, so that a
tenant that is refused or cut off again and again does not push out what happened to others.
"""

from __future__ import annotations

import uuid as uuid_module
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from aliquot.model.quantities import MILLI
from aliquot.model.requests import Enforce, Slice
from aliquot.status import Turn, Turns
from aliquot.status.tenants import TenantStatus, Unregistered


class TenantGpu(Slice, frozen=True, array_like=False):
    """A tenant's slice of one GPU, with what the arbiter has to know beyond it."""

    context_mib: int = 0
    enforce: Enforce = "all"
    wake_us: int = 0
    max_memory_mib: int = 0
    """Beyond `memory_mib`, its guarantee, up to this is lent to it; 0: nothing is."""

    device_mib: int = 0
    """Of the whole GPU; 0: not known, and nothing is lent there."""

    @property
    def limit_mib(self) -> int:
        """What it may hold with what is lent to it."""
        return max(self.memory_mib, self.max_memory_mib)

    @property
    def uuid(self) -> str:
        """The GPU in text form, such as `GPU-6c5c...`; its name in the record's JSON."""
        return self.gpu

    def uuid_bytes(self) -> bytes:
        """The 16 bytes that cuDeviceGetUuid gives.

        Raises:
            ValueError: the text is not a GPU's UUID.
        """
        try:
            return uuid_module.UUID(self.gpu.removeprefix("GPU-").removeprefix("MIG-")).bytes
        except ValueError as error:
            raise ValueError(f"{self.gpu!r} is not the UUID of a GPU") from error


class TenantRecord(msgspec.Struct, frozen=True):
    """One tenant: the path of its own socket, and its GPUs in the order of their slots.

    `uid` is the account whose programs alone may connect; None leaves it to the folder that the socket is in.
    """

    name: str
    socket: str
    gpus: list[TenantGpu]
    uid: int | None = None
    parked: int = 0
    """The number of the park that keeps its memory off its GPUs; 0: none."""
    earlier: list[str] = []
    """GPUs that it had in place of its only one, by which programs that began there still know that."""
    moves_from: str = ""
    """The last of them, until its memory has come from there."""

    away: bool = False
    """Whether its memory is off them, as the engine says."""
    parks: bool = False
    """Whether it can be parked where it is."""

    def moved_as(self, known: TenantRecord) -> TenantRecord:
        """With what has become of it since it was made, as a record that is `known` says."""
        return msgspec.structs.replace(
            self, parked=known.parked, away=known.away, earlier=known.earlier, moves_from=known.moves_from
        )

    def gates(self) -> list[TenantGpu]:
        """The GPUs with what is enforced on each: one that the tenant has whole, beside a shared one, takes no turns.

        With turns it would be idle whenever another tenant has the turn on the shared GPU.
        """
        shared = any(gpu.request_milli < MILLI for gpu in self.gpus)
        return [
            msgspec.structs.replace(gpu, enforce="memory")
            if shared and gpu.request_milli >= MILLI and gpu.enforce == "all"
            else gpu
            for gpu in self.gpus
        ]


class GpuStatus(msgspec.Struct):
    """One GPU: its holder and the part of the window that was charged to any tenant.

    `unregistered` has the largest of those processes, and means something only where `Status.compared` is set. Where a
    tenant owns the GPU and its programs have the bare driver, they are in `bare` instead. `context_mib` is the
    least that one context was seen to take, 0 before that.
    """

    uuid: str
    holder: str | None
    busy: float
    tenants: list[TenantStatus]
    unregistered: list[Unregistered] = []
    bare: list[Unregistered] = []
    context_mib: int = 0


class Status(msgspec.Struct):
    """Everything at one moment; `now_ns` is CLOCK_MONOTONIC.

    `compared` is whether NVML's processes are being compared with those that are attached.
    """

    now_ns: int
    boot_id: int
    pid: int
    window_ms: int = 0
    turns: str = ""
    quota_ms: int = 0
    handover: str = ""
    fail_policy: str = ""
    connections: int = 0
    gpus: list[GpuStatus] = []
    compared: bool = False


SHOWN_S: Final = 60.0
UNKNOWN: Final = "(unknown)"
WIRE: Final = 2
"""Of both local sockets; raised when a change would be misunderstood. New fields have defaults instead."""


class HeldTurn(msgspec.Struct, frozen=True, array_like=True):
    """A tenant held a GPU from one moment to another, of CLOCK_MONOTONIC."""

    tenant: str
    began_ns: int
    ended_ns: int


class GpuTurns(msgspec.Struct, frozen=True):
    """The turns on one GPU in the minute before `now_ns`, oldest first; all of them are known from `known_ns` on."""

    now_ns: int
    known_ns: int
    turns: list[HeldTurn]


class Request(msgspec.Struct):
    """One line to admin.sock or status.sock; `name` is a tenant's, or for `turns` a GPU's UUID."""

    op: str
    tenant: TenantRecord | None = None
    name: str = ""
    follow: bool = False
    end: bool = False
    busy: bool = False


class ParkState(msgspec.Struct, frozen=True):
    """How far a tenant is on its way to being parked.

    `ready`: no call of the driver is under way in `pids`, its processes on the GPU, and none begins. `woken`: one
    waits. `is_new`: this call has begun it.
    """

    ready: bool
    woken: bool
    pids: list[int]
    is_new: bool


class Answer(msgspec.Struct, omit_defaults=True):
    """One line back: `error` is a sentence for a person, empty when all went well."""

    wire: int = 0
    version: str = ""
    error: str = ""
    status: Status | None = None
    turns: GpuTurns | None = None
    parking: ParkState | None = None
    event: dict[str, Any] | None = None
    end: bool = False


def unhooked(status: Status) -> list[str]:
    """The tenants whose programs got functions of the driver that the hook could not stand before, or ran unasked."""
    found: dict[str, str] = {}
    for tenant in (tenant for gpu in status.gpus for tenant in gpu.tenants):
        if tenant.unrouted:
            found[tenant.name] = f"{tenant.name}: {tenant.unrouted} driver functions not intercepted"
        elif tenant.ungated_ms:
            found[tenant.name] = f"{tenant.name}: {tenant.ungated_ms / 1e3:.1f} s without an arbiter"
    return sorted(found.values())


def turns_of(gpu: str, told: GpuTurns, now_s: float, names: Mapping[str, str] | None = None) -> Turns:
    """The arbiter's turns by the wall's clock, which is `now_s` at the arbiter's now, within the last minute.

    `names` maps the names in the report to tenants; a tenant missing in it is `UNKNOWN`. None: as reported.
    """

    def wall_s(ns: int) -> float:
        return round(now_s - min(SHOWN_S, max(0.0, (told.now_ns - ns) / 1e9)), 4)

    turns = [
        Turn(turn.tenant if names is None else names.get(turn.tenant, UNKNOWN), wall_s(turn.began_ns), ended_s)
        for turn in told.turns
        if wall_s(turn.began_ns) <= (ended_s := wall_s(turn.ended_ns))
    ]
    return Turns(gpu, now_s - SHOWN_S, now_s, wall_s(told.known_ns), turns)


Event = dict[str, Any]
REPEAT_NS: Final = 60_000_000_000
"""An event of the same kind about the same tenant and GPU is the same one until it has not happened for this long."""
_ADMINISTRATIVE: Final = frozenset(("tenant-added", "tenant-removed"))
MAX_TURN_MARKS: Final = 4096
"""Beginnings and ends of turns that are kept of one GPU."""
SHOWN_NS: Final = 60_000_000_000


class EventRing:
    """The last events, oldest first, and those who follow along."""

    def __init__(self, kept: int) -> None:
        self._events: dict[Any, Event] = {}
        self._max = kept
        self._count = 0
        self.followers: set[Callable[[Event], None]] = set()

    def emit(self, kind: str, now_ns: int, **facts: Any) -> None:
        """Keep one event and hand it to the followers; a repeated one is counted, and handed on at 2, 4, 8 times."""
        self._count += 1
        key = self._count if kind in _ADMINISTRATIVE else (kind, facts.get("tenant"), facts.get("gpu"))
        before = self._events.get(key)
        if before is not None and now_ns - before["last_ns"] <= REPEAT_NS:
            before["count"] += 1
            before["last_ns"] = now_ns
            if before["count"].bit_count() == 1:
                self._tell(before)
            return
        event: Event = {"id": self._count, "now_ns": now_ns, "last_ns": now_ns, "kind": kind, "count": 1, **facts}
        self._events.pop(key, None)
        self._events[key] = event
        if len(self._events) > self._max:
            del self._events[next(iter(self._events))]
        self._tell(event)

    def _tell(self, event: Event) -> None:
        for follower in tuple(self.followers):
            follower(event)

    def recent(self) -> list[Event]:
        """What is kept, oldest first."""
        return list(self._events.values())


class TurnLog:
    """The beginnings of turns, and the moments from which on no tenant held the GPU.

    A hand-over costs two appends. Nothing is computed until it is queried.
    """

    def __init__(self) -> None:
        self._of: dict[str, deque[tuple[int, str]]] = {}

    def began(self, gpu: str, tenant: str, now_ns: int) -> None:
        """A tenant was granted a GPU; the turn before it has ended."""
        log = self._of.get(gpu)
        if log is None:
            log = self._of[gpu] = deque(maxlen=MAX_TURN_MARKS)
        log.append((now_ns, tenant))

    def ended(self, gpu: str, tenant: str, now_ns: int) -> None:
        """The tenant's work has ended; nothing changes if another one was granted the GPU meanwhile."""
        log = self._of.get(gpu)
        if log and log[-1][1] == tenant:
            log.append((now_ns, ""))

    def last_minute(self, gpu: str, now_ns: int) -> GpuTurns:
        """The turns that ended less than a minute ago, and the one that has not."""
        log = self._of.get(gpu) or ()
        since_ns = now_ns - SHOWN_NS
        known_ns = log[0][0] if isinstance(log, deque) and len(log) == MAX_TURN_MARKS else since_ns
        ends = [*(at_ns for at_ns, _ in log), now_ns][1:]
        turns = [
            HeldTurn(tenant, max(began_ns, since_ns), ended_ns)
            for (began_ns, tenant), ended_ns in zip(log, ends, strict=True)
            if tenant and ended_ns > since_ns
        ]
        return GpuTurns(now_ns, max(known_ns, since_ns), turns)
