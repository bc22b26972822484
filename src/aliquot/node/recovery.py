"""After a crash or a reboot: the records rebuilt from what is still known, in the order of trust.

1. Kubelet's own records (PodResources, and its device checkpoint): what containers hold.
2. Our checkpoint: which name was returned for which ids, its owner, and the plan.
3. The pods' annotations, their running containers and the tenants' folders: the plan, and what no record has.

Where two of them differ the earlier one counts, and the difference is reported. That a record is missing proves
nothing, in kubelet's or in ours: what may be removed says `tenancy.removal`. `recover` is pure; `Recovering` reads all
sources, restores what they say, and removes the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from aliquot.kube.names import PLAN, PLAN_STATUS
from aliquot.kube.plan import BadPlan, ContainerPlan, read_plan
from aliquot.kube.planstatus import Outcome, read_missing
from aliquot.lib.log import Logger
from aliquot.model.errors import AliquotError
from aliquot.node.allotments import Allotments
from aliquot.node.cdi import Edits, write_spec
from aliquot.node.checkpoint import Allotment, CheckpointError, PodKey, read_checkpoint
from aliquot.node.events import Events
from aliquot.node.identity import Claim, Held, Noted
from aliquot.node.kubelet import PodResources, noted
from aliquot.node.leaving import share_kept_by, sweep
from aliquot.node.pods import NodePods
from aliquot.node.processes import pods_with_processes
from aliquot.node.provisioner import TenantProvisioner
from aliquot.node.settings import NodeSettings
from aliquot.tenancy.removal import Answer, Removable, Source, kept_by


@dataclass(frozen=True)
class Known:
    """A pod as the API server has it; `plan` is the annotation's text."""

    key: PodKey
    plan: str = ""
    ended: bool = False
    running: frozenset[str] = frozenset()
    """Its containers that run."""


@dataclass(frozen=True)
class Recovered:
    """The result: the allocations in force, and each difference as a sentence."""

    allotments: tuple[Allotment, ...]
    differences: tuple[str, ...] = field(default=())


def recover(
    held: Sequence[Held],
    noted: Sequence[Noted] | None,
    kept: Iterable[Allotment],
    pods: Mapping[str, Known] | None,
    processes: Collection[str] = (),
) -> Recovered:
    """The allotments that stand.

    `noted` is None when kubelet's file cannot be read, `pods` is None when the API server does not answer; facts that
    only these have are then left as in our checkpoint. `processes` are the uids of the pods of which processes run.
    """
    told: list[str] = []
    standing = {allotment.name: allotment for allotment in kept}
    if noted is not None:
        standing = _by_kubelet(standing, noted, pods, told)
    if pods is not None:
        standing = {name: _by_rows(allotment, held, pods, told) for name, allotment in standing.items()}
        standing = {
            name: after
            for name, before in standing.items()
            if (after := _by_api(before, pods, processes, told)) is not None
        }
    _nobodys(held, standing.values(), told)
    return Recovered(tuple(standing.values()), tuple(told))


def _by_kubelet(
    standing: Mapping[str, Allotment],
    noted: Sequence[Noted],
    pods: Mapping[str, Known] | None,
    told: list[str],
) -> dict[str, Allotment]:
    """The allotments in kubelet's checkpoint, completed from our own."""
    found: dict[str, Allotment] = {}
    for entry in noted:
        for name in entry.names:
            before = standing.get(name)
            made = before or Allotment(name, tuple(sorted(entry.ids)))
            if before is None:
                told.append(f"{name} of container {entry.container}, pod uid {entry.uid}, was not in our checkpoint")
            elif frozenset(before.ids) != entry.ids:
                told.append(f"{name} stands for {len(entry.ids)} ids with kubelet and {len(before.ids)} with us")
                made = replace(made, ids=tuple(sorted(entry.ids)))
            if made.uid and (made.uid, made.container) != (entry.uid, entry.container):
                told.append(
                    f"{name} is {entry.container}'s of pod uid {entry.uid} with kubelet, {made.owner}'s with us"
                )
                made = replace(made, uid="", namespace="", pod="", container="", plan="", driver="", env=())
            known = pods.get(entry.uid) if pods is not None else None
            if not made.uid and known is not None:
                key = known.key
                made = replace(made, uid=key.uid, namespace=key.namespace, pod=key.pod, container=entry.container)
            found[name] = made
    missing = {name: allotment for name, allotment in standing.items() if name not in found}
    told += [f"{a.name} of {a.owner} is not with kubelet any more; it stays with it" for a in missing.values() if a.uid]
    return found | missing


def _by_rows(allotment: Allotment, held: Sequence[Held], pods: Mapping[str, Known], told: list[str]) -> Allotment:
    """PodResources against the owner that we have; rows name no uid, so only another pod is a difference.

    A kubelet that lost its checkpoint gives the ids of a container that runs to another one as well.
    """
    rows = [row for row in held if row.ids == frozenset(allotment.ids)]
    mine = (allotment.namespace, allotment.pod)
    if not allotment.uid or not rows or mine in [(row.namespace, row.pod) for row in rows]:
        return allotment
    told.append(f"{allotment.name} is {mine[0]}/{mine[1]}'s with us, {rows[0].namespace}/{rows[0].pod} holds its ids")
    if (pod := pods.get(allotment.uid)) is not None and allotment.container in pod.running:
        return allotment
    return replace(allotment, uid="", namespace="", pod="", container="", plan="", driver="")


def _by_api(
    allotment: Allotment, pods: Mapping[str, Known], processes: Collection[str], told: list[str]
) -> Allotment | None:
    """The allotment with the plan in force; None if its pod is gone."""
    if not allotment.uid:
        return allotment
    pod = pods.get(allotment.uid)
    if pod is None or pod.ended:
        kept = share_kept_by("gone", ended=pod is not None, runs=allotment.uid in processes)
        if kept:
            told.append(f"{allotment.name} of {allotment.owner}, which was deleted, stays: {kept}")
        return allotment if kept else None
    if allotment.plan and pod.plan != allotment.plan:
        told.append(f"the plan of {pod.key} was changed after its container {allotment.container} got its share by it")
        return allotment
    return replace(allotment, plan=pod.plan)


def unrecorded(
    standing: Iterable[Allotment], pods: Iterable[Known], furnished: Callable[[PodKey, str], bool]
) -> list[Allotment]:
    """Containers that run with a share that no record has, each as an allotment; `furnished` tells of a folder.

    Kubelet and this agent both lost their checkpoints. A container without a folder never had a share.
    """
    known = {(allotment.uid, allotment.container) for allotment in standing}
    found = []
    for pod in pods:
        for name in sorted(pod.running if not pod.ended else ()):
            key = pod.key
            made = Allotment(f"{key.uid}-{name}", (), key.uid, key.namespace, key.pod, name, pod.plan)
            given = _container(made)
            if given is not None and (key.uid, name) not in known and furnished(key, given.uses or name):
                found.append(made)
    return found


def _nobodys(held: Sequence[Held], standing: Iterable[Allotment], told: list[str]) -> None:
    known = {frozenset(allotment.ids) for allotment in standing}
    told += [
        f"{row.namespace}/{row.pod} container {row.container} holds {len(row.ids)} ids that we never named"
        for row in held
        if row.ids not in known
    ]


_LOG: Final = Logger("node")


@dataclass(eq=False)
class Recovering:
    """`run` is done once, before anything new is given; `finish` when the API server has listed the pods."""

    settings: NodeSettings
    pods: NodePods
    resources: PodResources
    allotments: Allotments
    provisioner: TenantProvisioner
    events: Events
    report: Callable[[PodKey, str, Outcome, str], Awaitable[None]]
    """Tells the outcome of a container."""

    async def run(self) -> str:
        """Restore every allocation; returns a short summary."""
        content, trouble = await asyncio.to_thread(read_checkpoint, self.settings.checkpoint)
        if trouble:
            await self.events.about_node("CheckpointLost", trouble)
        kept = content.allotments if content.node in ("", self.settings.name) else ()
        try:
            held = await self.resources.held()
        except OSError:
            held = []
        entries = await asyncio.to_thread(noted, self.settings.device_plugins)
        processes = await asyncio.to_thread(pods_with_processes)
        found = recover(held, entries, kept, self._known() if self.pods.synced else None, processes)
        for difference in found.differences:
            await self._differs(difference)
        await self.allotments.start_with(found.allotments)
        standing = [allotment for allotment in found.allotments if not self._over(allotment, found.allotments)]
        provisioned_again = [allotment for allotment in standing if await self._provision_again(allotment)]
        swept = await self.finish()
        return f"{len(provisioned_again)} tenants, {len(found.differences)} differences, {swept} left-overs removed"

    async def finish(self) -> int:
        """Restore what runs and no record has, and remove the left-overs; returns their number.

        Once, when the API server has listed the node's pods: until then a folder that no record names may be that of a
        container that runs.
        """
        recovered: Answer = "gone" if self.pods.synced else "silent"
        if not self.provisioner.recovering or kept_by(Removable.LEFTOVER, {Source.TENANTS: recovered}):
            return 0
        for allotment in unrecorded(self.allotments, self._known().values(), self.provisioner.has_folder):
            assert allotment.owner is not None
            await self._differs(f"container {allotment.container} of {allotment.owner} runs, and no record has it")
            with contextlib.suppress(CheckpointError):  # its tenant is what counts; the next agent finds it again
                claim = Claim(allotment.name, allotment.owner, allotment.container)
                await self.allotments.settle(claim, (), allotment.plan, "")
            await self._provision_again(allotment)
        return await asyncio.to_thread(sweep, Path(self.settings.cdi_dir), self.allotments, self.provisioner)

    async def _differs(self, what: str) -> None:
        _LOG.warning("difference", what=what)
        await self.events.about_node("RecordsDiffer", what)

    def _known(self) -> dict[str, Known]:
        return {
            pod.key.uid: Known(pod.key, pod.metadata.annotations.get(PLAN, ""), pod.ended, frozenset(pod.running()))
            for pod in self.pods
        }

    def _over(self, allotment: Allotment, all_: Sequence[Allotment]) -> bool:
        """Whether it belongs to an ended init container, by the pod's status or a later container's provisioning."""
        own = _container(allotment)
        if own is None or own.init <= 0:
            return False
        pod = self.pods.get(allotment.uid)
        others = [_container(other) for other in all_ if other.uid == allotment.uid]
        later = any(other is not None and other.starts > own.starts for other in others)
        return later or (pod is not None and pod.status.initialized)

    async def _provision_again(self, allotment: Allotment) -> bool:
        """Whether its container has its share again; a failure is reported on its pod."""
        owner = allotment.owner
        if owner is None or not allotment.plan:
            return False
        try:
            plan = read_plan({PLAN: allotment.plan})
            assert plan is not None
            had = allotment.driver
            provisioned = await asyncio.to_thread(
                self.provisioner.provision, owner, allotment.container, plan, driver=had, again=True
            )
            write_spec(Path(self.settings.cdi_dir), allotment.name, provisioned.edits + Edits(allotment.env))
        except (AliquotError, OSError) as error:
            _LOG.warning("not-provisioned-again", pod=str(owner), container=allotment.container, why=str(error))
            await self.report(owner, allotment.container, "missing", str(error))
            return False
        pod = self.pods.get(owner.uid)
        if pod is not None and allotment.container in read_missing(pod.metadata.annotations.get(PLAN_STATUS, "")):
            await self.report(owner, allotment.container, "provisioned", "")
        return True


def _container(allotment: Allotment) -> ContainerPlan | None:
    """What the plan in force says about the container."""
    with contextlib.suppress(BadPlan):
        plan = read_plan({PLAN: allotment.plan}) if allotment.plan else None
        return plan.containers.get(allotment.container) if plan is not None else None
    return None
