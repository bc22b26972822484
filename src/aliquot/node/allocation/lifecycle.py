"""The life of an allocation on its node, from kubelet's Allocate to the removal of the last trace of it.

allocate    kubelet admits a container, which it does not name: a fresh CDI device name, written to the checkpoint
prepare     the container is about to start: it is identified, its tenant provisioned by the pod's plan, and the CDI
            file written that the runtime reads next. What may resolve itself is waited for within kubelet's limit
unprepare   its pod has ended: the tenant, the name and the file go once no process of it is left
(resizing   its pod has a later plan: see there)
recover     the agent starts: all of this again for what stands by the records that are left (see `recovery`)
reconcile   every half a minute: containers without their share are reported or replaced (see `outcomes`), what was
            left over is removed
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from aliquot.driver.cdi import GPU_KIND, CdiError, Edits, remove_spec, remove_unfinished, write_spec, written_names
from aliquot.kube.dialects import foreign, of_origin
from aliquot.kube.errors import KubeError
from aliquot.kube.names import GPU_PERCENT, PLAN, PLAN_STATUS
from aliquot.kube.plan import BadPlan, Outcome, PodPlan, read_missing, read_plan
from aliquot.lib.log import Logger
from aliquot.model.errors import AliquotError
from aliquot.node.allocation.checkpoint import Allotment, Allotments, CheckpointError, PodKey, read_checkpoint
from aliquot.node.allocation.kubelet import Claim, PodResources, UnknownOwner, identify, read_device_checkpoint
from aliquot.node.allocation.outcomes import Outcomes, missing
from aliquot.node.allocation.recovery import has_ended, planned_container, recover, unrecorded
from aliquot.node.allocation.resizing import Resizes
from aliquot.node.events import Events
from aliquot.node.pods import NodePod, NodePods
from aliquot.node.processes import pods_with_processes
from aliquot.node.provisioner import NotYet, TenantProvisioner, UnusablePlan
from aliquot.node.settings import NodeSettings
from aliquot.node.spans import KubeletCalls, Start
from aliquot.tenancy.removal import Answer, Removable, Source, kept_by

_LOG: Final = Logger("node")
AGAIN_S: Final = 0.2
PROCESSES_S: Final = 0.5
WAIT_S: Final = 120.0
"""How long the removal of a share waits for its containers and processes; reconciliation comes back to it."""


class Refused(AliquotError):
    """A container must not start; the text gives the reason."""


class Allocations:
    """All allocations of a node. `once` runs a task in the background, by a name."""

    def __init__(
        self,
        settings: NodeSettings,
        pods: NodePods,
        provisioner: TenantProvisioner,
        events: Events,
        outcomes: Outcomes,
        once: Callable[[str, Coroutine[Any, Any, None]], None],
        calls: KubeletCalls | None = None,
    ) -> None:
        self._dialects = foreign(aliyun_unit=settings.aliyun_unit)
        self.pods = pods
        self.provisioner = provisioner
        self.records = Allotments(settings.checkpoint, settings.name)
        self.resources = PodResources(settings.pod_resources)
        self.outcomes = outcomes
        self.resizes = Resizes(outcomes.api, pods, provisioner, self.records, events)
        self._settings = settings
        self._events = events
        self._once = once
        self._calls = calls if calls is not None else KubeletCalls(settings.name)
        self._cdi = Path(settings.cdi_dir)
        self._unpreparing: set[str] = set()
        self._unknown_names: set[str] = set()
        self._gone_pods: set[str] = set()
        self._earlier_inits: dict[str, dict[str, str]] = {}  # pod's uid -> init container -> id of its run before

    # -- allocate ------------------------------------------------------------------------------------------------

    async def allocate(self, ids: Sequence[str]) -> str:
        """The CDI device name for these ids.

        Raises:
            Refused, CheckpointError: none can be given.
        """
        if why := self.provisioner.offer.withheld:
            raise Refused(f"nothing can be given now: {why}")
        began_s = time.perf_counter()
        name = await self.records.give(ids)
        self._calls.allocated(name, time.perf_counter() - began_s)
        return f"{GPU_KIND}={name}"

    # -- prepare -------------------------------------------------------------------------------------------------

    async def prepare(self, ids: Sequence[str]) -> None:
        """Prepare what the containers with these ids get, waiting for what may resolve itself.

        Raises:
            AliquotError: it must not start.
        """
        loop = asyncio.get_running_loop()
        began_s, until_s = time.perf_counter(), loop.time() + self._settings.pre_start_wait_s
        wanted = frozenset(ids)
        starts: dict[str, Start] = {}
        why = "cancelled"
        try:
            while True:
                try:
                    held = await self.resources.held()
                    entries = await asyncio.to_thread(read_device_checkpoint, self._settings.device_plugins)
                    uids = {entry.uid for entry in entries or () if entry.ids == wanted}
                    rows = {(row.namespace, row.pod) for row in held if row.ids == wanted}
                    names = {(key.namespace, key.pod) for key in self.pods.keys().values()}
                    if not uids <= set(self.pods.keys()) or not rows <= names:
                        await self.pods.refresh()
                    for claim in identify(wanted, held, entries, self.records, self.pods.keys()):
                        await self._prepare(claim, ids, starts)
                    why = ""
                    return
                except (UnknownOwner, NotYet, CdiError, CheckpointError, KubeError, OSError) as error:
                    if loop.time() > until_s:
                        _LOG.warning("not-started", ids=len(ids), why=str(error))
                        raise Refused(str(error)) from None
                await asyncio.sleep(AGAIN_S)
        except Refused as error:
            why = str(error)
            raise
        finally:
            self._calls.prepared(starts.values(), time.perf_counter() - began_s, why)

    async def _prepare(self, claim: Claim, ids: Sequence[str], starts: dict[str, Start]) -> None:
        """Everything for one container; the outcome is reported at the end, and its start put into `starts`.

        Plan, variables and driver are those of an earlier start of it, by the record, where there was one.

        Raises:
            NotYet, CdiError, CheckpointError, KubeError: it may succeed later.
            Refused: it will not.
        """
        owner, container = claim.owner, claim.container
        record = self.records.get(claim.name) or Allotment(claim.name, ())
        pod = self.pods.get(owner.uid)
        text = record.plan or (pod.plan if pod is not None else "")
        if pod is not None:
            starts[claim.name] = Start(claim, pod.metadata, record.plan, "")
        try:
            plan = read_plan({PLAN: text}) if text else None
            if plan is None:
                raise UnusablePlan(
                    f"{owner} requests {GPU_PERCENT} and has no {PLAN}: it was not scheduled by Aliquot; "
                    "let it be scheduled by a scheduler with Aliquot's extender"
                )
            env = record.env if record.plan else self._environment(pod, container, plan)
            for status in pod.status.init_container_statuses if pod is not None else ():
                if status.name == container:
                    self._earlier_inits.setdefault(owner.uid, {})[container] = status.container_id
            tenant = await asyncio.to_thread(self.provisioner.provision, owner, container, plan, driver=record.driver)
            await asyncio.to_thread(write_spec, self._cdi, claim.name, tenant.edits + Edits(env))
            await self.records.settle(claim.name, owner, container, ids, text, tenant.driver, env)
        except (NotYet, CdiError, CheckpointError) as error:
            await self.report(owner, container, "waits", str(error))
            raise
        except (UnusablePlan, BadPlan) as error:
            await self.report(owner, container, "refused", str(error))
            raise Refused(str(error)) from None
        if pod is not None:
            name = tenant.record.name if tenant.container == container else ""
            starts[claim.name] = Start(claim, pod.metadata, text, name)
        _LOG.info("provisioned", pod=str(owner), container=container, device=claim.name, tenant=tenant.key)
        await self.report(owner, container, "provisioned", "")

    def _environment(self, pod: NodePod | None, container: str, plan: PodPlan) -> tuple[str, ...]:
        """`NAME=value` for each variable that the device plugin of the pod's dialect would set in the container.

        Source: gpushare-device-plugin, pkg/gpu/nvidia/allocate.go; HAMi,
        pkg/device-plugin/nvidiadevice/nvinternal/plugin.
        """
        if pod is None:
            return ()
        machine = self.provisioner.machine
        dialect = of_origin(pod.request, self._dialects)
        devices = {str(gpu.uuid): gpu for gpu in machine.gpus}
        variables = dialect.environment(pod.request, container, plan, devices) if dialect is not None else {}
        env = tuple(f"{name}={value}" for name, value in variables.items())
        if pod.privileged(container):
            env += machine.variables(self.provisioner.gpus(plan, container), privileged=True)
        return env

    async def report(self, owner: PodKey, container: str, outcome: Outcome, why: str) -> None:
        """Record and publish the outcome of a container's start."""
        self.outcomes.note(owner, container, outcome, why)
        await self.outcomes.report(owner, container, outcome, why)

    # -- unprepare -----------------------------------------------------------------------------------------------

    def pod_gone(self, owner: PodKey) -> None:
        """The pod has ended or was deleted: forget what became of it, and release what it has."""
        self.outcomes.forget(owner)
        self._earlier_inits.pop(owner.uid, None)
        self._release(owner)

    def _release(self, owner: PodKey) -> None:
        self._once(f"gone-{owner.uid}", self.unprepare(owner))

    async def unprepare(self, owner: PodKey) -> None:
        """Release the tenants, names and files of an ended pod; does nothing while that is already under way.

        What cannot be released now stays recorded, so that it can be retried.
        """
        if owner.uid in self._unpreparing:
            return
        self._unpreparing.add(owner.uid)
        try:
            await self._containers_end(owner)
            until_s = asyncio.get_running_loop().time() + WAIT_S
            while True:
                # Of a pod that has ended kubelet said so itself; one that was deleted by force may have processes.
                runs = self.pods.get(owner.uid) is None and owner.uid in await asyncio.to_thread(pods_with_processes)
                processes: Answer = "used" if runs else "gone"
                why = kept_by(Removable.SHARE, {Source.API: self.pods.says(owner.uid), Source.PROCESSES: processes})
                if not why:
                    break
                if asyncio.get_running_loop().time() > until_s:
                    _LOG.warning("kept", pod=str(owner), why=why)
                    return
                await asyncio.sleep(PROCESSES_S)
            names = [allotment.name for allotment in self.records if allotment.uid == owner.uid]
            tenants = await asyncio.to_thread(self.provisioner.remove_pod, owner.uid)
            removed = self._remove_specs(names)
            with contextlib.suppress(CheckpointError):  # reconciliation drops them when there is space again
                await self.records.drop(removed)
            if names or tenants:
                _LOG.info("cleared", pod=str(owner), tenants=len(tenants), devices=len(removed))
        finally:
            self._unpreparing.discard(owner.uid)

    async def _containers_end(self, owner: PodKey) -> None:
        """Wait while kubelet still has these device ids for the pod, but not forever.

        A pod that is force-deleted disappears before its containers. When a pod of the same name exists already, or
        kubelet does not answer, there is nothing to wait for: the pod's processes are what keeps its share.
        """
        loop = asyncio.get_running_loop()
        ids = {frozenset(allotment.ids) for allotment in self.records if allotment.uid == owner.uid}
        until_s = loop.time() + WAIT_S
        while ids and loop.time() < until_s:
            try:
                held = await self.resources.held()
            except OSError:
                return
            namesake = any((p.key.namespace, p.key.pod) == (owner.namespace, owner.pod) for p in self.pods)
            mine = [r for r in held if (r.namespace, r.pod) == (owner.namespace, owner.pod) and r.ids in ids]
            if not mine or namesake:
                return
            await asyncio.sleep(PROCESSES_S)

    async def release_init(self) -> None:
        """Release what init containers had when they have ended, also where no later container requests a GPU."""
        tenants = list(self.provisioner.tenants.values())
        for uid in {tenant.owner.uid for tenant in tenants if tenant.plan.init > 0}:
            pod = self.pods.get(uid)
            if pod is not None and pod.init_containers_ended(self._earlier_inits.get(uid, {})):
                await asyncio.to_thread(self.provisioner.remove_init, uid)

    def _remove_specs(self, names: Iterable[str]) -> list[str]:
        """Remove the files of devices; returns the names of those removed. A failure is logged."""
        removed = []
        for name in names:
            try:
                remove_spec(self._cdi, name)
            except CdiError as error:
                _LOG.warning("not-removed", why=str(error))
            else:
                removed.append(name)
        return removed

    # -- recover -------------------------------------------------------------------------------------------------

    async def recover(self) -> str:
        """Restore every allocation, once, before anything new is given; returns a short summary."""
        content, trouble = await asyncio.to_thread(read_checkpoint, self._settings.checkpoint)
        if trouble:
            await self._events.about_node("CheckpointLost", trouble)
        ours = content.allotments if content.node in ("", self._settings.name) else ()
        try:
            held = await self.resources.held()
        except OSError:
            held = []
        entries = await asyncio.to_thread(read_device_checkpoint, self._settings.device_plugins)
        processes = await asyncio.to_thread(pods_with_processes)
        pods_own = [allotment for allotment in ours if not allotment.claim]
        recovered = recover(held, entries, pods_own, self.pods.by_uid() if self.pods.synced else None, processes)
        for difference in recovered.differences:
            await self._report_difference(difference)
        # Of a claim kubelet says itself when it has ended.
        allotments = (*recovered.allotments, *(allotment for allotment in ours if allotment.claim))
        await self.records.start_with(allotments)
        standing = [a for a in allotments if not has_ended(a, allotments, self.pods.get(a.uid))]
        # First those of which a process runs, then those that had a tenant: none that never started takes their room.
        standing.sort(key=lambda a: (a.uid not in processes and a.user not in processes, not a.driver))
        restored = [allotment for allotment in standing if await self._restore(allotment)]
        swept = await self.finish_recovery()
        return f"{len(restored)} tenants, {len(recovered.differences)} differences, {swept} left-overs removed"

    async def finish_recovery(self) -> int:
        """Restore what runs and no record has, and remove the left-overs; returns their number.

        Once, when the API server has listed the node's pods: until then a folder that no record names may be that of a
        container that runs.
        """
        recovered: Answer = "gone" if self.pods.synced else "silent"
        if not self.provisioner.recovering or kept_by(Removable.LEFTOVER, {Source.TENANTS: recovered}):
            return 0
        for one in unrecorded(self.records, self.pods, self.provisioner.has_folder):
            assert one.owner is not None
            await self._report_difference(f"container {one.container} of {one.owner} runs, and no record has it")
            with contextlib.suppress(CheckpointError):  # its tenant is what counts; the next agent finds it again
                await self.records.settle(one.name, one.owner, one.container, (), one.plan, "")
            await self._restore(one)
        return await asyncio.to_thread(self._sweep)

    def _sweep(self) -> int:
        """Remove CDI files, tenants' folders and tenants without an owner; returns how many."""
        remove_unfinished(self._cdi)
        orphans = written_names(self._cdi) - {allotment.name for allotment in self.records}
        # A recorded container whose tenant could not be restored may run, and needs its folder once its GPU is back.
        recorded = [
            f"{one.uid}/{given.uses or one.container}"
            for one in self.records
            if (given := planned_container(one)) is not None
        ]
        return len(self._remove_specs(orphans)) + len(self.provisioner.sweep(recorded))

    async def _report_difference(self, what: str) -> None:
        _LOG.warning("difference", what=what)
        await self._events.about_node("RecordsDiffer", what)

    async def _restore(self, allotment: Allotment) -> bool:
        """Whether its container has its share again; a failure is reported on its pod."""
        owner, container = allotment.owner, allotment.container
        if owner is None or not allotment.plan:
            return False
        try:
            plan = read_plan({PLAN: allotment.plan})
            assert plan is not None
            driver = allotment.driver
            tenant = await asyncio.to_thread(
                self.provisioner.provision, owner, container, plan, driver=driver, again=True
            )
            write_spec(self._cdi, allotment.name, tenant.edits + Edits(allotment.env))
        except (AliquotError, OSError) as error:
            _LOG.warning("not-provisioned-again", pod=str(owner), container=container, why=str(error))
            # Only told, not noted: a pod is not replaced for a GPU or a disk that may be back soon.
            if not owner.claim:
                await self.outcomes.report(owner, container, "missing", str(error))
            return False
        pod = self.pods.get(owner.uid)
        if pod is not None and container in read_missing(pod.metadata.annotations.get(PLAN_STATUS, "")):
            await self.outcomes.report(owner, container, "provisioned", "")
        return True

    # -- reconcile -----------------------------------------------------------------------------------------------

    async def reconcile(self) -> None:
        """Compare the pods with the records, and act on what differs; skipped while kubelet does not answer."""
        pods = list(self.pods)  # before kubelet is asked: what runs by then is in its records
        try:
            held = await self.resources.held()
        except OSError:
            return
        entries = await asyncio.to_thread(read_device_checkpoint, self._settings.device_plugins)
        await self.finish_recovery()
        if entries is not None and not self.provisioner.recovering and not self.records.failure:
            ours = {(allotment.uid, allotment.container) for allotment in self.records if allotment.plan}
            running = {(pod.metadata.uid, container) for pod in pods for container in pod.running()}
            noted = set()
            for owner, container in missing(pods, held, entries, ours):
                had = (owner.uid, container) in ours
                why = "kubelet lost its devices and cannot start it again" if had else "kubelet gave it no device"
                if any(uid == owner.uid for uid, _ in ours & running):
                    # Another container of the pod uses its share: the pod is not replaced.
                    await self.outcomes.report(owner, container, "missing", why)
                else:
                    await self.report(owner, container, "missing", why)
                    noted.add((owner.uid, container))
            self.outcomes.keep_missing(noted)
        await self.outcomes.replace()

        # Names without a container go that kubelet did not have in two checks in a row.
        known = {name for entry in entries or () for name in entry.names}
        kubelet: Answer = "silent" if entries is None else "gone"
        free = not kept_by(Removable.NAME, {Source.KUBELET: kubelet})
        unknown = {a.name for a in self.records if free and not a.uid and a.name not in known}
        names, self._unknown_names = sorted(unknown & self._unknown_names), unknown
        with contextlib.suppress(CheckpointError):  # tried again at the next check
            await self.records.drop(self._remove_specs(names))

        # So do the shares of pods that were gone in two checks in a row: most found once are being released.
        owners = {allotment.uid: allotment.owner for allotment in self.records if allotment.owner is not None}
        owners |= {tenant.owner.uid: tenant.owner for tenant in list(self.provisioner.tenants.values())}
        gone = {uid for uid, owner in owners.items() if not owner.claim and self.pods.says(uid) == "gone"}
        for uid in sorted(gone & self._gone_pods):
            self._release(owners[uid])
        self._gone_pods = gone
