"""The vGPU pool: objects of kind VGPU follow the ledger, and idle ones are created and deleted by the pool's policy.

A device has at most one name: that of a SharePod's gpuID if one was given, else one made from its UUID. What is decided
here is decided from the current state of the API server and the ledger; no state has to survive a restart.

    Creating   it has no device yet, or its device is missing
    Active     its device has a tenant
    Idle       its device is ready and has no tenant
    Deleting   its device is being given back; it accepts no new tenant

Source: KubeShare (HPDC'20), 4.4.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from typing import Any, Final

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock, seconds_time
from aliquot.kube.custom import VGPU, VGPUS, Attached, VGPUPhase, VGPUStatus
from aliquot.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from aliquot.kube.names import POOL
from aliquot.kube.objects import Condition
from aliquot.kube.reflector import Change, Index, Reflector
from aliquot.lib.log import Logger
from aliquot.model.quantities import format_mib, format_milli
from aliquot.placement.pool_policy import pool_policy
from aliquot.scheduler.ledger import Ledger
from aliquot.scheduler.operator.owners import Own
from aliquot.scheduler.operator.status import status_patch
from aliquot.status.gpus import Gpu


@dataclass
class WriteThroughCache:
    """Indexed by name and by device, for thousands of single look-ups; `changed` must be called for every change."""

    watched: Reflector[VGPU]
    _by_device: Index[VGPU] = field(default_factory=lambda: Index(lambda vgpu: [vgpu.status.uuid]))
    _ahead: dict[str, VGPU] = field(default_factory=dict)

    def changed(self, change: Change[VGPU]) -> None:
        """The watch reported a change of a vGPU."""
        self._by_device.changed(change)
        if change.kind == "deleted":
            self.forget(change.object.metadata.name)

    def wrote(self, vgpu: VGPU) -> None:
        """A write of ours was answered with this."""
        self._ahead[vgpu.metadata.name] = vgpu

    def forget(self, name: str) -> None:
        """Discard the responses to our writes."""
        self._ahead.pop(name, None)

    def get(self, name: str) -> VGPU | None:
        """One by its name."""
        seen, ahead = self.watched.get(name), self._ahead.get(name)
        if ahead is None or (seen is not None and _version(seen) >= _version(ahead)):
            self.forget(name)
            return seen
        return ahead

    def on(self, uuid: str) -> list[VGPU]:
        """The vGPUs of this device."""
        names = {vgpu.metadata.name for vgpu in self._by_device.naming(uuid)} | {*self._ahead}
        return [vgpu for name in names if (vgpu := self.get(name)) is not None and vgpu.status.uuid == uuid]

    def __iter__(self) -> Iterator[VGPU]:
        """All of them."""
        names = dict.fromkeys(vgpu.metadata.name for vgpu in self.watched) | dict.fromkeys(self._ahead)
        yield from [vgpu for name in names if (vgpu := self.get(name)) is not None]


def _version(vgpu: VGPU) -> int:
    return int(vgpu.metadata.resource_version)


def phase_of(gpu: Gpu | None, *, leaving: bool = False) -> VGPUPhase:
    """The phase of a vGPU with this device; `leaving` if its deletion was decided."""
    if leaving:
        return "Deleting"
    if gpu is None:
        return "Creating"
    return "Active" if gpu.shares else "Idle"


def idle_s(vgpu: VGPU, now: datetime.datetime) -> float:
    """Seconds since the last one left."""
    text = vgpu.status.idle_since
    if text is None:
        return 0.0
    return max(0.0, (now - datetime.datetime.fromisoformat(text)).total_seconds())


def body(vgpu: VGPU, uuid: str, gpu: Gpu | None, now: datetime.datetime, *, leaving: bool) -> dict[str, Any] | None:
    """The merge patch of the status; None if it is up to date."""
    if leaving:
        verdict = Condition("Ready", "False", "Deleting", "its GPU is being given back")
    elif gpu is None:
        fault = f"its GPU {vgpu.status.uuid} is missing" if vgpu.status.uuid else "it has no GPU yet"
        verdict = Condition("Ready", "False", "NoDevice", fault)
    else:
        verdict = Condition("Ready", "True", "DeviceReady")
    made = VGPUStatus(phase_of(gpu, leaving=leaving), uuid, vgpu.status.model, vgpu.status.memory, conditions=[verdict])
    if gpu is not None:
        made.model, made.memory = gpu.model, format_mib(gpu.memory_mib)
        made.requested = format_milli(sum(share.request_milli for share in gpu.shares))
        made.attached = [
            Attached(share.tenant, format_milli(share.request_milli), format_mib(share.memory_mib))
            for share in gpu.shares
        ]
    if made.phase in ("Idle", "Deleting"):
        made.idle_since = vgpu.status.idle_since or seconds_time(now)
    return status_patch(vgpu.status, made, now, vgpu.metadata.generation)


log = Logger("scheduler")
AUTOMATIC: Final = "automatic"
NAMED: Final = "named"
LOOK_AGAIN_S: Final = 1.0
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9.-]+")


def name_for(uuid: str) -> str:
    """The default name of a device's vGPU: always the same, so that two cannot be created."""
    return _NOT_IN_NAMES.sub("-", uuid.lower()).strip("-.")[:63]


@dataclass
class VgpuPool:
    """All vGPUs; `node_is_there` returns whether a node exists."""

    api: Api
    ledger: Ledger
    owner: Own
    policy: InitVar[str]
    known: WriteThroughCache
    node_is_there: Callable[[str], bool]
    waited_for: Callable[[str], bool]
    """Whether a SharePod waits for, or is on, the vGPU of that name."""
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self, policy: str) -> None:
        self._policy = pool_policy(policy)

    def on(self, uuid: str) -> VGPU | None:
        """The vGPU of a device; a given name is preferred to a generated one."""
        gpu = self.ledger.gpu(uuid)
        asked = gpu.vgpu if gpu is not None else ""
        named = self.known.on(uuid)
        return min(
            named, key=lambda v: (v.metadata.name != asked, _made(v) == AUTOMATIC, v.metadata.name), default=None
        )

    def must_be(self, vgpu: VGPU) -> str:
        """The device that a pod for this vGPU has to name, since its name alone does not identify it.

        The ledger knows the names that pods were given. It does not know those generated from UUIDs, nor whose GPU
        a holder took.
        """
        alone = self.owner.coexists or (_made(vgpu) != NAMED and self._taken(vgpu.status.uuid))
        return vgpu.status.uuid if alone else ""

    async def name_device(self, uuid: str, node: str, wanted: str = "") -> str:
        """The name of a device, which gets one if it has none: the wanted one, or its own.

        Raises:
            KubeError: the API server does not take it now.
        """
        found = self.on(uuid)
        if found is not None and (not wanted or found.metadata.name == wanted):
            return found.metadata.name
        vgpu = self.known.get(wanted) if wanted else None
        if vgpu is None:
            vgpu = await self.make(node, wanted or name_for(uuid), NAMED if wanted else AUTOMATIC)
        if vgpu.status.uuid != uuid and not (vgpu.status.uuid and self._taken(vgpu.status.uuid)):
            await self._write(vgpu, uuid, leaving=False)
        return vgpu.metadata.name

    async def make(self, node: str, name: str, made: str, model: str = "") -> VGPU:
        """A new vGPU on a node, or the existing one of that name."""
        spec = {"nodeName": node, **({"model": model} if model else {})}
        try:
            vgpu = await self.api.create(VGPUS, {"metadata": {"name": name, "labels": {POOL: made}}, "spec": spec})
        except AlreadyExists:
            vgpu = await self.api.get(VGPUS, name)
        self.known.wrote(vgpu)
        return vgpu

    async def reconcile(self, name: str) -> float | None:
        """Reconcile one vGPU; returns the seconds until its next check, None if it needs none."""
        vgpu = self.known.get(name)
        if vgpu is None:  # it was deleted: if the device that was held for it has a tenant, it is created again
            node, uuid = await self.owner.orphan(name)
            if uuid:
                await self._write(await self.make(node, name, AUTOMATIC), uuid, leaving=False)
            return None
        if vgpu.metadata.deletion_timestamp:
            return None
        if vgpu.status.phase == "Deleting":
            return await self._leave(vgpu)
        self.owner.reopen(vgpu)  # before any await: a device closed later stays closed
        uuid = vgpu.status.uuid
        if self._superseded(vgpu):
            if _made(vgpu) and not self.waited_for(name):
                await self._delete(vgpu)
                return None
            uuid = ""
        if not uuid and not self.owner.coexists:  # its name is made from the UUID, or its tenants asked for it
            made = _made(vgpu) == AUTOMATIC
            gpus = self.ledger.gpus(vgpu.spec.node_name)
            uuid = next((gpu.uuid for gpu in gpus if gpu.vgpu == name or (made and name_for(gpu.uuid) == name)), "")
        if not uuid or (self.owner.coexists and self.ledger.gpu(uuid) is None):
            taken = [other.status.uuid for other in self.known if other.status.uuid]
            if self.owner.coexists or not _made(vgpu):  # where we have all, the first one's bind says which it is
                uuid = await self.owner.acquire(vgpu, taken) or uuid
        gpu = self.ledger.gpu(uuid) if uuid else None
        forgotten = not uuid and not self.owner.coexists and not self.waited_for(name)
        if gpu is None and _made(vgpu) and (forgotten or not self.node_is_there(vgpu.spec.node_name)):
            await self._delete(vgpu)
            return None
        await self._write(vgpu, uuid, leaving=False)
        return LOOK_AGAIN_S if gpu is None and self.owner.coexists else None

    async def balance(self) -> float | None:
        """Bring the pool to its policy; returns the seconds until that changes by itself."""
        now = self.clock.wall()
        ours = [vgpu for vgpu in self.known if _made(vgpu)]
        idle = {v.metadata.name: idle_s(v, now) for v in ours if self._is_idle(v)}
        for name in self._policy.surplus(idle):
            vgpu = self.known.get(name)
            if vgpu is not None and self._is_idle(vgpu) and self.owner.close(vgpu):
                try:
                    await self._write(vgpu, vgpu.status.uuid, leaving=True)
                except KubeError:
                    self.owner.reopen(vgpu)
                    raise
                await self._leave(vgpu)
                idle.pop(name)
        creating = [v for v in ours if v.status.phase in (None, "Creating") and not self.waited_for(v.metadata.name)]
        for _ in range(self._policy.missing(len(idle), len(creating))):
            if not await self.one_more():
                return LOOK_AGAIN_S * 5
        return self._policy.next_s(idle)

    async def one_more(self, name: str = "", node: str = "", models: tuple[str, ...] = ()) -> VGPU | None:
        """Create a vGPU on a node with room; None if no node has room."""
        under_way = [v for v in self.known if v.status.phase in (None, "Creating")]
        places = [place for place in self.owner.places(models, under_way) if not node or place == node]
        if not self.owner.coexists:
            named = {vgpu.status.uuid for vgpu in self.known}
            idle = (gpu for place in places for gpu in self.ledger.gpus(place) if not gpu.shares)
            gpu = next((gpu for gpu in idle if gpu.uuid not in named), None)
            return None if gpu is None else self.known.get(await self.name_device(gpu.uuid, gpu.node))
        if not places:
            return None
        if name:
            return await self.make(places[0], name, NAMED)
        # A name that no vGPU has; which one does not matter, so that two who choose at once agree.
        names = {vgpu.metadata.name for vgpu in self.known}
        short = _NOT_IN_NAMES.sub("-", places[0].split(".")[0].lower())[:48].strip("-")
        number = next(number for number in range(1, len(names) + 2) if f"{short}-{number}" not in names)
        return await self.make(places[0], f"{short}-{number}", AUTOMATIC)

    def recover(self) -> None:
        """Close the devices again that were being given back, before the first bind."""
        for vgpu in self.known:
            if vgpu.status.phase == "Deleting":
                self.owner.close(vgpu)

    def _superseded(self, vgpu: VGPU) -> bool:
        """Has its device another name now?"""
        name, gpu = vgpu.metadata.name, self._gpu_of(vgpu)
        if gpu is None or self.owner.coexists:
            return False
        first = self.on(gpu.uuid)
        renamed = _made(vgpu) == AUTOMATIC and first is not None and first.metadata.name != name
        return renamed or gpu.vgpu not in ("", name)

    def _is_idle(self, vgpu: VGPU) -> bool:
        idle = vgpu.status.phase == "Idle" and self._gpu_of(vgpu) is not None and not self._taken(vgpu.status.uuid)
        return idle and not self.waited_for(vgpu.metadata.name)

    def _gpu_of(self, vgpu: VGPU) -> Gpu | None:
        return self.ledger.gpu(vgpu.status.uuid) if vgpu.status.uuid else None

    def _taken(self, uuid: str) -> bool:
        gpu = self.ledger.gpu(uuid)
        return gpu is not None and bool(gpu.shares)

    async def _leave(self, vgpu: VGPU) -> float | None:
        """Give the device back and drop the name, unless a tenant arrived before it was closed."""
        if not self.owner.close(vgpu):
            await self._write(vgpu, vgpu.status.uuid, leaving=False)
            return None
        if await self.owner.give_back(vgpu):
            await self._delete(vgpu)
            return None
        return LOOK_AGAIN_S

    async def _delete(self, vgpu: VGPU) -> None:
        await self.api.delete(VGPUS, vgpu.metadata.name, uid=vgpu.metadata.uid)
        self.known.forget(vgpu.metadata.name)

    async def _write(self, vgpu: VGPU, uuid: str, *, leaving: bool) -> None:
        gpu = self.ledger.gpu(uuid) if uuid else None
        patch: dict[str, Any] | None = body(vgpu, uuid, gpu, self.clock.wall(), leaving=leaving)
        if patch is not None:
            name = vgpu.metadata.name
            # What it says was decided from this version; another one is reconciled again.
            patch["metadata"] = {"resourceVersion": vgpu.metadata.resource_version}
            try:
                self.known.wrote(await self.api.patch(VGPUS, name, patch, sub="status"))
            except (NotFound, Conflict):
                self.known.forget(name)
                raise
            log.info("vgpu %s is %s", name, phase_of(gpu, leaving=leaving))


def _made(vgpu: VGPU) -> str:
    """How Aliquot made it; empty when a person did."""
    return vgpu.metadata.labels.get(POOL, "")
