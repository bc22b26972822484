"""The engine: one machine's GPUs, their ledger, the arbiter, and a folder for every tenant.

Everything a tenant needs is created here and removed here: its place in the ledger, its record at the arbiter, its
folder. `aliquot up` serves an engine to others, the demonstration and the benchmarks use one in their own process.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import structs

from aliquot.arbiter.client import ArbiterClient, ArbiterError, NoArbiter, Status, TenantRecord
from aliquot.driver.gpu import Gpu, cuda_variables, nearest_cores, read_core_list
from aliquot.driver.gpu_lock import GpuLock
from aliquot.driver.injection import TenantConf, TenantFolder, make_cache
from aliquot.model.errors import AliquotError, UserError, in_words
from aliquot.model.ids import GpuUuid, TenantName
from aliquot.model.quantities import MILLI, Memory
from aliquot.model.requests import Enforce, GpuRequest, Plan
from aliquot.placement.machine import DEFAULT_POLICY, MachineLedger, NeverFits, NoRoom
from aliquot.standalone.accounts import Account, own_account
from aliquot.standalone.arbiter_process import ArbiterOptions, ArbiterProcess
from aliquot.standalone.learned import LearnedFile
from aliquot.standalone.machine import Machine, find_machine
from aliquot.standalone.orphans import IN_CONTAINER, end_orphans, pids_of
from aliquot.standalone.parking import Parking
from aliquot.standalone.paths import RuntimeDir, shown_driver_dir
from aliquot.standalone.tenants import (
    EngineTenant,
    InContainers,
    LockKeeper,
    RunRecord,
    end_keeper,
    living_runs,
    log,
    moved_conf,
    write_runs,
)
from aliquot.tenancy.lifecycle import Tenancy
from aliquot.tenancy.records import at_arbiter, at_least, kernel_lengths_us, moved_at, no_context_fits, tenant_record

T = TypeVar("T")
REST_US: Final = 5_000
"""Microseconds that placement may learn at a time."""
ARBITER_BACK_S: Final = 20.0
"""How long a new tenant waits for an arbiter that is being restarted."""
ORPHAN_GRACE_S: Final = 2.0
"""Grace period after SIGTERM of a program whose engine or `aliquot run` was killed."""


class EngineError(AliquotError):
    """A part of the engine failed."""


class Engine:
    """One machine's GPUs being shared. Made by `Engine.start`; safe to use from several threads."""

    def __init__(
        self, runtime: RuntimeDir, machine: Machine, gpu_lock: GpuLock, options: ArbiterOptions, *, policy: str,
        state_dir: Path | None = None, runs: Sequence[RunRecord] = (),
    ) -> None:  # fmt: skip
        self.runtime = runtime
        self.machine = machine
        self._gpu_lock = gpu_lock
        self._keeper = LockKeeper(runtime, gpu_lock)
        self.ledger = machine.ledger(policy)
        self._learned = LearnedFile(state_dir, self.ledger.decider.policy, emulated=machine.emulated)
        self._learned.recall()
        self._tenancy: Tenancy[EngineTenant] = Tenancy(
            lambda: ArbiterClient(runtime.root), lambda key: self.ledger.release(TenantName(key)),
            patience_s=ARBITER_BACK_S, end_programs=True, recovering=bool(runs),
        )  # fmt: skip
        self._lock = self._tenancy.lock  # the ledger's too
        self._freeing: set[TenantName] = set()  # with less memory than the ledger still reserves for them
        self._numbers = itertools.count(1 + max((int(Path(run.directory).name) for run in runs), default=0))
        self.check_quota: Callable[[MachineLedger, Account, Sequence[Account], Plan, GpuRequest, Plan], None] = (
            lambda *_: None
        )
        """Refuses what would take an account over its quota."""
        self.recommends = False
        """Whether what tenants use is recorded, so that a request can follow what is recommended."""
        self.leaves_runs = False
        """Whether `stop` leaves the runs to the next engine."""
        self._shown_driver = shown_driver_dir(runtime, state_dir)
        argv = options.argv(runtime.root, machine.libnvml)
        self._process = ArbiterProcess(argv, runtime.root, runtime.engine_log, self._reconcile, fresh=not runs)
        self.arbiter: ArbiterClient = ArbiterClient(runtime.root)
        self.parking = Parking(self, runtime.root, machine.libcuda, machine.libnvml, emulated=machine.emulated)
        for run in runs:
            self._take_over(run)
        self.inherited = {run.name for run in runs if not run.is_share} & self.tenants.keys()
        """The runs of the engine before this one, until they connect again."""
        self.parking.start()
        if runs:
            self._tenancy.sweep(runtime.tenants, kept=set(runtime.tenants.glob("of-*")))
            self._write_runs()

    @classmethod
    def start(
        cls,
        emulate: str | None = None,
        *,
        runtime: RuntimeDir,
        state_dir: Path | None = None,
        policy: str = DEFAULT_POLICY,
        only_gpus: str = "",
        not_gpus: str = "",
        **options: Any,
    ) -> Engine:
        """An engine that is ready for tenants.

        `emulate` is a spec such as `v100x4`; None drives this machine's GPUs. In `state_dir` it keeps what placement
        has learned; None keeps nothing. `only_gpus` and `not_gpus` name the GPUs that are shared and those that are not
        (`driver.choice`). `policy` is the name of a placement policy, `options` are the fields of `ArbiterOptions`.

        Raises:
            GpuTaken: another engine of the machine shares one of the GPUs.
            AliquotError: no GPU, unknown profile, or a part of the engine did not come up.
        """
        gpu_lock = None
        try:
            runtime.create()
            runs = living_runs(runtime.runs)
            if runs and not runtime.shared:
                raise EngineError(
                    f"runs of this machine's engine go on without it ({runs[0].name}); start it again: "
                    "aliquot up --system"
                )
            # What an engine that was killed has left.
            found = {*runtime.tenants.glob("[0-9]*"), *runtime.tenants.glob("of-*/*")}
            left = found - {Path(run.directory) for run in runs}
            end_orphans(left, grace_s=ORPHAN_GRACE_S)
            for folder in left:
                shutil.rmtree(folder, ignore_errors=True)
            runtime.tenants.mkdir(exist_ok=True)
            runtime.tenants.chmod(0o711 if runtime.shared else 0o700)  # it may be of an engine of the other kind
            machine = find_machine(emulate, runtime.emulated, only=only_gpus, excluded=not_gpus, fresh=not runs)
            gpu_lock = GpuLock(machine.libnvml, machine.gpus, lambda: end_keeper(runtime))
            arbiter = ArbiterOptions(**options)
            return cls(runtime, machine, gpu_lock, arbiter, policy=policy, state_dir=state_dir, runs=runs)
        except BaseException as error:
            if gpu_lock is not None:
                gpu_lock.close()
            if isinstance(error, OSError):  # a native part is missing, or a file cannot be written
                raise EngineError(in_words(error)) from None
            raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def gpus(self) -> list[Gpu]:
        """This machine's GPUs, by index."""
        return list(self.machine.gpus)

    @property
    def emulated(self) -> bool:
        """Whether the GPUs are emulated."""
        return self.machine.emulated

    @property
    def arbiter_pid(self) -> int:
        """Process id of the arbiter that runs now."""
        return self._process.pid

    @property
    def tenants(self) -> dict[TenantName, EngineTenant]:
        """The tenants now."""
        return {TenantName(name): tenant for name, tenant in self._tenancy.tenants.items()}

    @property
    def parked(self) -> dict[TenantName, str]:
        """The tenants whose memory is off their GPUs, and why those that need it do not have it back yet."""
        return self.look(lambda ledger: {name: self.parking.waiting.get(name, "") for name in ledger.parked})

    def processes(self, name: TenantName) -> list[int]:
        """All processes of a tenant, whatever they do; none of one that has ended."""
        tenant = self.tenants.get(name)
        return pids_of(tenant.folder.directory) if tenant is not None else []

    def look(self, read: Callable[[MachineLedger], T]) -> T:
        """Call `read` with the ledger, which does not change meanwhile; `read` must not keep references to it."""
        with self._lock:
            return read(self.ledger)

    def admit(
        self, name: TenantName, request: GpuRequest, *, cpu_bind: int = 0, again: bool = False,
        owner: Account | None = None, container: InContainers | None = None, parks: bool = True,
    ) -> EngineTenant:  # fmt: skip
        """Provision a tenant of `owner`, or of this process's account; where it takes that, others are parked first.

        That takes seconds; without `parks` it is not done (`make_room` does it).
        `cpu_bind` binds its programs to that number of cores nearest to its first GPU. `again` is for one that was
        refused before, so that placement learns from it once. With `container` its programs are in containers.

        Raises:
            VolumeError, NoDriverFiles: there are no files of the driver to show to containers.
            NoRoom, NeverFits: see `MachineLedger.plan` and `check_quota`.
            LedgerError: the name is taken.
            EngineError: its folder cannot be made, or the arbiter does not take it.
        """
        try:
            return self._admit(name, request, cpu_bind, again, owner, container)
        except NoRoom:
            if not (parks and self.make_room(request)):
                raise
            return self._admit(name, request, cpu_bind, True, owner, container)

    def check_new(self, owner: Account, request: GpuRequest, plan: Plan | None) -> None:
        """Let a tenant that is to come pass if it keeps its owner within quota.

        One without a plan has no room, and is judged by what it would have on an empty machine.

        Raises:
            NoRoom, NeverFits: see `check_quota`.
        """
        if plan is None:
            try:
                plan = self.ledger.empty().plan(request)
            except NoRoom:
                return
        owners = [tenant.owner for tenant in self.tenants.values()]
        self.check_quota(self.ledger, owner, owners, plan, request, Plan(()))

    def make_room(self, request: GpuRequest) -> bool:
        """Park tenants that may be, if a request has room only then; whether there is room now."""
        return self.look(lambda ledger: ledger.has_room(request)) or self.parking.make_room(
            lambda ledger: ledger.has_room(request)
        )

    def _admit(
        self, name: TenantName, request: GpuRequest, cpu_bind: int, again: bool, owner: Account | None,
        container: InContainers | None,
    ) -> EngineTenant:  # fmt: skip
        with self._lock:
            if container and request.movable:
                raise NeverFits("what is movable is not in a container, which has the device of its own GPU alone")
            enforce = request.enforced(library=cpu_bind > 0)
            self._settle_memory()
            if request.wake_us:
                self.measure()
            owner = owner or own_account()
            try:
                plan = self.ledger.plan(request, again=again)
            except NoRoom as error:
                try:
                    self.check_new(owner, request, None)
                except NoRoom as over_quota:
                    raise type(over_quota)(f"{str(error).partition('. See ')[0]}; and {over_quota}") from None
                raise
            self.check_new(owner, request, plan)
            near = next(gpu.near_cores for gpu in self.gpus if gpu.uuid == plan.slices[0].gpu)
            others = [*self.tenants.values(), *self._tenancy.coming]
            used = Counter(core for other in others for core in read_core_list(other.cpus))
            cpus = nearest_cores(cpu_bind, near, used) if cpu_bind else ""
            folders = self.runtime.containers_of(owner.uid) if container else self.runtime.tenants
            directory = folders / str(next(self._numbers))
            run = RunRecord.of(name, directory, request, plan, enforce, cpus, owner, container)
            tenant = self._tenant(run, lasts=self.runtime.shared and bool(owner.pid))
            try:
                self._tenancy.provision(tenant, lambda: self.ledger.reserve(name, plan, request))
            except OSError as error:
                raise EngineError(f'the files of tenant "{name}" cannot be made: {in_words(error)}') from None
            except ArbiterError as error:
                trouble = self._process.trouble
                why = f"{trouble}; see {self.runtime.engine_log}" if trouble and isinstance(error, NoArbiter) else error
                raise EngineError(f'the arbiter does not take tenant "{name}": {why}') from None
        if self.runtime.shared and not container:  # here, as the account may not write into the folder
            with contextlib.suppress(AliquotError):  # without ldconfig a run needs --inject library-path
                make_cache(tenant.folder)
        self._write_runs()
        return tenant

    def dominant_shares(self) -> dict[int, float]:
        """The larger part of this machine's GPU time or memory that is promised to each account, by its number."""
        milli, mib = MILLI * len(self.gpus), sum(gpu.memory_mib for gpu in self.gpus)
        held: dict[int, tuple[float, float]] = {}
        for tenant in self.tenants.values():
            time_part, memory_part = held.get(tenant.owner.uid, (0.0, 0.0))
            time_part += sum(piece.request_milli for piece in tenant.plan.slices) / milli
            memory_part += sum(piece.memory_mib for piece in tenant.plan.slices) / mib
            held[tenant.owner.uid] = (time_part, memory_part)
        return {uid: max(parts) for uid, parts in held.items()}

    def resize(self, name: TenantName, request: GpuRequest, *, dry_run: bool = False) -> EngineTenant:
        """Give a tenant another part of its GPU, and other memory, while its programs run.

        It is decided as if the tenant came now. What it holds beyond its new memory stays reserved until it is freed.
        What is lent to it beyond a new limit stays until it is called back. With `dry_run` nothing changes.

        Raises:
            NoRoom, NeverFits: see `MachineLedger.plan_on` and `check_quota`; and whole GPUs are not resized.
            EngineError: there is no such tenant, or the arbiter does not take its share; it is as it was.
        """
        with self._lock:
            tenant = self.tenants.get(name)
            if tenant is None:
                raise EngineError(f'tenant "{name}" has ended')
            if name in self.ledger.parked:
                raise NeverFits(f'"{name}" is parked; bring it back first: aliquot unpark {name}')
            if request.wake_us:
                self.measure()
            self._settle_memory()
            before, held = self.ledger.request_of(name), self.ledger.plans[name]
            plan = self._resized_plan(self.ledger, tenant, request)
            if before.memory_limit and not request.memory_limit:  # what is lent may still come back by a park
                request = replace(request, memory_limit=Memory(mib=plan.slices[0].memory_mib))
            run = tenant.run and structs.replace(tenant.run, request=request, slices=list(plan.slices))
            record = self._record(name, tenant.folder.conf.socket, plan, request, tenant.enforce, tenant.record.uid)
            resized = replace(tenant, plan=plan, record=record, run=run)
            if dry_run:
                return resized
            self.ledger.resize(name, at_least(plan, held), request)
            self._freeing.add(name)
            try:
                self._tenancy.resize(resized)
            except ArbiterError as error:  # it may have done so, and gets the share from before when it is back
                self.ledger.resize(name, at_least(held, plan), before)
                raise EngineError(f'tenant "{name}" keeps its share: {error}') from None
            self._write_runs()
            self._settle_memory()
            return resized

    def check_resizes(self, requests: Mapping[TenantName, GpuRequest]) -> None:
        """Refuse these sizes unless each fits once those before it are given.

        Raises:
            NoRoom, NeverFits: as `resize`.
        """
        with self._lock:
            self._settle_memory()
            trial = self.ledger.copy()
            for name, request in requests.items():
                if (tenant := self.tenants.get(name)) is not None:
                    trial.resize(name, at_least(self._resized_plan(trial, tenant, request), trial.plans[name]), request)

    def _resized_plan(self, ledger: MachineLedger, tenant: EngineTenant, request: GpuRequest) -> Plan:
        """The plan of a tenant that asks for another size of its GPU, decided as if it came now."""
        name = tenant.name
        if ledger.is_moving(name):
            raise NoRoom(f'"{name}" is being moved to another GPU; try again')
        if ledger.request_of(name).whole or request.whole:
            raise NeverFits(f'"{name}": a resize changes a part of one GPU, below 1; for whole GPUs start it anew')
        held = ledger.plans[name]
        plan = ledger.without(name).plan_on(held.uuids, request)
        self._require_context(plan, request)
        self.check_quota(ledger, tenant.owner, [other.owner for other in self.tenants.values()], plan, request, held)
        return plan

    def move(self, name: TenantName, gpu: str) -> EngineTenant:
        """Take a tenant to another GPU, named by its index or UUID, while its programs run.

        It is decided as if the tenant came there now. Until its memory is there it has its place on both GPUs.

        Raises:
            NoRoom, NeverFits: see `MachineLedger.begin_move`; and what is in a container stays where it is.
            NotParked: its memory cannot leave its GPU, or come there; it is where it was.
            EngineError: there is no such tenant.
        """
        with self._lock:
            tenant = self.tenants.get(name)
            if tenant is None:
                raise EngineError(f'tenant "{name}" has ended')
            if tenant.edits is not None:
                raise NeverFits(f'"{name}" is in a container, which has the device of its GPU alone; start it anew')
            self._settle_memory()
            if name in self._freeing:
                raise NoRoom(f'"{name}" has yet to free memory after a resize; try again when it has')
            to = self.ledger.begin_move(name, gpu)
        try:
            self.parking.move(name, tenant.plan.uuids[0], to, lambda gpu: self._change_gpu(name, gpu))
        finally:
            with self._lock:
                self.ledger.end_move(name)
        return self.tenants.get(name, tenant)

    def _change_gpu(self, name: TenantName, to: GpuUuid) -> None:
        """Make the GPU of its second place that of a tenant whose memory is off its own.

        Raises:
            EngineError: it has ended.
            ArbiterError: the arbiter refuses the change, or cannot be reached; the tenant keeps its GPU.
        """
        with self._lock:
            if (tenant := self.tenants.get(name)) is None:
                raise EngineError(f'tenant "{name}" has ended')
            moved = tenant.moved(to, self.machine.seen)
            self._tenancy.resize(moved)
            self.ledger.change_gpu(name)
            with contextlib.suppress(OSError):  # programs that begin later end at a GPU that is not theirs
                moved.folder.write_conf()
            self._write_runs()

    def pending_mib(self) -> dict[TenantName, int]:
        """Memory that tenants hold beyond theirs since that was reduced, and have yet to free, in MiB."""
        with self._lock:
            self._settle_memory()
            plans = self.ledger.plans if self._freeing else {}
            both = {name: (plans[name], self.tenants[name].plan) for name in self._freeing if name in self.tenants}
            return {
                name: sum(piece.memory_mib for piece in held.slices) - sum(piece.memory_mib for piece in own.slices)
                for name, (held, own) in both.items()
            }

    def _settle_memory(self) -> None:
        """Give others what tenants whose memory was reduced have freed since, as the arbiter says."""
        if not self._freeing or (status := self.measure()) is None:
            return
        for name in [*self._freeing]:
            if (tenant := self.tenants.get(name)) is None:
                self._freeing.discard(name)
                continue
            held = self.ledger.plans[name]
            plan = at_least(tenant.plan, at_arbiter(name, held, status))
            if plan != held and at_least(held, plan) == held:
                self.ledger.resize(name, plan, self.ledger.request_of(name))
            if plan == tenant.plan:
                self._freeing.discard(name)

    def measure(self) -> Status | None:
        """Give the ledger the lengths of the tenants' kernels, as the arbiter measures them, and the turn policy.

        Returns all that the arbiter measures; None where it does not answer.
        """
        with self._lock, contextlib.suppress(ArbiterError, OSError), ArbiterClient(self.runtime.root) as client:
            status = client.status()
            measured = self.ledger.cluster.measured
            measured.turns = {self.ledger.node: status.turns}
            measured.kernels = kernel_lengths_us(status)
            return status
        return None

    def check_possible(self, request: GpuRequest) -> None:
        """Refuse what could not run on this machine if it were empty.

        Raises:
            NeverFits: no device could hold the request, or no context fits in its memory.
            UserError: it is to follow what is recommended, and nothing is.
        """
        if request.recommend in ("initial", "auto") and not self.recommends:
            follows = f"recommend {request.recommend} follows what a dashboard records"
            raise UserError(f"{follows}; this engine has none: leave it out, or aliquot up")
        self._require_context(self.ledger.empty().plan(request), request)

    def check_context(self, request: GpuRequest) -> None:
        """Refuse memory in which no context fits, of a request that could otherwise run on this machine.

        Raises:
            NeverFits: as it says.
        """
        try:
            plan = self.ledger.empty().plan(request)
        except NeverFits:
            return  # for another reason, which is explained
        self._require_context(plan, request)

    def _require_context(self, plan: Plan, request: GpuRequest) -> None:
        """Refuse memory in which no context fits."""
        for piece in () if request.memory is None else plan.slices:
            if why := no_context_fits(piece.memory_mib, self.machine.models[piece.gpu]):
                raise NeverFits(why)

    def rest(self) -> None:
        """Let placement learn for a moment, and save the result now and then; called when the engine is idle."""
        with self._lock:
            self._keeper.keep()
            self.ledger.decider.policy.idle(REST_US)
            text = self._learned.due()
        self._learned.write(text)

    def release(self, tenant: EngineTenant, *, grace_s: float = 0.0, keep: bool = False) -> None:
        """Release a tenant; a missing one is no error, even if its name belongs to a new tenant.

        Its programs have ended. What they left running is ended too, after `grace_s`; with `keep` only what is on the
        GPU.
        """
        if not keep and self._is_here(tenant):
            end_orphans([tenant.folder.directory], grace_s=grace_s)
        with self._lock:
            if self._is_here(tenant):
                self._tenancy.remove(tenant.name)
                self._write_runs()

    def stop(self) -> None:
        """End all tenants of this engine, then the arbiter, and remove what was made for them.

        With `leaves_runs` the runs go on without it, and the next engine takes them and the GPUs over.
        """
        self.parking.stop()
        for coming in self._tenancy.coming:
            self._tenancy.remove(coming.name)
        tenants = [tenant for tenant in self.tenants.values() if tenant.run is None or not self.leaves_runs]
        left = len(tenants) < len(self.tenants)
        end_orphans([tenant.folder.directory for tenant in tenants], grace_s=ORPHAN_GRACE_S)
        self._process.stop()
        for tenant in tenants:
            self.release(tenant, keep=True)
        with contextlib.suppress(Exception):
            self.arbiter.close()
        self._learned.write(self._learned.fresh())
        if not left:
            shutil.rmtree(self.runtime.tenants, ignore_errors=True)
            shutil.rmtree(self.runtime.emulated, ignore_errors=True)
        if not self.leaves_runs:
            self._keeper.end()
        self._gpu_lock.close()

    def _take_over(self, run: RunRecord) -> None:
        """Make a run of an earlier engine a tenant of this one, with the share that it has; end one that cannot be."""
        name, plan, directory = TenantName(run.name), Plan(tuple(run.slices)), Path(run.directory)
        try:
            if gone := [piece.gpu for piece in plan.slices if self.machine.by_uuid(piece.gpu) is None]:
                raise EngineError(f"{gone[0]} is not shared any more")
            # It may have yet to free memory, or have a share or GPU that was not written down in time.
            status = self.measure()
            if status is not None and (now := moved_at(name, plan, status)) != plan:
                run = structs.replace(run, slices=list(now.slices), earlier=[*run.earlier, plan.slices[0].gpu])
                plan = now
            tenant = self._tenant(run, lasts=True)
            if run.earlier:
                tenant.folder.write_conf()
            held = plan if status is None else at_least(plan, at_arbiter(name, plan, status))
            self._freeing.add(name)
            stopped = status is not None and any(
                each.stopped for gpu in status.gpus for each in gpu.tenants if each.name == name
            )
            parked = stopped and self.parking.is_away(pids_of(directory))
            self._tenancy.provision(
                tenant, lambda: self.ledger.reserve(name, held, run.request, parked=parked), running=True
            )
            if parked:
                self.arbiter.note_away(name)
        except (AliquotError, OSError, ArbiterError) as error:
            log.warning("the run %s of the engine before is ended: %s", name, error)
            end_orphans([directory], grace_s=ORPHAN_GRACE_S)

    def _write_runs(self) -> None:
        if self.runtime.shared:
            with self._lock:
                runs = [tenant.run for tenant in self.tenants.values() if tenant.run]
                write_runs(self.runtime.runs, runs)

    def _tenant(self, run: RunRecord, *, lasts: bool) -> EngineTenant:
        """A tenant by its record, which it keeps where it outlives this engine."""
        name, plan, directory, owner = TenantName(run.name), Plan(tuple(run.slices)), Path(run.directory), run.owner
        machine, shown = self.machine, None
        if run.container:
            used = {tenant.generation for tenant in [*self.tenants.values(), *self._tenancy.coming]}
            shown = machine.shown_driver(self._shown_driver, used)
        libcuda, libnvml = (shown.libcuda, shown.libnvml) if shown else (machine.libcuda, machine.libnvml)
        conf = TenantConf(name, directory / "socket", libcuda, libnvml, run.cpus)
        if run.earlier:
            conf = moved_conf(conf, run.earlier, plan.uuids[0], machine.seen)
        folder = TenantFolder(directory, conf, bare=run.enforce == "never")
        uid = owner.uid if self.runtime.shared and not run.container else None
        record = self._record(name, conf.socket, plan, run.request, run.enforce, uid)
        record = structs.replace(record, earlier=run.earlier)
        edits = None
        if shown is not None:
            gpus = [gpu for gpu in machine.gpus if gpu.uuid in plan.uuids]
            edits = machine.container_edits(folder, shown, gpus, mark=IN_CONTAINER)
        return EngineTenant(
            name, plan, folder, run.enforce, record, run.cpus, cuda_variables(plan.uuids, machine.seen), owner,
            run if lasts else None, edits, shown.name if shown else "",
        )  # fmt: skip

    def _record(self, name: TenantName, socket: Path, plan: Plan, request: GpuRequest, enforce: Enforce,
                uid: int | None) -> TenantRecord:  # fmt: skip
        """What the arbiter is given about a tenant."""
        return tenant_record(
            name, socket, plan.slices, self.machine.models, enforce=enforce, wake_us=request.wake_us, uid=uid,
            max_memory=request.memory_limit, device_mib={gpu.uuid: gpu.memory_mib for gpu in self.machine.gpus},
            parks=request.memory_limit is not None and self.parking.can_park(),
        )  # fmt: skip

    def lent(self) -> dict[TenantName, tuple[int, str]]:
        """What tenants hold beyond what is guaranteed to them, in MiB, and why their programs were ended for it."""
        limited = self.look(lambda ledger: any(ledger.request_of(name).memory_limit for name in ledger.plans))
        gpus = status.gpus if limited and (status := self.measure()) else []
        return {TenantName(t.name): (t.memory_lent_mib, t.lost_text) for gpu in gpus for t in gpu.tenants}

    def _is_here(self, tenant: EngineTenant) -> bool:
        """Whether it is a tenant still, of whatever size by now; a newcomer of its name has another folder."""
        now = self.tenants.get(tenant.name)
        return now is not None and now.folder.directory == tenant.folder.directory

    def _reconcile(self, status: Status) -> None:
        with contextlib.suppress(ArbiterError):
            self._tenancy.reconcile(status)
