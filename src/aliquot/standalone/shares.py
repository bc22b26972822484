"""Shares: tenants without a program of their own, by a name, each with a CDI device that containers are given.

`docker run --device aliquot.dev/share=NAME` finds the device in a CDI file, which is there as long as the share. A
share of an account, at the machine's engine, has the device NAME.ACCOUNT. It lives until it is deleted, or with `rm`
until the last process of its first container has ended. It ends with its engine, but for the machine's, whose next
engine takes it over.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aliquot.driver.cdi import SHARE_KIND, CdiError, remove_spec, spec_path, write_spec, written_names
from aliquot.lib.files import read_plain
from aliquot.lib.log import Logger
from aliquot.model.errors import UserError
from aliquot.model.ids import TenantName
from aliquot.standalone.accounts import Account
from aliquot.standalone.engine import ORPHAN_GRACE_S, Engine
from aliquot.standalone.orphans import named_processes
from aliquot.standalone.paths import cdi_dir
from aliquot.standalone.tenants import EngineTenant, InContainers
from aliquot.standalone.wire import RunProcess, ShareCall

WATCH_S: Final = 0.2
MAX_SHARES: Final = 64
"""Of one account: each has files of some hundred KiB in the engine's folder, which is memory."""
_NAME: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
_LOG: Final = Logger("engine")


class ShareError(UserError):
    """A share cannot be made or deleted as it was asked for."""


@dataclass(frozen=True)
class Share:
    """A share's tenant, its CDI device and the file of that; `rm` is whether it ends with its container."""

    tenant: TenantName
    device: str
    spec: Path
    rm: bool


class Shares:
    """The shares of an engine. All methods may be called from any thread."""

    def __init__(self, engine: Engine, on_deleted: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._on_deleted = on_deleted
        self._folder = cdi_dir(engine.runtime)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._shares: dict[TenantName, Share] = {}
        for tenant in engine.tenants.values():  # taken over from the engine before
            if tenant.run and tenant.run.container and tenant.run.is_share:
                try:
                    self._begin(tenant, tenant.run.container)
                except CdiError as error:
                    _LOG.warning("no container gets the share %s: %s", tenant.name, error)
        left = written_names(self._folder, SHARE_KIND) - {share.device for share in self.all()}
        for device in left:  # of an engine here that was killed
            if self._is_ours(spec_path(self._folder, device, SHARE_KIND)):
                with contextlib.suppress(CdiError):
                    remove_spec(self._folder, device, SHARE_KIND)

    def all(self) -> list[Share]:
        """The shares now, oldest first."""
        with self._lock:
            return list(self._shares.values())

    def called(self, name: str, caller: Account) -> Share:
        """The share that the caller calls by this name.

        Raises:
            ShareError: there is none.
            NotYours: it belongs to another account.
        """
        share = self._shares.get(TenantName(caller.own_run(name)))
        tenant = None if share is None else self._engine.tenants.get(share.tenant)
        if share is None or tenant is None:
            raise ShareError(f'there is no share "{name:.100}"; list them: aliquot share list')
        caller.require(tenant.owner, f'the share "{share.tenant}"')
        return share

    def create(self, call: ShareCall, owner: Account) -> Share:
        """Make a share of `owner`.

        Raises:
            ShareError: the name is none, or another engine's; or the account has enough.
            CdiError: the file of its device cannot be written.
            AliquotError: as `Engine.admit`.
        """
        if _NAME.fullmatch(call.name) is None:
            raise ShareError(
                f"{call.name!r:.100} is not a name for a share; begin with a letter and use up to 63 letters, digits, "
                "- and _ as in train-1"
            )
        name = TenantName(owner.own_run(call.name))
        device = call.name if name == call.name else f"{call.name}.{owner.name}"
        spec = spec_path(self._folder, device, SHARE_KIND)
        if spec.exists() and not self._is_ours(spec):
            raise ShareError(f"share {name} is that of another engine, as {spec} says; choose another name")
        self._engine.check_possible(call.request)
        made = InContainers(device, call.rm)
        tenant = self._engine.admit(name, call.request, cpu_bind=call.cpu_bind, owner=owner, container=made)
        try:
            return self._begin(tenant, made, MAX_SHARES)
        except BaseException:
            with self._lock:
                self._shares.pop(name, None)
            self._engine.release(tenant)
            raise

    def _begin(self, tenant: EngineTenant, made: InContainers, most: float = math.inf) -> Share:
        """Write the file of a share's device, and watch for its end.

        Raises:
            ShareError: the account has `most` already.
            CdiError: the file cannot be written.
        """
        assert tenant.edits is not None
        share = Share(tenant.name, made.device, spec_path(self._folder, made.device, SHARE_KIND), made.rm)
        with self._lock:
            tenants = [found for name in self._shares if (found := self._engine.tenants.get(name))]
            if sum(other.owner.uid == tenant.owner.uid for other in tenants) >= most:
                raise ShareError(
                    f"{tenant.owner.name} may have {most} shares at most; delete some: aliquot share delete"
                )
            self._shares[tenant.name] = share
        write_spec(self._folder, made.device, tenant.edits, SHARE_KIND)
        if share.rm:
            threading.Thread(target=self._end_with_container, args=(share, tenant.owner), daemon=True).start()
        return share

    def delete(self, name: str, caller: Account, *, force: bool) -> str:
        """Delete a share, with `force` also one that has processes, which are ended; what was done, in words.

        Raises:
            ShareError: there is none of that name, or it has processes.
            NotYours: it belongs to another account.
            CdiError: its file cannot be removed.
        """
        with self._lock:
            share = self.called(name, caller)
            tenant = self._engine.tenants[share.tenant]
            remove_spec(self._folder, share.device, SHARE_KIND)  # first, so that no container comes meanwhile
            if not force and (processes := self._processes(tenant)):
                assert tenant.edits is not None
                write_spec(self._folder, share.device, tenant.edits, SHARE_KIND)
                raise ShareError(f'share "{share.tenant}" has {_in_words(processes)}, or end all with --force')
            del self._shares[share.tenant]
        self._engine.release(tenant, grace_s=ORPHAN_GRACE_S)
        self._on_deleted()
        return f"share/{share.tenant} deleted"

    def close(self) -> None:
        """Remove the files of shares that end with their engine."""
        self._closed.set()
        for share in () if self._engine.leaves_runs else self.all():
            with contextlib.suppress(CdiError):
                remove_spec(self._folder, share.device, SHARE_KIND)

    def _is_ours(self, spec: Path) -> bool:
        """Whether a file shows the folder of a tenant of this engine's place."""
        try:
            return f'"{self._engine.runtime.tenants}/'.encode() in read_plain(spec)
        except OSError:
            return False

    def _processes(self, tenant: EngineTenant) -> list[RunProcess]:
        return named_processes({tenant.name: tenant.folder.directory})[tenant.name]

    def _end_with_container(self, share: Share, owner: Account) -> None:
        """Delete a share once it has had processes and has none."""
        had = False
        while not self._closed.wait(WATCH_S) and share in self.all():
            tenant = self._engine.tenants.get(share.tenant)
            has = tenant is not None and bool(self._processes(tenant))
            if had and not has:
                # Another container came, it was deleted meanwhile, or its file cannot be removed yet.
                with contextlib.suppress(ShareError, CdiError):
                    _LOG.info(self.delete(share.tenant, owner, force=False))
            had = had or has


def _in_words(processes: list[RunProcess]) -> str:
    """`2 processes in podman 0123456789ab; end it first: podman stop 0123456789ab`."""
    count = "1 process" if len(processes) == 1 else f"{len(processes)} processes"
    containers = sorted({process.container for process in processes} - {""})
    if not containers:
        return f"{count}, as pid {processes[0].pid}; end what runs there first"
    stops = " && ".join(" stop ".join(container.split()) for container in containers)
    return f"{count} in {', '.join(containers)}; end what runs there first: {stops}"
