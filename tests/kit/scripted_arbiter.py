"""An arbiter that does what a test tells it: it speaks the real protocol and decides nothing by itself."""

import contextlib
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from aliquot.arbiter.abi import (
    MESSAGE_SIZE_BYTES,
    MESSAGE_STRUCT,
    FailPolicy,
    MessageType,
    Refusal,
    ReserveFlag,
    WelcomeFeature,
)
from aliquot.arbiter.pages import GrantPage
from aliquot.arbiter.records import TenantGpu

SECOND_NS = 1_000_000_000


class Heard(NamedTuple):
    """One message of the hook, and when it came (CLOCK_MONOTONIC nanoseconds)."""

    type: MessageType
    flags: int
    gpu: int
    a: int
    b: int
    c: int
    at_ns: int


@dataclass
class ScriptedArbiter:
    """Serves `socket_path` for one tenant that owns the GPUs `uuids` ("GPU-...")."""

    socket_path: Path
    uuids: tuple[str, ...]
    memory_mib: int = 1024
    context_mib: int = 0
    request_milli: int = 300
    fail_policy: FailPolicy = FailPolicy.PACE
    gap_us: int = 2000
    in_flight_us: int = 2000
    boot_id: int = 1
    auto_grant: bool = False
    grant_after_s: float = 0.0
    auto_close: bool = False
    shares: bool = False
    crowded: str = ""  # hello or attach: refused, since there are 256 processes already
    refusals: int = 0
    heard: list[Heard] = field(default_factory=list)
    first_heard: list[MessageType] = field(default_factory=list)  # of each connection

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._connections: list[socket.socket] = []
        self._pids: list[int] = []
        self._gpus = [TenantGpu(u, self.request_milli, 1000, self.memory_mib, self.context_mib) for u in self.uuids]
        self.pages = [self._page(gpu) for gpu in self._gpus]
        self.epoch = 0
        self.demand = 0
        self._spare: list[dict[int, int]] = [{} for _ in self.uuids]  # pid: the demand it was sent; 0: none
        self.leased = [0] * len(self.uuids)
        self.contexts = [0] * len(self.uuids)
        self.deadline_s = 60.0

    def _page(self, gpu: TenantGpu) -> GrantPage:
        return GrantPage(
            gpu,
            boot_id=self.boot_id,
            fail_policy=self.fail_policy,
            window_ms=10_000,
            gap_us=self.gap_us,
            in_flight_us=self.in_flight_us,
        )

    def start(self) -> None:
        """Listen; the connections are served by threads that end with them."""
        self.socket_path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self.socket_path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Go away as a killed process does: every connection breaks, the pages stay as they are."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.socket_path.unlink(missing_ok=True)
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._connections.clear()

    def grant(self, gpu: int = 0, *, for_s: float | None = None, at_ns: int | None = None) -> int:
        """Open the gate, as of `at_ns` or now; returns the epoch."""
        self.epoch += 1
        now = at_ns or time.monotonic_ns()
        self.pages[gpu].grant(self.epoch, now, now + int((for_s or self.deadline_s) * SECOND_NS))
        return self.epoch

    def crowd(self, *, waiting: int = 1) -> None:
        """Show that other tenants are attached to the first GPU, and that so many of them wait for it."""
        self.pages[0].set_company(True)
        self.pages[0].set_neighbours(waiting, 0)

    def revoke(self, gpu: int = 0) -> None:
        """Close the gate of the current epoch."""
        self.pages[gpu].close_gate(self.epoch)

    def wait_for(self, kind: MessageType, *, since: int = 0, timeout_s: float = 5.0) -> Heard:
        """The first message of this type after the first `since` ones."""
        end = time.monotonic() + timeout_s
        with self._changed:
            while True:
                for message in self.heard[since:]:
                    if message.type == kind:
                        return message
                if not self._changed.wait(max(0.0, end - time.monotonic())) and time.monotonic() >= end:
                    raise TimeoutError(
                        f"no {kind.name} within {timeout_s} s; heard {[m.type.name for m in self.heard]}"
                    )

    def count(self, kind: MessageType) -> int:
        """How many messages of this type came so far."""
        return sum(message.type == kind for message in self.heard)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            if self.crowded == "hello":
                self._refuse(connection, 0)
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _refuse(self, connection: socket.socket, seq: int) -> None:
        self.refusals += 1
        connection.send(MESSAGE_STRUCT.pack(MessageType.REFUSED, 0, 0, seq, Refusal.TOO_MANY, 256, 0, 0, bytes(16)))

    def _serve(self, connection: socket.socket) -> None:
        leases = [0] * len(self.uuids)
        contexts = [0] * len(self.uuids)
        silent = True
        pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        self._pids.append(pid)
        for page in self.pages:
            page.set_processes(self._pids)
        while True:
            try:
                data = connection.recv(MESSAGE_SIZE_BYTES)
            except OSError:
                break
            if len(data) != MESSAGE_SIZE_BYTES:
                break
            kind, flags, gpu, seq, a, b, c, _, uuid = MESSAGE_STRUCT.unpack(data)
            if silent:
                self.first_heard.append(MessageType(kind))
            silent = False
            try:
                self._answer(connection, MessageType(kind), flags, gpu, seq, a, b, uuid, leases, contexts, pid)
            except (BrokenPipeError, ConnectionResetError):  # it ended without waiting for the answer
                break
            with self._changed:
                self.heard.append(Heard(MessageType(kind), flags, gpu, a, b, c, time.monotonic_ns()))
                self._changed.notify_all()
            if kind == MessageType.WANT and self.auto_grant:
                time.sleep(self.grant_after_s)
                self.grant(gpu)
            if kind == MessageType.RETURN and self.auto_close and a == self.epoch:
                self.revoke(gpu)
        self._pids.remove(pid)
        for gpu, held in enumerate(leases):
            self._spare[gpu].pop(pid, None)
            self._account(gpu, -held, -contexts[gpu])
            self.pages[gpu].set_processes(self._pids)

    def _account(self, gpu: int, leased: int, contexts: int) -> None:
        self.leased[gpu] += leased
        self.contexts[gpu] += contexts
        self.pages[gpu].set_memory(self.leased[gpu], self.contexts[gpu] * self.context_mib << 20)

    def _demand(self, gpu: int, pid: int) -> bool:
        """Have the tenant's other processes return what they lease and do not use; True while one has yet to do so."""
        others = {other: sent for other, sent in self._spare[gpu].items() if other != pid}
        if 0 in others.values():
            self.demand += 1
            self._spare[gpu] |= dict.fromkeys(others, self.demand)
            self.pages[gpu].demand_memory(self.demand)
        return bool(others)

    def _answer(self, connection, kind, flags, gpu, seq, a, b, uuid, leases, contexts, pid) -> None:
        def say(
            answer: MessageType, *, slot: int = 0, value: int = 0, second: int = 0, fds: tuple[int, ...] = ()
        ) -> None:
            message = MESSAGE_STRUCT.pack(answer, 0, slot, seq, value, second, 0, 0, uuid)
            socket.send_fds(connection, [message], list(fds))

        if kind == MessageType.HELLO:
            say(MessageType.WELCOME, value=self.boot_id, second=WelcomeFeature.SHARE if self.shares else 0)
        elif kind == MessageType.ATTACH and self.crowded == "attach":
            self._refuse(connection, seq)
        elif kind == MessageType.ATTACH:
            slots = [i for i, one in enumerate(self._gpus) if one.uuid_bytes() == uuid]
            if slots:
                say(MessageType.PAGE, slot=slots[0], fds=(self.pages[slots[0]].fd,))
            else:
                say(MessageType.REFUSED, value=Refusal.NOT_YOURS)
        elif kind == MessageType.SHARE:
            leases[gpu] -= a
            self._account(gpu, -a, 0)  # what is shared is charged to no process here
            say(MessageType.SHARED, slot=gpu, value=seq)
        elif kind == MessageType.RESERVE:
            free = (self.memory_mib << 20) - self.leased[gpu] - (self.contexts[gpu] * self.context_mib << 20)
            if flags & ReserveFlag.CONTEXT:
                fits = self.context_mib << 20 <= free or bool(flags & ReserveFlag.RESTORE)
                contexts[gpu] += fits
                self._account(gpu, 0, int(fits))
                given = max(1, self.context_mib << 20) if fits else 0
                say(MessageType.LEASE, value=given, second=bool(not given and self._demand(gpu, pid)))
                return
            given = a if flags & ReserveFlag.RESTORE else min(max(a, b), free) if a <= free else 0
            leases[gpu] += given
            self._account(gpu, given, 0)
            if given:
                self._spare[gpu][pid] = 0
            say(MessageType.LEASE, slot=gpu, value=given, second=bool(a and not given and self._demand(gpu, pid)))
        elif kind == MessageType.RELEASE:
            if flags & ReserveFlag.CONTEXT:
                contexts[gpu] -= 1
                self._account(gpu, 0, -1)
            else:
                leases[gpu] -= a
                self._account(gpu, -a, 0)
                if b and b >= self._spare[gpu].get(pid, b + 1):
                    del self._spare[gpu][pid]
