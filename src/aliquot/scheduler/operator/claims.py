"""ResourceClaims: the templates of those that admission made of pods' resources, and those that Aliquot places.

A template is made when a pod names it, by the pod's annotation, and goes when no pod of its namespace does. Its name
says what it asks for, so that it needs no version and a pod of the same manifest finds it there.

Claims of the class `gpu-placed` are allocated here alone: kube-scheduler finds no device of that class,
and honours an allocation that is there. The pods that wait are decided in the order of their priority, by the policy
and in the ledger that serve all other requests, for nodes that Kubernetes allows; the allocation is written, and the
gate opened. Kube-scheduler also knows what is not checked here, as volumes or the spread of pods: where it does not
take the pod to the node, it gives the allocation back, or it is taken back here, and the pod does not go to that node
for a minute. So each node is tried once a minute at most. Of pods that belong to a group as many are placed at once as
the group needs, or none.

Whatever becomes of a write, the share is neither lost nor given twice: it stays reserved until the claim was read.
Source: resource.k8s.io/v1; kube-scheduler's plugin DynamicResources, which wants the timestamp and the finalizer.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import numpy as np

from aliquot.kube.api import Api
from aliquot.kube.claims import (
    COMPUTE,
    DRIVER,
    MEMORY,
    PLACED_CLASS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    TEMPLATES,
    ResourceClaim,
    claims_ask,
    claims_made,
    device_name,
    slice_name,
    template_name,
)
from aliquot.kube.clock import Clock, seconds_time
from aliquot.kube.eligible import barred
from aliquot.kube.errors import AlreadyExists, Busy, KubeError, Unreachable
from aliquot.kube.names import CLAIMS, GATE, PLAN, SIZES, WORKLOAD
from aliquot.kube.objects import EVENTS, PODS, ApiObject, Event, Meta, Node, ObjectReference, Pod
from aliquot.kube.quantities import format_mib_quantity
from aliquot.kube.reflector import Change, Reflector
from aliquot.kube.requests import PodAsk
from aliquot.lib.log import Logger
from aliquot.model.errors import UserError
from aliquot.model.quantities import MILLI
from aliquot.placement.decide import NEVER
from aliquot.scheduler.allocations import POST_S, Allocation
from aliquot.scheduler.groups import Groups, HeldGroups, group_of, held_group_of
from aliquot.scheduler.ledger import Ledger, NodeFull
from aliquot.scheduler.verdicts import verdicts

log = Logger("scheduler")
MANAGER: Final = "aliquot-scheduler"
LABELS: Final = {"app.kubernetes.io/managed-by": "aliquot"}
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
PLACE: Final = "place/"
SOON_S: Final = 0.05
AGAIN_S: Final = 2.0
UNUSED_S: Final = 30.0
"""How long a template outlives its pods: those of a new revision ask for the same."""
REFUSED_S: Final = 60.0
"""How long a pod does not go to a node that kube-scheduler did not take it to, and how long that may take."""
NODES_TRIED: Final = 64
TRIES_PER_S: Final = 50
"""For pods that wait for room."""
EVENT_S: Final = 10.0
"""The least time between two events of a pod."""


@dataclass
class _PendingPod:
    """What is remembered of a pod that waits."""

    pod: Pod
    claims: list[ResourceClaim] = field(default_factory=list)
    """Those that are there."""
    refused: dict[str, float] = field(default_factory=dict)
    """Until when it does not go to a node."""
    placed_s: float = 0.0
    message: str = ""
    reported_s: float = 0.0

    @property
    def group(self) -> str:
        """The group that it is placed with; Kueue sees to those of its Workloads."""
        return "" if WORKLOAD in self.pod.metadata.annotations else held_group_of(self.pod) or group_of(self.pod)


class ClaimAllocator:
    """Makes templates and allocates. `again` adds a key to the operator's queue after some seconds; `on_waiting` gets
    pods that find no room, with the nodes on which others hold what they need; `held` knows all pods by node."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        nodes: Reflector[Node],
        pods: Reflector[Pod],
        leads: Callable[[], bool],
        on_waiting: Callable[[Pod, PodAsk, list[str]], None],
        native: Groups,
        held: HeldGroups,
    ) -> None:
        self._native, self._held = native, held
        self._api, self._ledger, self._nodes, self._pods, self._leads = api, ledger, nodes, pods, leads
        self._on_waiting = on_waiting
        self.again: Callable[[str, float], None] = lambda key, wait_s: None
        self.clock = Clock()
        self.claims: Reflector[ResourceClaim] = Reflector(api, RESOURCE_CLAIMS, self.claim_changed)
        labelled = {"labelSelector": ",".join(f"{key}={value}" for key, value in LABELS.items())}
        self.templates: Reflector[ApiObject] = Reflector(api, TEMPLATES, selectors=labelled)
        self.slices: Reflector[ApiObject] = Reflector(
            api, RESOURCE_SLICES, selectors={"fieldSelector": f"spec.driver={DRIVER}"}
        )
        self._waiting: dict[str, _PendingPod] = {}

    def synced(self) -> bool:
        """Are its caches whole?"""
        return all(cache.synced.is_set() for cache in (self.claims, self.templates, self.slices))

    # What happens

    def pod_changed(self, change: Change[Pod]) -> None:
        """A pod was added, changed or deleted."""
        pod = change.object
        meta, spec = pod.metadata, pod.spec
        if not spec.resource_claims:
            return
        if change.kind == "deleted" or spec.node_name or pod.ended or meta.deletion_timestamp:
            self._waiting.pop(meta.key, None)
            if change.kind == "deleted" and CLAIMS in meta.annotations:
                self.again(f"templates/{meta.namespace}", UNUSED_S)
            return
        before = self._waiting.get(meta.key)
        same = before is not None and before.pod.metadata.uid == meta.uid
        self._waiting[meta.key] = replace(before, pod=pod) if before is not None and same else _PendingPod(pod)
        self.again(PLACE, SOON_S)
        if CLAIMS in meta.annotations:
            self.again(f"template/{meta.key}", 0.0)

    def claim_changed(self, change: Change[ResourceClaim]) -> None:
        """A claim was added, changed or deleted."""
        self._ledger.claim_changed(change)
        claim, old = change.object, change.old
        if change.kind != "deleted" and is_sized(claim):
            self.again(f"resize/{claim.workload}", 0.0)
        if not is_placed(claim):
            return
        self.again(PLACE, SOON_S)
        if change.kind == "modified" and old is not None and old.ours and not claim.ours:
            for pending in self._waiting.values():
                if claim.name_in(pending.pod):
                    pending.refused[old.ours[0].pool] = self.clock.monotonic_s() + REFUSED_S

    def holder(self, key: str) -> Pod | None:
        """The pod of an allocation: the pod itself, or the one for which a claim is reserved."""
        claim = self._ledger.claim_of(key)
        if claim is None:
            return self._pods.get(key)
        users = claim.pods
        return self._pods.get(f"{claim.metadata.namespace}/{users[0].name}") if len(users) == 1 else None

    def keys(self) -> Iterator[str]:
        """Everything that there is to reconcile."""
        yield PLACE
        yield from [f"resize/{claim.workload}" for claim in self._ledger.claims.values() if is_sized(claim)]
        yield from [f"template/{key}" for key in self._waiting]
        yield from {f"templates/{template.metadata.namespace}" for template in self.templates}

    # Templates

    async def make_templates(self, key: str) -> None:
        """Make the templates of a pod that are missing."""
        pending = self._waiting.get(key)
        if pending is None:
            return
        spec, meta = pending.pod.spec, pending.pod.metadata
        named = {use.resource_claim_template_name for use in spec.resource_claims}
        for devices in claims_made(meta.annotations).values():
            name = template_name(devices)
            if name in named and self.templates.get(f"{meta.namespace}/{name}") is None:
                asked = {"spec": {"devices": msgspec.to_builtins(devices)}}
                with suppress(AlreadyExists):
                    body = {"metadata": {"name": name, "labels": LABELS}, "spec": asked}
                    await self._api.create(TEMPLATES, body, namespace=meta.namespace)

    async def remove_templates(self, namespace: str) -> None:
        """Remove the templates of a namespace that none of its pods names."""
        pods = [pod for pod in self._pods if pod.metadata.namespace == namespace]
        named = {use.resource_claim_template_name for pod in pods for use in pod.spec.resource_claims}
        for meta in [template.metadata for template in self.templates]:
            if meta.namespace == namespace and meta.name not in named and self._leads():
                await self._api.delete(TEMPLATES, meta.name, namespace=namespace, uid=meta.uid)

    # Placement

    async def place(self) -> float | None:
        """Decide for all pods that wait, the most important first; returns the seconds until that is tried again."""
        now_s, late = self.clock.monotonic_s(), 0
        placed: dict[str, list[Pod]] = {}  # those that are not bound yet have their CPU and memory too
        waiting, known = list(self._waiting.values()), self._ledger.claims
        for pending in waiting:
            pod = pending.pod
            made = {use.name: use.resource_claim_name for use in pod.status.resource_claim_statuses}
            names = [use.resource_claim_name or made.get(use.name, "") for use in pod.spec.resource_claims]
            keys = [f"{pod.metadata.namespace}/{name}" for name in names]
            pending.claims = [known[key] for key in keys if key in known]
            if at := next(filter(None, map(self._node_of, pending.claims)), ""):
                placed.setdefault(at, []).append(_on(at, pod))
        used = {claim.metadata.uid for pending in waiting for claim in pending.claims}
        await self._take_back([c for c in known.values() if is_placed(c) and c.metadata.uid not in used])
        waiting.sort(key=lambda one: (-one.pod.spec.priority, one.pod.metadata.creation_timestamp or ""))
        together: dict[str, list[_PendingPod]] = {}
        for pending in waiting:
            spec, claims = pending.pod.spec, pending.claims
            gated = any(gate.name != GATE for gate in spec.scheduling_gates)  # its GPUs would be held meanwhile
            if len(claims) == len(spec.resource_claims) and any(map(is_placed, claims)) and not gated:
                together.setdefault(pending.group or pending.pod.metadata.uid, []).append(pending)
        for group, members in together.items():
            await asyncio.sleep(0)
            needed, native = 0, group_of(members[0].pod)
            try:
                if native:
                    needed = await self._native.needed(native) or len(members)
                elif members[0].group:
                    needed = await self._held.needed(group)
                if not self._leads():
                    return None
                late += await self._place_together(group, members, needed, placed, now_s)
            except KubeError as error:  # the others do not wait for it
                log.warning("pod %s is not placed yet: %s", members[0].pod.metadata.key, error)
                late += len(members)
        return max(AGAIN_S, late / TRIES_PER_S) if late else None

    async def _place_together(
        self, group: str, members: list[_PendingPod], needed: int, placed: dict[str, list[Pod]], now_s: float
    ) -> int:
        """Place these pods, of a group as many as it needs at once or none; returns how many wait.

        Raises:
            KubeError: the API server does not take it now.
        """
        waiting = [one for one in members if any(is_placed(claim) and not self._node_of(claim) for claim in one.claims)]
        bound = [pod for pod in self._held.pods.naming(group) if pod.spec.node_name and pod.status.phase != "Failed"]
        least = needed - len(bound) - (len(members) - len(waiting))
        given: list[tuple[_PendingPod, list[tuple[ResourceClaim, Allocation]]]] = []
        reasons: list[tuple[_PendingPod, str]] = []
        for pending in waiting if least <= len(waiting) else ():
            made, why = self._decide(pending, placed, now_s, alone=least <= 1)
            if made:
                given.append((pending, made))
                placed.setdefault(made[0][1].node, []).append(_on(made[0][1].node, pending.pod))
            else:
                reasons.append((pending, why))
        if len(given) < least:
            for _, made in given:
                placed[made[0][1].node].pop()
                for allocation in [one for _, one in made if not one.in_doubt]:
                    self._ledger.forget(allocation)
            why = f"{needed} pods of its group are needed at once, {len(bound) + len(members)} are there"
            if reasons:
                why = f"{len(given)} of {len(waiting)} pods of the group have room now; {reasons[0][1]}"
            reasons = [(pending, why) for pending in waiting]
            if not bound:
                await self._take_back(claim for one in members for claim in one.claims if is_placed(claim))
        for pending, why in reasons:
            await self._report(pending, why, now_s)
        if len(given) < least:
            return len(waiting)
        for claim, allocation in [pair for _, made in given for pair in made]:
            await self._write(claim, allocation)
        ready = [one for one in members if one not in waiting] + [pending for pending, _ in given]
        return len(reasons) + sum([not await self._open(pending, now_s) for pending in ready])

    def _node_of(self, claim: ResourceClaim) -> str:
        """Where a claim is allocated; empty where it is not."""
        if claim.ours:
            return claim.ours[0].pool
        confirmed = [a.node for a in self._ledger.allocations.get(claim.metadata.uid, []) if a.confirmed]
        return next(iter(confirmed), "")

    def _decide(
        self,
        pending: _PendingPod,
        placed: Mapping[str, list[Pod]],
        now_s: float,
        *,
        alone: bool,
    ) -> tuple[list[tuple[ResourceClaim, Allocation]], str]:
        """Reserve the claims of a pod that are not allocated, on one node; or why none can take them.

        `placed` are the pods, by node, that are not bound yet; for one that is `alone` others may be evicted.
        """
        ledger, pod, claims = self._ledger, pending.pod, pending.claims
        missing = [claim for claim in claims if is_placed(claim) and not self._node_of(claim)]
        asks: list[PodAsk] = []
        for claim in missing:
            try:
                ask = claims_ask([claim])
            except UserError as error:
                return [], f"claim {claim.metadata.name}: {error}"
            if ask is None or ask.notes:
                return [], f"claim {claim.metadata.name} cannot be placed: {'; '.join(ask.notes) if ask else 'no GPU'}"
            asks.append(replace(ask, key=claim.workload, uid=claim.metadata.uid))
        cluster, first = ledger.cluster, asks[0]
        held = {a.node for ask in asks for a in ledger.allocations.get(ask.uid, [])}
        fixed = held | set(filter(None, map(self._node_of, claims)))
        values = ledger.decider.scores(first.units(ledger.known)[0].ask, first.namespace)
        fitting = np.flatnonzero(values != NEVER)
        ranked = fitting[np.lexsort((cluster.rank[fitting], -values[fitting]))]
        names = [cluster.spec(number).name for number in ranked.tolist()]
        pending.refused = {node: until_s for node, until_s in pending.refused.items() if until_s > now_s}
        reasons = Counter[str]()
        for name in sorted(fixed) if fixed else names[:NODES_TRIED]:
            node = self._nodes.get(name)
            if node is None or name in pending.refused:
                reasons["did not take the pod a moment ago"] += 1
            elif self.slices.get(slice_name(name, "devices")) is None:
                reasons["serves no claims (aliquot node --claims)"] += 1
            elif why := barred(pod, [node], [*self._held.pods.naming(name), *placed.get(name, ())], [name]).get(name):
                reasons[why] += 1
            else:
                made: list[tuple[ResourceClaim, Allocation]] = []
                try:
                    for claim, ask in zip(missing, asks, strict=True):
                        made.append((claim, ledger.allocate(ask, name, now_s)))
                    return made, ""
                except (NodeFull, UserError) as error:
                    reasons[str(error)] += 1
                    for allocation in [one for _, one in made if not one.in_doubt]:
                        ledger.forget(allocation)
        every = [spec.name for spec in cluster.nodes]
        judged = verdicts(ledger, first, every)
        if alone and len(asks) == 1 and judged.failed and not reasons:
            self._on_waiting(pod, first, list(judged.failed))
        reasons.update([*judged.failed.values(), *judged.unresolvable.values()])
        summary = "; ".join(f"{count} {why}" for why, count in reasons.most_common(8))
        return [], f"0/{len(every)} nodes with GPUs can take it: {summary}"

    async def _write(self, claim: ResourceClaim, allocation: Allocation) -> None:
        """Write the allocation into the claim, or find out what it has instead.

        Raises:
            KubeError: it is not written, or not known to be; then it stays reserved until that is known.
        """
        results: list[dict[str, Any]] = []
        cluster = self._ledger.cluster
        for request in claim.spec.devices.requests:
            several = f"{claim.called}/{request.name}"
            given = allocation.plan.containers.get(several) or allocation.plan.containers[claim.called]
            for piece in given.slices:
                size_mib = int(cluster.size_mib.item(*cluster.uuids[piece.gpu]))
                whole = piece.request_milli == MILLI and piece.memory_mib == size_mib
                device = device_name(piece.gpu, shared=not whole)
                results.append({"request": request.name, "driver": DRIVER, "pool": allocation.node, "device": device})
                if not whole:
                    memory = format_mib_quantity(piece.memory_mib)
                    consumed = {COMPUTE: str(-(-piece.request_milli // 10)), MEMORY: memory}
                    results[-1] |= {"shareID": str(uuid.uuid4()), "consumedCapacity": consumed}
        config = [{"source": "FromClaim", **msgspec.to_builtins(one)} for one in claim.spec.devices.config]
        here = {"key": "metadata.name", "operator": "In", "values": [allocation.node]}
        allocated = {
            "allocationTimestamp": seconds_time(self.clock.wall()),
            "devices": {"results": results, "config": config},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        }
        meta = claim.metadata
        place = {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid}
        allocation.in_doubt = True
        try:
            async with asyncio.timeout(POST_S):
                guard = {"metadata": {**place, "finalizers": [FINALIZER]}}
                guarded = await self._api.apply(RESOURCE_CLAIMS, guard, manager=MANAGER)
                now = await self._patch_allocation(guarded, allocated)
        except TimeoutError:
            raise Unreachable(f"claim {meta.key}: no answer within {POST_S:g} s", may_have_happened=True) from None
        except (Unreachable, Busy):
            raise
        except KubeError as error:
            found = await self._api.find(RESOURCE_CLAIMS, meta.name, namespace=meta.namespace)
            if found is None or found.metadata.uid != meta.uid or not found.ours:
                self._ledger.forget(allocation)
                raise
            log.warning("claim %s has another allocation: %s", meta.key, error)
            now = found
        if not self.claims.has_seen(now.metadata.resource_version):  # else kube-scheduler may have given it back by now
            self._ledger.claim_changed(Change("modified", now, claim))
        log.info("claim %s is placed on node %s", meta.key, allocation.node)

    async def _patch_allocation(self, claim: ResourceClaim, allocation: Mapping[str, Any] | None) -> ResourceClaim:
        """Write or take back the allocation of a claim as it was read, and of no other version of it."""
        meta = claim.metadata
        fixed = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        body = {"metadata": fixed, "status": {"allocation": allocation}}
        where = {"namespace": meta.namespace, "sub": "status"}
        return await self._api.patch(RESOURCE_CLAIMS, meta.name, body, **where, repeat=False)

    async def _take_back(self, claims: Iterable[ResourceClaim]) -> None:
        """Take back what no pod uses, of those claims that are reserved for none.

        Their controller does so only once a pod had them. Where one gets them meanwhile, the write is refused.
        """
        for claim in claims:
            if claim.ours and not claim.status.reserved_for and self._leads():
                with suppress(KubeError):
                    await self._patch_allocation(claim, None)

    async def _open(self, pending: _PendingPod, now_s: float) -> bool:
        """Let kube-scheduler have the pod; after a minute in which it did not bind it, take the allocations back.

        False while the pod may have to be placed elsewhere.
        """
        pod, meta = pending.pod, pending.pod.metadata
        if pod.spec.scheduling_gates:
            body = {"metadata": {"uid": meta.uid}, "spec": {"schedulingGates": None}}  # gates are never added later
            await self._api.patch(PODS, meta.name, body, namespace=meta.namespace)
            return True
        pending.placed_s = pending.placed_s or now_s
        stuck = any(c.type == "PodScheduled" and c.reason == "Unschedulable" for c in pod.status.conditions)
        if not stuck or now_s - pending.placed_s < REFUSED_S:
            return False
        pending.placed_s = 0.0
        await self._take_back(filter(is_placed, pending.claims))
        return False

    async def _report(self, pending: _PendingPod, why: str, now_s: float) -> None:
        """An event that says why a pod waits, where that has changed."""
        if why == pending.message or now_s - pending.reported_s < EVENT_S:
            return
        pending.message, pending.reported_s, meta = why, now_s, pending.pod.metadata
        moment = seconds_time(self.clock.wall())
        subject = ObjectReference("v1", "Pod", meta.name, meta.namespace, meta.uid)
        event = Event(
            Meta(name=f"{meta.name[:200]}.{uuid.uuid4().hex[:16]}"), involved_object=subject, reason="FailedPlacement",
            message=why[:1000], type="Warning", count=1, first_timestamp=moment, last_timestamp=moment,
            reporting_component=MANAGER,
        )  # fmt: skip
        try:
            await self._api.create(EVENTS, event, namespace=meta.namespace)
        except KubeError as error:
            log.warning("pod %s waits: %s; the event is lost: %s", meta.key, why, error)


def is_sized(claim: ResourceClaim) -> bool:
    """Whether it is allocated and its annotations say a size."""
    return bool(claim.ours) and not claim.metadata.annotations.keys().isdisjoint((*SIZES, PLAN))


def is_placed(claim: ResourceClaim) -> bool:
    """Whether Aliquot allocates it."""
    exact = [request.exactly for request in claim.spec.devices.requests]
    return any(one is not None and one.device_class_name == PLACED_CLASS for one in exact)


def _on(node: str, pod: Pod) -> Pod:
    """The pod as it will be once it is bound there."""
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))
