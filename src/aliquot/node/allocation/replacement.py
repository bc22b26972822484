"""Pods of the node that do not have what they requested, and their replacement.

A container that runs and is in no record, ours or kubelet's, was admitted while the plugin was not registered. A pod
that will never get its share, that has run without it for long, or that has waited for it for long and runs nothing
meanwhile, is replaced where a controller makes a new one, and reported where none would. Replacements of one
controller's pods come with growing pauses. `findings` and `missing` are pure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock
from aliquot.kube.errors import KubeError
from aliquot.kube.planstatus import Outcome
from aliquot.kube.resources import PODS
from aliquot.lib.backoff import doubled_s
from aliquot.lib.bounded import Bounded
from aliquot.node.allocation.checkpoint import PodKey
from aliquot.node.allocation.kubelet import ContainerDevices, PodDevicesEntry
from aliquot.node.events import Events
from aliquot.node.pods import NodePod, NodePods
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
    unserved_pods: list[UnservedPod] = []
    for pod in pods:
        if not pod.requesting():
            continue
        if pod.status.phase == "Failed":
            if pod.status.reason in ADMISSION_REASONS:
                why = pod.status.message or pod.status.reason
                unserved_pods.append(UnservedPod("failed", pod.key, why, controlled(pod)))
            continue
        if pod.metadata.deletion_timestamp or pod.ended:
            continue
        lacks = unserved.get(pod.metadata.uid)
        if lacks is not None and lacks.outcome == "refused":
            unserved_pods.append(UnservedPod("refused", pod.key, lacks.why, controlled(pod)))
        elif lacks is None or now_s - lacks.since_s < WAITS_S:
            continue
        elif lacks.outcome == "missing" or not pod.running():
            unserved_pods.append(UnservedPod(lacks.outcome, pod.key, lacks.why, controlled(pod)))
    return unserved_pods


def controlled(pod: NodePod) -> bool:
    """Whether a controller would create the pod again."""
    return any(owner.controller for owner in pod.metadata.owner_references)


def missing(
    pods: Iterable[NodePod],
    held: Iterable[ContainerDevices],
    checkpoint: Iterable[PodDevicesEntry],
    ours: Iterable[tuple[str, str]],
) -> Iterator[tuple[PodKey, str]]:
    """Containers that request a share, were admitted, and have it by no record; `ours` are by pod uid and container.

    They run without it, or kubelet, which knows the devices meanwhile, cannot start them and never will. `pods` are
    those of before kubelet was asked: what it had admitted is in its records, which it writes at admission.
    """
    rows = {(row.namespace, row.pod, row.container) for row in held}
    entries = {(entry.uid, entry.container) for entry in checkpoint}
    recorded = set(ours)
    for pod in pods:
        key, admitted = pod.key, pod.running() | pod.unconfigurable()
        for name in [container.name for container in pod.requesting() if container.name in admitted]:
            named = (key.uid, name) in entries or (key.namespace, key.pod, name) in rows
            said: dict[Source, Answer] = {
                Source.TENANTS: "used" if (key.uid, name) in recorded else "gone",
                Source.KUBELET: "used" if named else "gone",
            }
            if not (pod.ended or pod.metadata.deletion_timestamp or kept_by(Removable.POD, said)):
                yield key, name


class Replacements:
    """The containers of one node without their share, and the replacement of their pods."""

    def __init__(self, settings: NodeSettings, api: Api, pods: NodePods, events: Events, clock: Clock) -> None:
        self._settings = settings
        self._api = api
        self._pods = pods
        self._events = events
        self._clock = clock
        self._unserved: dict[tuple[str, str], Unserved] = {}
        self._replaced: Bounded[str, tuple[int, float]] = Bounded(MAX_CONTROLLERS)

    def note(self, owner: PodKey, container: str, outcome: Outcome, why: str) -> None:
        """Record the outcome of a container: it stands until the container is provisioned or its pod has ended."""
        before = self._unserved.pop((owner.uid, container), None)
        if outcome != "provisioned":
            same = before is not None and before.outcome == outcome
            since_s = before.since_s if before and same else self._clock.monotonic_s()
            self._unserved[owner.uid, container] = Unserved(outcome, why, since_s)

    def forget(self, owner: PodKey) -> None:
        """Forget an ended pod."""
        self._unserved = {key: unserved for key, unserved in self._unserved.items() if key[0] != owner.uid}

    def keep_missing(self, containers: Collection[tuple[str, str]]) -> None:
        """Forget those that ran without their share, but for these (pod uid, container)."""
        notes = self._unserved.items()
        self._unserved = {key: one for key, one in notes if one.outcome != "missing" or key in containers}

    async def replace(self) -> None:
        """Replace the pods that have to be, or report on them where no controller makes another."""
        worst: dict[str, Unserved] = {}
        for (uid, _), unserved in self._unserved.items():
            pair = (unserved, worst.get(uid, unserved))
            worst[uid] = min(pair, key=lambda one: (one.outcome != "refused", one.since_s))
        now_s = self._clock.monotonic_s()
        for unserved_pod in findings(self._pods, worst, now_s):
            await self._replace(unserved_pod, now_s)

    async def _replace(self, pod: UnservedPod, now_s: float) -> None:
        owner = pod.owner
        replace = pod.replace and self._settings.replace_pods
        now = replace and self._may_replace(owner, now_s)
        reason = "GpuShareReplaced" if now else "GpuShareFailed"
        what = "; the pod is deleted, so that its controller makes another" if now else ""
        if replace and not now:
            what = "; the pod is replaced later, because others of its controller were replaced before it"
        await self._events.about_pod(owner.namespace, owner.pod, owner.uid, reason, pod.why + what, "Warning")
        if now:
            with contextlib.suppress(KubeError):
                await self._api.delete(PODS, owner.pod, namespace=owner.namespace, uid=owner.uid)

    def _may_replace(self, owner: PodKey, now_s: float) -> bool:
        """Whether a pod may be replaced now; all that one check finds of a controller are replaced together.

        A controller of which none was replaced for twice the longest pause starts anew.
        """
        pod = self._pods.get(owner.uid)
        controller = next((o.uid for o in pod.metadata.owner_references if o.controller), "") if pod else ""
        times, last_s = self._replaced.get(controller, (0, now_s))
        passed_s = now_s - last_s
        if times and 0 < passed_s < doubled_s(AGAIN_S, AGAIN_MAX_S, times - 1):
            return False
        if not times or passed_s:
            self._replaced[controller] = (times + 1 if passed_s < 2 * AGAIN_MAX_S else 1, now_s)
        return True
