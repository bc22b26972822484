"""Clean up after pods: release a pod's resources once its containers have exited; remove orphans at start-up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aliquot.lib.log import Logger
from aliquot.node.allotments import Allotments
from aliquot.node.cdi import CdiError, remove_spec, remove_unfinished, written_names
from aliquot.node.checkpoint import CheckpointError, PodKey
from aliquot.node.kubelet import PodResources
from aliquot.node.pods import NodePod, NodePods
from aliquot.node.processes import pods_with_processes
from aliquot.node.provisioner import TenantProvisioner
from aliquot.tenancy.removal import Answer, Removable, Source, kept_by

_LOG: Final = Logger("node")
WAIT_S: Final = 120.0
LOOK_S: Final = 0.5


@dataclass(eq=False)
class Leaving:
    """Releases what pods of one node had; each pod is released once at a time."""

    cdi: Path
    allotments: Allotments
    provisioner: TenantProvisioner
    resources: PodResources
    pods: NodePods
    _leaving: set[str] = field(default_factory=set)

    async def clear(self, owner: PodKey) -> None:
        """Release the tenants, names and files of an ended pod; does nothing while that is already under way.

        What cannot be released now stays recorded, so that it can be retried.
        """
        if owner.uid in self._leaving:
            return
        self._leaving.add(owner.uid)
        try:
            await self._clear(owner)
        finally:
            self._leaving.discard(owner.uid)

    async def release_init(self) -> None:
        """Release what init containers had when they have ended, also where no later container requests a GPU."""
        tenants = list(self.provisioner.tenants.values())
        for uid in {tenant.owner.uid for tenant in tenants if tenant.plan.init > 0}:
            pod = self.pods.get(uid)
            if pod is not None and pod.status.initialized:
                await asyncio.to_thread(self.provisioner.remove_init, uid)

    async def _clear(self, owner: PodKey) -> None:
        ids = {frozenset(allotment.ids) for allotment in self.allotments if allotment.uid == owner.uid}
        await containers_ended(owner, ids, self.resources, self.pods)
        until_s = asyncio.get_running_loop().time() + WAIT_S
        while kept := await self._kept(owner.uid):
            if asyncio.get_running_loop().time() > until_s:
                _LOG.warning("kept", pod=str(owner), why=kept)  # the allocation check comes back to it
                return
            await asyncio.sleep(LOOK_S)
        names = [allotment.name for allotment in self.allotments if allotment.uid == owner.uid]
        tenants = await asyncio.to_thread(self.provisioner.remove_pod, owner.uid)
        gone = remove_specs(self.cdi, names)
        with contextlib.suppress(CheckpointError):  # the allocation check drops them when there is space again
            await self.allotments.drop(gone)
        if names or tenants:
            _LOG.info("cleared", pod=str(owner), tenants=len(tenants), devices=len(gone))

    async def _kept(self, uid: str) -> str:
        pod = self.pods.get(uid)
        runs = pod is None and uid in await asyncio.to_thread(pods_with_processes)
        return share_kept_by(self.pods.says(uid), ended=pod is not None, runs=runs)


async def containers_ended(
    owner: PodKey, ids: set[frozenset[str]], resources: PodResources, pods: Iterable[NodePod]
) -> None:
    """Wait while kubelet still has these device ids for the pod, but not forever.

    A pod that is force-deleted disappears before its containers. When a pod of the same name exists already, or
    kubelet does not answer, there is nothing to wait for.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + WAIT_S
    while ids and loop.time() < until_s:
        try:
            held = await resources.held()
        except OSError:
            return
        namesake = any((p.key.namespace, p.key.pod) == (owner.namespace, owner.pod) for p in pods)
        mine = [r for r in held if (r.namespace, r.pod) == (owner.namespace, owner.pod) and r.ids in ids]
        if not mine or namesake:
            return
        await asyncio.sleep(LOOK_S)


def share_kept_by(api: Answer, *, ended: bool, runs: bool) -> str:
    """Why the share of a pod has to stay, empty if it may be removed; `ended` if the API server has the pod's end.

    A pod that was deleted by force is gone before its containers are, so it is asked whether a process of it `runs`.
    Of one that has ended kubelet said so itself; the process that keeps its namespaces may go a moment later.
    """
    runs = runs and not ended
    return kept_by(Removable.SHARE, {Source.API: api, Source.PROCESSES: "used" if runs else "gone"})


def remove_specs(cdi: Path, names: Iterable[str]) -> list[str]:
    """Remove the files of devices; returns the names of those removed. A failure is logged."""
    gone = []
    for name in names:
        try:
            remove_spec(cdi, name)
        except CdiError as error:
            _LOG.warning("not-removed", why=str(error))
        else:
            gone.append(name)
    return gone


def sweep(cdi: Path, allotments: Allotments, provisioner: TenantProvisioner) -> int:
    """Remove CDI files, tenants' folders and tenants without an owner; returns how many."""
    remove_unfinished(cdi)
    stray = written_names(cdi) - {allotment.name for allotment in allotments}
    return len(remove_specs(cdi, stray)) + len(provisioner.sweep())
