"""SharePod: a pod and the part of a GPU it asks for, as people write it.

The same text as in a cluster. Unknown fields are errors that name their path, for a misspelt `limit` that is silently
dropped is a promise nobody made. Fields of a pod that mean something in a cluster only (resources, volumes, probes...)
are accepted and have no effect on one machine; `ignored` lists those that were given.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

import msgspec

from aliquot.model.errors import UserError
from aliquot.model.quantities import BadQuantity, parse_memory, parse_milli
from aliquot.model.requests import BadRequest, GpuRequest, Labels, checked

API_VERSION: Final = "aliquot.dev/v1alpha1"
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
RestartPolicy = Literal["Always", "OnFailure", "Never"]
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$\.?(.*?)`)?$")
_MISSING: Final = re.compile(r"Object missing required field `(.*?)`(?: - at `\$\.?(.*?)`)?$")
_WRONG: Final = re.compile(r"(.*) - at `\$\.?(.*?)`$")


class BadSharePod(UserError):
    """A SharePod that can not be understood or does not make sense."""


class Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Base of everything people write."""


class GpuSpec(Strict, rename={"gpu_id": "gpuID", "anti_affinity": "antiAffinity"}):
    """The part of a GPU; fractions and sizes as text or numbers."""

    request: str | float | int
    limit: str | float | int | None = None
    memory: str | float | int | None = None
    model: str = ""
    gpu_id: str = ""
    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""


class EnvVar(Strict):
    """One variable."""

    name: str
    value: str = ""


class Container(Strict):
    """One program."""

    name: Name
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[EnvVar] = []
    working_dir: str = ""
    image_pull_policy: str = ""
    resources: dict[str, Any] = {}
    ports: list[dict[str, Any]] = []
    volume_mounts: list[dict[str, Any]] = []
    security_context: dict[str, Any] = {}


class PodSpec(Strict):
    """The programs and what becomes of them when they end."""

    containers: list[Container]
    restart_policy: RestartPolicy = "Always"
    termination_grace_period_seconds: int = 30
    volumes: list[dict[str, Any]] = []
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []


class Metadata(Strict):
    """Name, namespace, labels, annotations."""

    name: Name = ""
    namespace: Name = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class PodTemplateSpec(Strict):
    """The pod to make."""

    spec: PodSpec
    metadata: Metadata | None = None


class SharePodSpec(Strict):
    """What is asked for and what runs with it."""

    gpu: GpuSpec
    template: PodTemplateSpec
    node_name: str = ""


class SharePod(Strict):
    """One SharePod; `parse_sharepod` makes it from what YAML or JSON gave."""

    api_version: Literal["aliquot.dev/v1alpha1"]
    kind: Literal["SharePod"]
    metadata: Metadata
    spec: SharePodSpec

    @property
    def full_name(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def request(self) -> GpuRequest:
        """The request in integers; `parse_sharepod` has seen that it makes sense."""
        gpu = self.spec.gpu
        return GpuRequest(
            request_milli=parse_milli(gpu.request),
            limit_milli=None if gpu.limit is None else parse_milli(gpu.limit),
            memory=None if gpu.memory is None else parse_memory(gpu.memory),
            model=gpu.model,
            gpu_id=gpu.gpu_id,
            labels=Labels(gpu.affinity, gpu.anti_affinity, gpu.exclusion),
        )

    @property
    def ignored(self) -> list[str]:
        """Fields that were given and have no effect on one machine."""
        pod = self.spec.template.spec
        given = [name for name in ("volumes", "nodeSelector", "tolerations") if getattr(pod, _snake(name))]
        for name in ("resources", "ports", "volumeMounts", "securityContext"):
            given += [f"containers[].{name}" for c in pod.containers if getattr(c, _snake(name))][:1]
        return given


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda m: f"_{m[1].lower()}", name)


def parse_sharepod(document: object) -> SharePod:
    """A SharePod from what a YAML document gave.

    Raises:
        BadSharePod: the text names the SharePod, the field by its path, and what is allowed there.
    """
    if not isinstance(document, dict):
        raise BadSharePod(f"a SharePod is a mapping with apiVersion, kind, metadata and spec, not {document!r:.40}")
    who = f'sharepod "{_name_of(document)}"'
    try:
        pod = msgspec.convert(document, SharePod)
    except msgspec.ValidationError as error:
        raise BadSharePod(f"{who}: {_sentence(str(error))}") from None
    if not pod.metadata.name:
        raise BadSharePod(f"{who}: metadata.name is missing")
    try:
        checked(pod.request, request_name="spec.gpu.request", limit_name="spec.gpu.limit")
    except (BadQuantity, BadRequest) as error:
        where = f"{_quantity_field(pod.spec.gpu)} " if isinstance(error, BadQuantity) else ""
        raise BadSharePod(f"{who}: {where}{error}") from None
    _check_containers(who, pod.spec.template.spec)
    return pod


def _name_of(document: object) -> str:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    return str(metadata.get("name", "?")) if isinstance(metadata, dict) else "?"


def _sentence(message: str) -> str:
    """msgspec's message with the path first, as in `spec.gpu has no field "limt"`."""
    if found := _UNKNOWN.search(message):
        where = found[2] or "a SharePod"
        return f'{where} has no field "{found[1]}"; {_known(where)}'
    if found := _MISSING.search(message):
        return f"{f'{found[2]}.' if found[2] else ''}{found[1]} is missing"
    if found := _WRONG.search(message):
        return f"{found[2]}: {found[1][0].lower()}{found[1][1:]}"
    return message


_TYPES: Final[dict[str, type[msgspec.Struct]]] = {
    "a SharePod": SharePod,
    "metadata": Metadata,
    "spec": SharePodSpec,
    "spec.gpu": GpuSpec,
    "spec.template": PodTemplateSpec,
    "spec.template.spec": PodSpec,
    "spec.template.spec.containers[]": Container,
    "spec.template.spec.containers[].env[]": EnvVar,
}


def _known(where: str) -> str:
    known = _TYPES.get(re.sub(r"\[(\d+|\.\.\.)\]", "[]", where))
    if known is None:
        return "see the example in the documentation"
    return "it knows " + ", ".join(field.encode_name for field in msgspec.structs.fields(known))


def _quantity_field(gpu: GpuSpec) -> str:
    for name, parse in (("request", parse_milli), ("limit", parse_milli), ("memory", parse_memory)):
        value = getattr(gpu, name)
        try:
            if value is not None:
                parse(value)
        except BadQuantity:
            return f"spec.gpu.{name}:"
    return "spec.gpu:"


def _check_containers(who: str, pod: PodSpec) -> None:
    if not pod.containers:
        raise BadSharePod(f"{who}: spec.template.spec.containers is empty; one container is the least")
    names = [container.name for container in pod.containers]
    if len(set(names)) != len(names):
        raise BadSharePod(f"{who}: two containers have the same name; each needs one of its own")
    for container in pod.containers:
        if not container.command:
            raise BadSharePod(
                f'{who}: container "{container.name}" has no command; on one machine there is no image to take it from'
            )
