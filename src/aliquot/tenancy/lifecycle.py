"""The lifecycle of the tenants of one machine: reserved in the ledger, a folder, a record at the arbiter.

    absent -> RESERVED -> FURNISHED -> REGISTERED

`provision` takes a new tenant forward through all stages, or, if one fails, back to absent: nothing of it is left in
the ledger, on disk or at the arbiter. `remove` goes the same way back. The ledger and the stages are in memory only;
what a crash leaves is a folder without its mark, or a folder or a record at the arbiter that belongs to no tenant, and
`sweep` removes both. An arbiter that has restarted has forgotten an unknown part of its tenants: all fall back to
FURNISHED, and `reconcile` registers them again.

The programs differ in what a reservation is, in what a tenant is made from, and in whether a newcomer waits for an
arbiter that is away. These are arguments; what a tenant is beyond its record and folder, only the program knows.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from aliquot.arbiter.client import ArbiterError, NoArbiter
from aliquot.arbiter.records import Status, TenantRecord
from aliquot.driver.injection import TenantFolder
from aliquot.driver.native import HOOK, native_part
from aliquot.model.errors import AliquotError, in_words
from aliquot.tenancy.folders import made_for, make_folder, remove_strangers
from aliquot.tenancy.records import tenant_names

AGAIN_S: Final = 0.05


class TenantRemoved(AliquotError):
    """A tenant was removed while it was being provisioned."""


class TenantStage(IntEnum):
    """How far a tenant has come."""

    RESERVED = 1
    FURNISHED = 2
    REGISTERED = 3


class Provisionable(Protocol):
    """A tenant, as far as its lifecycle goes; `key` is that of its reservation."""

    @property
    def key(self) -> str:
        """Unique among the tenants of the machine."""

    @property
    def record(self) -> TenantRecord:
        """What the arbiter knows."""

    @property
    def folder(self) -> TenantFolder:
        """Its folder, which need not exist yet."""


class TenantRegistry(Protocol):
    """The parts of `ArbiterClient` that are used."""

    def status(self) -> Status:
        """Everything at this moment."""

    def add_tenant(self, record: TenantRecord) -> None:
        """Make a tenant known."""

    def resize_tenant(self, record: TenantRecord) -> None:
        """Change request, limit and memory of a tenant."""

    def remove_tenant(self, name: str, *, end: bool = False) -> None:
        """Close a tenant."""


T = TypeVar("T", bound=Provisionable)
R = TypeVar("R")


@dataclass(eq=False)
class _Entry(Generic[T]):
    tenant: T
    stage: TenantStage = TenantStage.RESERVED
    outdated: bool = False
    """Whether the arbiter may know it by a socket that has gone with an earlier folder."""


@dataclass(eq=False)
class Tenancy(Generic[T]):
    """All tenants of a machine. Its methods block and may be called from any thread, one works at a time.

    Only a newcomer that waits for an arbiter lets others work meanwhile. `lock` is taken by callers that need the
    ledger and the tenants to agree. `connect` reaches the arbiter, `release` gives a reservation back, `hook` is
    another library for the folders. `patience_s` is how long a newcomer waits for an arbiter that is away.
    `end_programs` makes the arbiter end the programs of a tenant that it removes. While `recovering`, until the first
    `sweep`, tenants at the arbiter that are unknown here are left alone. `tenants` are the provisioned ones by key; it
    is replaced when one comes or goes, so it is read without the lock.
    """

    connect: Callable[[], AbstractContextManager[TenantRegistry]]
    release: Callable[[str], object]
    hook: Path | None = None
    patience_s: float = 0.0
    end_programs: bool = False
    recovering: bool = False
    tenants: Mapping[str, T] = field(init=False, default_factory=dict)
    _entries: dict[str, _Entry[T]] = field(init=False, default_factory=dict)
    _boot: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._hook = self.hook or native_part(HOOK)

    @property
    def coming(self) -> list[T]:
        """The tenants that are being provisioned, and wait for the arbiter."""
        with self.lock:
            return [entry.tenant for key, entry in self._entries.items() if key not in self.tenants]

    def provision(self, tenant: T, reserve: Callable[[], object], *, purpose: str = "", running: bool = False) -> None:
        """Provision a new tenant; `reserve` makes its reservation, and refuses a key that has one.

        `purpose` is what its folder is made for: a whole folder that was made for it stays. `running` is for a tenant
        whose programs may run already: any whole folder stays, and an arbiter that is away learns of it later.

        Raises:
            OSError, InjectionError: its folder cannot be made.
            ArbiterError: the arbiter is away or refuses it.
            TenantRemoved: it was removed meanwhile.
        """
        with self.lock:
            reserve()
            entry = self._entries[tenant.key] = _Entry(tenant)
            try:
                self._advance(entry, tenant, purpose, running=running)
            except BaseException as error:
                self._withdraw(entry, away=isinstance(error, NoArbiter))
                raise
            self.tenants = {**self.tenants, tenant.key: tenant}

    def renew(self, tenant: T, *, purpose: str = "", running: bool = False) -> None:
        """Check a tenant that has been provisioned, and replace it; its folder, if that was made for something else.

        When this fails it is still here as it was before, but for its folder and its place at the arbiter.

        Raises:
            OSError, InjectionError, ArbiterError, TenantRemoved: as `provision`.
        """
        with self.lock:
            entry = self._entries[tenant.key]
            self._advance(entry, tenant, purpose, running=running)
            entry.tenant = tenant
            self.tenants = {**self.tenants, tenant.key: tenant}

    def resize(self, tenant: T) -> None:
        """Replace a provisioned tenant by one with another share in the same folder, while its programs run.

        When this fails it is here as it was before. An arbiter that did not answer may have given it the new share, and
        is told of the one from before by `reconcile`.

        Raises:
            ArbiterError: the arbiter is away or refuses it.
        """
        with self.lock:
            entry = self._entries[tenant.key]
            try:
                self._at_arbiter(lambda arbiter: arbiter.resize_tenant(tenant.record))
            except NoArbiter:
                entry.stage = TenantStage.FURNISHED
                raise
            entry.tenant = tenant
            self.tenants = {**self.tenants, tenant.key: tenant}

    def remove(self, key: str) -> bool:
        """Remove a tenant, also one that is being provisioned; returns whether there was one."""
        with self.lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._withdraw(entry)
            return entry is not None

    def reconcile(self, status: Status) -> None:
        """Make the arbiter's tenants these: it may be a new one, or have missed changes. `status` is its latest.

        Raises:
            ArbiterError: the arbiter is away, or refuses a tenant; all others are registered.
        """
        with self.lock:
            if status.boot_id == self._boot and self._agrees(tenant_names(status)):
                return
            refused = self._at_arbiter(self._reconciled)
            self._changed.notify_all()
        if refused is not None:
            raise refused

    def sweep(self, folders: Path, kept: Collection[Path] = ()) -> list[str]:
        """Remove what belongs to no tenant: folders in `folders`, and tenants at the arbiter; returns their names.

        The folders in `kept` stay, and are made use of when their tenants can be taken over.
        """
        with self.lock:
            self.recovering = False
            known = {entry.tenant.folder.directory for entry in self._entries.values()}
            gone = remove_strangers(folders, known.union(kept))
            with contextlib.suppress(ArbiterError):  # else by `reconcile`, when it is back
                gone += self._at_arbiter(lambda arbiter: self._dismiss_strangers(arbiter, arbiter.status()))
            return gone

    # -- forward ---------------------------------------------------------------------------------------------------

    def _advance(self, entry: _Entry[T], tenant: T, purpose: str, *, running: bool) -> None:
        """Take an entry to REGISTERED; one that is `running` at least to FURNISHED."""
        if not running:
            self._refuse_namesake(entry, tenant.record.name)
        until_s = time.monotonic() + (0.0 if running else self.patience_s)
        made = made_for(tenant.folder.directory)
        whole = made is not None and (running or made == purpose)
        if not whole:
            entry.stage, entry.outdated = TenantStage.RESERVED, True
        if entry.outdated and not running:  # first: no folder is made again and again while the arbiter is away
            self._patiently(entry, lambda arbiter: self._forget(arbiter, entry, tenant.record.name), until_s)
            entry.stage, entry.outdated = min(entry.stage, TenantStage.FURNISHED), False
        if not whole:
            make_folder(tenant.folder, self._hook, purpose)
        entry.stage = max(entry.stage, TenantStage.FURNISHED)
        try:
            self._patiently(
                entry, lambda arbiter: self._register(arbiter, entry, tenant.record, again=running), until_s
            )
        except ArbiterError:
            if not running:
                raise
            entry.stage = TenantStage.FURNISHED

    def _patiently(self, entry: _Entry[T], work: Callable[[TenantRegistry], R], until_s: float) -> R:
        while True:
            try:
                return self._at_arbiter(work)
            except NoArbiter:
                if time.monotonic() >= until_s:
                    raise
            self._changed.wait(AGAIN_S)
            if self._entries.get(entry.tenant.key) is not entry:
                raise TenantRemoved(f'tenant "{entry.tenant.record.name}" was removed while it was provisioned')

    def _at_arbiter(self, work: Callable[[TenantRegistry], R]) -> R:
        try:
            with self.connect() as arbiter:
                return work(arbiter)
        except OSError as error:
            raise NoArbiter(in_words(error)) from None

    def _register(
        self, arbiter: TenantRegistry, entry: _Entry[T], record: TenantRecord, *, again: bool = False
    ) -> None:
        """Make a tenant known; one that is registered `again` may be known with a share that it did not get here."""
        self._refuse_namesake(entry, record.name)
        if refused := _refusal(lambda: arbiter.add_tenant(record)):
            # The name may be that of an earlier tenant, whose end the arbiter has missed.
            if record.name not in tenant_names(arbiter.status()):
                raise refused
            if not again or _refusal(lambda: arbiter.resize_tenant(record)):
                self._dismiss(arbiter, record.name)
                arbiter.add_tenant(record)
        entry.stage = TenantStage.REGISTERED

    # -- back ------------------------------------------------------------------------------------------------------

    def _withdraw(self, entry: _Entry[T], *, away: bool = False) -> None:
        """Take an entry back to absent, unless that was done meanwhile; an arbiter that is `away` is not asked."""
        tenant = entry.tenant
        if self._entries.get(tenant.key) is not entry:
            return
        if entry.stage >= TenantStage.FURNISHED and not away:  # it may know the tenant although it did not say so
            with contextlib.suppress(ArbiterError):  # else by `reconcile`, when it is back
                self._at_arbiter(lambda arbiter: self._forget(arbiter, entry, tenant.record.name))
        tenant.folder.remove()
        self.release(tenant.key)
        del self._entries[tenant.key]
        self.tenants = {key: other for key, other in self.tenants.items() if key != tenant.key}
        self._changed.notify_all()

    def _forget(self, arbiter: TenantRegistry, entry: _Entry[T], name: str) -> None:
        """Remove a tenant of an entry's name from the arbiter, unless that is another entry's."""
        if not self._has_namesake(entry, name):
            self._dismiss(arbiter, name)

    def _dismiss(self, arbiter: TenantRegistry, name: str) -> None:
        """Remove a tenant from the arbiter; a missing one is no error."""
        _refusal(lambda: arbiter.remove_tenant(name, end=self.end_programs))

    def _refuse_namesake(self, entry: _Entry[T], name: str) -> None:
        if self._has_namesake(entry, name):
            raise ArbiterError(f"tenant {name!r} exists with another share; remove it first")

    def _has_namesake(self, entry: _Entry[T], name: str) -> bool:
        return any(other is not entry and other.tenant.record.name == name for other in self._entries.values())

    # -- the arbiter's view ----------------------------------------------------------------------------------------

    def _agrees(self, known: set[str]) -> bool:
        entries = self._entries.values()
        if any(entry.stage == TenantStage.FURNISHED for entry in entries):
            return False
        ours = {entry.tenant.record.name for entry in entries if entry.stage == TenantStage.REGISTERED}
        return ours <= known if self.recovering else ours == known

    def _reconciled(self, arbiter: TenantRegistry) -> ArbiterError | None:
        """Register the missing tenants and remove the unknown ones; the first refusal."""
        status = arbiter.status()  # no tenant comes or goes now
        if not self.recovering:
            self._dismiss_strangers(arbiter, status)
        known = tenant_names(status)
        for entry in self._entries.values():
            lost = status.boot_id != self._boot or entry.tenant.record.name not in known
            if entry.stage == TenantStage.REGISTERED and lost:
                entry.stage = TenantStage.FURNISHED
        self._boot = status.boot_id
        refusals = []
        for entry in [entry for entry in self._entries.values() if entry.stage == TenantStage.FURNISHED]:
            record = entry.tenant.record
            if why := _refusal(partial(self._register, arbiter, entry, record, again=True)):
                refusals.append(ArbiterError(f"the arbiter does not take {record.name}: {why}"))
        return next(iter(refusals), None)

    def _dismiss_strangers(self, arbiter: TenantRegistry, status: Status) -> list[str]:
        ours = {entry.tenant.record.name for entry in self._entries.values()}
        strangers = sorted(tenant_names(status) - ours)
        for name in strangers:
            self._dismiss(arbiter, name)
        return strangers


def _refusal(work: Callable[[], None]) -> ArbiterError | None:
    """Why the arbiter refuses a change, None if it does not.

    Raises:
        NoArbiter: it is away.
    """
    try:
        work()
    except NoArbiter:
        raise
    except ArbiterError as error:
        return error
    return None
