"""Answers the command line on the engine's socket."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from aliquot.lib.log import Logger
from aliquot.model.errors import AliquotError, in_words
from aliquot.model.ids import GpuUuid, TenantName, tenant_name
from aliquot.standalone.engine import ORPHAN_GRACE_S, Engine, EngineTenant
from aliquot.standalone.explaining import explanations, gpu_facts, promised_gpus
from aliquot.standalone.orphans import end_orphans, named_processes
from aliquot.standalone.pods import Pods
from aliquot.standalone.queueing import RunQueue
from aliquot.standalone.wire import (
    COMMAND_ENDED,
    AnyAnswer,
    AnyCall,
    ApplyCall,
    DeleteCall,
    EndCall,
    EngineFacts,
    EngineRefusal,
    ExecCall,
    ExplainCall,
    GpuList,
    GpusCall,
    HoursCall,
    HourSums,
    InfoCall,
    LeaseCall,
    LeaseWait,
    LeftBehind,
    Lines,
    LogsCall,
    PodList,
    PodsCall,
    PromisedCall,
    PromisedGpus,
    RunLease,
    RunningCall,
    RunningFacts,
    TenantFacts,
    TenantList,
    TenantsCall,
    TenantSlice,
    decode_call,
    encode_answer,
)  # fmt: skip
from aliquot.status import Hours

LINE_BYTES: Final = 4 << 20
OUT_OF_DESCRIPTORS_S: Final = 0.1


_LOG: Final = Logger("engine")


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
                call = decode_call(line)
                if isinstance(call, LeaseCall):
                    self._hold(connection, call)
                    return
                if isinstance(call, ExecCall):
                    _send(connection, self._place(call))
                    _wait_for_end(connection)  # the caller hangs up, or finds that the engine has
                    return
                for answer in self._answers(call, connection):
                    _send(connection, answer)
            except (msgspec.MsgspecError, RecursionError) as error:
                _send(connection, EngineRefusal(f"the call is not understood: {error}"))
            except AliquotError as error:
                _send(connection, EngineRefusal(str(error), error.exit_code))
            except OSError as error:  # a file that cannot be written; a caller who hung up does not read this either
                _send(connection, EngineRefusal(in_words(error)))
            except Exception as error:
                _LOG.exception("a defect ended a call", of=line[:200].decode(errors="replace"))
                _send(connection, EngineRefusal(f"a defect of the engine, see its log: {error!r}"))

    def _answers(self, call: AnyCall, connection: socket.socket) -> Iterator[AnyAnswer]:
        match call:
            case InfoCall():
                yield self._facts()
            case ApplyCall():
                yield Lines(self._pods.apply(call.text, restart=call.restart))
            case PodsCall():
                yield PodList(self._pods.facts(call.name), self._pods.lost)
            case GpusCall():
                yield GpuList(self._engine.look(lambda ledger: gpu_facts(ledger, self._engine.gpus)))
            case PromisedCall():
                yield PromisedGpus(promised_gpus(self._engine))
            case ExplainCall():
                yield explanations(self._engine, self._pods, call)
            case TenantsCall():
                index = {gpu.uuid: gpu.index for gpu in self._engine.gpus}
                yield TenantList([tenant_facts(tenant, index) for tenant in self._engine.tenants.values()])
            case RunningCall():
                folders = {name: tenant.folder.directory for name, tenant in self._engine.tenants.items()}
                yield RunningFacts(named_processes(folders), self._queue.waiting())
            case HoursCall():
                yield HourSums(self._hours(call.since))
            case EndCall():
                yield Lines([self._end(call.name)])
            case DeleteCall():
                yield Lines([self._pods.delete(call.name)])
            case LogsCall():
                for lines in self._pods.logs(call.name, call.container, follow=call.follow, cut=call.cut):
                    if not lines and _hung_up(connection):
                        return
                    yield Lines(lines)
            case LeaseCall() | ExecCall():
                raise AssertionError("these keep their connection")

    def _facts(self) -> EngineFacts:
        engine = self._engine
        return EngineFacts(
            os.getpid(), str(engine.runtime.root), engine.machine.spec, engine.arbiter_pid, engine.gpus,
            len(engine.tenants), engine.ledger.policy, str(self._history or ""),
        )  # fmt: skip

    def _hold(self, connection: socket.socket, call: LeaseCall) -> None:
        """Make the caller a tenant until it closes its connection."""
        with self._lock:
            if self._closed:
                return  # closing without a reply makes the caller look for another engine
            self._leases += 1
        try:
            name = tenant_name(call.name)
            tenant = self._admit(name, connection, call)
            if tenant is None:
                return
            ended, found = False, list[int]()
            try:
                _send(connection, tenant.lease())
                ended = _wait_for_end(connection)
            finally:
                # A shell's background job outlives its shell, but for its use of the GPU, which the next tenant gets;
                # what outlives a run that was killed is an orphan.
                if ended:
                    found = end_orphans([tenant.folder.directory], grace_s=ORPHAN_GRACE_S, on_gpu=True)
                self._engine.release(tenant, grace_s=ORPHAN_GRACE_S, keep=ended)
            if ended:
                _send(connection, LeftBehind(len(found)))
        finally:
            with self._lock:
                self._leases -= 1
                idle = self._leases == 0
            if idle:
                self._on_idle()

    def _admit(self, name: TenantName, connection: socket.socket, call: LeaseCall) -> EngineTenant | None:
        """The caller as a tenant; None if it closed its connection while it waited for room."""
        request = call.request
        if request.memory is not None:
            self._engine.check_possible(request)
        if not call.wait:
            return self._engine.admit(name, request, cpu_bind=call.cpu_bind)
        return self._queue.admit(
            name,
            request,
            cpu_bind=call.cpu_bind,
            gone=lambda: self._closed or _hung_up(connection),
            say=lambda reason: _send(connection, LeaseWait(reason)),
        )

    def _hours(self, since: str) -> Hours:
        if self.hours is None:
            raise AliquotError(
                "this engine records no GPU-hours, as it serves no dashboard; start one with: aliquot up"
            )
        return self.hours(since)

    def _end(self, name: str) -> str:
        """End a SharePod or a run by the name that `top` shows."""
        tenant = self._engine.tenants.get(TenantName(name))
        if tenant is None or self._pods.request_of(name) is not None:
            return self._pods.delete(name)
        end_orphans([tenant.folder.directory], grace_s=ORPHAN_GRACE_S)
        return f"run/{name} ended"

    def _place(self, call: ExecCall) -> RunLease:
        """The place of a SharePod's container, or of a run."""
        tenant = self._engine.tenants.get(TenantName(call.run))
        if tenant is not None and self._pods.request_of(call.name) is None:
            return tenant.lease()
        return self._pods.place_of(call.name, call.container)


def tenant_facts(tenant: EngineTenant, index: Mapping[GpuUuid, int]) -> TenantFacts:
    """A tenant as `get tenants` shows it; `index` has the number of each GPU by its UUID."""
    slices = tenant.plan.slices
    return TenantFacts(
        tenant.name, tenant.folder.injection(), tenant.enforce, [index[piece.gpu] for piece in slices],
        [TenantSlice(piece.gpu, piece.request_milli, piece.limit_milli, piece.memory_mib) for piece in slices],
    )  # fmt: skip


def _send(connection: socket.socket, answer: AnyAnswer) -> None:
    connection.sendall(encode_answer(answer))


def _wait_for_end(connection: socket.socket) -> bool:
    """Wait until the run closes its connection; returns whether it reported the end of its command first."""
    said = b""
    with contextlib.suppress(OSError):
        while data := connection.recv(4096):
            said = data
    return said.endswith(COMMAND_ENDED)


def _hung_up(connection: socket.socket) -> bool:
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable) and not connection.recv(1, socket.MSG_PEEK)
