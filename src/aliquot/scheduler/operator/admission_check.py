"""`aliquot.dev/fits`, an admission check for Kueue: a Workload is admitted once all of its pods have a place.

Kueue's quotas are counts: 0.8 of a GPU that are free in two halves of 0.4 admit a pod that fits nowhere. Kueue reserves
quota and asks; the Workload's pods are placed on the ledger one after the other, and either all of them are *held*
there (`scheduler.groups`) and the answer is Ready, or the answer is Retry with what is missing, and the quota goes
back to the queue. The pods carry the Workload's uid, which Kueue writes on them (`podSetUpdates`), and get the nodes
where their shares are held.

- A Workload that runs already is Ready: Retry would evict it. So is one whose pods ask for no GPU.
- An answer is given once per reservation, to the version that was read. While a Workload is evicted Kueue sets the
  check back by itself; a Retry that it has left there is set back here.
- Shares that are held end when the quota is given back, and `HOLD_S` after the admission.
- Pods that are being deleted hold devices for their grace; a Workload waits for these before it is sent away.
- A new leader holds again what the one before it has promised, before it binds anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock, seconds_time
from aliquot.kube.dialects import read
from aliquot.kube.errors import KubeError, NotFound
from aliquot.kube.names import PREFIX, WORKLOAD
from aliquot.kube.objects import ApiObject, Condition, Meta, Pod, Resource, Toleration, Value, Wire
from aliquot.kube.reflector import Change, Reflector, WorkQueue
from aliquot.kube.requests import BadPod
from aliquot.lib.log import Logger
from aliquot.scheduler.groups import HOLD_S, POD_SET, GroupMember, HeldGroups

log = Logger("scheduler")
CONTROLLER: Final = f"{PREFIX}fits"
MANAGER: Final = "aliquot-fits"
KUEUE_AGAIN_S: Final = 30.0
"""How often a cluster without Kueue is asked whether it has it now."""
RECOVER_S: Final = 40.0
LEAVING_S: Final = 40.0
"""Longer than pods that are deleted have by default."""
LEAVING_AGAIN_S: Final = 1.0
RETRY_S: Final = (2, 30)
"""After how many seconds a Workload is tried again: first, and at most."""
STALE_S: Final = 10.0
"""How long after that a Retry is set back that Kueue has left."""


KUEUE: Final = ("kueue.x-k8s.io", "v1beta2")


class PodSet(Value, frozen=True):
    """Equal pods of a Workload; the template is a pod without a name."""

    name: str = "main"
    count: int = 1
    template: Pod = msgspec.field(default_factory=Pod)


class PodSetAssignment(Value, frozen=True):
    """What quota was reserved for a pod set: flavors by resource, and for how many pods."""

    name: str = "main"
    flavors: dict[str, str] = msgspec.field(default_factory=dict)
    count: int | None = None


class QuotaReservation(Value, frozen=True):
    """A quota reservation."""

    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class CheckState(Value, frozen=True):
    """The answer of one admission check."""

    name: str = ""
    state: str = ""
    message: str = ""
    last_transition_time: str | None = None
    requeue_after_seconds: int | None = None
    retry_count: int | None = None


class WorkloadSpec(Wire):
    """What is queued."""

    pod_sets: list[PodSet] = msgspec.field(default_factory=list)


class WorkloadStatus(Wire):
    """How far it is."""

    conditions: list[Condition] = msgspec.field(default_factory=list)
    admission: QuotaReservation | None = None
    admission_checks: list[CheckState] = msgspec.field(default_factory=list)
    reclaimable_pods: list[PodSetAssignment] = msgspec.field(default_factory=list)


class Workload(ApiObject):
    """A job that is queued: all of its pods are admitted at once."""

    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)

    def holds(self, *conditions: str) -> bool:
        """Whether one of these conditions is true."""
        return any(c.type in conditions and c.status == "True" for c in self.status.conditions)


class FlavorSpec(Wire):
    """What Kueue adds to the pods that get this flavor."""

    node_labels: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: list[Toleration] = msgspec.field(default_factory=list)


class ResourceFlavor(ApiObject):
    """A kind of nodes."""

    spec: FlavorSpec = msgspec.field(default_factory=FlavorSpec)


class CheckSpec(Wire):
    """Who answers a check."""

    controller_name: str = ""


class CheckStatus(Wire):
    """Whether its controller is there."""

    conditions: list[Condition] = msgspec.field(default_factory=list)


class AdmissionCheck(ApiObject):
    """A question that must be answered before a Workload is admitted."""

    spec: CheckSpec = msgspec.field(default_factory=CheckSpec)
    status: CheckStatus = msgspec.field(default_factory=CheckStatus)


WORKLOADS: Final = Resource(Workload, "Workload", "workloads", *KUEUE)
FLAVORS: Final = Resource(ResourceFlavor, "ResourceFlavor", "resourceflavors", *KUEUE, namespaced=False)
CHECKS: Final = Resource(AdmissionCheck, "AdmissionCheck", "admissionchecks", *KUEUE, namespaced=False)


@dataclass
class FitsCheck:
    """Answers the check, while this process leads."""

    api: Api
    held: HeldGroups
    leads: Callable[[], bool]
    clock: Clock = field(default_factory=Clock)
    queue: WorkQueue = field(default_factory=lambda: WorkQueue(max_s=15.0))
    _written: dict[str, str] = field(default_factory=dict)
    """By Workload (uid), the version that an answer has made."""

    def __post_init__(self) -> None:
        self.checks: Reflector[AdmissionCheck] = Reflector(self.api, CHECKS, self._check_changed)
        self.flavors: Reflector[ResourceFlavor] = Reflector(self.api, FLAVORS)
        self.workloads: Reflector[Workload] = Reflector(self.api, WORKLOADS, self.workload_changed)

    def works(self, failed: Callable[[str, Exception], None]) -> list[Coroutine[Any, Any, None]]:
        """The tasks that run with the scheduler; `failed` hears of what is tried again."""
        kinds = self.checks, self.flavors, self.workloads
        return [follow(self.api, CHECKS, KUEUE_AGAIN_S, *kinds), self.queue.work(self.reconcile, failed)]

    async def recover(self) -> None:
        """Before the new leader may bind: hold what was promised to Workloads whose pods have no node yet."""
        if not await served(self.api, CHECKS):
            return
        try:
            async with asyncio.timeout(RECOVER_S):
                for reflector in (self.checks, self.flavors, self.workloads):
                    await reflector.synced.wait()
                await self.workloads.renew()
        except TimeoutError:
            log.warning("Kueue's Workloads cannot be listed; shares that were held for them may go to others")
            return

        def largest_milli(workload: Workload) -> int:
            with contextlib.suppress(BadPod):
                sizes = (sum(c.total_milli for c in member.ask.containers) for *_, member in self._pod_sets(workload))
                return max(sizes, default=0)
            return 0

        # The largest pods first: a small one could be held now on the GPU that a whole one was promised.
        for workload in sorted(self.workloads, key=largest_milli, reverse=True):
            check = self._check_of(workload)
            if (
                check is not None
                and check.state == "Ready"
                and not self._over(workload)
                and (why := self._hold(workload))
            ):
                log.warning("workload %s: what it was promised cannot be held again: %s", workload.metadata.key, why)

    def all_again(self) -> None:
        """Look at everything."""
        for check in self.checks:
            self.queue.add(f"check/{check.metadata.name}")
        for workload in self.workloads:
            self.queue.add(f"workload/{workload.metadata.key}")

    def workload_changed(self, change: Change[Workload]) -> None:
        """A Workload was made, changed or deleted."""
        if change.kind == "deleted":
            self.held.release(_group(change.object))
            self._written.pop(change.object.metadata.uid, None)
        else:
            self.queue.add(f"workload/{change.object.metadata.key}")

    async def reconcile(self, key: str) -> None:
        """Answer for one Workload, `workload/NAMESPACE/NAME`, or say that the controller is there, `check/NAME`."""
        kind, _, name = key.partition("/")
        if not self.leads():
            return
        if kind == "check":
            await self._say_active(name)
        elif (workload := self.workloads.get(name)) is not None:
            meta, check = workload.metadata, self._check_of(workload)
            if check is None or int(meta.resource_version or 0) < int(self._written.get(meta.uid, 0)):
                return  # not asked, or the watch is behind what was answered
            wait_s = await self._answer_for(workload, check)
            if wait_s is not None:
                self.queue.add_after(key, wait_s)

    # Inside

    def _check_changed(self, change: Change[AdmissionCheck]) -> None:
        if change.kind != "deleted":
            self.queue.add(f"check/{change.object.metadata.name}")
            for workload in self.workloads if change.kind == "added" else ():
                self.queue.add(f"workload/{workload.metadata.key}")

    async def _say_active(self, name: str) -> None:
        """Kueue uses a ClusterQueue only where the controllers of its checks have said that they are there."""
        check = self.checks.get(name)
        if check is None or check.spec.controller_name != CONTROLLER:
            return
        if not any(c.type == "Active" and c.status == "True" for c in check.status.conditions):
            now, message = seconds_time(self.clock.wall()), "Aliquot's scheduler places the pods of each Workload"
            active = {"type": "Active", "status": "True", "reason": "Active", "message": message}
            body = {"metadata": {"name": name}, "status": {"conditions": [active | {"lastTransitionTime": now}]}}
            await self.api.apply(CHECKS, body, manager=MANAGER, sub="status")

    def _check_of(self, workload: Workload) -> CheckState | None:
        """The check that is ours, if the Workload has it."""
        for state in workload.status.admission_checks:
            check = self.checks.get(state.name)
            if check is not None and check.spec.controller_name == CONTROLLER:
                return state
        return None

    def _over(self, workload: Workload) -> bool:
        """Whether nothing is to be held any more: its quota is gone, or its pods have had their time."""
        if not workload.holds("QuotaReserved") or workload.holds("Evicted", "Finished"):
            return True
        return workload.holds("Admitted") and self._since_s(workload, "Admitted") > HOLD_S

    def _since_s(self, workload: Workload, condition: str) -> float:
        """Seconds since a condition changed last."""
        time = next((c.last_transition_time for c in workload.status.conditions if c.type == condition), None)
        return self._age_s(time)

    def _age_s(self, time: str | None) -> float:
        return (self.clock.wall() - datetime.datetime.fromisoformat(time)).total_seconds() if time else 0.0

    async def _answer_for(self, workload: Workload, check: CheckState) -> float | None:
        """Bring one Workload forward; seconds until it is to be looked at again, None where a change will tell."""
        group = _group(workload)
        if self._over(workload):
            self.held.release(group)
            stale_s = (check.requeue_after_seconds or 0) + STALE_S - self._age_s(check.last_transition_time)
            if check.state != "Retry" or workload.holds("QuotaReserved", "Finished"):
                return None
            if stale_s <= 0:
                await self._write(workload, check, "Pending", "its place is looked for again")
                return None
            return stale_s
        admitted = workload.holds("Admitted")
        if check.state == "Ready":
            if not admitted:
                if not self.held.holds(group) and (why := self._hold(workload)):
                    await self._write(workload, check, "Retry", f"its place went to others: {why}")
                return None
            self.held.keep(group, self.held.now_s() + HOLD_S - self._since_s(workload, "Admitted"))
            return HOLD_S
        if check.state != "Pending":
            return None
        if admitted:
            await self._write(workload, check, "Ready", "its pods run already")
            return None
        self.held.release(group)
        why = self._hold(workload)
        if why and self._leaving() and self._since_s(workload, "QuotaReserved") < LEAVING_S:
            return LEAVING_AGAIN_S
        try:
            await self._write(workload, check, "Retry" if why else "Ready", why or "all of its pods have a place")
        except KubeError as error:
            if not getattr(error, "may_have_happened", False):
                self.held.release(group)
            raise
        return None

    def _hold(self, workload: Workload) -> str:
        """Hold shares for the pods of a Workload that have no node; "" or why not."""
        group = _group(workload)
        pods = self.held.pods.naming(group)
        placed = Counter(pod.metadata.labels.get(POD_SET, "") for pod in pods if pod.spec.node_name)
        done = {each.name: each.count or 0 for each in workload.status.reclaimable_pods}
        members: list[GroupMember] = []
        try:
            for name, count, member in self._pod_sets(workload):
                meta = member.pod.metadata
                for number in range(count - max(placed[name], done.get(name, 0))):
                    uid, key = f"{workload.metadata.uid}/{name}/{number}", f"{meta.key}-{number}"
                    pod = msgspec.structs.replace(member.pod, metadata=msgspec.structs.replace(meta, uid=uid))
                    members.append(GroupMember(pod, replace(member.ask, uid=uid, key=key), name))
        except BadPod as error:
            return str(error)
        return self.held.hold(group, members, len(members)) if members else ""

    def _pod_sets(self, workload: Workload) -> Any:
        """Name, number of pods, and the pod that each will be, of the pod sets that ask for GPUs.

        Raises:
            BadPod: a template contradicts itself.
        """
        admission = workload.status.admission
        assigned = {each.name: each for each in (admission.pod_set_assignments if admission is not None else ())}
        for pod_set in workload.spec.pod_sets:
            given, template, meta = assigned.get(pod_set.name), pod_set.template, workload.metadata
            flavors = [self.flavors.get(name) for name in ({*given.flavors.values()} if given is not None else ())]
            spec = msgspec.structs.replace(
                template.spec,
                node_selector=template.spec.node_selector
                | {key: value for flavor in flavors if flavor for key, value in flavor.spec.node_labels.items()},
                tolerations=[*template.spec.tolerations, *(t for f in flavors if f for t in f.spec.tolerations)],
            )
            named = Meta(
                name=f"{meta.name}-{pod_set.name}",
                namespace=meta.namespace,
                labels=template.metadata.labels,
                annotations=template.metadata.annotations,
            )
            pod = msgspec.structs.replace(template, metadata=named, spec=spec)
            ask = read(pod, self.held.dialects)
            if ask is not None:
                count = given.count if given is not None and given.count is not None else pod_set.count
                yield pod_set.name, count, GroupMember(pod, ask)

    def _leaving(self) -> bool:
        """Whether a pod that holds a share is being deleted."""
        return any(
            pod.metadata.deletion_timestamp and pod.metadata.uid in self.held.ledger.allocations
            for name in self.held.ledger.cluster.index
            for pod in self.held.pods.naming(name)
        )

    async def _write(self, workload: Workload, check: CheckState, state: str, message: str) -> None:
        meta = workload.metadata
        entry: dict[str, Any] = {"name": check.name, "state": state, "message": message}
        entry["lastTransitionTime"] = seconds_time(self.clock.wall())
        if state == "Retry":
            entry["requeueAfterSeconds"] = min(RETRY_S[1], RETRY_S[0] + (check.retry_count or 0))
        elif state == "Ready" and self.held.holds(_group(workload)):
            note = {WORKLOAD: meta.uid}
            entry["podSetUpdates"] = [{"name": each.name, "annotations": note} for each in workload.spec.pod_sets]
        body = {
            # Of this version: a Retry that crosses an eviction would stay.
            "metadata": {"name": meta.name, "namespace": meta.namespace, "resourceVersion": meta.resource_version},
            "status": {"admissionChecks": [entry]},
        }
        written = await self.api.apply(WORKLOADS, body, manager=MANAGER, sub="status")
        self._written[meta.uid] = written.metadata.resource_version
        log.info("workload %s: %s: %s", meta.key, state, message)


async def served(api: Api, resource: Resource[Any]) -> bool | None:
    """Whether the cluster has objects of this kind; None, with a line in the log, where it does not answer."""
    try:
        await api.request("GET", f"/apis/{resource.api_version}")
    except NotFound:
        return False
    except KubeError as error:
        log.warning("whether the cluster has kind %s is not known: %s", resource.kind, error)
        return None
    return True


async def follow(api: Api, resource: Resource[Any], again_s: float, *reflectors: Reflector[Any]) -> None:
    """Run these reflectors once the cluster has objects of this kind, for which it is asked every `again_s`."""
    while not await served(api, resource):
        await asyncio.sleep(again_s)
    await asyncio.gather(*(reflector.run() for reflector in reflectors))


def _group(workload: Workload) -> str:
    """The name under which its shares are held; see `held_group_of`."""
    return f"workload/{workload.metadata.uid}"
