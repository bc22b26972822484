"""Tenants of the node: everything a tenant has, created before its container and removed after it.

A provisioned tenant is an entry in the node's ledger, a folder with the library that enforces the share, and a record
at the arbiter. Provisioning it again changes nothing, so a container that starts again, an agent that starts again and
an arbiter that starts again all find what they need. The ledger is the last line of defence: a plan that does not fit
with the current tenants is refused, whatever its origin.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from aliquot.arbiter.client import ArbiterClient, ArbiterError
from aliquot.arbiter.records import Status, TenantRecord
from aliquot.driver.cdi import Edits
from aliquot.driver.gpu import Gpu, core_list
from aliquot.driver.injection import TenantConf, TenantFolder
from aliquot.driver.volume.volume import Generation
from aliquot.kube.inventory import KernelLengths, write_kernels
from aliquot.kube.plan import ContainerPlan, PodPlan, larger
from aliquot.model.errors import AliquotError
from aliquot.model.quantities import parse_memory
from aliquot.model.requests import GpuRequest, Slice
from aliquot.node.allocation.checkpoint import PodKey
from aliquot.node.driver import NodeDriver
from aliquot.node.machine import Machine, NodeOffer
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster, LedgerError, Placement
from aliquot.placement.entries import NodeSpec
from aliquot.tenancy.folders import made_for
from aliquot.tenancy.lifecycle import Tenancy
from aliquot.tenancy.records import kernel_lengths_us, tenant_record


class UnusablePlan(AliquotError):
    """A plan that cannot be honoured on this node, now or later."""


class NotYet(AliquotError):
    """A plan that cannot be honoured now, but may be soon."""


@dataclass(frozen=True)
class ProvisionedTenant:
    """One tenant. `key` is unique on the node forever, `record` is what the arbiter knows, `driver` the generation of
    the driver volume that its container is shown and its `folder` was made for."""

    key: str
    owner: PodKey
    container: str
    plan: ContainerPlan
    record: TenantRecord
    folder: TenantFolder
    driver: str
    edits: Edits


class TenantProvisioner:
    """All tenants of a node. Its methods block and may be called from any thread; one works at a time."""

    def __init__(self, node: str, offer: NodeOffer, tenants: Path, arbiter: Path, driver: NodeDriver) -> None:
        self.node = node
        self.offer = offer
        self.driver = driver
        self.ledger = Cluster([NodeSpec(node, offer.machine.gpus)])
        self._tenants = tenants
        self._arbiter_dir = arbiter
        self._tenancy: Tenancy[ProvisionedTenant] = Tenancy(
            lambda: ArbiterClient(arbiter), self.ledger.release, recovering=True
        )
        self.pending_mib: dict[str, int] = {}
        """What tenants hold beyond their memory since it was reduced, and have yet to free, by the tenant's name."""
        self.kernels = ""
        """The kernel lengths of the node's tenants; empty before the arbiter has answered."""

    @property
    def machine(self) -> Machine:
        """All GPUs of the node, with the driver that new containers are shown."""
        return self.offer.machine

    @property
    def tenants(self) -> Mapping[str, ProvisionedTenant]:
        """The tenants now, by key."""
        return self._tenancy.tenants

    def gpus(self, plan: PodPlan, container: str) -> list[Gpu]:
        """The GPUs of a container by its plan, which may be those of another that it uses."""
        given = plan.containers.get(container)
        host = plan.containers.get(given.uses or container) if given is not None else None
        gpus = [self.machine.by_uuid(piece.gpu) for piece in host.slices] if host is not None else []
        return [gpu for gpu in gpus if gpu is not None]

    def provision(
        self, owner: PodKey, container: str, plan: PodPlan, *, driver: str = "", again: bool = False
    ) -> ProvisionedTenant:
        """Provision a container by its pod's plan.

        `driver` is the generation that it had before. `again` is for a container that was provisioned before and may be
        running: nothing that it has is replaced, and the tenant is registered when an unavailable arbiter is back.

        Raises:
            UnusablePlan: the plan is for another node, has nothing for the container, or names a GPU of another node.
            NotYet: it does not fit with the others, a GPU is unhealthy, or the arbiter does not answer.
        """
        if plan.node != self.node:
            raise UnusablePlan(f"the plan of {owner} is for node {plan.node}, this is {self.node}")
        starting = plan.containers.get(container)
        host = starting.uses if starting is not None and starting.uses else container  # the container with the slices
        given = plan.containers.get(host)
        if starting is None or given is None or not given.slices:
            raise UnusablePlan(f"the plan of {owner} has no GPU for container {container}")
        key = f"{owner.uid}/{host}"
        with self._tenancy.lock:
            # The tenants of the pod's containers that no longer run when this one starts are released: init containers
            # before it have ended. Where a plain init container starts, those after it have too: the pod restarts.
            for other, tenant in self.tenants.items():
                before = 0 < tenant.plan.init < starting.starts
                after = not again and starting.init > 0 and tenant.plan.starts > starting.starts
                if tenant.owner.uid == owner.uid and other != key and (before or after):
                    self._tenancy.remove(other)
            provisioned = self.tenants.get(key)
            had = driver or (provisioned.driver if provisioned is not None else made_for(self._folder(key)) or "")
            shown = self.driver.shown(had, again=again)
            if provisioned is not None and provisioned.driver == shown.name:
                self._provide(provisioned, again=again)
                return provisioned
            made = self._make(key, owner, host, given, shown)
            self._provide(made, again=again, new=provisioned is None)
            return made

    def resize(self, owner: PodKey, container: str, plan: PodPlan) -> None:
        """Give a container that may be running the size that a later plan of its pod says; nothing where it has it.

        Raises:
            NotYet: it does not fit beside the others, or the arbiter does not answer; it is as it was.
        """
        with self._tenancy.lock:
            starting = plan.containers[container]
            held = self.tenants.get(f"{owner.uid}/{starting.uses or container}")
            if held is None:
                return
            given = structs.replace(held.plan, slices=starting.slices, memory_limit=starting.memory_limit)
            if given == held.plan:
                return
            record = self._record(held.record.name, held.folder.conf.socket, given)
            before = self.ledger.tenants[held.key].placement.slices
            try:
                self._hold(held.key, tuple(map(larger, given.slices, before)))
                self._tenancy.resize(replace(held, plan=given, record=record))
            except (LedgerError, ArbiterError) as error:
                self._hold(held.key, before)
                raise NotYet(f"{held.record.name} keeps its size: {error}") from None
            self.check_arbiter()

    def remove(self, key: str) -> None:
        """Release a tenant; a missing one is no error."""
        self._tenancy.remove(key)

    def remove_init(self, uid: str) -> list[str]:
        """Release the tenants of a pod's init containers, which have ended; returns them."""
        return self._remove_all(lambda held: held.owner.uid == uid and held.plan.init > 0)

    def remove_pod(self, uid: str) -> list[str]:
        """Release all tenants of a pod; returns them."""
        return self._remove_all(lambda held: held.owner.uid == uid)

    def check_arbiter(self) -> str:
        """Return why the arbiter is unavailable, or "". After an arbiter restart, register all tenants again.

        Both of its sockets have to answer: one that was removed keeps new tenants out, or readers.
        """
        try:
            with self._tenancy.lock:  # no tenant is resized between its status and what is made of that
                with ArbiterClient(self._arbiter_dir, timeout_s=5.0) as client:
                    client.status()
                    status = client.status(admin=True)
                self.kernels = write_kernels(KernelLengths(status.turns, kernel_lengths_us(status)))
                self._tenancy.reconcile(status)
                self._settle_memory(status)
        except (ArbiterError, OSError) as error:
            return str(error)
        return ""

    def prune(self, named: Iterable[str]) -> list[str]:
        """Remove generations of the driver that are not in `named`, not used and not current; returns them."""
        with self._tenancy.lock:
            return self.driver.prune({*named, *(provisioned.driver for provisioned in self.tenants.values())})

    @property
    def recovering(self) -> bool:
        """Whether nothing was swept yet, so that tenants at the arbiter that are unknown here are left alone."""
        return self._tenancy.recovering

    def has_folder(self, owner: PodKey, container: str) -> bool:
        """Whether there is a whole folder that was made for the container."""
        return made_for(self._folder(f"{owner.uid}/{container}")) is not None

    def sweep(self, recorded: Iterable[str] = ()) -> list[str]:
        """Remove folders without an owner, and tenants at the arbiter without one; returns what was removed.

        The folders of the tenants with the keys `recorded` stay.
        """
        return self._tenancy.sweep(self._tenants, {self._folder(key) for key in recorded})

    # -- inside ------------------------------------------------------------------------------------------------

    def _remove_all(self, leaves: Callable[[ProvisionedTenant], bool]) -> list[str]:
        with self._tenancy.lock:
            return [key for key, held in self.tenants.items() if leaves(held) and self._tenancy.remove(key)]

    def _settle_memory(self, status: Status) -> None:
        """Keep for tenants what they hold beyond their memory since that was reduced; others get what they free."""
        tenants = [tenant for gpu in status.gpus for tenant in gpu.tenants]
        # What is held beyond a memory limit that was reduced is called back when it is needed; others may have it.
        lent = {held.record.name for held in self.tenants.values() if held.plan.memory_limit}
        self.pending_mib = {
            t.name: t.memory_pending_mib for t in tenants if t.memory_pending_mib and t.name not in lent
        }
        for key, held in self.tenants.items():
            if len(held.plan.slices) == 1 and key in self.ledger.tenants:
                piece, more_mib = held.plan.slices[0], self.pending_mib.get(held.record.name, 0)
                with contextlib.suppress(LedgerError):  # others have it since: the arbiter keeps them within theirs
                    self._hold(key, (structs.replace(piece, memory_mib=piece.memory_mib + more_mib),))

    def _hold(self, key: str, slices: tuple[Slice, ...]) -> None:
        """Reserve these slices for a tenant in place of those that it has; all of them or nothing."""
        held = self.ledger.tenants[key]
        if held.placement.slices == slices:
            return
        self.ledger.release(key)
        try:
            ask = Ask(GpuRequest(sum(piece.request_milli for piece in slices)))
            self.ledger.reserve(key, Placement(self.node, slices), ask)
        except LedgerError:
            self.ledger.reserve(key, held.placement, held.ask)
            raise

    def _folder(self, key: str) -> Path:
        return self._tenants / hashlib.sha256(key.encode()).hexdigest()[:16]

    def _record(self, name: str, socket: Path, given: ContainerPlan) -> TenantRecord:
        """What the arbiter is given about a tenant; none is parked here, so only those borrow that give it back."""
        return tenant_record(
            name, socket, given.slices, self.machine.models, enforce=given.enforce, wake_us=given.wake_us,
            max_memory=parse_memory(given.memory_limit) if given.memory_limit else None,
            device_mib={gpu.uuid: gpu.memory_mib for gpu in self.machine.gpus},
        )  # fmt: skip

    def _make(
        self, key: str, owner: PodKey, container: str, given: ContainerPlan, shown: Generation
    ) -> ProvisionedTenant:
        gpus = []
        for piece in given.slices:
            gpu = self.machine.by_uuid(piece.gpu)
            if gpu is None:
                raise UnusablePlan(
                    f"the plan gives container {container} {piece.gpu}, which node {self.node} does not have"
                )
            gpus.append(gpu)
        directory = self._folder(key)
        name = f"{owner.namespace}/{owner.pod}/{container}"
        cores = core_list(list(given.cores)) if given.cores else ""
        conf = TenantConf(name, directory / "socket", shown.libcuda, shown.libnvml, cores)
        folder = TenantFolder(directory, conf, bare=given.enforce == "never")
        record = self._record(name, conf.socket, given)
        edits = self.machine.container_edits(folder, shown, gpus)
        return ProvisionedTenant(key, owner, container, given, record, folder, shown.name, edits)

    def _provide(self, provisioned: ProvisionedTenant, *, again: bool, new: bool = False) -> None:
        def reserve() -> None:
            slices = provisioned.plan.slices
            for piece in slices if not again else ():
                if reason := self.offer.unhealthy.get(piece.gpu):
                    raise NotYet(f"{piece.gpu} is not well: {reason}")
                if self.offer.shared.by_uuid(piece.gpu) is None:
                    raise NotYet(f"{piece.gpu} is the stock plugin's, no holder pod has it now")
            ask = Ask(GpuRequest(sum(piece.request_milli for piece in slices), labels=provisioned.plan.labels))
            try:
                self.ledger.reserve(provisioned.key, Placement(self.node, slices), ask)
            except LedgerError as error:
                raise NotYet(str(error)) from None

        try:
            if new:
                self._tenancy.provision(provisioned, reserve, purpose=provisioned.driver, running=again)
            else:
                self._tenancy.renew(provisioned, purpose=provisioned.driver, running=again)
        except OSError as error:
            where = f"the tenant's folder {provisioned.folder.directory}"
            raise NotYet(f"{where} could not be made ({error.strerror})") from None
        except ArbiterError as error:
            raise NotYet(f"the arbiter does not take {provisioned.record.name}: {error}") from None
