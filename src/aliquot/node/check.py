"""The allocation check: finds pods of the node that do not have what they requested, and acts on each.

A container that runs without an entry in any of kubelet's records started while the plugin was not registered; it is
reported, since only its owner can decide whether to restart it. A pod that will never get its share, or that has waited
for it for long and runs nothing meanwhile, is replaced where a controller makes a new one, and reported where none
would. Replacements of one controller's pods come with growing pauses. Leftovers of a pod, from a removal that failed or
a pod that ended while the agent recovered, are found here and removed again. `findings` is pure.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock, RealClock
from aliquot.kube.errors import KubeError
from aliquot.kube.resources import PODS
from aliquot.lib.backoff import doubled_s
from aliquot.lib.bounded import Bounded
from aliquot.node.allocator import Outcome
from aliquot.node.allotments import Allotments
from aliquot.node.checkpoint import CheckpointError, PodKey
from aliquot.node.events import Events
from aliquot.node.identity import Held, Noted
from aliquot.node.kubelet import PodResources, noted
from aliquot.node.leaving import remove_specs
from aliquot.node.pods import NodePod, NodePods
from aliquot.node.provisioner import TenantProvisioner
from aliquot.node.recovery import Recovering
from aliquot.node.settings import NodeSettings
from aliquot.tenancy.removal import Answer, Removable, Source, kept_by

Kind = Literal["slipped", "failed", "refused", "waits"]
WAITS_S: Final = 120.0
"""How long a pod may wait for its share before it is replaced: longer than the share's last holder takes to end."""
AGAIN_S: Final = 10.0
AGAIN_MAX_S: Final = 600.0
"""The pauses between replacements of one controller's pods: doubled from the first to the second of these."""
MAX_CONTROLLERS: Final = 1000
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


@dataclass(frozen=True)
class Unserved:
    """A container that does not get its share, and why; `since_s` is when that outcome was first noted."""

    outcome: Outcome
    why: str
    since_s: float


def findings(
    pods: Iterable[NodePod],
    held: Sequence[Held],
    noted: Sequence[Noted] | None,
    unserved: Mapping[str, Unserved],
    served: Iterable[tuple[str, str]] = (),
    now_s: float = 0.0,
) -> list[UnservedContainer]:
    """All problems. `unserved` is by pod uid; `noted` is None if kubelet's file cannot be read.

    `served` are the containers (pod uid, name) that have their share by our own records.
    """
    rows = {(row.namespace, row.pod, row.container) for row in held}
    entries = None if noted is None else {(entry.uid, entry.container) for entry in noted} | set(served)
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
        lacks = unserved.get(pod.metadata.uid)
        if lacks is not None and lacks.outcome == "refused":
            found.append(UnservedContainer("refused", pod.key, "", lacks.why, controlled(pod)))
        elif lacks is not None and now_s - lacks.since_s >= WAITS_S and not pod.running():
            found.append(UnservedContainer("waits", pod.key, "", lacks.why, controlled(pod)))
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
    recovering: Recovering
    clock: Clock = field(default_factory=RealClock)
    _unserved: dict[str, dict[str, Unserved]] = field(default_factory=dict)
    _replaced: Bounded[str, tuple[int, float]] = field(default_factory=lambda: Bounded(MAX_CONTROLLERS))
    """How often pods of a controller (uid) were replaced in a row, and when the last one was."""
    _missing: set[str] = field(default_factory=set)
    _over: set[str] = field(default_factory=set)

    def note(self, owner: PodKey, container: str, outcome: Outcome, why: str) -> None:
        """Record the outcome of a container: it stands until the container is provisioned or its pod has ended."""
        known = self._unserved.setdefault(owner.uid, {})
        before = known.pop(container, None)
        if outcome != "provisioned":
            same = before is not None and before.outcome == outcome
            known[container] = Unserved(outcome, why, before.since_s if before and same else self.clock.monotonic_s())
        if not known:
            del self._unserved[owner.uid]

    def forget(self, owner: PodKey) -> None:
        """Forget an ended pod."""
        self._unserved.pop(owner.uid, None)

    async def look(self) -> None:
        """One check; skipped while kubelet does not answer."""
        try:
            held = await self.resources.held()
        except OSError:
            return
        entries = await asyncio.to_thread(noted, self.settings.device_plugins)
        unserved = {
            uid: min(known.values(), key=lambda lacks: (lacks.outcome != "refused", lacks.since_s))
            for uid, known in self._unserved.items()
        }
        served = [(allotment.uid, allotment.container) for allotment in self.allotments if allotment.plan]
        now_s = self.clock.monotonic_s()
        for found in findings(self.pods, held, entries, unserved, served, now_s):
            await self._act(found, now_s)
        await self._tidy_names(entries)
        self._tidy_pods()
        await self.recovering.finish()

    async def _act(self, found: UnservedContainer, now_s: float) -> None:
        owner, where = found.owner, f"container {found.container}: " if found.container else ""
        replace = found.replace and self.settings.replace_pods and found.kind != "slipped"
        now = replace and self._may_replace(owner, now_s)
        reason = "GpuShareMissing" if found.kind == "slipped" else "GpuShareReplaced" if now else "GpuShareFailed"
        what = "; the pod is deleted, so that its controller makes another" if now else ""
        if replace and not now:
            what = "; the pod is replaced later, because others of its controller were replaced before it"
        text = f"{where}{found.why}{what}"
        await self.events.about_pod(owner.namespace, owner.pod, owner.uid, reason, text, "Warning")
        if now:
            with contextlib.suppress(KubeError):
                await self.api.delete(PODS, owner.pod, namespace=owner.namespace, uid=owner.uid)

    def _may_replace(self, owner: PodKey, now_s: float) -> bool:
        """Whether a pod may be replaced now; all that one check finds of a controller are replaced together.

        A controller of which none was replaced for twice the longest pause starts anew.
        """
        pod = self.pods.get(owner.uid)
        controller = next((o.uid for o in pod.metadata.owner_references if o.controller), "") if pod else ""
        times, last_s = self._replaced.get(controller, (0, now_s))
        passed_s = now_s - last_s
        if times and 0 < passed_s < doubled_s(AGAIN_S, AGAIN_MAX_S, times - 1):
            return False
        if not times or passed_s:
            self._replaced[controller] = (times + 1 if passed_s < 2 * AGAIN_MAX_S else 1, now_s)
        return True

    async def _tidy_names(self, entries: Sequence[Noted] | None) -> None:
        """Forget names without a container that kubelet did not have in two checks in a row."""
        known = {name for entry in entries or () for name in entry.names}
        said: Answer = "silent" if entries is None else "gone"
        free = not kept_by(Removable.NAME, {Source.KUBELET: said})
        missing = {a.name for a in self.allotments if free and not a.uid and a.name not in known}
        gone, self._missing = sorted(missing & self._missing), missing
        with contextlib.suppress(CheckpointError):  # tried again at the next check
            await self.allotments.drop(remove_specs(Path(self.settings.cdi_dir), gone))

    def _tidy_pods(self) -> None:
        """Release pods that are gone and held something in two checks in a row: most found once are being released."""
        owners = {allotment.uid: allotment.owner for allotment in self.allotments if allotment.owner is not None}
        owners |= {tenant.owner.uid: tenant.owner for tenant in list(self.provisioner.tenants.values())}
        over = {uid for uid in owners if self.pods.says(uid) == "gone"}
        for uid in sorted(over & self._over):
            self.leave(owners[uid])
        self._over = over
