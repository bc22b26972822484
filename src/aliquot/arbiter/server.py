"""The arbiter's one thread: an epoll loop over tenants' sockets, pidfds, a timer, and the two local JSON sockets.

Epoll's own time-outs are whole milliseconds, so deadlines run on a timerfd. In one turn every ready connection may say
a few messages; then the policy decides once, words are stored, and only after that anything slower happens.

From the decision until the loop wakes again, a native thread may hand GPUs over as was prepared (`handover`). First
of all after waking the loop takes what was prepared back and accounts for what was handed over.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import selectors
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from aliquot.lib.log import Logger
from aliquot.tokens import TokenConfig, Turns, token_policy

from .abi import MESSAGE_SIZE_BYTES, FailPolicy, MessageType, Refusal
from .engine import Dispatcher, shares_of
from .grants import GrantState, Process, Tenant, why_no_park, why_not_parked
from .handover import NativeLoop, prepared
from .leases import Earlier, Leases, digest
from .linux import Timer, has_ended, start_ticks
from .pages import GrantPage
from .protocol import TURN_TAKING, Misbehaved, Protocol, answer
from .records import EventRing, ParkState, TenantRecord

_CREDENTIALS: Final = struct.Struct("3i")
SILENT_NS: Final = 3_000_000_000
"""As in the hook: without a heartbeat for this long it goes on without the arbiter."""
LOOK_NS: Final = 5_000_000
"""Prepared hand-overs are renewed no sooner where nothing happens: waiters that are nearly even swap places often."""
ROUND_PATIENCE_NS: Final = 20_000_000
"""How long less urgent work, of a millisecond or more, is put off while a GPU is about to change hands."""
PUT_OFF_NS: Final = 2_000_000
DEFECT_NS: Final = 60_000_000_000
_NEVER_NS: Final = 1 << 62
_BACKLOG: Final = 1024
_KEPT_DESCRIPTORS: Final = 80
"""Never given to tenants: the status and admin sockets' clients, the journal, what housekeeping opens."""
MIN_DESCRIPTORS: Final = _KEPT_DESCRIPTORS + 16
"""With fewer no tenant could connect."""

_LOG: Final = Logger("arbiter")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one arbiter: its policy, and limits on the resources that tenants may cost it.

    Every resource has a limit: nothing that a tenant sends grows without bound.
    """

    runtime_dir: Path
    tokens: TokenConfig = field(default_factory=TokenConfig)
    fail_policy: FailPolicy = FailPolicy.PACE
    libnvml: Path | None = None
    libhandover: Path | None = None  # None: every hand-over waits for the arbiter's own loop
    metrics_port: int = 0
    max_processes_per_tenant: int = 256  # that launch on a GPU, and as many apart that only query it
    messages_per_second: int = 5000
    message_burst: int = 5000
    messages_per_turn: int = 32
    burst_gap_us: int = 2000
    max_in_flight_us: int = 2000
    events_kept: int = 1000
    journal_bytes: int = 1 << 20
    leases_bytes: int = 1 << 20  # 64 for each process on each GPU
    housekeeping_ns: int = 250_000_000


class Server:
    """Owns every descriptor. `run` returns after `stop`."""

    def __init__(self, settings: Settings, leases: Leases | None = None) -> None:
        self.settings = settings
        self.boot_id = int.from_bytes(os.urandom(8), "little") | 1
        self.events = EventRing(settings.events_kept)
        self.engine = Dispatcher(token_policy(settings.tokens), self.events.emit, leases)
        self.selector = selectors.EpollSelector()
        self.housekeepers: list[Callable[[int], None]] = []
        self._protocol = Protocol(self.engine, self.boot_id, settings.max_processes_per_tenant)
        self._timer = Timer()
        self._paused: dict[Process, int] = {}
        self._unheard: list[Tenant] = []  # their connections are not accepted until a descriptor may be free again
        self._stopping = False
        self._parks = self.boot_id & 0x3FFFFFFF  # other numbers than those of the arbiter before
        self._next_defect_ns = 0
        self._next_round_ns = self._latest_round_ns = 0
        self._ran_ns = time.monotonic_ns()
        self._native: NativeLoop | None = None
        if settings.libhandover is not None:
            with contextlib.suppress(OSError):  # this machine has none: hand-overs are the arbiter's own then
                self._native = NativeLoop(settings.libhandover, self.selector.fileno())
        self._look_ns = 0  # when prepared hand-overs that are in force want a look
        self.selector.register(self._timer, selectors.EVENT_READ, self._timer.clear)

    def run(self) -> None:
        """Serve until `stop`; the collector runs only between turns, when it has time."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self.turn()  # arms the timer: without it a stop that comes before the first message would not be seen
        while not self._stopping:
            ready = self.selector.select()
            self._regain()
            now = time.monotonic_ns()
            if now - self._ran_ns > SILENT_NS:  # charge no tenant for it: they went on by the fail policy meanwhile
                self.engine.policy.skip(now)
                self.events.emit("stalled", now, ms=(now - self._ran_ns) // 1_000_000)
            self._ran_ns = now
            for key, _ in ready:
                key.data()
            self.turn()
        self._regain()

    def stop(self) -> None:
        """End `run` after this turn; safe to call from a signal handler, which also wakes the loop."""
        self._stopping = True

    def turn(self) -> None:
        """Let the policy decide, then do the less urgent work that is due, then arm the timer."""
        now = time.monotonic_ns()
        self._decide(now)
        self.engine.show_neighbours()
        if now >= self._next_round_ns and self.engine.is_awaited() and now < self._latest_round_ns:
            self._next_round_ns = now + PUT_OFF_NS
        elif now >= self._next_round_ns:
            self._regain()
            self._next_round_ns = now + self.settings.housekeeping_ns
            self._latest_round_ns = self._next_round_ns + ROUND_PATIENCE_NS
            self._round(time.monotonic_ns())
            self._decide(time.monotonic_ns())
        wake = self.engine.policy.next_wake_ns()
        until = min(self._next_round_ns, self._look_ns)
        self._timer.arm(until if wake is None else min(wake, until))

    def _decide(self, now_ns: int) -> None:
        """Let the policy decide; from here on the native loop may hand over by what is certain beforehand."""
        self.engine.decide(now_ns)
        self._look_ns = _NEVER_NS
        if self._native is not None:
            for ready in prepared(self.engine, now_ns):
                if self._native.arm(ready):
                    self._look_ns = min(self._look_ns, max(ready.look_again_ns, now_ns + LOOK_NS))
        if self.engine.closing:
            self.engine.close_revoked()
            self.engine.policy.note_carried_out(time.monotonic_ns() - now_ns)

    def _regain(self) -> None:
        """Take the prepared hand-overs back; nothing but this loop hands over until the next decision.

        The messages of a hand-over that was carried out, and the decision, count as of when it took place.
        """
        if self._native is None:
            return
        for ready, at_ns, messages in self._native.take():
            ready.next.granted_epoch = ready.next_epoch
            for _ in range(messages):
                self._carry_out(ready.process, ready.process.sock.recv(MESSAGE_SIZE_BYTES + 1), at_ns)
            self.engine.tick(at_ns)
            self.engine.confirm(ready.next, ready.next_epoch, at_ns)

    def _round(self, now_ns: int) -> None:
        for process, until in list(self._paused.items()):
            if now_ns >= until:
                del self._paused[process]
                process.paused = False
                self.selector.register(process.sock, selectors.EVENT_READ, lambda p=process: self._read(p))
        for tenant in self._unheard:
            if self.engine.tenants.get(tenant.name) is tenant:
                self._hear(tenant)
        self._unheard.clear()
        for tenant in self.engine.tenants.values():
            path = Path(tenant.record.socket)
            missing, tenant.missing = tenant.missing, not path.is_socket()
            if missing and tenant.missing:  # at the last round too: its folder may be ending
                with contextlib.suppress(OSError):  # its folder is gone; tried again with the next round
                    listener = listen(path, socket.SOCK_SEQPACKET, 0o666, tenant.record.uid)
                    self._stop_listening(tenant)
                    tenant.listener = listener
                    self._hear(tenant)
                    self.events.emit("socket-bound-again", now_ns, tenant=tenant.name)
            for pid in [pid for pid in tenant.absent if not any(pid in grant.absent for grant in tenant.grants)]:
                self._release(tenant, pid)
        self.engine.policy.judge(now_ns)
        self.engine.show_life(now_ns)
        self.engine.note_stopped(now_ns)
        self.engine.release_stuck(now_ns, self.settings.tokens.drain_timeout_ns)
        self._look_at_memory(now_ns)
        for housekeeper in self.housekeepers:
            housekeeper(now_ns)
        gc.collect(1)

    def _look_at_memory(self, now_ns: int) -> None:
        """Take the next step of each call back of lent memory; the last one ends the programs that hold it."""
        over = [grant for memory in self.engine.memories.values() for grant in memory.look(now_ns)]
        for tenant in self.engine.tenants.values():
            if any(grant in over for grant in tenant.grants):
                self.events.emit("borrower-ended", now_ns, tenant=tenant.name)
                _LOG.warning(f"{tenant.name} is ended: memory that was lent to it did not come back in time")
                tenant.lost = sum(g.lent_bytes for g in tenant.grants) >> 20, why_no_park(tenant)
                tenant.kill()

    def add_tenant(self, record: TenantRecord) -> None:
        """Open the tenant's socket and grant pages. Adding the same record again changes nothing.

        Raises:
            ValueError: the record cannot be kept, or the name stands for another record.
            OSError: the socket cannot be made.
        """
        known = self.engine.tenants.get(record.name)
        if known is not None:
            if _as_asked(known.record) == _as_asked(record.moved_as(known.record)):
                return
            raise ValueError(f"tenant {record.name!r} exists with another share; remove it first")
        if not record.gpus:
            raise ValueError(f"tenant {record.name!r} has no GPU")
        shares_of(record)
        turns = self.settings.tokens.turns
        if turns is not Turns.FLUID and any(gpu.wake_us for gpu in record.gpus):
            raise ValueError(
                f"tenant {record.name!r}: wake is kept by turns fluid alone, and they are {turns.value} here"
            )
        for gpu in record.gpus:
            gpu.uuid_bytes()
        listener = listen(Path(record.socket), socket.SOCK_SEQPACKET, 0o666, record.uid)
        now = time.monotonic_ns()
        grants = []
        for slot, gpu in enumerate(record.gates()):
            page = GrantPage(
                gpu,
                tenant=record.name,
                boot_id=self.boot_id,
                fail_policy=self.settings.fail_policy,
                window_ms=self.settings.tokens.window_ns // 1_000_000,
                gap_us=self.settings.burst_gap_us,
                in_flight_us=self.settings.max_in_flight_us,
            )
            page.beat(now)
            grants.append(GrantState(slot, gpu, page))
        tenant = Tenant(record, listener, grants)
        self.engine.add(tenant, now)
        self._hear(tenant)
        self.events.emit("tenant-added", time.monotonic_ns(), tenant=record.name)

    def resize_tenant(self, record: TenantRecord) -> TenantRecord:
        """Change request, limit and memory of a tenant while it runs; returns its record before.

        One that is parked and has one GPU may have another one instead.

        Raises:
            ValueError: there is no such tenant, the record cannot be kept, or it changes something else.
        """
        tenant = self._tenant(record.name)
        before = tenant.record
        moves = bool(before.parked) and len(before.gpus) == 1
        if _unsized(record, moves) != _unsized(before, moves):
            raise ValueError(
                f"a resize changes request, limit and memory alone; tenant {record.name!r} keeps its socket, "
                "its account, its GPUs, what is enforced on each, and its wake"
            )
        now = time.monotonic_ns()
        self.engine.resize(tenant, record, now)
        self.events.emit("tenant-resized", now, tenant=record.name)
        return before

    def park_tenant(self, name: str, *, busy: bool = False) -> ParkState:
        """Bring a tenant to where no call of the driver is under way or begins; to be asked again until `ready`.

        It may be `busy`, and has no turn from then on.

        Raises:
            ValueError: there is no such tenant, it is busy, or its memory cannot leave the GPU.
        """
        tenant = self._tenant(name)
        is_new = not tenant.record.parked
        if is_new:
            if why := why_not_parked(tenant, busy=busy):
                raise ValueError(f"tenant {name!r} {why}")
            self._parks += 1
            self.engine.park(tenant, self._parks)
            self.engine.halt(tenant, time.monotonic_ns())
            self.events.emit("tenant-parks", time.monotonic_ns(), tenant=name)
        pids = sorted({process.pid for grant in tenant.grants for process in grant.launching})
        ready = not tenant.is_busy and all(grant.launching <= grant.parked for grant in tenant.grants)
        return ParkState(ready, tenant.woken, pids, is_new)

    def note_away(self, name: str) -> None:
        """Note that the memory of a tenant that is parked is off its GPUs.

        Raises:
            ValueError: there is no such tenant.
        """
        tenant = self._tenant(name)
        self.engine.set_away(tenant, tenant.record.parked > 0)

    def take_back(self, name: str) -> None:
        """Count the memory of a parked tenant as on its GPUs again, before it is brought there.

        Raises:
            ValueError: there is no such tenant, or others hold too much now.
        """
        tenant = self._tenant(name)
        for grant in tenant.grants if tenant.record.away else ():
            if why := grant.memory.why_not_back(grant, time.monotonic_ns()):
                raise ValueError(why)
        self.engine.set_away(tenant, False)

    def unpark_tenant(self, name: str) -> None:
        """Let a tenant's calls of the driver go on: its memory is on the GPU.

        Raises:
            ValueError: there is no such tenant.
        """
        tenant, now = self._tenant(name), time.monotonic_ns()
        if tenant.record.parked:
            self.engine.unpark(tenant, now)
            self.events.emit("tenant-unparked", now, tenant=name)

    def _tenant(self, name: str) -> Tenant:
        tenant = self.engine.tenants.get(name)
        if tenant is None:
            raise ValueError(f"there is no tenant {name!r}")
        return tenant

    def remove_tenant(self, name: str, *, end: bool = False) -> None:
        """Close everything of the tenant; `end` kills its processes, which would otherwise go on as without an arbiter.

        Raises:
            ValueError: there is no such tenant.
        """
        tenant = self._tenant(name)
        if end:
            tenant.kill()
        for process in list(tenant.processes):
            self.drop(process, Refusal.GONE)
        for pid in list(tenant.absent):
            self._release(tenant, pid)
        self.engine.remove(tenant, time.monotonic_ns())
        self._close_tenant(tenant)
        self.events.emit("tenant-removed", time.monotonic_ns(), tenant=name)

    def drop(self, process: Process, refusal: Refusal | None = None) -> None:
        """End one connection; sends the reason if the process may still read it.

        What it held is free once the process has ended: a living one may hold it still, and may connect again.
        """
        if process.closed:
            return
        process.closed = True
        if refusal is not None:
            with contextlib.suppress(OSError):
                answer(process, MessageType.REFUSED, 0, a=refusal, b=self.settings.max_processes_per_tenant)
        if self._paused.pop(process, None) is None:
            self.selector.unregister(process.sock)
        process.sock.close()
        self.engine.leave(process, time.monotonic_ns())
        if process.pidfd < 0:
            self._release(process.tenant, process.pid)
            return
        self.selector.unregister(process.pidfd)
        self._watch_absent(process.tenant, process.pid, process.pidfd)

    def restore_leases(self) -> None:
        """Charge the tenants what living processes held under an earlier arbiter, until they end or report it."""
        grants = {
            (digest(tenant.name), grant.gpu.uuid_bytes()): (tenant, grant)
            for tenant in self.engine.tenants.values()
            for grant in tenant.grants
        }
        for earlier in self.engine.leases.earlier:
            tenant, grant = grants.get((earlier.tenant, earlier.gpu), (None, None))
            if tenant is None or grant is None or not self.hold(tenant, grant, earlier):
                earlier.record.clear()
        self.engine.leases.earlier.clear()

    def hold(self, tenant: Tenant, grant: GrantState, earlier: Earlier) -> bool:
        """Charge a tenant what one of its processes held, unless that has ended."""
        try:
            pidfd = os.pidfd_open(earlier.pid)
        except OSError:
            return False
        if start_ticks(earlier.pid) != earlier.start:  # asked once the pidfd holds the pid
            os.close(pidfd)
            return False
        grant.hold(earlier.pid, earlier.held_bytes, earlier.record)
        self._watch_absent(tenant, earlier.pid, pidfd)
        return True

    def _watch_absent(self, tenant: Tenant, pid: int, pidfd: int) -> None:
        """Take over the pidfd of a process that may hold memory and is not connected."""
        held = any(grant.absent[pid].leased_bytes for grant in tenant.grants if pid in grant.absent)
        if pid in tenant.absent or not held or has_ended(pidfd):
            os.close(pidfd)
            if pid not in tenant.absent:
                self._release(tenant, pid)
            return
        tenant.absent[pid] = pidfd
        self.selector.register(pidfd, selectors.EVENT_READ, lambda: self._release(tenant, pid))

    def _release(self, tenant: Tenant, pid: int) -> None:
        """A process that is not connected has ended, or holds nothing."""
        pidfd = tenant.absent.pop(pid, None)
        if pidfd is not None:
            self.selector.unregister(pidfd)
            os.close(pidfd)
        for grant in tenant.grants:
            grant.release(pid)

    def close(self) -> None:
        """Close and unlink everything; running grants end now only under the `closed` policy."""
        if self._native is not None:
            self._native.close()
        if self.settings.fail_policy.name == "CLOSED":
            self.engine.close_all(time.monotonic_ns())
        for tenant in self.engine.tenants.values():
            for process in list(tenant.processes):
                process.sock.close()
                if process.pidfd >= 0:
                    os.close(process.pidfd)
            for pidfd in tenant.absent.values():
                os.close(pidfd)
            self._close_tenant(tenant)
        self._timer.close()
        self.selector.close()

    def _stop_listening(self, tenant: Tenant) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(tenant.listener)
        tenant.listener.close()

    def _close_tenant(self, tenant: Tenant) -> None:
        self._stop_listening(tenant)
        Path(tenant.record.socket).unlink(missing_ok=True)
        for grant in tenant.grants:
            grant.page.close()

    def _hear(self, tenant: Tenant) -> None:
        self.selector.register(tenant.listener, selectors.EVENT_READ, lambda: self._accept(tenant))

    def _accept(self, tenant: Tenant) -> None:
        for _ in range(self.settings.messages_per_turn):
            try:
                sock, _address = tenant.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._stop_hearing(tenant)
                return
            # The kernel gives the lowest number that is free, so a high one tells that few are left.
            if sock.fileno() >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _KEPT_DESCRIPTORS:
                sock.close()
                self._stop_hearing(tenant)
                return
            try:
                self._welcome(tenant, sock)
            except Exception:
                self.note_defect(tenant.name, time.monotonic_ns())
                sock.close()

    def _stop_hearing(self, tenant: Tenant) -> None:
        """Stop accepting until the next round; polling a backlog that cannot be accepted would spin."""
        self.selector.unregister(tenant.listener)
        self._unheard.append(tenant)
        self.events.emit("out-of-descriptors", time.monotonic_ns(), tenant=tenant.name)

    def _welcome(self, tenant: Tenant, sock: socket.socket) -> None:
        """Take a connection in, known by its credentials and watched by a pidfd."""
        sock.setblocking(False)
        now = time.monotonic_ns()
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid = _CREDENTIALS.unpack(credentials)[0]
        process = Process(sock, tenant, pid, -1, float(self.settings.message_burst), now)
        if pid in tenant.absent and has_ended(tenant.absent[pid]):
            self._release(tenant, pid)  # the pid is used again
        others = len(tenant.processes) + len(tenant.absent) - (pid in tenant.absent)
        max_processes = self.settings.max_processes_per_tenant
        if others >= 2 * max_processes:
            with contextlib.suppress(OSError):
                answer(process, MessageType.REFUSED, 0, a=Refusal.TOO_MANY, b=max_processes)
            sock.close()
            self.events.emit("too-many-processes", now, tenant=tenant.name, pid=process.pid)
            return
        try:
            process.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            sock.close()
            return
        except OSError:
            process.pidfd = -1  # not in our pid namespace, or no descriptor left: only the socket shows its end
        tenant.processes.add(process)
        self.selector.register(sock, selectors.EVENT_READ, lambda: self._read(process))
        if process.pidfd >= 0:
            self.selector.register(process.pidfd, selectors.EVENT_READ, lambda: self.drop(process))

    def _read(self, process: Process) -> None:
        """Carry out a few of the waiting messages, so that a flood from one process costs the others little."""
        now = time.monotonic_ns()
        for _ in range(self.settings.messages_per_turn):
            if process.closed or process.paused:
                return
            try:
                data = process.sock.recv(MESSAGE_SIZE_BYTES + 1)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.drop(process)
                return
            self._carry_out(process, data, now)
            if data[0] in TURN_TAKING:  # a tenant may be waiting for it; other messages are read in the next turn
                return

    def _carry_out(self, process: Process, data: bytes, now_ns: int) -> None:
        """Carry out one message; a connection that sends too many is not read for a second.

        None of them is lost: memory that was given back must not stay charged.
        """
        earned = (now_ns - process.allowance_at_ns) * self.settings.messages_per_second / 1e9
        process.allowance = min(float(self.settings.message_burst), process.allowance + earned) - 1.0
        process.allowance_at_ns = now_ns
        if process.allowance < 0:
            process.paused = True
            self._paused[process] = now_ns + 1_000_000_000
            self.selector.unregister(process.sock)
            self.events.emit("throttled", now_ns, tenant=process.tenant.name, pid=process.pid)
        try:
            if not self._protocol.handle(process, data, now_ns):
                self.drop(process)
        except Misbehaved as fault:
            name, pid = process.tenant.name, process.pid
            if fault.refusal is Refusal.TOO_MANY:
                self.events.emit("too-many-processes", now_ns, tenant=name, pid=pid)
            else:
                self.events.emit("misbehaved", now_ns, tenant=name, pid=pid, why=fault.refusal.name)
            self.drop(process, fault.refusal)
        except OSError:
            self.drop(process)
        except Exception:  # a defect of ours, and one tenant's message must not cost all others their arbiter
            self.note_defect(process.tenant.name, now_ns)
            self.drop(process, Refusal.MALFORMED)

    def note_defect(self, where: str, now_ns: int) -> None:
        """Log the exception that is being handled, which ended one connection; at most one in `DEFECT_NS`."""
        self.events.emit("defect", now_ns, tenant=where)
        if now_ns >= self._next_defect_ns:
            self._next_defect_ns = now_ns + DEFECT_NS
            _LOG.exception("a defect ended a connection", of=where)


def _as_asked(record: TenantRecord) -> TenantRecord:
    """A record without what is known of its tenant besides, such as where its memory is."""
    gpus = [msgspec.structs.replace(gpu, device_mib=0) for gpu in record.gpus]
    return msgspec.structs.replace(record, parked=0, away=False, parks=False, gpus=gpus)


def _unsized(record: TenantRecord, moves: bool) -> TenantRecord:
    """What of a record no resize changes; of one that `moves` its GPU may."""
    sizes: dict[str, Any] = {"request_milli": 0, "limit_milli": 0, "memory_mib": 0, "context_mib": 0}
    sizes |= {"max_memory_mib": 0} | ({"gpu": ""} if moves else {})
    record = _as_asked(record)
    gpus = [msgspec.structs.replace(gpu, **sizes) for gpu in record.gates()]
    return msgspec.structs.replace(record, earlier=[], moves_from="", gpus=gpus)


def listen(path: Path, kind: int, mode: int, uid: int | None = None) -> socket.socket:
    """A listening unix socket with exactly this mode, in place of a stale one; with `uid` for that account alone.

    Raises:
        OSError: the path is too long, or its folder is missing or not writable.
    """
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.bind(str(path))
        if uid is not None:
            os.chown(path, uid, -1)
        path.chmod(mode if uid is None else 0o600)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {path}: {error.strerror or error}") from error
    return sock
