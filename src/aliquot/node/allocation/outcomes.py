"""The outcome of each plan on the node: published on the pod, and pods without what they requested replaced.

An outcome is an event for a failure, and the annotation `aliquot.dev/plan-status`. Failures, and their ends, are
written at once; successes when the load has fallen. Every write to a pod is sent to all watchers of pods, and when many
pods start together that work would delay their start. A repeated outcome, as while a container waits for its share, is
written once. A success is written together with the annotations by which another project's tools recognise that a pod
has its devices.

A container that runs and is in no record, ours or kubelet's, was admitted while the plugin was not registered. One that
does not run and is not in kubelet's, which has lost them, cannot be started, whatever ours say. A pod
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
from aliquot.kube.dialects import foreign, of_origin
from aliquot.kube.errors import Conflict, KubeError, NotFound
from aliquot.kube.names import PLAN_STATUS
from aliquot.kube.objects import PODS
from aliquot.kube.plan import Outcome, written_outcome
from aliquot.lib.backoff import doubled_s
from aliquot.lib.bounded import Bounded
from aliquot.node.allocation.checkpoint import PodKey
from aliquot.node.allocation.kubelet import ContainerDevices, PodDevicesEntry
from aliquot.node.events import Events
from aliquot.node.pods import NodePod, NodePods
from aliquot.node.settings import NodeSettings
from aliquot.tenancy.removal import Answer, Removable, Source, kept_by

Kind = Outcome | Literal["failed"]
POLL_S: Final = 0.5
SUCCESS_DELAY_S: Final = 15.0
"""Delay before a success is written: longer than a large batch of pods takes to start."""
AGAIN_S: Final = 5.0
STATUS_BYTES: Final = 1000
WAITS_S: Final = 120.0
"""How long a pod may wait for its share, or run without it, before it is replaced: longer than the share's last holder
takes to end."""
REPLACED_S: Final = 10.0
REPLACED_MAX_S: Final = 600.0
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
    for pod in [pod for pod in pods if pod.requesting() or pod.metadata.uid in unserved]:
        lacks, status = unserved.get(pod.metadata.uid), pod.status
        kind: Kind | None = None
        if status.phase == "Failed":
            kind, why = "failed" if status.reason in ADMISSION_REASONS else None, status.message or status.reason
        elif lacks is not None and not (pod.metadata.deletion_timestamp or pod.ended):
            due = now_s - lacks.since_s >= WAITS_S and (lacks.outcome == "missing" or not pod.running())
            kind, why = lacks.outcome if due or lacks.outcome == "refused" else None, lacks.why
        if kind is not None:
            unserved_pods.append(UnservedPod(kind, pod.key, why, controlled(pod)))
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
    """Containers that request a share, were admitted, and lack it; `ours` are our records by pod uid and container.

    They run and no record has their share, or kubelet, which knows the devices meanwhile, has none for them and cannot
    start them again. `pods` are those of before kubelet was asked: what it had admitted is in its records, which it
    writes at admission.
    """
    rows = {(row.namespace, row.pod, row.container) for row in held}
    entries = {(entry.uid, entry.container) for entry in checkpoint}
    recorded = set(ours)
    for pod in pods:
        key, running = pod.key, pod.running()
        admitted = running | pod.failing()
        for name in [container.name for container in pod.requesting() if container.name in admitted]:
            named = (key.uid, name) in entries or (key.namespace, key.pod, name) in rows
            said: dict[Source, Answer] = {
                Source.TENANTS: "used" if name in running and (key.uid, name) in recorded else "gone",
                Source.KUBELET: "used" if named else "gone",
            }
            if not (pod.ended or pod.metadata.deletion_timestamp or kept_by(Removable.POD, said)):
                yield key, name


class Outcomes:
    """The outcomes of one node's containers; what `run` has not written at its end is lost."""

    def __init__(
        self, settings: NodeSettings, api: Api, pods: NodePods, events: Events, clock: Clock | None = None
    ) -> None:
        self._settings = settings
        self.api = api
        self._pods = pods
        self._events = events
        self._clock = clock or Clock()
        self._dialects = foreign(aliyun_unit=settings.aliyun_unit)
        self._provisioned: set[PodKey] = set()
        self._outcomes: dict[PodKey, dict[str, str]] = {}
        self._written: dict[PodKey, str] = {}
        self._due_s: dict[PodKey, float] = {}
        self._unserved: dict[tuple[str, str], Unserved] = {}
        self._replaced: Bounded[str, tuple[int, float]] = Bounded(MAX_CONTROLLERS)

    def forget(self, owner: PodKey) -> None:
        """The pod is over."""
        self._unserved = {key: unserved for key, unserved in self._unserved.items() if key[0] != owner.uid}
        self._forget_status(owner)

    # -- published -----------------------------------------------------------------------------------------------

    async def report(self, owner: PodKey, container: str, outcome: Outcome, why: str) -> None:
        """Publish the outcome of an announced container."""
        self._outcomes.setdefault(owner, {})[container] = written_outcome(container, outcome, why)
        if outcome == "provisioned":
            self._provisioned.add(owner)
        wait_s = SUCCESS_DELAY_S if outcome == "provisioned" and owner not in self._written else 0.0
        due_s = self._clock.monotonic_s() + wait_s
        self._due_s[owner] = min(due_s, self._due_s.get(owner, due_s))
        if outcome != "provisioned":
            verb = "is without" if outcome == "missing" else "does not get"
            message = f"container {container} {verb} its share: {why}"
            reason = f"GpuShare{outcome.capitalize()}"
            await self._events.about_pod(owner, reason, message)

    async def run(self) -> None:
        """Write what is due, until cancelled."""
        while True:
            await self._clock.sleep(POLL_S)
            await self.step()

    async def step(self) -> None:
        """Write what is due now."""
        now_s = self._clock.monotonic_s()
        for owner in [owner for owner, due_s in self._due_s.items() if due_s <= now_s]:
            self._due_s.pop(owner, None)
            text = "; ".join(self._outcomes.get(owner, {}).values())[:STATUS_BYTES]
            if text == self._written.get(owner, ""):
                continue
            pod = self._pods.get(owner.uid) if owner in self._provisioned else None
            dialect = of_origin(pod.request, self._dialects) if pod is not None else None
            theirs = dialect.started(pod.request) if pod is not None and dialect is not None else {}
            body = {"metadata": {"uid": owner.uid, "annotations": {PLAN_STATUS: text, **theirs}}}
            try:
                await self.api.patch(PODS, owner.pod, body, namespace=owner.namespace)
            except (NotFound, Conflict):
                # It has ended, or another pod has its name: a late record would stay here forever.
                self._forget_status(owner)
            except KubeError:
                self._due_s.setdefault(owner, self._clock.monotonic_s() + AGAIN_S)
            else:
                if owner in self._outcomes:
                    self._written[owner] = text

    def _forget_status(self, owner: PodKey) -> None:
        self._provisioned.discard(owner)
        for by_owner in (self._outcomes, self._written, self._due_s):
            by_owner.pop(owner, None)

    # -- acted on ------------------------------------------------------------------------------------------------

    def note(self, owner: PodKey, container: str, outcome: Outcome, why: str) -> None:
        """Record an outcome for `replace`: it stands until the container is provisioned or its pod has ended."""
        before = self._unserved.pop((owner.uid, container), None)
        if outcome != "provisioned":
            same = before is not None and before.outcome == outcome
            since_s = before.since_s if before and same else self._clock.monotonic_s()
            self._unserved[owner.uid, container] = Unserved(outcome, why, since_s)

    def keep_missing(self, containers: Collection[tuple[str, str]]) -> None:
        """Forget those that ran without their share, but for these (pod uid, container)."""
        notes = self._unserved.items()
        self._unserved = {key: note for key, note in notes if note.outcome != "missing" or key in containers}

    async def replace(self) -> None:
        """Replace the pods that have to be, or report on them where no controller makes another."""
        worst: dict[str, Unserved] = {}
        for (uid, _), unserved in self._unserved.items():
            pair = (unserved, worst.get(uid, unserved))
            worst[uid] = min(pair, key=lambda note: (note.outcome != "refused", note.since_s))
        now_s = self._clock.monotonic_s()
        for pod in findings(self._pods, worst, now_s):
            owner = pod.owner
            replace = pod.replace and self._settings.replace_pods
            now = replace and self._may_replace(owner, now_s)
            reason = "GpuShareReplaced" if now else "GpuShareFailed"
            what = "; the pod is deleted, so that its controller makes another" if now else ""
            if not pod.replace and pod.kind == "waits":
                what = "; no controller makes another: delete the pod and create it again, and it is placed anew"
            if replace and not now:
                what = "; the pod is replaced later, because others of its controller were replaced before it"
            await self._events.about_pod(owner, reason, pod.why + what)
            if now:
                with contextlib.suppress(KubeError):
                    await self.api.delete(PODS, owner.pod, namespace=owner.namespace, uid=owner.uid)

    def _may_replace(self, owner: PodKey, now_s: float) -> bool:
        """Whether a pod may be replaced now; all that one check finds of a controller are replaced together.

        A controller of which none was replaced for twice the longest pause starts anew.
        """
        pod = self._pods.get(owner.uid)
        controller = next((o.uid for o in pod.metadata.owner_references if o.controller), "") if pod else ""
        times, last_s = self._replaced.get(controller, (0, now_s))
        passed_s = now_s - last_s
        if times and 0 < passed_s < doubled_s(REPLACED_S, REPLACED_MAX_S, times - 1):
            return False
        if not times or passed_s:
            self._replaced[controller] = (times + 1 if passed_s < 2 * REPLACED_MAX_S else 1, now_s)
        return True
