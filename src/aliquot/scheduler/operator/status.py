"""What the operator writes into statuses: of a SharePod, from its pod only, and of a quota, from what is held."""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from aliquot.kube import names
from aliquot.kube.clock import seconds_time
from aliquot.kube.custom import (
    GPUQuota,
    GPUQuotaStatus,
    ModelUse,
    SharePod,
    SharePodPhase,
    SharePodStatus,
    VGPUStatus,
)
from aliquot.kube.objects import Condition, Pod
from aliquot.kube.plan import PodPlan, read_applied
from aliquot.kube.quotas import Usage, bound
from aliquot.kube.sharepods import BadTemplate, spec_digest
from aliquot.model.quantities import BadQuantity, format_mib, format_milli
from aliquot.model.sharepod import gpu_request
from aliquot.placement.quota import Quota

_MESSAGE_MOST = 1024


@dataclass(frozen=True)
class ConditionState:
    """One condition: whether it holds, the reason in one word, and a sentence."""

    type: str
    holds: bool | None
    reason: str
    message: str = ""


@dataclass(frozen=True)
class SharePodState:
    """The state of a SharePod."""

    phase: SharePodPhase
    scheduled: ConditionState
    ready: ConditionState
    node: str = ""
    gpu_id: str = ""
    uuid: str = ""
    pod: str = ""
    generation: int | None = None
    """The generation that its pod was made of; None without a pod."""
    resize: ConditionState | None = None
    """Why its pod does not have the size that it is to have, if it does not."""
    actual: Mapping[str, str] = field(default_factory=dict)
    pending: str = ""


def waiting(reason: str, message: str, *, pod: str = "", gpu_id: str = "", node: str = "") -> SharePodState:
    """A SharePod that has no GPU yet."""
    return SharePodState(
        "Pending",
        ConditionState("Scheduled", False, reason, message),
        ConditionState("Ready", False, "NotScheduled"),
        node=node,
        gpu_id=gpu_id,
        pod=pod,
    )


def lost(sharepod: SharePod, message: str) -> SharePodState:
    """A SharePod whose pod was deleted."""
    status = sharepod.status
    return SharePodState(
        "Failed",
        ConditionState("Scheduled", bool(status.node_name), "PodGone", message),
        ConditionState("Ready", False, "PodGone", message),
        node=status.node_name,
        gpu_id=status.gpu_id,
        uuid=status.gpu_uuid,
        pod=status.pod_name,
    )


def generation_of(pod: Pod, sharepod: SharePod) -> int | None:
    """The latest generation of the SharePod that asks for what this pod was made of, as its annotations say."""
    text = pod.metadata.annotations.get(names.SHAREPOD_GENERATION, "")
    generation = int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None
    if generation in (None, sharepod.metadata.generation):
        return generation
    with contextlib.suppress(BadTemplate):
        if pod.metadata.annotations.get(names.SHAREPOD_SPEC) == spec_digest(sharepod):
            return sharepod.metadata.generation
    return generation


def of_pod(pod: Pod, plan: PodPlan | None, gpu_id: str) -> SharePodState:
    """A SharePod by its pod; `gpu_id` names the vGPUs of the plan, before that the one that it waits for."""
    name, node = pod.metadata.name, pod.spec.node_name
    if not node:
        state = _condition(pod, "PodScheduled")
        message = state.message if state and state.message else "the scheduler has not considered the pod yet"
        return waiting(state.reason if state and state.reason else "Waiting", message, pod=name, gpu_id=gpu_id)
    uuids = ",".join(piece.gpu for piece in plan.slices) if plan else ""
    phases: dict[str, SharePodPhase] = {"Running": "Running", "Succeeded": "Succeeded", "Failed": "Failed"}
    phase = "Terminating" if pod.metadata.deletion_timestamp else phases.get(pod.status.phase, "Scheduled")
    ready = _condition(pod, "Ready")
    holds = ready is not None and ready.status == "True"
    # Before kubelet says so, too: that it has looked at the pod is no news of its own.
    starting = "ContainersNotReady" if phase == "Scheduled" else pod.status.phase
    verdict = ConditionState("Ready", holds, "PodReady" if holds else (ready.reason if ready else "") or starting)
    if plan is None:
        unplanned = "the pod is on a node without a plan: it was bound without Aliquot, and it has no GPU"
        return SharePodState(
            phase, ConditionState("Scheduled", False, "NoPlan", unplanned), verdict, node, "", "", name
        )
    bound, applied = ConditionState("Scheduled", True, "Bound"), read_applied(pod.metadata.annotations)
    held_mib = sum(applied.pending_mib.values())
    amounts = [(piece.request_milli, piece.limit_milli, piece.memory_mib) for piece in plan.in_force(applied)]
    request_milli, limit_milli, mib = (sum(column) for column in zip(*amounts, strict=True)) if amounts else (0, 0, 0)
    return SharePodState(
        phase, bound, verdict, node, gpu_id, uuids, name,
        resize=_resize(pod.metadata.annotations.get(names.RESIZE, "")),
        actual=_sizes(request_milli, limit_milli, format_mib(mib)),
        pending=format_mib(held_mib) if held_mib else "",
    )  # fmt: skip


def _resize(said: str) -> ConditionState | None:
    """The condition that a pod's annotation says."""
    kind, _, rest = said.partition(": ")
    if kind == names.IN_PROGRESS:
        return ConditionState(kind, True, "FreeingMemory" if rest else "Applying", rest)
    reason, _, message = rest.partition(": ")
    return ConditionState(names.PENDING, True, reason, message) if kind == names.PENDING else None


def _sizes(request_milli: int, limit_milli: int, memory: str) -> dict[str, str]:
    return {"request": format_milli(request_milli), "limit": format_milli(limit_milli), "memory": memory}


def _condition(pod: Pod, kind: str) -> Condition | None:
    return next((c for c in pod.status.conditions if c.type == kind), None)


def status_patch(
    status: SharePodStatus | VGPUStatus | GPUQuotaStatus,
    fields: dict[str, Any],
    verdicts: Iterable[ConditionState],
    now: datetime.datetime,
    generation: int,
) -> dict[str, Any] | None:
    """The merge patch of a status with these fields and conditions; None if every one of them is up to date.

    The time of a condition moves only when its status does.
    """
    before = {condition.type: condition for condition in status.conditions}
    conditions = []
    for verdict in verdicts:
        holds = "Unknown" if verdict.holds is None else "True" if verdict.holds else "False"
        old = before.get(verdict.type)
        since = old.last_transition_time if old is not None and old.status == holds else seconds_time(now)
        reason, message = verdict.reason or "Unknown", verdict.message[:_MESSAGE_MOST]
        conditions.append(Condition(verdict.type, holds, reason, message, since, generation))
    made = {**fields, "observedGeneration": generation, "conditions": msgspec.to_builtins(conditions)}
    had = msgspec.to_builtins(status)
    same = all((had.get(key) or None) == (value or None) for key, value in made.items())
    return None if same else {"status": made}


def body(sharepod: SharePod, state: SharePodState, now: datetime.datetime) -> dict[str, Any] | None:
    """The merge patch of the status; None if it is up to date."""
    meta = sharepod.metadata
    generation = meta.generation if state.generation is None or meta.deletion_timestamp else state.generation
    scheduled = state.scheduled
    if generation != meta.generation:
        not_in_force = (
            f"what was changed since generation {generation} is not in force; delete the SharePod and apply it again"
        )
        scheduled = replace(scheduled, message="; ".join(filter(None, (scheduled.message, not_in_force))))
    desired: dict[str, str] = {}
    with contextlib.suppress(BadQuantity):
        request = gpu_request(sharepod.spec.gpu)
        memory = "" if request.memory is None else str(request.memory)
        desired = _sizes(request.request_milli, request.ceiling_milli, memory)
    fields = {
        "phase": state.phase,
        "nodeName": state.node or None,
        "gpuID": state.gpu_id or None,
        "gpuUUID": state.uuid or None,
        "podName": state.pod or None,
        "desired": desired if state.actual else None,
        "actual": dict(state.actual) or None,
        "pending": state.pending or None,
    }
    verdicts = [scheduled, state.ready, *([state.resize] if state.resize else [])]
    return status_patch(sharepod.status, fields, verdicts, now, generation)


def quota_body(quota: GPUQuota, usage: Usage, now: Any) -> dict[str, Any] | None:
    """The merge patch of the status; None if it is up to date."""
    used, lines, over = [], [], []
    for limit in quota.spec.limits:
        milli, mib = Quota("", limit.model).counted(usage)
        used.append(ModelUse(limit.model, format_milli(milli), format_mib(mib)))
        try:
            most = bound(limit)
        except BadQuantity as error:
            over.append(str(error))
            continue
        max_milli, max_mib = most.milli, most.memory_mib
        parts = [f"{format_milli(milli)}/{format_milli(max_milli)} GPU"] if max_milli is not None else []
        parts += [f"{format_mib(mib)}/{format_mib(max_mib)}"] if max_mib is not None else []
        lines.append(f"{limit.model or 'all'}: {', '.join(parts)}")
        if (max_milli is not None and milli > max_milli) or (max_mib is not None and mib > max_mib):
            over.append(f"{limit.model or 'all models'}: more is held than the bound; nothing is added until it ends")
    lines += [f"no {', '.join(quota.spec.forbid)}"] if quota.spec.forbid else []
    verdict = ConditionState("Exceeded", bool(over), "Over" if over else "Within", "; ".join(over))
    fields = {"used": msgspec.to_builtins(used), "summary": "; ".join(lines)}
    return status_patch(quota.status, fields, [verdict], now, quota.metadata.generation)
