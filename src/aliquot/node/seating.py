"""Tenants of the node: everything a tenant has, created before its container and removed after it.

A seat is an entry in the node's ledger, a tenant folder with the library that enforces the share, and a record at the
arbiter. Taking the same seat again changes nothing, so a container that starts again, an agent that starts again and
an arbiter that starts again all find what they need. The ledger is the last line of defence: a plan that does not fit
with the current tenants is refused, whatever its origin.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aliquot.arbiter.client import ArbiterClient, ArbiterError
from aliquot.arbiter.records import Status, TenantGpu, TenantRecord
from aliquot.driver.allowance import context_allowance_mib
from aliquot.driver.cores import core_list
from aliquot.driver.injection import TenantConf, TenantFolder, provision
from aliquot.driver.native import HOOK, native_part
from aliquot.kube.kernels import KernelLengths, write_kernels
from aliquot.kube.plan import ContainerPlan, PodPlan
from aliquot.model.errors import AliquotError
from aliquot.model.ids import GpuUuid
from aliquot.model.quantities import MILLI
from aliquot.node.cdi import Edits, Mount
from aliquot.node.checkpoint import PodKey
from aliquot.node.machine import Machine
from aliquot.node.volume.following import NodeDriver
from aliquot.node.volume.volume import Generation
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster, LedgerError, Placement

# Holds the name of the driver's generation that the folder was made for.
DONE: Final = "made"


class NoSeat(AliquotError):
    """A plan that cannot be honoured on this node, and will not be by waiting."""


class NotYet(AliquotError):
    """A plan that cannot be honoured now, but may be soon."""


@dataclass(frozen=True)
class ProvisionedTenant:
    """One tenant. `key` is unique on the node forever, `record` is what the arbiter knows, `driver` the generation of
    the driver volume that its container is shown."""

    key: str
    owner: PodKey
    container: str
    plan: ContainerPlan
    record: TenantRecord
    driver: str
    edits: Edits


class TenantProvisioner:
    """All tenants of a node. Its methods block and may be called from any thread; one works at a time."""

    def __init__(self, node: str, machine: Machine, tenants: Path, arbiter: Path, driver: NodeDriver) -> None:
        self.node = node
        self.machine = machine
        self.driver = driver
        self.books = Cluster([machine.spec(node)])
        self.seats: dict[str, ProvisionedTenant] = {}
        self.sick: Callable[[], Mapping[GpuUuid, str]] = dict
        self.offered: Callable[[], Machine] = lambda: machine
        """The GPUs that may be shared now: all, or those that holder pods have (`holders`)."""
        self._tenants = tenants
        self._arbiter_dir = arbiter
        self._hook = native_part(HOOK)
        self._lock = threading.Lock()
        self._boot = 0
        self.kernels = ""
        """The kernel lengths of the node's tenants; empty before the arbiter has answered."""

    def take(
        self, owner: PodKey, container: str, plan: PodPlan, *, driver: str = "", again: bool = False
    ) -> ProvisionedTenant:
        """Provision a container by its pod's plan.

        `driver` is the generation that it had before. `again` is for a container that was provisioned before and may be
        running: nothing that it has is replaced, and an unavailable arbiter is informed when it is back.

        Raises:
            NoSeat: the plan is for another node, has nothing for the container, or names a GPU of another node.
            NotYet: it does not fit with the others, a GPU is unhealthy, or the arbiter does not answer.
        """
        host, given = _share_of(owner, container, plan, self.node)
        key = f"{owner.uid}/{host}"
        with self._lock:
            self._leave_passed(owner, key, plan.containers[container], again=again)
            seat = self.seats.get(key)
            had = driver or (seat.driver if seat is not None else self._made_for(key))
            shown = self.driver.shown(had, again=again)
            if seat is None:
                seat = self._make(key, owner, host, given, shown)
                self._reserve(seat, again=again)
            elif seat.driver != shown.name:
                seat = self._make(key, owner, host, given, shown)
            try:
                self._furnish(seat, shown, again=again)
                self._register(seat, again=again)
            except BaseException:
                if key not in self.seats:
                    self.books.release(key)
                raise
            self.seats[key] = seat
            return seat

    def leave(self, key: str) -> None:
        """Release a tenant; a missing one is no error."""
        with self._lock:
            self._leave(key)

    def leave_init(self, uid: str) -> list[str]:
        """Release the tenants of a pod's init containers, which have ended; returns them."""
        with self._lock:
            keys = [key for key, seat in self.seats.items() if seat.owner.uid == uid and seat.plan.init > 0]
            for key in keys:
                self._leave(key)
        return keys

    def leave_pod(self, uid: str) -> list[str]:
        """Release all tenants of a pod; returns them."""
        keys = [key for key in list(self.seats) if key.partition("/")[0] == uid]
        for key in keys:
            self.leave(key)
        return keys

    def look_at_arbiter(self) -> str:
        """Return why the arbiter is unavailable, or "". After an arbiter restart, register all tenants again."""
        try:
            with ArbiterClient(self._arbiter_dir, timeout_s=5.0) as client:
                status = client.status()
            boot, self.kernels = status.boot_id, _kernels(status)
            if boot != self._boot:
                with self._lock:
                    for seat in self.seats.values():
                        self._add(seat.record)
                self._boot = boot
        except (ArbiterError, OSError, NotYet) as error:
            return str(error)
        return ""

    def prune(self, named: Iterable[str]) -> list[str]:
        """Remove generations of the driver that are not in `named`, not used and not current; returns them."""
        with self._lock:
            return self.driver.prune({*named, *(seat.driver for seat in self.seats.values())})

    def sweep(self) -> list[str]:
        """Remove folders without an owner, and tenants at the arbiter without one; returns what was removed."""
        with self._lock:
            used = {self._folder(key).name for key in self.seats}
            stray = [folder for folder in self._tenants.glob("*") if folder.name not in used]
            for folder in stray:
                shutil.rmtree(folder, ignore_errors=True)
            return [folder.name for folder in stray] + self._dismiss_strangers()

    # -- inside ------------------------------------------------------------------------------------------------

    def _leave(self, key: str) -> None:
        seat = self.seats.pop(key, None)
        self.books.release(key)
        if seat is not None:
            self._dismiss(seat.record.name)
        shutil.rmtree(self._folder(key), ignore_errors=True)

    def _leave_passed(self, owner: PodKey, key: str, starting: ContainerPlan, *, again: bool) -> None:
        """Release the tenants of the pod's containers that no longer run when this one starts.

        Init containers before it have ended. Where a plain init container starts, those after it have ended too: the
        pod restarts.
        """
        starts = starting.starts
        for other, seat in list(self.seats.items()):
            if seat.owner.uid != owner.uid or other == key:
                continue
            before = 0 < seat.plan.init < starts
            after = not again and starting.init > 0 and seat.plan.starts > starts
            if before or after:
                self._leave(other)

    def _folder(self, key: str) -> Path:
        return self._tenants / hashlib.sha256(key.encode()).hexdigest()[:16]

    def _made_for(self, key: str) -> str:
        """The driver by a tenant's folder, for when the checkpoint does not know it; empty without a folder."""
        try:
            return (self._folder(key) / DONE).read_text()
        except OSError:
            return ""

    def _make(
        self, key: str, owner: PodKey, container: str, given: ContainerPlan, shown: Generation
    ) -> ProvisionedTenant:
        gpus = []
        for piece in given.slices:
            gpu = self.machine.by_uuid(piece.gpu)
            if gpu is None:
                raise NoSeat(f"the plan gives container {container} {piece.gpu}, which node {self.node} does not have")
            gpus.append(gpu)
        folder = self._folder(key)
        shares = [
            TenantGpu(
                s.gpu,
                s.request_milli,
                s.limit_milli,
                s.memory_mib,
                context_allowance_mib(gpu.model, s.memory_mib),
                given.enforce,
                given.wake_us,
            )
            for s, gpu in zip(given.slices, gpus, strict=True)
        ]
        name = f"{owner.namespace}/{owner.pod}/{container}"
        record = TenantRecord(name=name, socket=str(folder / "socket"), gpus=shares)
        visible = ",".join(piece.gpu for piece in given.slices)
        env = (f"CUDA_VISIBLE_DEVICES={visible}", "NVIDIA_VISIBLE_DEVICES=void", f"ALIQUOT_TENANT={name}")
        if given.enforce == "never":
            edits = Edits(env) + shown.edits(None) + self.machine.edits(gpus, bare=True)
        else:
            edits = Edits(env, (Mount(folder, folder),)) + shown.edits(folder / "lib") + self.machine.edits(gpus)
        return ProvisionedTenant(key, owner, container, given, record, shown.name, edits)

    def _reserve(self, seat: ProvisionedTenant, *, again: bool) -> None:
        for piece in seat.plan.slices if not again else ():
            if reason := self.sick().get(piece.gpu):
                raise NotYet(f"{piece.gpu} is not well: {reason}")
            if self.offered().by_uuid(piece.gpu) is None:
                raise NotYet(f"{piece.gpu} is the stock plugin's, no holder pod has it now")
        milli = sum(piece.request_milli for piece in seat.plan.slices)
        ask = Ask(whole=milli // MILLI, rest_milli=milli % MILLI)
        try:
            self.books.reserve(seat.key, Placement(self.node, seat.plan.slices), ask)
        except LedgerError as error:
            raise NotYet(str(error)) from None

    def _register(self, seat: ProvisionedTenant, *, again: bool) -> None:
        try:
            self._add(seat.record)
        except NotYet:
            if not again:
                raise
            self._boot = 0

    def _furnish(self, seat: ProvisionedTenant, shown: Generation, *, again: bool) -> None:
        done = self._folder(seat.key) / DONE
        if done.exists() and (again or done.read_text() == shown.name):
            return
        if done.exists():
            self._dismiss(seat.record.name)  # a start with another driver; the arbiter's socket goes with the folder
        shutil.rmtree(done.parent, ignore_errors=True)  # half made, or of a container that has ended
        self._provision(seat, done.parent, shown)
        done.write_text(shown.name)

    def _provision(self, seat: ProvisionedTenant, folder: Path, shown: Generation) -> TenantFolder:
        conf = TenantConf(
            seat.record.name,
            folder / "socket",
            shown.libcuda,
            shown.libnvml,
            core_list(list(seat.plan.cores)) if seat.plan.cores else "",
        )
        try:
            return provision(folder, conf, self._hook if seat.plan.enforce != "never" else None)
        except OSError as error:
            raise NotYet(f"the tenant's folder {folder} could not be made ({error.strerror})") from None

    def _add(self, record: TenantRecord) -> None:
        try:
            with ArbiterClient(self._arbiter_dir) as client:
                try:
                    client.add_tenant(record)
                except ArbiterError:
                    # The name may be that of an earlier pod of the same name, whose end was not reported.
                    known = {tenant.name for gpu in client.status().gpus for tenant in gpu.tenants}
                    others = (seat.record for seat in self.seats.values() if seat.record != record)
                    if record.name not in known or record.name in {other.name for other in others}:
                        raise
                    client.remove_tenant(record.name)
                    client.add_tenant(record)
        except (ArbiterError, OSError) as error:
            raise NotYet(f"the arbiter does not take {record.name}: {error}") from None

    def _dismiss_strangers(self) -> list[str]:
        known = {seat.record.name for seat in self.seats.values()}
        try:
            with ArbiterClient(self._arbiter_dir) as client:
                strangers = {t.name for gpu in client.status().gpus for t in gpu.tenants} - known
                for name in sorted(strangers):
                    client.remove_tenant(name)
        except (ArbiterError, OSError):
            return []
        return sorted(strangers)

    def _dismiss(self, name: str) -> None:
        try:
            with ArbiterClient(self._arbiter_dir) as client:
                client.remove_tenant(name)
        except (ArbiterError, OSError):
            return  # an unavailable arbiter forgets a tenant whose folder is gone when it is back


def _kernels(status: Status) -> str:
    measured = {
        gpu.uuid: {tenant.name: round(tenant.kernel_ms * 1000) for tenant in gpu.tenants if tenant.kernel_ms}
        for gpu in status.gpus
    }
    return write_kernels(KernelLengths(status.turns, {uuid: found for uuid, found in measured.items() if found}))


def _share_of(owner: PodKey, container: str, plan: PodPlan, node: str) -> tuple[str, ContainerPlan]:
    """The container whose slices are used, and the slices.

    Raises:
        NoSeat: see `TenantProvisioner.take`.
    """
    if plan.node != node:
        raise NoSeat(f"the plan of {owner.namespace}/{owner.pod} is for node {plan.node}, this is {node}")
    given = plan.containers.get(container)
    host = given.uses if given is not None and given.uses else container
    given = plan.containers.get(host)
    if given is None or not given.slices:
        raise NoSeat(f"the plan of {owner.namespace}/{owner.pod} has no GPU for container {container}")
    return host, given
