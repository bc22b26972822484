"""What the operator writes into statuses: of a SharePod, from its pod only, and of a quota, from what is held."""

from __future__ import annotations

import contextlib
import datetime
import re
from typing import Any, TypeVar

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
from aliquot.kube.quotas import bound
from aliquot.kube.sharepods import BadTemplate, spec_digest
from aliquot.model.quantities import BadQuantity, format_mib, format_milli
from aliquot.model.sharepod import gpu_request
from aliquot.placement.quota import Quota, Usage

S = TypeVar("S", SharePodStatus, VGPUStatus, GPUQuotaStatus)
_MESSAGE_MOST = 1024


def waiting(reason: str, message: str, *, gpu_id: str = "", node: str = "") -> SharePodStatus:
    """A SharePod that has no GPU yet."""
    return SharePodStatus(
        "Pending",
        node,
        gpu_id,
        conditions=[
            Condition("Scheduled", "False", reason, message),
            Condition("Ready", "False", "NotScheduled"),
        ],
    )


def lost(sharepod: SharePod, message: str) -> SharePodStatus:
    """A SharePod whose pod was deleted."""
    status = sharepod.status
    return SharePodStatus(
        "Failed",
        status.node_name,
        status.gpu_id,
        status.gpu_uuid,
        status.pod_name,
        conditions=[
            Condition("Scheduled", str(bool(status.node_name)), "PodGone", message),
            Condition("Ready", "False", "PodGone", message),
        ],
    )


def generation_of(pod: Pod, sharepod: SharePod) -> int:
    """The latest generation of the SharePod that asks for what this pod was made of, by its annotations; 0 for none."""
    text = pod.metadata.annotations.get(names.SHAREPOD_GENERATION, "")
    generation = int(text) if re.fullmatch(r"[0-9]{1,18}", text) else 0
    if generation in (0, sharepod.metadata.generation):
        return generation
    with contextlib.suppress(BadTemplate):
        if pod.metadata.annotations.get(names.SHAREPOD_SPEC) == spec_digest(sharepod):
            return sharepod.metadata.generation
    return generation


def of_pod(pod: Pod, plan: PodPlan | None, gpu_id: str) -> SharePodStatus:
    """A SharePod by its pod; `gpu_id` names the vGPUs of the plan, before that the one that it waits for."""
    name, node = pod.metadata.name, pod.spec.node_name
    if not node:
        state = _condition(pod, "PodScheduled") or Condition()
        message = state.message or "the scheduler has not considered the pod yet"
        made = waiting(state.reason or "Waiting", message, gpu_id=gpu_id)
        made.pod_name = name
        return made
    phases: dict[str, SharePodPhase] = {"Running": "Running", "Succeeded": "Succeeded", "Failed": "Failed"}
    phase = "Terminating" if pod.metadata.deletion_timestamp else phases.get(pod.status.phase, "Scheduled")
    ready = _condition(pod, "Ready") or Condition()
    holds = ready.status == "True"
    # Before kubelet says so, too: that it has looked at the pod is no news of its own.
    starting = "ContainersNotReady" if phase == "Scheduled" else pod.status.phase
    verdict = Condition("Ready", str(holds), "PodReady" if holds else ready.reason or starting)
    made = SharePodStatus(phase, node, pod_name=name, conditions=[verdict])
    if plan is None:
        unplanned = "the pod is on a node without a plan: it was bound without Aliquot, and it has no GPU"
        made.conditions.insert(0, Condition("Scheduled", "False", "NoPlan", unplanned))
        return made
    made.gpu_id, made.gpu_uuid = gpu_id, ",".join(piece.gpu for piece in plan.slices)
    applied = read_applied(pod.metadata.annotations)
    if held_mib := sum(applied.pending_mib.values()):
        made.pending = format_mib(held_mib)
    amounts = [(piece.request_milli, piece.limit_milli, piece.memory_mib) for piece in plan.in_force(applied)]
    request_milli, limit_milli, mib = (sum(column) for column in zip(*amounts, strict=True)) if amounts else (0, 0, 0)
    made.actual = _sizes(request_milli, limit_milli, format_mib(mib))
    resize = _resize(pod.metadata.annotations.get(names.RESIZE, ""))
    made.conditions = [Condition("Scheduled", "True", "Bound"), verdict, *([resize] if resize else [])]
    return made


def _resize(said: str) -> Condition | None:
    """The condition that a pod's annotation says: why it does not have the size that it is to have, if it does not."""
    kind, _, rest = said.partition(": ")
    if kind == names.IN_PROGRESS:
        return Condition(kind, "True", "FreeingMemory" if rest else "Applying", rest)
    reason, _, message = rest.partition(": ")
    return Condition(names.PENDING, "True", reason, message) if kind == names.PENDING else None


def _sizes(request_milli: int, limit_milli: int, memory: str) -> dict[str, str]:
    return {"request": format_milli(request_milli), "limit": format_milli(limit_milli), "memory": memory}


def _condition(pod: Pod, kind: str) -> Condition | None:
    return next((c for c in pod.status.conditions if c.type == kind), None)


def status_patch(before: S, made: S, now: datetime.datetime, generation: int) -> dict[str, Any] | None:
    """The merge patch that makes a status of this one, whose conditions have no times yet; None if it is up to date.

    The time of a condition moves only when its status does.
    """
    conditions = {condition.type: condition for condition in before.conditions}
    for condition in made.conditions:
        old = conditions.get(condition.type)
        same = old is not None and old.status == condition.status
        condition.last_transition_time = old.last_transition_time if old is not None and same else seconds_time(now)
        condition.reason, condition.message = condition.reason or "Unknown", condition.message[:_MESSAGE_MOST]
        condition.observed_generation = generation
    made.observed_generation = generation
    if made == before:
        return None
    values = ((field.encode_name, getattr(made, field.name)) for field in msgspec.structs.fields(made))
    return {"status": {name: msgspec.to_builtins(value) if value not in ("", {}) else None for name, value in values}}


def body(sharepod: SharePod, state: SharePodStatus, now: datetime.datetime) -> dict[str, Any] | None:
    """The merge patch of the status; None if it is up to date."""
    meta = sharepod.metadata
    generation = meta.generation if meta.deletion_timestamp else state.observed_generation or meta.generation
    if generation != meta.generation:
        not_in_force = (
            f"what was changed since generation {generation} is not in force; delete the SharePod and apply it again"
        )
        scheduled = state.conditions[0]
        scheduled.message = "; ".join(filter(None, (scheduled.message, not_in_force)))
    with contextlib.suppress(BadQuantity):
        request = gpu_request(sharepod.spec.gpu)
        memory = "" if request.memory is None else str(request.memory)
        state.desired = _sizes(request.request_milli, request.ceiling_milli, memory) if state.actual else {}
    return status_patch(sharepod.status, state, now, generation)


def quota_body(quota: GPUQuota, usage: Usage, now: Any) -> dict[str, Any] | None:
    """The merge patch of the status; None if it is up to date."""
    used, lines, over = list[ModelUse](), list[str](), list[str]()
    for limit in quota.spec.limits:
        milli, mib = Quota("", limit.model).counted(usage)
        used.append(ModelUse(limit.model, format_milli(milli), format_mib(mib)))
        try:
            most = bound(limit, cohort=quota.spec.cohort)
        except BadQuantity as error:
            over.append(str(error))
            continue
        max_milli, max_mib = most.milli, most.memory_mib
        parts = [f"{format_milli(milli)}/{format_milli(max_milli)} GPU"] if max_milli is not None else []
        parts += [f"{format_mib(mib)}/{format_mib(max_mib)}"] if max_mib is not None else []
        lines.append(f"{limit.model or 'all'}: {', '.join(parts)}")
        if (max_milli is not None and milli > max_milli) or (max_mib is not None and mib > max_mib):
            over.append(f"{limit.model or 'all models'}: more is held than the bound; nothing is added until it ends")
    lines += [f"cohort {quota.spec.cohort}"] if quota.spec.cohort else []
    lines += [f"no {', '.join(quota.spec.forbid)}"] if quota.spec.forbid else []
    verdict = Condition("Exceeded", str(bool(over)), "Over" if over else "Within", "; ".join(over))
    made = GPUQuotaStatus(used, "; ".join(lines), conditions=[verdict])
    return status_patch(quota.status, made, now, quota.metadata.generation)
