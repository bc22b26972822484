"""Answers the command line on the engine's socket."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from aliquot.arbiter.client import ArbiterClient, ArbiterError, Status
from aliquot.driver.cdi import SHARE_KIND
from aliquot.lib.log import Logger
from aliquot.model.errors import AliquotError, UserError, in_words
from aliquot.model.ids import GpuUuid, TenantName, split_key, tenant_name
from aliquot.model.requests import GpuRequest
from aliquot.placement.machine import MachineLedger, NoRoom
from aliquot.standalone import wire
from aliquot.standalone.accounts import Account
from aliquot.standalone.engine import ORPHAN_GRACE_S, Engine
from aliquot.standalone.explaining import explanations, gpu_facts, promised_gpus
from aliquot.standalone.orphans import end_orphans, named_processes
from aliquot.standalone.pods import Pods
from aliquot.standalone.quota import OverQuota
from aliquot.standalone.shares import Share, Shares
from aliquot.standalone.tenants import EngineTenant, InContainers
from aliquot.status import StatusSource
from aliquot.status.history import hours_range
from aliquot.status.rightsize import recommendations

LINE_BYTES: Final = 4 << 20
OUT_OF_DESCRIPTORS_S: Final = 0.1
TRY_EVERY_S: Final = 0.2
PASSED_S: Final = 10.0
"""For so long a run lets others by that are behind it and fit where it does not."""
STATUS_S: Final = 0.1
RESUME_POLL_S: Final = 0.5
CALL_S: Final = 10.0
"""How long another account may take to say what it wants."""
ACCOUNT_LINE_BYTES: Final = 256 << 10
MAX_CALLS: Final = 256
"""Of another account at once."""
_LOG: Final = Logger("engine")


@dataclass
class _Waiting:
    """A run in the queue: why it waits, its tenant once there is room, or the error for which there never is."""

    call: wire.LeaseCall
    owner: Account
    reason: str = ""
    tenant: EngineTenant | None = None
    error: Exception | None = None
    came_s: float = field(default_factory=time.monotonic)


class RunQueue:
    """Runs that wait for room instead of being refused, SharePods before them.

    Of the accounts that wait, the one that holds the least is served first, its runs in the order in which they came.
    Others use the room that it cannot use for a while only: then the GPUs where it lacks least are kept for it.
    Each has a thread of its own; the thread that checks first serves all of them.
    """

    def __init__(self, engine: Engine, pods: Pods) -> None:
        self._engine = engine
        self._pods = pods
        self._lock = threading.Lock()
        self._queue: list[_Waiting] = []
        self._next_s = 0.0

    def admit(
        self, call: wire.LeaseCall, owner: Account, *, gone: Callable[[], bool], say: Callable[[str], None]
    ) -> EngineTenant | None:
        """Make a run a tenant as soon as there is room; None if its caller has `gone` before.

        `say` gets the reason whenever another one keeps it waiting.

        Raises:
            AliquotError: as `Engine.admit`, but for NoRoom.
        """
        waiting = self.enter(call, owner)
        said, taken = "", False
        try:
            while not gone():
                with self._lock:
                    if time.monotonic() >= self._next_s:
                        self._next_s = time.monotonic() + TRY_EVERY_S
                        self.serve()
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

    def requests(self) -> list[tuple[str, GpuRequest, Account]]:
        """The names, requests and accounts of the runs that wait, in order."""
        with self._lock:
            return [(run.call.name, run.call.request, run.owner) for run in self._queue]

    def enter(self, call: wire.LeaseCall, owner: Account) -> _Waiting:
        """Put a run into the queue."""
        with self._lock:
            self._next_s = 0.0
            self._queue.append(waiting := _Waiting(call, owner))
            return waiting

    def serve(self) -> None:
        """Try all that wait; called with the lock held by one of them."""
        self._pods.place_waiting()
        waiting, kept = list(self._queue), set[GpuUuid]()
        while waiting:
            held = self._engine.dominant_shares()
            run = min(waiting, key=lambda run: held.get(run.owner.uid, 0.0))  # of one account the first that came
            waiting.remove(run)
            name, call, request = TenantName(run.call.name), run.call, run.call.request
            try:
                if kept and (
                    left := self._engine.look(partial(MachineLedger.without_gpus, request=request, kept=kept))
                ):
                    request = left
                elif kept:
                    raise NoRoom("a run of an account that holds less has waited for long, and is next on its GPU")
                run.tenant = self._engine.admit(
                    name,
                    request,
                    cpu_bind=call.cpu_bind,
                    again=bool(run.reason),
                    owner=run.owner,
                    container=InContainers() if call.container else None,
                )
            except OverQuota as error:
                run.reason = str(error)
                continue
            except NoRoom as error:
                run.reason = str(error)
                if time.monotonic() - run.came_s > PASSED_S:
                    kept |= self._engine.look(partial(MachineLedger.nearest, request=run.call.request))
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
        shares: Shares | None = None,
        on_idle: Callable[[], None] = lambda: None,
        *,
        history: Path | None = None,
    ) -> None:
        """`history` is the file of the dashboard's history, if there is one."""
        self._engine = engine
        self._pods = pods
        self._shares = shares or Shares(engine)
        engine.parking.on_room = pods.place_waiting
        self._on_idle = on_idle
        self.facts: StatusSource | None = None
        """What has the recorded past; None where nothing is recorded."""
        self.dashboard: Callable[[Account], str] | None = None
        """Where an account finds the dashboard; None where there is none."""
        self._history = history
        self._queue = RunQueue(engine, pods)
        self._lock = threading.Lock()
        self._calls: Counter[int] = Counter()
        self._status_lock = threading.Lock()
        self._status: Status | None = None
        self._status_s = 0.0
        self._leases = 0
        self._closed = False
        path = engine.runtime.engine_socket
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o666 if engine.runtime.shared else 0o600)
        self._socket.listen(256)
        threading.Thread(target=self._accept, name="engine-socket", daemon=True).start()
        for name in list(engine.inherited):
            threading.Thread(target=self._keep, args=(engine.tenants[TenantName(name)],), daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        with self._lock:
            self._closed = True
        self._shares.close()
        self._engine.runtime.engine_socket.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def close_if_idle(self) -> bool:
        """Stop answering unless a tenant exists; returns whether it did."""
        with self._lock:
            if self._leases or self._shares.all():
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
            caller, line = Account.of_peer(connection), b""
            with self._lock:
                self._calls[caller.uid] += 1
            try:
                if not caller.is_master:
                    connection.settimeout(CALL_S)
                line = connection.makefile("rb").readline(LINE_BYTES if caller.is_master else ACCOUNT_LINE_BYTES)
                connection.settimeout(None)
                if not line:
                    return
                if self._calls[caller.uid] > MAX_CALLS and not caller.is_master:
                    raise AliquotError(
                        f"{caller.name} has {MAX_CALLS} calls under way, of which each run is one; end some first"
                    )
                call = wire.decode_call(line)
                if isinstance(call, wire.LeaseCall):
                    self._hold(connection, call, caller)
                    return
                if isinstance(call, wire.ResumeCall):
                    self._resume(connection, call, caller)
                    return
                if isinstance(call, wire.ExecCall):
                    pod, run = caller.own_pod(call.name), self._run_called(call.run, caller)
                    if run is not None and self._pods.request_of(pod) is None:
                        _send(connection, run.lease())
                    else:
                        _send(connection, self._pods.place_of(pod, call.container, caller))
                    _wait_for_end(connection)  # the caller hangs up, or finds that the engine has
                    return
                for answer in self._answers(call, connection, caller):
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
            finally:
                with self._lock:
                    self._calls[caller.uid] -= 1

    def _measured(self) -> Status:
        """What the arbiter measures, asked for at most every `STATUS_S`, however many callers want it.

        Raises:
            AliquotError: no arbiter answers.
        """
        with self._status_lock:
            if self._status is None or time.monotonic() > self._status_s + STATUS_S:
                try:
                    with ArbiterClient(self._engine.runtime.root, timeout_s=2.0) as arbiter:
                        self._status, self._status_s = arbiter.status(), time.monotonic()
                except (ArbiterError, OSError) as error:
                    raise AliquotError(f"the arbiter does not answer: {error}") from None
            return self._status

    def _run_called(self, name: str, caller: Account) -> EngineTenant | None:
        """The run that the caller calls by this name.

        Raises:
            NotYours: it belongs to another account.
        """
        for full in (caller.own_run(name), name):
            if (tenant := self._engine.tenants.get(TenantName(full))) is not None:
                caller.require(tenant.owner, f'the run "{full}"')
                return tenant
        return None

    def _of_the_past(self, call: wire.HoursCall | wire.RecommendCall) -> wire.AnyAnswer:
        span = hours_range(call.since, "--since")
        if self.facts is None:
            raise AliquotError(
                "this engine records no GPU-hours, as it serves no dashboard; start one with: aliquot up"
            )
        if isinstance(call, wire.HoursCall):
            return wire.HourSums(self.facts.past.hours(span))
        return wire.Recommended(recommendations(self.facts, span))

    def _answers(self, call: wire.AnyCall, connection: socket.socket, caller: Account) -> Iterator[wire.AnyAnswer]:
        """Answer a call; `caller` is the account that the kernel reports for its connection."""
        engine = self._engine
        match call:
            case wire.InfoCall():
                yield wire.EngineFacts(
                    os.getpid(), str(engine.runtime.root), engine.machine.spec, engine.arbiter_pid, engine.gpus,
                    len(engine.tenants), engine.ledger.policy, str(self._history or ""), caller.namespace,
                    engine.runtime.shared,
                )  # fmt: skip
            case wire.ApplyCall():
                yield wire.Lines(self._pods.apply(call.text, caller, restart=call.restart))
            case wire.PodsCall():
                name = caller.own_pod(call.name) if call.name else ""
                yield wire.PodList(self._pods.facts(name, caller), self._pods.lost)
            case wire.GpusCall():
                yield wire.GpuList(engine.look(lambda ledger: gpu_facts(ledger, engine.gpus)))
            case wire.PromisedCall():
                yield wire.PromisedGpus(promised_gpus(engine))
            case wire.ExplainCall():
                named = call.request is None and call.name and TenantName(call.name) not in engine.tenants
                name = caller.own_pod(call.name) if named else call.name
                call = msgspec.structs.replace(call, name=name)
                yield explanations(engine, self._pods, call, caller, self._queue.requests())
            case wire.StatusCall():
                yield wire.ArbiterMeasures(self._measured())
            case wire.TenantsCall():
                yield wire.TenantList(self._tenant_facts(engine.tenants.values(), caller))
            case wire.ShareCall():
                with self._held() as up:
                    if up:  # closing without a reply makes the caller look for another engine
                        request = self._pods.recommending.at_start(caller.own_run(call.name), call.request, caller)
                        call = msgspec.structs.replace(call, request=request)
                        yield self._share_list([self._shares.create(call, caller)], caller)
            case wire.SharesCall():
                yield self._share_list(
                    [self._shares.called(call.name, caller)] if call.name else self._shares.all(), caller
                )
            case wire.EndShareCall():
                yield wire.Lines([self._shares.delete(call.name, caller, force=call.force)])
            case wire.RunningCall():
                tenants = engine.tenants.items()
                folders = {name: t.folder.directory for name, t in tenants if caller.may_use(t.owner)}
                yield wire.RunningFacts(named_processes(folders), self._queue.waiting())
            case wire.HoursCall() | wire.RecommendCall():
                yield self._of_the_past(call)
            case wire.EndCall():
                yield wire.Lines([self.end(caller, call.name)])
            case wire.DashboardCall():
                if self.dashboard is None:
                    raise AliquotError("this engine serves no dashboard; start one without --no-web")
                yield wire.Lines([self.dashboard(caller)])
            case wire.ResizeCall():
                yield self._pods.resize(msgspec.structs.replace(call, name=caller.own_pod(call.name)), caller)
            case wire.ParkCall():
                yield self._pods.move(msgspec.structs.replace(call, name=caller.own_pod(call.name)), caller)
            case wire.PhaseCall():
                yield self._phase(call, caller)
            case wire.DeleteCall():
                yield wire.Lines([self._pods.delete(caller.own_pod(call.name), caller)])
            case wire.LogsCall():
                name = caller.own_pod(call.name)
                for lines in self._pods.logs(name, call.container, caller, follow=call.follow, cut=call.cut):
                    if not lines and _hung_up(connection):
                        return
                    yield wire.Lines(lines)
            case wire.LeaseCall() | wire.ExecCall() | wire.ResumeCall():
                raise AssertionError("these keep their connection")

    def _phase(self, call: wire.PhaseCall, caller: Account) -> wire.PhaseAnswer:
        """Note that the tenant of the calling process needs no GPU, or needs it; see `Parking`.

        Raises:
            UserError: the process is of no tenant here.
            AliquotError: it has memory that stays on its GPU.
        """
        folders = {name: each.folder.directory for name, each in self._engine.tenants.items()}
        processes = named_processes(folders, [caller.pid]) if caller.pid else {}
        name = next((TenantName(name) for name, own in processes.items() if own), None)
        if name is None:
            raise UserError("the process that calls is of no SharePod and of no run of this engine")
        try:
            if call.needs:
                return wire.PhaseAnswer(name, self._engine.parking.acquire_gpu(name))
            self._engine.parking.yield_gpu(name)
        except ArbiterError as error:
            raise AliquotError(f'"{name}" is where it was: {error}') from None
        return wire.PhaseAnswer(name)

    def end(self, caller: Account, name: str) -> str:
        """End a SharePod or run of the caller's, by the name that `top` shows; what was done.

        Raises:
            NotYours, UnknownPod: it is another account's, or does not exist.
        """
        pod = caller.own_pod(name)
        run = self._run_called(name, caller) if self._pods.request_of(pod) is None else None
        if run is None:
            return self._pods.delete(pod, caller)
        end_orphans([run.folder.directory], grace_s=ORPHAN_GRACE_S)
        return f"run/{name} ended"

    def logs(self, account: Account, name: str, container: str) -> str:
        """What a container of a SharePod has printed; raises as `Pods.logs`."""
        return "".join(*self._pods.logs(name, container, account, follow=False))

    def owns(self, account: Account, name: str) -> bool:
        """Whether a SharePod or run is the account's, by its full name; of what has ended, by the name alone."""
        tenant = self._engine.tenants.get(TenantName(name))
        owner = tenant.owner if tenant else self._pods.owner_of(name)
        return account.may_use(owner) if owner else account.is_master or split_key(name)[0] == account.name

    def _tenant_facts(self, tenants: Iterable[EngineTenant], caller: Account) -> list[wire.TenantFacts]:
        """Tenants as `get tenants` shows them, with the numbers of their GPUs and the containers that they are in."""
        index, shown = {gpu.uuid: gpu.index for gpu in self._engine.gpus}, list(tenants)
        in_containers = [tenant for tenant in shown if tenant.edits is not None and caller.may_use(tenant.owner)]
        processes = named_processes({tenant.name: tenant.folder.directory for tenant in in_containers})
        pending, parked, lent = self._engine.pending_mib(), self._engine.parked, self._engine.lent()
        return [
            wire.TenantFacts(
                tenant.name, tenant.folder.injection() if tenant.edits is None else "container", tenant.enforce,
                [index[piece.gpu] for piece in tenant.plan.slices],
                [wire.TenantSlice(*msgspec.structs.astuple(piece)) for piece in tenant.plan.slices],
                pending.get(tenant.name, 0), tenant.name in parked,
                sorted({process.container for process in processes.get(tenant.name, ())} - {""}),
                *lent.get(tenant.name, (0, "")),
            )
            for tenant in shown
        ]  # fmt: skip

    def _share_list(self, shares: list[Share], caller: Account) -> wire.ShareList:
        now = self._engine.tenants
        shares = [share for share in shares if share.tenant in now]
        facts = self._tenant_facts((now[share.tenant] for share in shares), caller)
        return wire.ShareList(
            [
                wire.ShareFacts(
                    tenant, f"{SHARE_KIND}={share.device}", str(share.spec), now[share.tenant].lease().options, share.rm
                )
                for share, tenant in zip(shares, facts, strict=True)
            ]
        )

    @contextlib.contextmanager
    def _held(self) -> Iterator[bool]:
        """Keep the engine from ending as idle meanwhile; gives False where it is ending."""
        with self._lock:
            up = not self._closed
            self._leases += up
        try:
            yield up
        finally:
            with self._lock:
                self._leases -= up
                idle = self._leases == 0
            if idle:
                self._on_idle()

    def _hold(self, connection: socket.socket, call: wire.LeaseCall, caller: Account) -> None:
        """Make the caller a tenant until it closes its connection."""
        with self._held() as up:
            if not up:
                return  # closing without a reply makes the caller look for another engine
            name = tenant_name(caller.own_run(call.name))
            request = self._pods.recommending.at_start(name, call.request, caller)
            call = msgspec.structs.replace(call, name=name, request=request)
            self._engine.check_possible(request)
            if call.wait:
                tenant = self._queue.admit(
                    call,
                    caller,
                    gone=lambda: self._closed or _hung_up(connection),
                    say=lambda reason: _send(connection, wire.LeaseWait(reason)),
                )
                if tenant is None:  # the caller has hung up
                    return
            else:
                container = InContainers() if call.container else None
                tenant = self._engine.admit(name, request, cpu_bind=call.cpu_bind, owner=caller, container=container)
            self._attend(connection, tenant)

    def _attend(self, connection: socket.socket, tenant: EngineTenant) -> None:
        """Give a run its place until its connection ends, then take it back."""
        ended, ended_pids, why = False, list[int](), ""
        try:
            _send(connection, tenant.lease())
            ended = _wait_for_end(connection)
        finally:
            # A shell's background job outlives its shell, but for its use of the GPU, which the next tenant gets; what
            # outlives a run that was killed is an orphan, and so is what outlives `docker run`.
            if ended:
                _, why = self._engine.lent().get(tenant.name, (0, ""))
                ended_pids = end_orphans([tenant.folder.directory], grace_s=ORPHAN_GRACE_S, on_gpu=True)
            self._engine.release(tenant, grace_s=ORPHAN_GRACE_S, keep=ended and tenant.edits is None)
        if ended:
            _send(connection, wire.LeftBehind(len(ended_pids), why))

    def _resume(self, connection: socket.socket, call: wire.ResumeCall, caller: Account) -> None:
        """Give a run of the engine before this one its place again, as long as its connection lasts.

        Raises:
            NotYours: it is another account's.
            AliquotError: there is no such run, or it has resumed.
        """
        tenant = self._engine.tenants.get(TenantName(call.name))
        if tenant is not None:
            caller.require(tenant.owner, f'the run "{call.name}"')
        if tenant is None or not self._inherit(tenant):
            raise AliquotError(f'there is no run "{call.name}" of an earlier engine')
        self._attend(connection, tenant)

    def _inherit(self, tenant: EngineTenant) -> bool:
        """Whether a run waits to be resumed; it does so no longer."""
        with self._lock:
            waits = tenant.name in self._engine.inherited
            self._engine.inherited.discard(tenant.name)
            return waits

    def _keep(self, tenant: EngineTenant) -> None:
        """Keep the place of a run that has not resumed for as long as its `aliquot run` lives."""
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(tenant.owner.pid)
            while tenant.name in self._engine.inherited and not select.select([process], [], [], RESUME_POLL_S)[0]:
                pass
            os.close(process)
        if self._inherit(tenant):
            self._engine.release(tenant, grace_s=ORPHAN_GRACE_S)


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
