"""SharePod: a pod and the part of a GPU it asks for, as people write it.

The same text in a cluster and on one machine. Unknown fields are errors that name their path, for a misspelt `limit`
that is silently dropped would change the promise. Fields of a pod that mean something in a cluster only (resources,
volumes, probes...) are accepted and have no effect on one machine; `ignored` lists those that were given. In a cluster
the template is whatever the API server takes for a pod, so there `SharePodSpec` holds it as it came.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import msgspec

from aliquot.model.errors import UserError
from aliquot.model.quantities import BadQuantity, Memory, format_milli, parse_memory, parse_milli
from aliquot.model.requests import RECOMMEND, BadRequest, Enforce, GpuRequest, Labels, checked, parse_word
from aliquot.model.validation import sentence, shown
from aliquot.model.wake import parse_span, parse_wake

PREFIX: Final = "aliquot.dev/"
API_VERSION: Final = "aliquot.dev/v1alpha1"
PARK_AFTER: Final = "aliquot.dev/park-after"
"""Annotation: without use of the GPU for this time, its memory goes to the host's until it is needed."""
MOVABLE: Final = "aliquot.dev/movable"
"""Annotation, "true" or "false": whether it may be taken to another GPU while it runs."""
FOLLOWS: Final = "aliquot.dev/recommend"
"""Annotation, "show", "initial" or "auto": whether its request follows what is recommended."""
MEMORY_LIMIT: Final = "aliquot.dev/gpu-memory-limit"
"""Annotation: beyond its memory, which is guaranteed, what is free of its GPU is lent to it up to this, as `30Gi`."""
_NAME: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_LABEL: Final = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
_YEAR_S: Final = 365 * 24 * 3600
Name = Annotated[str, msgspec.Meta(pattern=_NAME, max_length=253)]
Template = TypeVar("Template")
Amount = Annotated[
    str | float | int,
    msgspec.Meta(extra_json_schema={"pattern": r"^[0-9.]+ ?[A-Za-z%]*$", "minimum": 0, "maxLength": 32}),
]
Label = Annotated[str, msgspec.Meta(pattern=_LABEL, max_length=63)]
RestartPolicy = Literal["Always", "OnFailure", "Never"]
_OF_CLUSTERS: Final = ("CronJob", "DaemonSet", "Deployment", "Job", "Pod", "ReplicaSet", "StatefulSet")
PATTERNS: Final = {
    _NAME: "not a name; write lower-case letters, digits, - and ., beginning and ending with a letter or digit",
    _LABEL: "not a label; write letters, digits, -, _ and ., beginning and ending with a letter or digit",
}
_ANNOTATIONS: Final[Mapping[str, Callable[[str], object]]] = {
    PARK_AFTER: parse_span,
    MOVABLE: partial(parse_word, ("true", "false")),
    FOLLOWS: partial(parse_word, RECOMMEND),
    MEMORY_LIMIT: parse_memory,
}
"""What a SharePod's metadata may say on one machine, and what reads it."""
_KNOWN: Final = f"metadata.annotations knows {', '.join(_ANNOTATIONS)}"
_OF_CLUSTER_PODS: Final = (f"{PREFIX}cpu-bind", f"{PREFIX}traceparent")


class BadSharePod(UserError):
    """A SharePod that cannot be understood or does not make sense."""


# Fields of a pod that mean something in a cluster only are named here, so that one SharePod can be applied to a cluster
# and to one machine: there they have no effect, and a misspelt one is still an error. Source: core/v1 of 1.37.


def _of_clusters(name: str, fields: str) -> type[msgspec.Struct]:
    """A base with optional fields of these names, whatever they hold."""
    return msgspec.defstruct(name, [(field, Any, None) for field in fields.split()], kw_only=True, omit_defaults=True)


ClusterMetadata = _of_clusters(
    "ClusterMetadata",
    """
    uid generateName resourceVersion generation creationTimestamp deletionTimestamp deletionGracePeriodSeconds
    ownerReferences finalizers managedFields selfLink
    """,
)
"""Fields that an API server adds to metadata."""

ClusterPodSpec = _of_clusters(
    "ClusterPodSpec",
    """
    activeDeadlineSeconds affinity automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks
    hostAliases hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride imagePullSecrets nodeName os
    overhead preemptionPolicy priority priorityClassName readinessGates resourceClaims resources
    runtimeClassName schedulerName schedulingGates schedulingGroup securityContext serviceAccount
    serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain topologySpreadConstraints
    """,
)
"""Fields of a pod for a scheduler, a kubelet and a network."""

ClusterContainer = _of_clusters(
    "ClusterContainer",
    """
    lifecycle livenessProbe readinessProbe startupProbe resizePolicy restartPolicyRules stdin stdinOnce
    terminationMessagePath terminationMessagePolicy tty volumeDevices
    """,
)
"""Fields of a container for a kubelet and a runtime."""


def given(spec: msgspec.Struct, base: type[msgspec.Struct]) -> list[str]:
    """The API's names of the fields of `base` that were given in `spec`."""
    return [field.encode_name for field in msgspec.structs.fields(base) if getattr(spec, field.name) is not None]


class Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Base of everything people write."""


class GpuSpec(Strict, rename={"gpu_id": "gpuID", "anti_affinity": "antiAffinity", "mixed_models": "mixedModels"}):
    """The part of a GPU; fractions and sizes as text or numbers."""

    request: Annotated[
        Amount, msgspec.Meta(description="Guaranteed part of a GPU: 0.3, 30% or 300m; 2.5 is three GPUs.")
    ]
    limit: Annotated[
        Amount | None, msgspec.Meta(description="Most it may use while others are idle; without it, all of its GPUs.")
    ] = None
    memory: Annotated[
        Amount | None,
        msgspec.Meta(description="Memory of the shared GPU: 4Gi, 4096 (MiB) or 25%; without it, the part requested."),
    ] = None
    model: Annotated[
        str, msgspec.Meta(max_length=253, description="Models it may run on: V100, or several with | between them.")
    ] = ""
    mixed_models: Annotated[
        bool, msgspec.Meta(description="Whether several GPUs may be of different models; without it they are of one.")
    ] = False
    gpu_id: Annotated[Label, msgspec.Meta(description="A vGPU by name; SharePods with equal names share one GPU.")] = ""
    affinity: Annotated[Label, msgspec.Meta(description="Only beside others with this label.")] = ""
    anti_affinity: Annotated[Label, msgspec.Meta(description="Never beside others with this label.")] = ""
    exclusion: Annotated[Label, msgspec.Meta(description="Only beside others with this very label, or alone.")] = ""
    enforce: Annotated[
        Enforce | None,
        msgspec.Meta(
            description="What is enforced: never (the program has the bare driver), memory, or all. "
            "On whole GPUs never, unless memory is given; on a part of a GPU all, and nothing else is allowed."
        ),
    ] = None
    wake: Annotated[
        str,
        msgspec.Meta(
            max_length=32,
            description="When it wakes after a rest, within its request, its first kernel starts in this time, as 5ms; "
            "from 1ms to 10s. Without it, soon, and nothing is promised.",
        ),
    ] = ""


class EnvTemplate(Strict):
    """One variable."""

    name: str
    value: str = ""
    value_from: Any = None


class ContainerTemplate(Strict, ClusterContainer):  # type: ignore[misc, valid-type]
    """One program."""

    name: Name
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[EnvTemplate] = []
    env_from: Any = None
    working_dir: str = ""
    image_pull_policy: str = ""
    resources: dict[str, Any] = {}
    ports: list[dict[str, Any]] = []
    volume_mounts: list[dict[str, Any]] = []
    security_context: dict[str, Any] = {}


class TemplateSpec(Strict, ClusterPodSpec):  # type: ignore[misc, valid-type]
    """The programs and what becomes of them when they end."""

    containers: list[ContainerTemplate]
    restart_policy: RestartPolicy = "Always"
    termination_grace_period_seconds: Annotated[int, msgspec.Meta(ge=0, le=_YEAR_S)] = 30
    volumes: list[dict[str, Any]] = []
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []


class Metadata(Strict, ClusterMetadata):  # type: ignore[misc, valid-type]
    """Name, namespace, labels, annotations."""

    name: Name = ""
    namespace: Name = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class PodTemplateSpec(Strict):
    """The pod to make."""

    spec: TemplateSpec
    metadata: Metadata | None = None


class SharePodSpec(Strict, Generic[Template]):
    """The request and what runs with it."""

    gpu: GpuSpec
    template: Template
    node_name: Annotated[
        str,
        msgspec.Meta(max_length=253, description="The node, when someone else than Aliquot's scheduler chooses it."),
    ] = ""


class SharePodManifest(Strict):
    """One SharePod; `parse_sharepod` makes it from what YAML or JSON gave."""

    api_version: Literal["aliquot.dev/v1alpha1"]
    kind: Literal["SharePod"]
    metadata: Metadata
    spec: SharePodSpec[PodTemplateSpec]
    status: Any = None

    @property
    def full_name(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def request(self) -> GpuRequest:
        """The request in integers; `parse_sharepod` has seen that it makes sense."""
        notes = self.metadata.annotations
        after = notes.get(PARK_AFTER)
        return replace(
            gpu_request(self.spec.gpu),
            park_after_s=parse_span(after) if after else 0.0,
            movable=notes.get(MOVABLE) == "true",
            recommend=next((word for word in RECOMMEND if word == notes.get(FOLLOWS)), None),
            memory_limit=memory_limit_of(notes),
        )

    def resized(self, request: GpuRequest) -> SharePodManifest:
        """The same with another request, limit, memory and memory limit."""
        memory, limit, most = request.memory, request.limit_milli, request.memory_limit
        gpu = msgspec.structs.replace(
            self.spec.gpu,
            request=format_milli(request.request_milli),
            limit=None if limit is None else format_milli(limit),
            memory=memory and memory.quantity,
        )
        notes = self.metadata.annotations | ({MEMORY_LIMIT: most.quantity} if most else {})
        metadata = msgspec.structs.replace(self.metadata, annotations=notes)
        return msgspec.structs.replace(self, metadata=metadata, spec=msgspec.structs.replace(self.spec, gpu=gpu))

    @property
    def ignored(self) -> list[str]:
        """The given fields that have no effect on one machine."""
        pod = self.spec.template.spec
        found = [name for name in ("volumes", "nodeSelector", "tolerations") if getattr(pod, _snake(name))]
        found += given(pod, ClusterPodSpec)
        for name in ("resources", "ports", "volumeMounts", "securityContext"):
            found += [f"containers[].{name}" for c in pod.containers if getattr(c, _snake(name))][:1]
        return found + [
            f"containers[].{n}" for n in dict.fromkeys(n for c in pod.containers for n in given(c, ClusterContainer))
        ]


def memory_limit_of(annotations: Mapping[str, str]) -> Memory | None:
    """Up to where memory is lent, by the annotations of a SharePod or a pod; None where nothing is.

    Raises:
        BadQuantity: it is not an amount of memory.
    """
    text = annotations.get(MEMORY_LIMIT)
    return None if text is None else parse_memory(text)


def gpu_request(gpu: GpuSpec) -> GpuRequest:
    """The request in integers.

    Raises:
        BadQuantity: a field is not a quantity of its kind.
    """
    return GpuRequest(
        request_milli=parse_milli(gpu.request),
        limit_milli=None if gpu.limit is None else parse_milli(gpu.limit),
        memory=None if gpu.memory is None else parse_memory(gpu.memory),
        model=gpu.model,
        gpu_id=gpu.gpu_id,
        labels=Labels(gpu.affinity, gpu.anti_affinity, gpu.exclusion),
        enforce=gpu.enforce,
        mixed=gpu.mixed_models,
        wake_us=parse_wake(gpu.wake) if gpu.wake else 0,
    )


def check_gpu(gpu: GpuSpec, *, new: bool = False, memory_limit: Memory | None = None) -> GpuRequest:
    """The request of a SharePod, to which memory is lent up to `memory_limit`, if it makes sense.

    One that is `new` is refused memory that would not be limited; a cluster may have such SharePods already.

    Raises:
        BadSharePod: a field is not a quantity, or two contradict each other; the text names them by path.
    """
    try:
        return checked(
            replace(gpu_request(gpu), memory_limit=memory_limit),
            request_name="spec.gpu.request",
            limit_name="spec.gpu.limit",
            enforce_name="spec.gpu.enforce",
            wake_name="spec.gpu.wake",
            memory_name="spec.gpu.memory" if new else "",
            memory_limit_name=f'metadata.annotations["{MEMORY_LIMIT}"]',
        )
    except (BadQuantity, BadRequest) as error:
        where = f"{_quantity_field(gpu)} " if isinstance(error, BadQuantity) else ""
        raise BadSharePod(f"{where}{error}") from None


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda m: f"_{m[1].lower()}", name)


msgspec.json.Decoder(SharePodManifest)  # has msgspec build its types now, by one thread: see lib/decoding.py


def parse_sharepod(document: object) -> SharePodManifest:
    """A SharePod from what a YAML document gave; a status, as `aliquot get -o yaml` prints, is left out.

    Raises:
        BadSharePod: the text names the SharePod, the field by its path, and what is allowed there.
    """
    if not isinstance(document, dict):
        raise BadSharePod(f"a SharePod is a mapping with apiVersion, kind, metadata and spec, not {document!r:.40}")
    if document.get("kind") in _OF_CLUSTERS:
        raise BadSharePod(
            f'{str(document["kind"]).lower()} "{_name_of(document)}": a {document["kind"]} is for clusters; on one '
            "machine write a SharePod: apiVersion aliquot.dev/v1alpha1, kind SharePod, the GPU's part in spec.gpu, "
            "the pod's spec in spec.template.spec"
        )
    who = f'sharepod "{_name_of(document)}"'
    try:
        pod = msgspec.convert(document, SharePodManifest)
    except msgspec.ValidationError as error:
        cluster = (ClusterMetadata, ClusterPodSpec, ClusterContainer)
        text = sentence(error, document, SharePodManifest, called="a SharePod", patterns=PATTERNS, others=cluster)
        raise BadSharePod(f"{who}: {text}") from None
    pod = msgspec.structs.replace(pod, status=None)
    if not pod.metadata.name:
        raise BadSharePod(f"{who}: metadata.name is missing")
    gpu, containers = pod.spec.gpu, pod.spec.template.spec.containers
    names = [pod.metadata.name, pod.metadata.namespace, *(container.name for container in containers)]
    for text in (*names, gpu.gpu_id, gpu.affinity, gpu.anti_affinity, gpu.exclusion):
        if text.endswith("\n"):  # which the `$` of a pattern lets through
            raise BadSharePod(f"{who}: {shown(text)} ends with a line break; write it without")
    try:
        check_gpu(pod.spec.gpu, new=True)
        _check_annotations(pod)
        checked(
            pod.request, request_name="spec.gpu.request", limit_name="spec.gpu.limit", memory_name="spec.gpu.memory",
            memory_limit_name=f'metadata.annotations["{MEMORY_LIMIT}"]',
        )  # fmt: skip
    except (BadSharePod, BadRequest) as error:
        raise BadSharePod(f"{who}: {error}") from None
    _check_containers(who, pod.spec.template.spec)
    return pod


def _name_of(document: object) -> str:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    return str(metadata.get("name", "?")) if isinstance(metadata, dict) else "?"


def _check_annotations(pod: SharePodManifest) -> None:
    """Refuse annotations of Aliquot's that do not exist or say nothing, and those of the pod, which has none here.

    Raises:
        BadSharePod: the text names the annotation by its path, and what is allowed.
    """
    inner = pod.spec.template.metadata or Metadata()
    for key in inner.annotations:
        if key.startswith(PREFIX) and not key.startswith(_OF_CLUSTER_PODS):
            raise BadSharePod(f'spec.template.metadata.annotations["{key}"] has no meaning on one machine; {_KNOWN}')
    for key, text in pod.metadata.annotations.items():
        where = f'metadata.annotations["{key}"]'
        if key.startswith(PREFIX) and key not in _ANNOTATIONS:
            raise BadSharePod(f"{where} is not an annotation of a SharePod; {_KNOWN}")
        try:
            _ANNOTATIONS.get(key, str)(text)
        except BadQuantity as error:
            raise BadSharePod(f"{where}: {error}" if text else f"{where} is empty; leave it out") from None


def _quantity_field(gpu: GpuSpec) -> str:
    for name, parse in (("request", parse_milli), ("limit", parse_milli), ("memory", parse_memory)):
        value = getattr(gpu, name)
        try:
            if value is not None:
                parse(value)
        except BadQuantity:
            return f"spec.gpu.{name}:"
    return "spec.gpu.wake:" if gpu.wake else "spec.gpu:"


def _check_containers(who: str, pod: TemplateSpec) -> None:
    if not pod.containers:
        raise BadSharePod(f"{who}: spec.template.spec.containers is empty; write at least one container")
    names = [container.name for container in pod.containers]
    if len(set(names)) != len(names):
        raise BadSharePod(f"{who}: two containers have the same name; each needs one of its own")
    for number, container in enumerate(pod.containers):
        if fault := _unusable(container):
            raise BadSharePod(f"{who}: spec.template.spec.containers[{number}].{fault}")
        if not container.command:
            raise BadSharePod(
                f'{who}: container "{container.name}" has no command; on one machine there is no image to take it from'
            )
        elsewhere = [v.name for v in container.env if v.value_from is not None] or (
            ["envFrom"] if container.env_from else []
        )
        if elsewhere:
            raise BadSharePod(
                f'{who}: container "{container.name}" takes {elsewhere[0]} from the cluster (valueFrom, envFrom); '
                "one machine has no Secrets and ConfigMaps, so write the value"
            )


def _unusable(container: ContainerTemplate) -> str:
    """What no program can be started with: a field and why; empty if there is nothing."""
    texts = {f"command[{i}]": text for i, text in enumerate(container.command)}
    texts |= {f"args[{i}]": text for i, text in enumerate(container.args)} | {"workingDir": container.working_dir}
    for i, variable in enumerate(container.env):
        if not variable.name or "=" in variable.name or "\0" in variable.name:
            return f"env[{i}].name: {shown(variable.name)} is not a name of a variable; write it without ="
        texts[f"env[{i}].value"] = variable.value
    return next((f"{name}: a program takes no NUL character" for name, text in texts.items() if "\0" in text), "")
