"""Aliquot's own kinds of objects in a cluster: SharePod, VGPU, GPUQuota.

`tools/gen_crds.py` generates the CRDs under deploy/crds from these types, so what the API server accepts is what is
decoded here.
"""

# ruff: noqa: RUF012 - msgspec gives each struct an empty list or mapping of its own

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from aliquot.kube.names import GROUP, VERSION
from aliquot.kube.objects import Condition, Meta, Resource, Wire
from aliquot.model.sharepod import Amount, SharePodSpec

Described = msgspec.Meta
SharePodPhase = Literal["Pending", "Scheduled", "Running", "Succeeded", "Failed", "Terminating"]
VGPUPhase = Literal["Creating", "Active", "Idle", "Deleting"]


class SharePodStatus(Wire):
    """Its state."""

    phase: Annotated[SharePodPhase | None, Described(description="Where it is in its life.")] = None
    node_name: Annotated[str, Described(description="The node it runs on.")] = ""
    gpu_id: Annotated[str, Described(description="The vGPU it is attached to.")] = msgspec.field(
        name="gpuID", default=""
    )
    gpu_uuid: Annotated[str, Described(description="The physical GPU, as NVML names it.")] = msgspec.field(
        name="gpuUUID", default=""
    )
    pod_name: Annotated[str, Described(description="The pod that runs its template.")] = ""
    desired: Annotated[dict[str, str], Described(description="Request, limit and memory of spec.gpu.")] = {}
    actual: Annotated[dict[str, str], Described(description="Those that are in force on the node.")] = {}
    pending: Annotated[str, Described(description="What its program has yet to free since a resize.")] = ""
    observed_generation: Annotated[int, Described(description="The generation of the spec that this is about.")] = 0
    conditions: Annotated[list[Condition], Described(description="Scheduled, Ready and why not.")] = []


class SharePod(Wire):
    """A pod and its part of a GPU."""

    spec: SharePodSpec[dict[str, Any]]
    metadata: Meta = msgspec.field(default_factory=Meta)
    status: SharePodStatus = msgspec.field(default_factory=SharePodStatus)


class VGPUSpec(Wire):
    """Where it is wanted."""

    node_name: Annotated[str, Described(min_length=1, max_length=253, description="The node whose GPU it is.")]
    model: Annotated[str, Described(max_length=253, description="The model it must be; any when empty.")] = ""


class Attached(Wire):
    """One SharePod or container on a vGPU."""

    tenant: Annotated[str, Described(description="namespace/pod/container.")] = ""
    request: Annotated[str, Described(description="Guaranteed part of the GPU.")] = ""
    memory: Annotated[str, Described(description="Memory of the GPU.")] = ""


class VGPUStatus(Wire):
    """Its current state."""

    phase: Annotated[VGPUPhase | None, Described(description="KubeShare 4.4: Creating, Active, Idle, Deleting.")] = None
    uuid: Annotated[str, Described(description="The physical GPU, once it is known.")] = ""
    model: Annotated[str, Described(description="The physical GPU's model.")] = ""
    memory: Annotated[str, Described(description="The physical GPU's memory.")] = ""
    requested: Annotated[str, Described(description="Sum of what is guaranteed on it.")] = ""
    attached: Annotated[list[Attached], Described(description="Who is on it.")] = []
    idle_since: Annotated[str | None, Described(description="When the last one left; RFC 3339.")] = None
    observed_generation: Annotated[int, Described(description="The generation of the spec that this is about.")] = 0
    conditions: Annotated[list[Condition], Described(description="Ready and why not.")] = []


class VGPU(Wire):
    """A GPU that has a name, so that SharePods can meet on it; its name is the gpuID."""

    spec: VGPUSpec
    metadata: Meta = msgspec.field(default_factory=Meta)
    status: VGPUStatus = msgspec.field(default_factory=VGPUStatus)


class ModelQuota(Wire):
    """The most of one model's GPUs."""

    model: Annotated[str, Described(max_length=253, description="The model; empty counts every model.")] = ""
    gpus: Annotated[Amount | None, Described(description="GPUs, as 2.5 or 2500m; without it no bound.")] = None
    memory: Annotated[Amount | None, Described(description="GPU memory, as 64Gi; without it no bound.")] = None
    nominal_gpus: Annotated[
        Amount | None,
        Described(description="With a cohort: GPUs that the namespace has back when it asks; without it as gpus."),
    ] = None
    nominal_memory: Annotated[Amount | None, Described(description="The same of GPU memory.")] = None


class GPUQuotaSpec(Wire):
    """The bounds, each on what all pods of the namespace hold at once."""

    limits: Annotated[list[ModelQuota], Described(max_length=64, description="One bound for each model.")] = []
    forbid: Annotated[
        list[Literal["affinity", "antiAffinity", "exclusion"]],
        Described(max_length=3, description="Labels that pods of the namespace may not carry."),
    ] = []
    cohort: Annotated[
        str, Described(max_length=253, description="Namespaces that lend each other what is nominal and not held.")
    ] = ""


class ModelUse(Wire, omit_defaults=False):  # the model is the list's key, so it is on the wire also where it is empty
    """What is held of one bound."""

    model: str = ""
    gpus: str = ""
    memory: str = ""


class GPUQuotaStatus(Wire):
    """The current use."""

    used: Annotated[list[ModelUse], Described(description="What is held, for each bound.")] = []
    summary: Annotated[str, Described(description="Held and bound in one line, for people.")] = ""
    observed_generation: Annotated[int, Described(description="The generation of the spec that this is about.")] = 0
    conditions: Annotated[list[Condition], Described(description="Exceeded and why.")] = []


class GPUQuota(Wire):
    """The most that a namespace may hold of the cluster's GPUs."""

    spec: GPUQuotaSpec = msgspec.field(default_factory=GPUQuotaSpec)
    metadata: Meta = msgspec.field(default_factory=Meta)
    status: GPUQuotaStatus = msgspec.field(default_factory=GPUQuotaStatus)


SHAREPODS: Final = Resource(SharePod, "SharePod", "sharepods", GROUP, VERSION)
VGPUS: Final = Resource(VGPU, "VGPU", "vgpus", GROUP, VERSION, namespaced=False)
GPUQUOTAS: Final = Resource(GPUQuota, "GPUQuota", "gpuquotas", GROUP, VERSION)
