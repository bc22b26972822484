"""The allocation check: finds pods of the node that do not have what they requested, and acts on each.

A container that runs without an entry in any of kubelet's records started while the plugin was not registered; it is
reported, since only its owner can decide whether to restart it. A pod that will never get its share is replaced where a
controller makes a new one, and reported where none would. Leftovers of a pod, from a removal that failed or a pod that
ended while the agent recovered, are found here and removed again. `findings` is pure.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from aliquot.kube.api import Api
from aliquot.kube.errors import KubeError
from aliquot.kube.resources import PODS
from aliquot.node.allocator import Outcome
from aliquot.node.allotments import Allotments
from aliquot.node.checkpoint import CheckpointError, PodKey
from aliquot.node.events import Events
from aliquot.node.identity import Held, Noted
from aliquot.node.kubelet import PodResources, noted
from aliquot.node.leaving import remove_specs
from aliquot.node.pods import NodePod, NodePods
from aliquot.node.provisioner import TenantProvisioner
from aliquot.node.settings import NodeSettings

Kind = Literal["slipped", "failed", "refused"]
ADMISSION_REASONS: Final = ("UnexpectedAdmissionError", "OutOfaliquot.dev/gpu-percent", "OutOfaliquot.dev/gpu-memory")
"""Reasons that kubelet gives a pod whose devices it could not allocate; such a pod has failed permanently."""


@dataclass(frozen=True)
class UnservedContainer:
    """One pod (or container of it) without what it requested. `replace`: a controller would create it again."""

    kind: Kind
    owner: PodKey
    container: str
    why: str
    replace: bool = False


def findings(
    pods: Iterable[NodePod], held: Sequence[Held], noted: Sequence[Noted] | None, refused: Mapping[str, str]
) -> list[UnservedContainer]:
    """All problems. `refused` has the final refusals by pod uid; `noted` is None if kubelet's file cannot be read."""
    rows = {(row.namespace, row.pod, row.container) for row in held}
    entries = None if noted is None else {(entry.uid, entry.container) for entry in noted}
    found: list[UnservedContainer] = []
    for pod in pods:
        asking = pod.asking()
        if not asking:
            continue
        if pod.status.phase == "Failed":
            if pod.status.reason in ADMISSION_REASONS:
                why = pod.status.message or pod.status.reason
                found.append(UnservedContainer("failed", pod.key, "", why, controlled(pod)))
            continue
        if pod.metadata.deletion_timestamp or pod.ended:
            continue
        if why := refused.get(pod.metadata.uid, ""):
            found.append(UnservedContainer("refused", pod.key, "", why, controlled(pod)))
        elif entries is not None:
            found += _slipped(pod, [c.name for c in asking], rows, entries)
    return found


def controlled(pod: NodePod) -> bool:
    """Whether a controller would create the pod again."""
    return any(owner.controller for owner in pod.metadata.owner_references)


def _slipped(
    pod: NodePod, asking: Sequence[str], rows: set[tuple[str, str, str]], entries: set[tuple[str, str]]
) -> Iterable[UnservedContainer]:
    running = pod.running()
    key = pod.key
    for name in asking:
        known = (key.uid, name) in entries or (key.namespace, key.pod, name) in rows
        if name in running and not known:
            yield UnservedContainer("slipped", key, name, "it runs, and kubelet gave it no device")


@dataclass(eq=False)
class AllocationCheck:
    """The check of one node; `leave` starts the release of an ended pod."""

    settings: NodeSettings
    api: Api
    pods: NodePods
    resources: PodResources
    allotments: Allotments
    provisioner: TenantProvisioner
    events: Events
    leave: Callable[[PodKey], None]
    _refused: dict[str, dict[str, str]] = field(default_factory=dict)
    _missing: set[str] = field(default_factory=set)
    _over: set[str] = field(default_factory=set)

    def note(self, owner: PodKey, container: str, outcome: Outcome, why: str) -> None:
        """Record the outcome of a container: a refusal stands until it is provisioned or its pod has ended."""
        if outcome == "refused":
            self._refused.setdefault(owner.uid, {})[container] = why
        elif outcome == "provisioned":
            self._refused.get(owner.uid, {}).pop(container, None)

    def forget(self, owner: PodKey) -> None:
        """Forget an ended pod."""
        self._refused.pop(owner.uid, None)

    async def look(self) -> None:
        """One check; skipped while kubelet does not answer."""
        try:
            held = await self.resources.held()
        except OSError:
            return
        entries = await asyncio.to_thread(noted, self.settings.device_plugins)
        refused = {uid: next(iter(whys.values())) for uid, whys in self._refused.items() if whys}
        for found in findings(self.pods, held, entries, refused):
            await self._act(found)
        await self._tidy_names(entries)
        self._tidy_pods()

    async def _act(self, found: UnservedContainer) -> None:
        owner, where = found.owner, f"container {found.container}: " if found.container else ""
        replace = found.replace and self.settings.replace_pods and found.kind != "slipped"
        reason = "GpuShareMissing" if found.kind == "slipped" else "GpuShareReplaced" if replace else "GpuShareFailed"
        what = "; the pod is deleted, so that its controller makes another" if replace else ""
        text = f"{where}{found.why}{what}"
        await self.events.about_pod(owner.namespace, owner.pod, owner.uid, reason, text, "Warning")
        if replace:
            with contextlib.suppress(KubeError):
                await self.api.delete(PODS, owner.pod, namespace=owner.namespace, uid=owner.uid)

    async def _tidy_names(self, entries: Sequence[Noted] | None) -> None:
        """Forget names that kubelet did not have in two checks in a row: it writes them only after our answer."""
        if entries is None:
            return
        known = {name for entry in entries for name in entry.names}
        missing = {allotment.name for allotment in self.allotments if allotment.name not in known}
        gone = [name for name in sorted(missing & self._missing) if not self.pods.lives(self._uid_of(name))]
        self._missing = missing
        with contextlib.suppress(CheckpointError):  # tried again at the next check
            await self.allotments.drop(remove_specs(Path(self.settings.cdi_dir), gone))

    def _tidy_pods(self) -> None:
        """Release ended pods that held something in two checks in a row: most found once are being released."""
        if not self.pods.synced:
            return
        owners = {allotment.uid: allotment.owner for allotment in self.allotments if allotment.owner is not None}
        owners |= {tenant.owner.uid: tenant.owner for tenant in list(self.provisioner.tenants.values())}
        over = {uid for uid in owners if not self.pods.lives(uid)}
        for uid in sorted(over & self._over):
            self.leave(owners[uid])
        self._over = over

    def _uid_of(self, name: str) -> str:
        allotment = self.allotments.get(name)
        return allotment.uid if allotment is not None else ""
