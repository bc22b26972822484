"""The allocation check: finds pods of the node that do not have what they requested, and acts on each.

A container that runs and is in no record, ours or kubelet's, was started while the plugin was not registered. That is
reported at once, as the outcome of its plan. A pod that will never get its share, that has run without it for long, or
that has waited for it for long and runs nothing meanwhile, is replaced where a controller makes a new one, and reported
where none would. Replacements of one controller's pods come with growing pauses. Leftovers of a pod, from a failed
removal or of a pod that ended while the agent recovered, are found here and removed again. `findings` and `missing` are
pure.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock, RealClock
from aliquot.kube.errors import KubeError
from aliquot.kube.planstatus import Outcome
from aliquot.kube.resources import PODS
from aliquot.lib.backoff import doubled_s
from aliquot.lib.bounded import Bounded
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

Kind = Outcome | Literal["failed"]
WAITS_S: Final = 120.0
"""How long a pod may wait for its share, or run without it, before it is replaced: longer than the share's last holder
takes to end."""
AGAIN_S: Final = 10.0
AGAIN_MAX_S: Final = 600.0
"""The pauses between replacements of one controller's pods: doubled from the first to the second of these."""
MAX_CONTROLLERS: Final = 1000
ADMISSION_REASONS: Final = ("UnexpectedAdmissionError", "OutOfaliquot.dev/gpu-percent", "OutOfaliquot.dev/gpu-memory")
"""Reasons that kubelet gives a pod whose devices it could not allocate; such a pod has failed permanently."""


@dataclass(frozen=True)
class UnservedPod:
    """One pod without what it requested. `replace`: a controller would create it again."""

    kind: Kind
    owner: PodKey
    why: str
    replace: bool = False


@dataclass(frozen=True)
class Unserved:
    """A container that does not get its share, and why; `since_s` is when that outcome was first noted."""

    outcome: Outcome
    why: str
    since_s: float


def findings(pods: Iterable[NodePod], unserved: Mapping[str, Unserved], now_s: float = 0.0) -> list[UnservedPod]:
    """The pods to replace, or to report where no controller would replace them. `unserved` is by pod uid."""
    found: list[UnservedPod] = []
    for pod in pods:
        if not pod.asking():
            continue
        if pod.status.phase == "Failed":
            if pod.status.reason in ADMISSION_REASONS:
                why = pod.status.message or pod.status.reason
                found.append(UnservedPod("failed", pod.key, why, controlled(pod)))
            continue
        if pod.metadata.deletion_timestamp or pod.ended:
            continue
        lacks = unserved.get(pod.metadata.uid)
        if lacks is not None and lacks.outcome == "refused":
            found.append(UnservedPod("refused", pod.key, lacks.why, controlled(pod)))
        elif lacks is None or now_s - lacks.since_s < WAITS_S:
            continue
        elif lacks.outcome == "missing" or not pod.running():
            found.append(UnservedPod(lacks.outcome, pod.key, lacks.why, controlled(pod)))
    return found


def controlled(pod: NodePod) -> bool:
    """Whether a controller would create the pod again."""
    return any(owner.controller for owner in pod.metadata.owner_references)


def missing(
    pods: Iterable[NodePod], held: Iterable[Held], noted: Iterable[Noted], ours: Iterable[tuple[str, str]]
) -> Iterator[tuple[PodKey, str]]:
    """Containers that run and request a share, and have it by no record; `ours` are by pod uid and container.

    `pods` are those of before kubelet was asked: what ran then is in its records, which it writes at admission.
    """
    rows = {(row.namespace, row.pod, row.container) for row in held}
    entries = {(entry.uid, entry.container) for entry in noted}
    recorded = set(ours)
    for pod in pods:
        key, running = pod.key, pod.running()
        for name in [container.name for container in pod.asking() if container.name in running]:
            named = (key.uid, name) in entries or (key.namespace, key.pod, name) in rows
            said: dict[Source, Answer] = {
                Source.TENANTS: "used" if (key.uid, name) in recorded else "gone",
                Source.KUBELET: "used" if named else "gone",
            }
            if not (pod.ended or pod.metadata.deletion_timestamp or kept_by(Removable.POD, said)):
                yield key, name


@dataclass(eq=False)
class AllocationCheck:
    """The check of one node; `leave` starts the release of an ended pod, `report` tells the outcome of a container."""

    settings: NodeSettings
    api: Api
    pods: NodePods
    resources: PodResources
    allotments: Allotments
    provisioner: TenantProvisioner
    events: Events
    leave: Callable[[PodKey], None]
    recovering: Recovering
    report: Callable[[PodKey, str, Outcome, str], Awaitable[None]]
    clock: Clock = field(default_factory=RealClock)
    _unserved: dict[tuple[str, str], Unserved] = field(default_factory=dict)
    """By pod uid and container."""
    _replaced: Bounded[str, tuple[int, float]] = field(default_factory=lambda: Bounded(MAX_CONTROLLERS))
    """How often pods of a controller (uid) were replaced in a row, and when the last one was."""
    _missing: set[str] = field(default_factory=set)
    _over: set[str] = field(default_factory=set)

    def note(self, owner: PodKey, container: str, outcome: Outcome, why: str) -> None:
        """Record the outcome of a container: it stands until the container is provisioned or its pod has ended."""
        before = self._unserved.pop((owner.uid, container), None)
        if outcome != "provisioned":
            same = before is not None and before.outcome == outcome
            since_s = before.since_s if before and same else self.clock.monotonic_s()
            self._unserved[owner.uid, container] = Unserved(outcome, why, since_s)

    def forget(self, owner: PodKey) -> None:
        """Forget an ended pod."""
        self._unserved = {key: unserved for key, unserved in self._unserved.items() if key[0] != owner.uid}

    async def reconcile(self) -> None:
        """One check; skipped while kubelet does not answer."""
        pods = list(self.pods)
        try:
            held = await self.resources.held()
        except OSError:
            return
        entries = await asyncio.to_thread(noted, self.settings.device_plugins)
        await self.recovering.finish()
        if entries is not None and not self.provisioner.recovering and not self.allotments.failure:
            await self._note_missing(pods, held, entries)
        worst: dict[str, Unserved] = {}
        for (uid, _), unserved in self._unserved.items():
            pair = (unserved, worst.get(uid, unserved))
            worst[uid] = min(pair, key=lambda one: (one.outcome != "refused", one.since_s))
        now_s = self.clock.monotonic_s()
        for found in findings(self.pods, worst, now_s):
            await self._act(found, now_s)
        await self._tidy_names(entries)
        self._tidy_pods()

    async def _note_missing(self, pods: Iterable[NodePod], held: Iterable[Held], entries: Iterable[Noted]) -> None:
        """Report the containers that run without their share; a container that ended is not missing one any more."""
        ours = [(allotment.uid, allotment.container) for allotment in self.allotments if allotment.plan]
        containers = list(missing(pods, held, entries, ours))
        for owner, container in containers:
            why = "kubelet gave it no device"
            self.note(owner, container, "missing", why)
            await self.report(owner, container, "missing", why)
        here = {(owner.uid, container) for owner, container in containers}
        self._unserved = {k: one for k, one in self._unserved.items() if one.outcome != "missing" or k in here}

    async def _act(self, found: UnservedPod, now_s: float) -> None:
        owner = found.owner
        replace = found.replace and self.settings.replace_pods
        now = replace and self._may_replace(owner, now_s)
        reason = "GpuShareReplaced" if now else "GpuShareFailed"
        what = "; the pod is deleted, so that its controller makes another" if now else ""
        if replace and not now:
            what = "; the pod is replaced later, because others of its controller were replaced before it"
        await self.events.about_pod(owner.namespace, owner.pod, owner.uid, reason, found.why + what, "Warning")
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
