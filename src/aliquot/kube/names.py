"""Every name that Aliquot writes into Kubernetes objects, in one place.

Resources are integers on containers; annotations are on pods, and a suffix `.<container>` narrows one to a container.
"""

from __future__ import annotations

import re
from typing import Final

from aliquot.model.sharepod import MEMORY_LIMIT

GROUP: Final = "aliquot.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
PREFIX: Final = f"{GROUP}/"

GPU_PERCENT: Final = f"{GROUP}/gpu-percent"
"""Resource: the guaranteed request in hundredths of a GPU; 250 = two whole GPUs and half of a third."""

GPU_MEMORY: Final = f"{GROUP}/gpu-memory"
"""Resource: bytes of the shared device's memory, as a Kubernetes quantity. The annotation of this name says the same,
and is what a pod that runs is resized by."""

GPU_REQUEST: Final = f"{GROUP}/gpu-request"
"""Annotation: the exact request as a fraction, `0.333`; the resource is then its hundredths, rounded down. Once the pod
has its plan the annotation may say another request, and the pod is resized."""

GPU_LIMIT: Final = f"{GROUP}/gpu-limit"
"""Annotation: the most it may use while others are idle, as `0.6`; all of its GPUs without it."""

GPU_MEMORY_PART: Final = f"{GROUP}/gpu-memory-percent"
"""Annotation: memory as a part of whatever device it falls on; the resource can only say bytes."""

GPU_MEMORY_LIMIT: Final = MEMORY_LIMIT
"""Annotation: beyond its memory, which is guaranteed, what is free of its GPU is lent to it up to this, as `30Gi`."""

GPU_PARTS: Final = f"{GROUP}/gpu-parts"
"""Annotation: divide the request evenly over so many GPUs."""

GPU_MODEL: Final = f"{GROUP}/gpu-model"
"""Annotation: only GPUs of this model, or of one of these: `V100`, `A100|H100`."""

GPU_MODEL_NOT: Final = f"{GROUP}/gpu-model-not"
"""Annotation: no GPUs of these models."""

GPU_MODELS_MIXED: Final = f"{GROUP}/gpu-models-mixed"
"""Annotation: `true` where the GPUs of one container may be of different models; `false` without it."""

GPU_UUID: Final = f"{GROUP}/gpu-uuid"
"""Annotation: this GPU, as NVML names it, or one of these; `!GPU-...` for one that it may not have."""

GPU_ID: Final = f"{GROUP}/gpuid"
"""Annotation: a named vGPU; pods that name the same one share its GPU."""

AFFINITY: Final = f"{GROUP}/affinity"
"""Annotation: on the GPU whose tenants carry this label; the first one gives it to its GPU."""

ANTI_AFFINITY: Final = f"{GROUP}/anti-affinity"
"""Annotation: on no GPU whose tenants carry this label."""

EXCLUSION: Final = f"{GROUP}/exclusion"
"""Annotation: only on a GPU whose tenants all carry this label; other tenants are kept off it."""

CPU_BIND: Final = f"{GROUP}/cpu-bind"
"""Annotation: number of CPU cores near the GPU; the plan then lists them."""

ENFORCE: Final = f"{GROUP}/enforce"
"""Annotation: what is enforced: `never` (the bare driver), `memory` or `all`; whole GPUs may have any of them."""

WAKE: Final = f"{GROUP}/wake"
"""Annotation: when it wakes within its request, its first kernel starts in this time: `5ms`, `1s`."""

PLAN: Final = f"{GROUP}/plan"
"""Annotation: the decision as JSON, written with the pod's node in one step, and again by the scheduler alone where the
pod is resized."""

PLAN_APPLIED: Final = f"{GROUP}/plan-applied"
"""Annotation: the generation of the plan that the pod's node has applied, and the memory that is yet to be freed, as
JSON; written by the node's agent, and what the scheduler gives others by."""

RESIZE: Final = f"{GROUP}/resize"
"""Annotation: `PodResizePending: REASON: why` or `PodResizeInProgress` while the pod does not have the size that its
annotations say; for people and commands."""

PENDING: Final = "PodResizePending"
IN_PROGRESS: Final = "PodResizeInProgress"
"""Kubernetes' words for a resize that is not begun, `Deferred` or `Infeasible`, and for one that is not ended."""

PLAN_STATUS: Final = f"{GROUP}/plan-status"
"""Annotation: the outcome of the plan on the node, written by its agent for people and commands; nothing acts on it."""

TRACEPARENT: Final = f"{GROUP}/traceparent"
"""Annotation: W3C trace context. Its author may write one, in which the pod's trace is continued; where tracing is on,
the scheduler writes that of the pod's own span with its plan."""

GPUS: Final = f"{GROUP}/gpus"
"""Annotation on nodes: the devices the node has, written by its agent."""

GPU_HEALTHY: Final = f"{GROUP}/gpu-healthy"
"""Annotation on nodes: these GPUs (UUIDs, or `all`) are healthy again; the node's agent removes it."""

GPU_KERNELS: Final = f"{GROUP}/gpu-kernels"
"""Annotation on nodes: the kernel lengths of each GPU's tenants, and the turn policy, written by its agent."""

DIALECT: Final = f"{GROUP}/dialect"
"""Annotation on pods: the project in whose dialect the pod was written, so that its tools find their annotations."""

SHAREPOD_GENERATION: Final = f"{GROUP}/sharepod-generation"
"""Annotation on the pods of SharePods: the generation of the SharePod that the pod was made of."""

SHAREPOD_SPEC: Final = f"{GROUP}/sharepod-spec"
"""Annotation on the pods of SharePods: a digest of what the SharePod asked for then, which another spelling of the same
amounts leaves as it is."""

WORKLOAD: Final = f"{GROUP}/workload"
"""Annotation on the pods of a Kueue Workload: its uid, under which the scheduler holds shares for them until they are
placed. Kueue writes it, as the admission check `aliquot.dev/fits` tells it to."""

HOLDS: Final = f"{GROUP}/holds"
"""Annotation on holder pods: the UUID of the GPU that the stock plugin gave them, written by the node's agent."""

VGPU: Final = f"{GROUP}/vgpu"
"""Label on holder pods: the vGPU they hold a GPU for."""

WEBHOOK: Final = f"{GROUP}/webhook"
"""Label on namespaces and pods: `ignore` keeps the webhook from rewriting them, but not from refusing forged plans."""

CLAIMS: Final = f"{GROUP}/claims"
"""Label on namespaces: `share` or `placed` has the webhook turn what pods ask of GPUs into claims of that class.
Annotation on these pods: what their claims ask for, as JSON, by the pod's names for them."""

NODE: Final = f"{GROUP}/node"
"""Label on claims whose share was resized: their node, whose agent follows them by it."""

GATE: Final = f"{GROUP}/place"
"""Scheduling gate: kube-scheduler leaves the pod alone until its claims have their devices."""

POOL: Final = f"{GROUP}/pool"
"""Label on vGPUs that Aliquot made, and may therefore delete: `automatic`, or `named` by a SharePod's gpuID."""

SIZES: Final = (GPU_REQUEST, GPU_LIMIT, GPU_MEMORY, GPU_MEMORY_PART, GPU_MEMORY_LIMIT)
"""The annotations by which a pod that runs is resized."""

ASK_ANNOTATIONS: Final = (
    *SIZES,
    GPU_PARTS,
    GPU_MODEL,
    GPU_MODEL_NOT,
    GPU_MODELS_MIXED,
    GPU_UUID,
    GPU_ID,
    AFFINITY,
    ANTI_AFFINITY,
    EXCLUSION,
    CPU_BIND,
    ENFORCE,
    WAKE,
)
"""What a pod's author may write; the other annotations of the group are written by Aliquot."""

RESOURCES: Final = (GPU_PERCENT, GPU_MEMORY)

_NO_LABEL: Final = re.compile(r"[^A-Za-z0-9._-]+")
LABEL_LENGTH: Final = 63


def label_value(text: str) -> str:
    """A text as the value of a label."""
    return _NO_LABEL.sub("-", text)[:LABEL_LENGTH].strip("-._")
