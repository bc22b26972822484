"""SharePods on this machine: places them, runs and restarts their containers, and keeps their output.

One SharePod is one tenant: its containers share one grant, as the processes of one container do.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from msgspec import structs

from aliquot.arbiter.client import ArbiterError, Status
from aliquot.driver.gpu import Gpu
from aliquot.kube.manifest import read_sharepods
from aliquot.lib.log import Logger
from aliquot.lib.misspelt import hint
from aliquot.model.ages import format_age
from aliquot.model.errors import AliquotError, UserError, in_words
from aliquot.model.ids import TenantName
from aliquot.model.quantities import Memory, format_mib, format_milli
from aliquot.model.requests import GpuRequest, checked
from aliquot.model.sharepod import MEMORY_LIMIT, SharePodManifest
from aliquot.standalone.accounts import DEFAULT_NAMESPACE, Account, NotYours, own_account
from aliquot.standalone.container import ContainerRun
from aliquot.standalone.engine import Engine
from aliquot.standalone.logs import ALL, ContainerLog
from aliquot.standalone.parking import NotParked
from aliquot.standalone.recommending import Recommending
from aliquot.standalone.roster import Roster, told
from aliquot.standalone.tenants import EngineTenant
from aliquot.standalone.wire import (
    ContainerFacts,
    LogCut,
    Moved,
    ParkCall,
    PodFacts,
    ResizeCall,
    Resized,
    RunLease,
    TenantSlice,
)

EVENTS_KEPT = 50
MAX_CONTAINERS = 32
log = Logger("standalone")


class UnknownPod(UserError):
    """No SharePod by that name."""


class NotRunning(AliquotError):
    """A SharePod, or the container of it that is wanted, has no program now."""


def changes(old: SharePodManifest, new: SharePodManifest) -> str:
    """What differs between two versions of a SharePod: `request 0.3 -> 0.25, template`."""
    differences = [
        f"{name} {before or 'none'} -> {after or 'none'}"
        for name in old.spec.gpu.__struct_fields__
        if (before := getattr(old.spec.gpu, name)) != (after := getattr(new.spec.gpu, name))
    ]
    if old.spec.template != new.spec.template:
        differences.append("template")
    if old.metadata != new.metadata:
        differences.append("metadata")
    return ", ".join(differences) or "spec"


def _owned(spec: SharePodManifest, owner: Account) -> SharePodManifest:
    """A SharePod in a namespace of its account.

    Raises:
        NotYours: it names another.
    """
    metadata = spec.metadata
    if owner.is_master or metadata.namespace == owner.name:
        return spec
    if metadata.namespace != DEFAULT_NAMESPACE:
        raise NotYours(
            f'sharepod "{metadata.name}": the namespace "{metadata.namespace}" is not yours; without one it is in '
            f'"{owner.name}"'
        )
    return msgspec.structs.replace(spec, metadata=msgspec.structs.replace(metadata, namespace=owner.name))


def only_resized(old: SharePodManifest, new: SharePodManifest) -> bool:
    """Whether two versions differ in nothing but the size of a part of one GPU, which changes while it runs."""
    mine, other = old.spec.gpu, new.spec.gpu
    gpu = structs.replace(mine, request=other.request, limit=other.limit, memory=other.memory)
    notes = old.metadata.annotations | {MEMORY_LIMIT: new.metadata.annotations.get(MEMORY_LIMIT, "")}
    notes = {name: text for name, text in notes.items() if text or name != MEMORY_LIMIT}
    metadata = structs.replace(old.metadata, annotations=notes)
    same = structs.replace(old, metadata=metadata, spec=structs.replace(old.spec, gpu=gpu)) == new
    return same and not old.request.whole and not new.request.whole


def _full(name: str) -> str:
    return name if "/" in name else f"default/{name}"


class SharePodRun:
    """One SharePod and its state."""

    def __init__(self, spec: SharePodManifest, owner: Account, request: GpuRequest) -> None:
        """`request` is its spec's, or what it starts with in place of that."""
        self.spec = spec
        self.request = request
        self.owner = owner
        self.tenant: EngineTenant | None = None
        self.containers: list[ContainerRun] = []
        self.created_s = time.monotonic()
        self.message = ""
        self.events: list[str] = []
        self.refusals: dict[str, int] = {}  # how often each GPU refused it memory, as far as its events say
        self.lost = ""

    def note(self, text: str) -> None:
        """Keep an event."""
        self.events = [*self.events, f"{time.strftime('%H:%M:%S')} {text}"][-EVENTS_KEPT:]

    def note_refusals(self, status: Status | None, gpus: Sequence[Gpu]) -> None:
        """Keep an event for each GPU that has refused it memory, or ended its programs, since the last call."""
        for gpu in () if status is None else status.gpus:
            for now in [each for each in gpu.tenants if each.name == self.spec.full_name]:
                if now.memory_refusals > self.refusals.get(gpu.uuid, 0):
                    index, limit = next(g.index for g in gpus if g.uuid == gpu.uuid), format_mib(now.memory_limit_mib)
                    self.note(f"requested more memory of GPU {index} than its limit of {limit}")
                self.refusals[gpu.uuid] = now.memory_refusals
                if now.lost_text not in ("", self.lost):
                    self.note(f"its programs were ended: {now.lost_text}")
                self.lost = now.lost_text

    @property
    def phase(self) -> str:
        """Pending, Running, Succeeded or Failed, as for pods."""
        if self.tenant is None and not self.containers:
            return "Pending"
        if any(not container.done for container in self.containers):
            return "Running"
        return "Succeeded" if all(c.exit_status == 0 for c in self.containers) else "Failed"

    @property
    def reason(self) -> str:
        """The reason for trouble, in kubelet's words; empty if there is none."""
        return next((container.reason for container in self.containers if container.reason), "")

    def at_stake(self, spec: SharePodManifest) -> str:
        """What a new start for `spec` would lose, as the beginning of a sentence."""
        running = [f"{run.spec.name} (pid {run.pid})" for run in self.containers if run.pid is not None]
        age = format_age(time.monotonic() - self.created_s)
        programs = f", which ends {', '.join(running)} after {age}" if running else ""
        name, what = spec.metadata.name, changes(self.spec, spec)
        return f'sharepod "{name}" runs and cannot be changed in place: {what} needs a new start{programs}'


class Pods:
    """All SharePods of an engine."""

    def __init__(self, engine: Engine, recommending: Recommending | None = None, *, remembers: bool = False) -> None:
        """With `remembers` the next engine knows which SharePods a kill has ended."""
        self._engine = engine
        self._roster = Roster(engine.runtime.sharepods) if remembers else Roster()
        self._lock = threading.RLock()
        # One apply of an account at a time. Not `_lock`: a container that ends takes that one, and an apply waits for
        # old containers.
        self._applying: dict[int, threading.Lock] = {}
        self._pods: dict[str, SharePodRun] = {}
        self.recommending = recommending or Recommending(engine)

    def apply(self, text: str, owner: Account | None = None, *, restart: bool = False) -> list[str]:
        """Take SharePods of an account, or of this process's, from a YAML text; one line for each.

        One that has no room waits. With `restart` changed ones that run are ended and started again.

        Raises:
            NotYours: a SharePod is another account's, or would be in a namespace that is not its own.
            UserError: A document is wrong, asks for what this machine never has, or changes a SharePod that runs
                without `restart`; nothing was changed then.
        """
        owner = replace(owner or own_account(), pid=0)  # they outlive the process that applies them
        specs = [_owned(spec, owner) for spec in read_sharepods(text)]
        with self._lock:
            applying = self._applying.setdefault(owner.uid, threading.Lock())
        with applying:
            for spec in specs:
                try:
                    self._engine.check_possible(spec.request)
                except AliquotError as error:
                    raise UserError(f'sharepod "{spec.metadata.name}": {error}') from None
            lost, resized = [], set()
            with self._lock:
                for spec in specs:
                    pod = self._pods.get(spec.full_name)
                    if pod is not None:
                        owner.require(pod.owner, f'sharepod "{spec.full_name}"')
                    if pod is None or pod.spec == spec or pod.phase != "Running" or restart:
                        continue
                    if only_resized(pod.spec, spec):
                        resized.add(spec.full_name)
                    else:
                        lost.append(pod.at_stake(spec))
                self._bound_containers(owner, specs)
            if lost:
                raise UserError(
                    f"{'; '.join(lost)}. Nothing was changed; to end what runs and start it anew: "
                    "aliquot apply --restart"
                )
            if sizes := {TenantName(s.full_name): s.request for s in specs if s.full_name in resized}:
                self._engine.check_resizes(sizes)  # first, so that one that has no room changes nothing
            return [self._apply_one(spec, owner, in_place=spec.full_name in resized) for spec in specs]

    def resize(self, call: ResizeCall, caller: Account) -> Resized:
        """Change the share of a SharePod, or of a run, while it runs; what the call does not name stays as it is.

        Raises:
            NotYours: it belongs to another account.
            UserError: it does not exist, or the sizes contradict each other.
            AliquotError: it has no GPU now; or as `Engine.resize`.
        """
        with self._lock:
            pod, tenant = self._pods.get(call.name), self._tenant_of(call, caller)
            name, piece = tenant.name, tenant.plan.slices[0]
            before = self._engine.look(lambda ledger: ledger.request_of(name))
            memory = call.memory or before.memory or Memory(mib=piece.memory_mib)
            lends_nothing = tenant.record.gpus[0].max_memory_mib == piece.memory_mib  # and none then
            most = call.memory_limit or (memory if lends_nothing else before.memory_limit)
            milli = before.request_milli if call.request_milli is None else call.request_milli
            limit = before.limit_milli if call.limit_milli is None else call.limit_milli
            request = replace(before, request_milli=milli, limit_milli=limit, memory=memory, memory_limit=most)
            if request.whole and not before.whole:
                allowed = "a resize changes a part of one GPU, 0.001 to 0.999; for whole GPUs start it anew"
                raise UserError(f"--gpu-request {format_milli(milli)} is not below 1: {allowed}")
            checked(request, request_name="--gpu-request", limit_name="--gpu-limit", memory_name="--gpu-mem")
            if pod is None:
                now = self._engine.resize(name, request, dry_run=call.dry_run)
            else:
                now = self._resize(pod.spec.resized(request), dry_run=call.dry_run)
            old, new = (TenantSlice(*structs.astuple(each)) for each in (piece, now.plan.slices[0]))
            return Resized(
                name, "run" if pod is None else "sharepod", old, new, dry_run=call.dry_run,
                pending_mib=self._engine.pending_mib().get(name, 0), lent_mib=self._engine.lent().get(name, (0, ""))[0],
                max_memory_mib=(tenant.record.gpus[0].max_memory_mib, now.record.gpus[0].max_memory_mib),
            )  # fmt: skip

    def move(self, call: ParkCall, caller: Account) -> Moved:
        """Park a SharePod or a run, bring it back, or take it to another GPU; see `Parking`.

        Raises:
            NotYours: it belongs to another account.
            UserError: it does not exist.
            AliquotError: it has no GPU now; or as `Parking.park`, `Parking.unpark` and `Engine.move`.
        """
        with self._lock:
            pod, tenant = self._pods.get(call.name), self._tenant_of(call, caller)
        verb = self._engine.parking.unpark if call.back else self._engine.parking.park
        try:
            if call.gpu:
                tenant = self._engine.move(tenant.name, call.gpu)
            moved_mib = tenant.plan.slices[0].memory_mib if call.gpu else verb(tenant.name)
        except ArbiterError as error:
            raise AliquotError(f'"{tenant.name}" is where it was: {error}') from None
        except NotParked as error:
            if pod is not None:
                pod.note(str(error))
            raise
        gpu = self._indices(tenant)[0]
        parked = f"parked: {format_mib(moved_mib)} of GPU memory are free for others"
        if pod is not None:
            pod.tenant = tenant
            pod.note(f"moved to GPU {gpu}" if call.gpu else "unparked" if call.back else parked)
        if not call.back:
            self.place_waiting()
        return Moved(tenant.name, "run" if pod is None else "sharepod", not (call.back or call.gpu), moved_mib, gpu)

    def _tenant_of(self, call: ResizeCall | ParkCall, caller: Account) -> EngineTenant:
        """The SharePod or run that a call is about; called with the lock held.

        Raises:
            NotYours, UnknownPod, NotRunning: as `resize`.
        """
        pod, tenants = self._pods.get(call.name), self._engine.tenants
        known = [call.name] if pod is not None else [caller.own_run(call.run), call.run]
        tenant = next((tenants[name] for each in known if (name := TenantName(each)) in tenants), None)
        if owner := pod.owner if pod is not None else tenant and tenant.owner:
            caller.require(owner, f'"{call.run}"')
        if tenant is None and pod is None:
            near = hint(call.name, sorted({*self._pods, *tenants}), prefix="default/")
            raise UnknownPod(f'there is no sharepod or run "{call.run}"; {near}')
        if tenant is None:
            raise NotRunning(f'sharepod "{call.run}" has no GPU now; change its manifest and apply it')
        return tenant

    def delete(self, name: str, caller: Account | None = None) -> str:
        """End a SharePod and forget it.

        Raises:
            UnknownPod: it does not exist.
            NotYours: it is not the caller's.
        """
        caller = caller or own_account()
        with self._lock:
            full = _full(name)
            own = caller.is_master or full.startswith(f"{caller.name}/")
            if full not in self._pods and own and self._roster.forget(full):
                return f"sharepod/{full.rpartition('/')[2]} deleted"
            pod = self._find(name, caller)
            del self._pods[pod.spec.full_name]
            self._remember()
        self._end(pod)
        for container in pod.containers:
            container.log.clear()
        self.place_waiting()
        return f"sharepod/{pod.spec.metadata.name} deleted"

    def facts(self, name: str = "", caller: Account | None = None) -> list[PodFacts]:
        """One or all; of those that are not the caller's, what every account may know."""
        caller = caller or own_account()
        with self._lock:
            pods = [self._find(name)] if name else list(self._pods.values())
            pending, lent = self._engine.pending_mib(), self._engine.lent()
            parked = self._engine.parked
            if name:
                pods[0].note_refusals(self._engine.measure(), self._engine.gpus)
            facts = []
            for pod in pods:
                request = pod.request
                slices = pod.tenant.plan.slices if pod.tenant else ()
                containers = [
                    ContainerFacts(
                        run.spec.name, run.state, run.reason, run.pid, run.exit_status, run.restarts,
                        [*run.spec.command, *run.spec.args],
                    )
                    for run in pod.containers
                ]  # fmt: skip
                described = PodFacts(
                    name=pod.spec.full_name,
                    phase=pod.phase,
                    reason=pod.reason,
                    gpus=self._indices(pod.tenant) if pod.tenant else [],
                    gpu_uuids=[piece.gpu for piece in slices],
                    request_milli=request.request_milli,
                    limit_milli=request.ceiling_milli,
                    memory_mib=sum(piece.memory_mib for piece in slices),
                    requested_memory=str(request.memory or ""),
                    enforce=request.enforced(),
                    wake_us=request.wake_us,
                    restarts=sum(container.restarts for container in pod.containers),
                    age_s=round(time.monotonic() - pod.created_s, 1),
                    message=pod.message or parked.get(TenantName(pod.spec.full_name), ""),
                    containers=containers,
                    events=pod.events,
                    pending_mib=pending.get(TenantName(pod.spec.full_name), 0),
                    parked=TenantName(pod.spec.full_name) in parked,
                    labels=pod.spec.metadata.labels,
                    manifest=pod.spec,
                    lent_mib=lent.get(TenantName(pod.spec.full_name), (0, ""))[0],
                )
                if not caller.may_use(pod.owner):
                    containers = [structs.replace(container, command=[], pid=None) for container in containers]
                    described = structs.replace(described, events=[], labels={}, manifest=None, containers=containers)
                facts.append(described)
            return facts

    @property
    def lost(self) -> dict[str, str]:
        """SharePods of an engine that was killed, with the phases they were in and by when."""
        with self._lock:
            return dict(self._roster.lost)

    def lost_in_words(self, but: Container[str]) -> str:
        """A message about these, except those of some names; empty if there are none."""
        return told({name: phase for name, phase in self.lost.items() if name not in but})

    def request_of(self, name: str) -> GpuRequest | None:
        """The request of a SharePod; None if no SharePod has that full name."""
        with self._lock:
            return pod.request if (pod := self._pods.get(name)) else None

    def owner_of(self, name: str) -> Account | None:
        """Whose a SharePod is; None if no SharePod has that full name."""
        with self._lock:
            return pod.owner if (pod := self._pods.get(name)) else None

    def logs(
        self, name: str, container: str, caller: Account, *, follow: bool, cut: LogCut = ALL
    ) -> Iterator[list[str]]:
        """What a container printed, in pieces; with `follow`, an empty piece whenever nothing came for a moment.

        What is followed ends with the container's last run.

        Raises:
            UnknownPod: no such pod or container, or it has not started.
            NotYours: it is not the caller's.
            NoPreviousRun: the previous run is wanted, and there was none.
        """
        run = self._run_of(name, container, caller)
        if not follow:
            text = run.log.text(cut)
            yield [text.decode(errors="replace")] if text else []
            return
        done = False
        for piece in run.log.follow(cut):
            yield [piece.decode(errors="replace")] if piece else []
            if done and not piece:
                return
            done = run.done  # one more look: what it printed last may have come meanwhile

    def place_of(self, name: str, container: str, caller: Account) -> RunLease:
        """The place of a container's program, for another program in it.

        Raises:
            UnknownPod: no such pod or container, or it has not started.
            NotYours: it is not the caller's.
            NotRunning: its program does not run now.
        """
        run = self._run_of(name, container, caller)
        if run.pid is None:
            state = run.reason or run.state
            raise NotRunning(f'container "{run.spec.name}" of sharepod "{name}" does not run ({state})')
        with self._lock:
            tenant = self._find(name).tenant
        if tenant is None:
            raise NotRunning(f'sharepod "{name}" has given its GPU back')
        cwd = str(run.cwd or Path.cwd())
        return msgspec.structs.replace(tenant.lease(), container=run.spec.name, env=run.environment, cwd=cwd)

    def stop(self) -> None:
        """End everything, all at once."""
        with self._lock:
            pods = list(self._pods.values())
            self._pods.clear()
            self._roster.clear()
        for pod in pods:
            for container in pod.containers:
                container.ask_to_end()
        for pod in pods:
            self._end(pod)

    def place_waiting(self) -> None:
        """Try those that wait, the longest waiting first."""
        with self._lock:
            waiting = [pod.request for pod in self._pods.values() if pod.phase == "Pending"]
        for request in waiting:
            self._make_room(request)
        with self._lock:
            for pod in self._pods.values():
                if pod.phase == "Pending":
                    self._place(pod)
            self._remember()

    def _make_room(self, request: GpuRequest) -> None:
        """Park others where it takes that; without the lock, for it takes seconds."""
        with contextlib.suppress(AliquotError):  # placing says what is wrong
            self._engine.make_room(request)

    def _resize(self, spec: SharePodManifest, *, dry_run: bool = False) -> EngineTenant:
        with self._lock:
            pod = self._pods[spec.full_name]
            tenant = self._engine.resize(TenantName(spec.full_name), spec.request, dry_run=dry_run)
            if not dry_run:
                pod.note(f"resized: {changes(pod.spec, spec)}")
                pod.tenant, pod.spec, pod.request = tenant, spec, spec.request
            return tenant

    def _apply_one(self, spec: SharePodManifest, owner: Account, *, in_place: bool) -> str:
        name = spec.metadata.name
        if in_place:
            self._resize(spec)
            return f"sharepod/{name} configured"
        with self._lock:
            old = self._pods.get(spec.full_name)
            if old is not None and old.spec == spec:
                return f"sharepod/{name} unchanged"
            self._pods.pop(spec.full_name, None)
        if old is not None:
            self._end(old)
        owner = owner if old is None else old.owner
        request = self.recommending.at_start(spec.full_name, spec.request, owner, f"SharePod/{name}")
        pod = SharePodRun(spec, owner, request)
        if old is not None:
            pod.events = old.events
            pod.note(f"applied again: {changes(old.spec, spec)}")
        asked, now = (format_milli(each.request_milli) for each in (spec.request, request))
        sized = f", request {asked} -> {now} as recommended" if now != asked else ""
        if sized:
            pod.note(f"starts{sized}")
        self._make_room(request)
        with self._lock:
            self._pods[spec.full_name] = pod
            self._place(pod)
            self._remember()
        waits = f", waits: {pod.message}" if pod.tenant is None else ""
        ignored = f" (no effect on one machine: {', '.join(spec.ignored)})" if spec.ignored else ""
        return f"sharepod/{name} {'created' if old is None else 'configured'}{sized}{waits}{ignored}"

    def _place(self, pod: SharePodRun) -> None:
        name = TenantName(pod.spec.full_name)
        try:
            pod.tenant = self._engine.admit(name, pod.request, again=bool(pod.message), owner=pod.owner, parks=False)
        except AliquotError as error:
            self._waits(pod, str(error))
            return
        except Exception as error:  # a defect triggered by one SharePod does not end the others
            log.exception("sharepod %s cannot be placed", name)
            self._waits(pod, f"internal error, {type(error).__name__}: {error}")
            return
        template = pod.spec.spec.template.spec
        folder = self._engine.runtime.logs / pod.spec.metadata.namespace / pod.spec.metadata.name
        try:
            pod.containers = [
                ContainerRun(
                    container,
                    template,
                    pod.tenant,
                    ContainerLog(folder / f"{container.name}.log"),
                    note=pod.note,
                    on_ended=lambda: pod.note_refusals(self._engine.measure(), self._engine.gpus),
                    on_done=lambda: self._container_done(pod),
                )
                for container in template.containers
            ]
        except OSError as error:
            self._engine.release(pod.tenant)
            pod.tenant = None
            self._waits(pod, in_words(error))
            return
        pod.message = ""
        pod.note(f"placed on GPU {', '.join(map(str, self._indices(pod.tenant)))}")
        for run in pod.containers:
            run.start()

    @staticmethod
    def _waits(pod: SharePodRun, reason: str) -> None:
        if pod.message != reason:
            pod.note(f"waits: {reason}")
        pod.message = reason

    def _container_done(self, pod: SharePodRun) -> None:
        """Release the share of a pod whose containers have all ended for good."""
        with self._lock:
            if pod.tenant is None or any(not container.done for container in pod.containers):
                return
            self._engine.release(pod.tenant)
            pod.note("all containers have ended; the GPU is given back")
        self.place_waiting()

    def _bound_containers(self, owner: Account, specs: Sequence[SharePodManifest]) -> None:
        """Refuse more containers of another account than its logs and threads may cost the machine.

        Raises:
            UserError: it would have more.
        """
        mine = {name: pod.spec for name, pod in self._pods.items() if pod.owner.uid == owner.uid}
        mine |= {spec.full_name: spec for spec in specs}
        if not owner.is_master and sum(len(s.spec.template.spec.containers) for s in mine.values()) > MAX_CONTAINERS:
            raise UserError(f"{owner.name} may have {MAX_CONTAINERS} containers at most; delete some SharePods first")

    def _remember(self) -> None:
        self._roster.keep({name: pod.phase for name, pod in self._pods.items()})

    def _end(self, pod: SharePodRun) -> None:
        for container in pod.containers:
            container.ask_to_end()
        for container in pod.containers:
            container.join()
        if pod.tenant is not None:
            self._engine.release(pod.tenant)

    def _find(self, name: str, caller: Account | None = None) -> SharePodRun:
        full = _full(name)
        pod = self._pods.get(full)
        if pod is not None and caller is not None:
            caller.require(pod.owner, f'sharepod "{full}"')
        if pod is None and full in self._roster.lost:
            raise UnknownPod(f'sharepod "{name}" ended with its engine ({self._roster.lost[full]}); apply it again')
        if pod is None:
            raise UnknownPod(f'there is no sharepod "{name}"; {hint(full, sorted(self._pods), prefix="default/")}')
        return pod

    def _run_of(self, name: str, container: str, caller: Account) -> ContainerRun:
        with self._lock:
            pod = self._find(name, caller)
            runs = {run.spec.name: run for run in pod.containers}
            if not runs:
                raise UnknownPod(f'sharepod "{name}" has not started; see: aliquot describe {name}')
            if container and container not in runs:
                raise UnknownPod(f'sharepod "{name}" has no container "{container}"; it has {", ".join(runs)}')
            return runs[container] if container else next(iter(runs.values()))

    def _indices(self, tenant: EngineTenant) -> list[int]:
        index = {gpu.uuid: gpu.index for gpu in self._engine.gpus}
        return [index[piece.gpu] for piece in tenant.plan.slices]
