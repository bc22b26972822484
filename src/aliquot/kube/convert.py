"""Translate a manifest: rewrite the GPU requests of a pod, or of anything that creates pods, and change nothing else.

Used by `aliquot convert` on whole files. GPU requests that are left as they were, because their kind or resource name
is unknown, are reported with their path.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from aliquot.kube import unread
from aliquot.kube.dialects import FOREIGN, NATIVE, spoken
from aliquot.kube.dialects.base import Dialect, put, strip
from aliquot.kube.dialects.kubeshare import API_VERSION_1 as KUBESHARE1
from aliquot.kube.dialects.native import unknown_words
from aliquot.kube.names import API_VERSION
from aliquot.kube.objects import Pod, Undecodable, decoded
from aliquot.kube.quantities import format_mib_quantity
from aliquot.kube.requests import BadPod
from aliquot.model.errors import UserError
from aliquot.model.quantities import MILLI

TEMPLATE: Final = ("spec", "template")
WHERE_PODS_ARE: Final[Mapping[str, tuple[str, ...]]] = {
    "Pod": (),
    "Deployment": TEMPLATE,
    "ReplicaSet": TEMPLATE,
    "StatefulSet": TEMPLATE,
    "DaemonSet": TEMPLATE,
    "Job": TEMPLATE,
    "ReplicationController": TEMPLATE,
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "PodTemplate": ("template",),
}
_UNREAD: Final = (*unread.RESOURCES, *(name for dialect in FOREIGN.values() for name in dialect.owned.requests))
"""Prefixes of names that request GPUs: those of the dialects, and some that no dialect reads."""


class BadManifest(UserError):
    """A manifest whose GPU request cannot be read."""


@dataclass(frozen=True)
class Converted:
    """A translated manifest, and what of it is not translated or not known, one sentence each."""

    document: dict[str, Any]
    notes: tuple[str, ...] = ()


def convert(document: object, target: Dialect = NATIVE, others: Mapping[str, Dialect] = FOREIGN) -> list[Converted]:
    """The manifest, or each item of a list of them, in the words of `target`; the original is left alone.

    Raises:
        BadManifest: it is not a manifest, or its fields contradict each other; the text names the field by its path.
        CanNotSay: `target` has no words for it.
    """
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise BadManifest(f"a manifest is a mapping with apiVersion, kind and metadata, not {document!r:.40}")
    if document["kind"] == "List":
        return [made for item in document.get("items") or [] for made in convert(item, target, others)]
    whole = copy.deepcopy(document)
    if document["kind"] == "SharePod":
        return [_sharepod(whole, target) if document.get("apiVersion") == KUBESHARE1 else Converted(whole)]
    path = WHERE_PODS_ARE.get(document["kind"])
    inner: Any = whole if path is not None else None
    for key in path or ():
        inner = inner.get(key) if isinstance(inner, dict) else None
    if path is None or not isinstance(inner, dict):
        why = f"no pods are looked for in the kind {document['kind']}" if path is None else "it has no pod template"
        return [Converted(whole, tuple(f"{place} is left as it is: {why}" for place in _unread(whole)))]
    pod, prefix = _pod(whole, inner, path), "".join(f"{key}." for key in path)
    try:
        dialect = spoken(pod, others)
        misspelt = BadPod(pod.metadata.key, unknown_words(pod)).under(prefix)
        if dialect is None:
            return [Converted(whole, (*misspelt, *_left(inner, prefix)))]
        if dialect.name == target.name:
            return [Converted(whole, misspelt)]
        ask = dialect.read(pod)
    except BadPod as error:
        raise BadManifest(f"{who(whole)}: {'; '.join(error.under(prefix))}") from None
    left: tuple[str, ...] = ()
    if ask.containers:
        strip(inner, dialect.owned)
        left = _left(inner, prefix)
        put(inner, target.write(ask))
    return [Converted(whole, (*misspelt, *ask.notes, *left))]


def _unread(value: Any, path: str = "") -> list[str]:
    """The paths of keys that request GPUs, once each for requests that repeat limits."""
    if isinstance(value, list):
        return [found for i, inner in enumerate(value) for found in _unread(inner, f"{path}[{i}]")]
    if not isinstance(value, dict):
        return []
    limits = value.get("limits")
    found = []
    for key, inner in value.items():
        if str(key).startswith(_UNREAD) or (path.endswith("annotations") and key in unread.ANNOTATIONS):
            found.append(f'{path}["{key}"]')
        elif key == "requests" and isinstance(inner, dict) and isinstance(limits, dict):
            found += _unread({k: v for k, v in inner.items() if k not in limits}, f"{path}.requests")
        else:
            found += _unread(inner, f"{path}.{key}" if path else str(key))
    return found


def _left(pod: dict[str, Any], prefix: str) -> tuple[str, ...]:
    """The parts of a pod that request GPUs in no known dialect, with what to write in their place."""
    ways = {}
    for place in _unread(pod):
        key = place.rpartition('["')[2].removesuffix('"]')
        ways[place] = unread.ANNOTATIONS.get(key) or unread.way_out(key) or "it is not known here"
    ways |= unread.model_affinity(pod)
    return tuple(f"{prefix}{place} is left as it is: {way}" for place, way in ways.items())


def _pod(whole: dict[str, Any], inner: dict[str, Any], path: tuple[str, ...]) -> Pod:
    """The pod of a manifest; fields that are null or of no interest are passed over."""
    for place, key in (("metadata", "annotations"), ("metadata", "labels"), ("spec", "nodeSelector")):
        values = (inner.get(place) or {}).get(key) if isinstance(inner.get(place) or {}, dict) else None
        for name, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, bool | int | float):
                where = ".".join((*path, place, key))
                written = yaml.safe_dump(value).split("\n")[0]
                raise BadManifest(f'{who(whole)}: {where}["{name}"] is {written}, which is not text; put it in quotes')
    try:
        return decoded(inner, Pod)
    except Undecodable as error:
        raise BadManifest(f"{who(whole)}: {'.'.join((*path, ''))}{error}") from None


def who(document: Mapping[str, Any]) -> str:
    """A manifest's kind and name, as in messages: `deployment "web"`."""
    metadata = document.get("metadata")
    name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
    return f'{str(document.get("kind", "object")).lower()} "{name or "?"}"'


def _sharepod(document: dict[str, Any], target: Dialect) -> Converted:
    """A SharePod of KubeShare 1 as one of Aliquot: its PodSpec becomes a template, its annotations fields."""
    if target.name != NATIVE.name:
        raise BadManifest(f"{who(document)}: a SharePod is converted to Aliquot's words only")
    pod, dialect = _pod(document, document, ()), FOREIGN["kubeshare1"]
    try:
        ask = dialect.read(pod)
    except BadPod as error:
        raise BadManifest(f"{who(document)}: {'; '.join(error.faults)}") from None
    strip(document, dialect.owned)
    spec = document.get("spec") or {}
    node = spec.pop("nodeName", "")
    request = ask.containers[0].request
    gpu = {
        "request": request.request_milli / MILLI,
        "limit": request.limit_milli / MILLI if request.limit_milli is not None else None,
        "memory": format_mib_quantity(request.memory.mib) if request.memory and request.memory.mib else None,
        "model": request.model,
        "gpuID": request.gpu_id,
        "affinity": request.labels.affinity,
        "antiAffinity": request.labels.anti_affinity,
        "exclusion": request.labels.exclusion,
        "enforce": request.enforce,
        "mixedModels": request.mixed or None,
    }
    made = {
        "apiVersion": API_VERSION,
        "kind": "SharePod",
        "metadata": document["metadata"],
        "spec": {
            "gpu": {name: value for name, value in gpu.items() if value not in (None, "")},
            **({"nodeName": node} if node else {}),
            "template": {"spec": spec},
        },
    }
    return Converted(made, ask.notes)
