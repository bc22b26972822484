"""Answers the command line on the engine's socket."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from aliquot.lib.log import Logger
from aliquot.model.errors import AliquotError, in_words
from aliquot.model.ids import GpuUuid, TenantName, tenant_name
from aliquot.placement.machine import NoRoom
from aliquot.standalone import wire
from aliquot.standalone.engine import ORPHAN_GRACE_S, Engine, EngineTenant
from aliquot.standalone.explaining import explanations, gpu_facts, promised_gpus
from aliquot.standalone.orphans import end_orphans, named_processes
from aliquot.standalone.pods import Pods
from aliquot.status import Hours

LINE_BYTES: Final = 4 << 20
OUT_OF_DESCRIPTORS_S: Final = 0.1
TRY_EVERY_S: Final = 0.2
_LOG: Final = Logger("engine")


@dataclass
class _Waiting:
    """A run in the queue: why it waits, its tenant once there is room, or the error for which there never is."""

    call: wire.LeaseCall
    reason: str = ""
    tenant: EngineTenant | None = None
    error: Exception | None = None
    came_s: float = field(default_factory=time.monotonic)


class RunQueue:
    """Runs that wait for room instead of being refused: placed in the order in which they came, SharePods before them.

    Each has a thread of its own; the thread that checks first serves all of them.
    """

    def __init__(self, engine: Engine, pods: Pods) -> None:
        self._engine = engine
        self._pods = pods
        self._lock = threading.Lock()
        self._queue: list[_Waiting] = []
        self._next_s = 0.0

    def admit(
        self, call: wire.LeaseCall, *, gone: Callable[[], bool], say: Callable[[str], None]
    ) -> EngineTenant | None:
        """Make a run a tenant as soon as there is room; None if its caller has `gone` before.

        `say` gets the reason whenever another one keeps it waiting.

        Raises:
            AliquotError: as `Engine.admit`, but for NoRoom.
        """
        waiting = _Waiting(call)
        with self._lock:
            self._queue.append(waiting)
            self._next_s = 0.0
        said, taken = "", False
        try:
            while not gone():
                with self._lock:
                    self._serve()
                if waiting.error is not None:
                    raise waiting.error
                if waiting.tenant is not None:
                    taken = True
                    return waiting.tenant
                if said != waiting.reason:
                    said = waiting.reason
                    say(said)
                time.sleep(TRY_EVERY_S)
            return None
        finally:
            with self._lock:
                if waiting in self._queue:
                    self._queue.remove(waiting)
            if waiting.tenant is not None and not taken:
                self._engine.release(waiting.tenant)

    def waiting(self) -> list[wire.QueuedRun]:
        """The runs that wait, in order."""
        now_s = time.monotonic()
        with self._lock:
            return [
                wire.QueuedRun(
                    run.call.name, run.call.request.request_milli, run.call.request.ceiling_milli, run.reason,
                    round(now_s - run.came_s, 1),
                )
                for run in self._queue
            ]  # fmt: skip

    def _serve(self) -> None:
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + TRY_EVERY_S
        self._pods.place_waiting()
        for run in list(self._queue):
            name, call = TenantName(run.call.name), run.call
            try:
                run.tenant = self._engine.admit(name, call.request, cpu_bind=call.cpu_bind, again=bool(run.reason))
            except NoRoom as error:
                run.reason = str(error)
                continue
            except Exception as error:
                run.error = error
            self._queue.remove(run)


class EngineServer:
    """The engine's socket, one thread per caller."""

    def __init__(
        self,
        engine: Engine,
        pods: Pods,
        on_idle: Callable[[], None] = lambda: None,
        *,
        history: Path | None = None,
    ) -> None:
        """`history` is the file of the dashboard's history, if there is one."""
        self._engine = engine
        self._pods = pods
        self._on_idle = on_idle
        self.hours: Callable[[str], Hours] | None = None
        """GPU-hours of a time to look back; None where nothing is recorded."""
        self._history = history
        self._queue = RunQueue(engine, pods)
        self._lock = threading.Lock()
        self._leases = 0
        self._closed = False
        path = engine.runtime.engine_socket
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen(256)
        threading.Thread(target=self._accept, name="engine-socket", daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        with self._lock:
            self._closed = True
        self._engine.runtime.engine_socket.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def close_if_idle(self) -> bool:
        """Stop answering unless a tenant exists; returns whether it did."""
        with self._lock:
            if self._leases:
                return False
            self._closed = True
        self.close()
        return True

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(OUT_OF_DESCRIPTORS_S)  # another connection will close; waiting callers stay in the backlog
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            line = connection.makefile("rb").readline(LINE_BYTES)
            if not line:
                return
            try:
                call = wire.decode_call(line)
                if isinstance(call, wire.LeaseCall):
                    self._hold(connection, call)
                    return
                if isinstance(call, wire.ExecCall):
                    tenant = self._engine.tenants.get(TenantName(call.run))
                    if tenant is not None and self._pods.request_of(call.name) is None:
                        _send(connection, tenant.lease())
                    else:
                        _send(connection, self._pods.place_of(call.name, call.container))
                    _wait_for_end(connection)  # the caller hangs up, or finds that the engine has
                    return
                for answer in self._answers(call, connection):
                    _send(connection, answer)
            except (msgspec.MsgspecError, RecursionError) as error:
                _send(connection, wire.EngineRefusal(f"the call is not understood: {error}"))
            except AliquotError as error:
                _send(connection, wire.EngineRefusal(str(error), error.exit_code))
            except OSError as error:  # a file that cannot be written; a caller who hung up does not read this either
                _send(connection, wire.EngineRefusal(in_words(error)))
            except Exception as error:
                _LOG.exception("a defect ended a call", of=line[:200].decode(errors="replace"))
                _send(connection, wire.EngineRefusal(f"a defect of the engine, see its log: {error!r}"))

    def _answers(self, call: wire.AnyCall, connection: socket.socket) -> Iterator[wire.AnyAnswer]:
        engine = self._engine
        match call:
            case wire.InfoCall():
                yield wire.EngineFacts(
                    os.getpid(), str(engine.runtime.root), engine.machine.spec, engine.arbiter_pid, engine.gpus,
                    len(engine.tenants), engine.ledger.policy, str(self._history or ""),
                )  # fmt: skip
            case wire.ApplyCall():
                yield wire.Lines(self._pods.apply(call.text, restart=call.restart))
            case wire.PodsCall():
                yield wire.PodList(self._pods.facts(call.name), self._pods.lost)
            case wire.GpusCall():
                yield wire.GpuList(engine.look(lambda ledger: gpu_facts(ledger, engine.gpus)))
            case wire.PromisedCall():
                yield wire.PromisedGpus(promised_gpus(engine))
            case wire.ExplainCall():
                yield explanations(engine, self._pods, call)
            case wire.TenantsCall():
                index = {gpu.uuid: gpu.index for gpu in engine.gpus}
                yield wire.TenantList([tenant_facts(tenant, index) for tenant in engine.tenants.values()])
            case wire.RunningCall():
                folders = {name: tenant.folder.directory for name, tenant in engine.tenants.items()}
                yield wire.RunningFacts(named_processes(folders), self._queue.waiting())
            case wire.HoursCall():
                if self.hours is None:
                    raise AliquotError(
                        "this engine records no GPU-hours, as it serves no dashboard; start one with: aliquot up"
                    )
                yield wire.HourSums(self.hours(call.since))
            case wire.EndCall():
                tenant = engine.tenants.get(TenantName(call.name))
                if tenant is None or self._pods.request_of(call.name) is not None:
                    yield wire.Lines([self._pods.delete(call.name)])
                else:
                    end_orphans([tenant.folder.directory], grace_s=ORPHAN_GRACE_S)
                    yield wire.Lines([f"run/{call.name} ended"])
            case wire.DeleteCall():
                yield wire.Lines([self._pods.delete(call.name)])
            case wire.LogsCall():
                for lines in self._pods.logs(call.name, call.container, follow=call.follow, cut=call.cut):
                    if not lines and _hung_up(connection):
                        return
                    yield wire.Lines(lines)
            case wire.LeaseCall() | wire.ExecCall():
                raise AssertionError("these keep their connection")

    def _hold(self, connection: socket.socket, call: wire.LeaseCall) -> None:
        """Make the caller a tenant until it closes its connection."""
        with self._lock:
            if self._closed:
                return  # closing without a reply makes the caller look for another engine
            self._leases += 1
        try:
            name, request = tenant_name(call.name), call.request
            if request.memory is not None:
                self._engine.check_possible(request)
            if call.wait:
                tenant = self._queue.admit(
                    call,
                    gone=lambda: self._closed or _hung_up(connection),
                    say=lambda reason: _send(connection, wire.LeaseWait(reason)),
                )
                if tenant is None:  # the caller has hung up
                    return
            else:
                tenant = self._engine.admit(name, request, cpu_bind=call.cpu_bind)
            ended, ended_pids = False, list[int]()
            try:
                _send(connection, tenant.lease())
                ended = _wait_for_end(connection)
            finally:
                # A shell's background job outlives its shell, but for its use of the GPU, which the next tenant gets;
                # what outlives a run that was killed is an orphan.
                if ended:
                    ended_pids = end_orphans([tenant.folder.directory], grace_s=ORPHAN_GRACE_S, on_gpu=True)
                self._engine.release(tenant, grace_s=ORPHAN_GRACE_S, keep=ended)
            if ended:
                _send(connection, wire.LeftBehind(len(ended_pids)))
        finally:
            with self._lock:
                self._leases -= 1
                idle = self._leases == 0
            if idle:
                self._on_idle()


def tenant_facts(tenant: EngineTenant, index: Mapping[GpuUuid, int]) -> wire.TenantFacts:
    """A tenant as `get tenants` shows it; `index` has the number of each GPU by its UUID."""
    slices = tenant.plan.slices
    return wire.TenantFacts(
        tenant.name, tenant.folder.injection(), tenant.enforce, [index[piece.gpu] for piece in slices],
        [wire.TenantSlice(piece.gpu, piece.request_milli, piece.limit_milli, piece.memory_mib) for piece in slices],
    )  # fmt: skip


def _send(connection: socket.socket, answer: wire.AnyAnswer) -> None:
    connection.sendall(wire.encode_answer(answer))


def _wait_for_end(connection: socket.socket) -> bool:
    """Wait until the run closes its connection; returns whether it reported the end of its command first."""
    said = b""
    with contextlib.suppress(OSError):
        while data := connection.recv(4096):
            said = data
    return said.endswith(wire.COMMAND_ENDED)


def _hung_up(connection: socket.socket) -> bool:
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable) and not connection.recv(1, socket.MSG_PEEK)
