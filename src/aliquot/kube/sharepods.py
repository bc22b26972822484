"""The pod of a SharePod: its template, with the GPU request in Aliquot's resources.

The pod goes to kube-scheduler like any other, so taints, volumes and the author's affinities are kept; the node that a
SharePod names is one more condition there. The GPU is the first container's.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from aliquot.kube import names
from aliquot.kube.custom import SHAREPODS, SharePod
from aliquot.kube.dialects import NATIVE, read
from aliquot.kube.dialects.base import base_of, put
from aliquot.kube.dialects.native import path_of
from aliquot.kube.objects import OwnerReference, Pod, Undecodable, decoded
from aliquot.kube.requests import BadPod, ContainerAsk, PodAsk
from aliquot.model.quantities import BadQuantity, parse_memory, parse_milli
from aliquot.model.sharepod import MEMORY_LIMIT, BadSharePod, check_gpu, gpu_request, memory_limit_of

PROFILE: Final = "aliquot-scheduler"
"""The profile of kube-scheduler for a pod whose template names none."""

STOCK: Final = frozenset({"", "default-scheduler", PROFILE})
"""Schedulers that call the extender; any other is the author's own, and chooses the node itself."""

_OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class BadTemplate(BadSharePod):
    """A SharePod that no pod can be made from; `faults` lists each with its path."""

    def __init__(self, who: str, faults: tuple[str, ...]) -> None:
        super().__init__(f'sharepod "{who}": {"; ".join(faults)}')
        self.faults = faults


def scheduled_by_others(sharepod: SharePod) -> str:
    """The author's own scheduler, which sets spec.nodeName; empty when Aliquot chooses."""
    name = str((sharepod.spec.template.get("spec") or {}).get("schedulerName") or "")
    return "" if name in STOCK else name


def pod_of(sharepod: SharePod, *, node: str = "", gpu_uuid: str = "") -> dict[str, Any]:
    """The pod to create, bound to `node` and the device `gpu_uuid` where they are given.

    Raises:
        BadTemplate: the fields contradict each other or the template; every fault is named by its path.
    """
    _understood(sharepod, sharepod.spec.template)
    spec: dict[str, Any] = copy.deepcopy(sharepod.spec.template.get("spec") or {})
    faults = [*_template_faults(sharepod, spec), *_gpu_faults(sharepod)]
    if faults:
        raise BadTemplate(sharepod.metadata.key, tuple(faults))
    memory_limit = memory_limit_of(sharepod.metadata.annotations)
    request = replace(gpu_request(sharepod.spec.gpu), gpu=gpu_uuid, memory_limit=memory_limit)
    ask = ContainerAsk(str(spec["containers"][0].get("name", "")), request)
    metadata = copy.deepcopy(sharepod.spec.template.get("metadata") or {})
    meta = sharepod.metadata
    owner = OwnerReference(SHAREPODS.api_version, SHAREPODS.kind, meta.name, meta.uid, True, True)
    kept = {key: metadata[key] for key in ("labels", "annotations", "finalizers") if metadata.get(key)}
    body = {
        "metadata": {
            **kept,
            "name": meta.name,
            "namespace": meta.namespace,
            "ownerReferences": [msgspec.to_builtins(owner)],
        },
        "spec": spec,
    }
    words = NATIVE.write(PodAsk(meta.key, "", (ask,)))
    words.annotations[names.SHAREPOD_GENERATION] = str(meta.generation)
    put(body, words)
    if spec.get("schedulerName") in (None, "") or spec["schedulerName"] not in STOCK:
        spec["schedulerName"] = PROFILE
    if node:
        try:
            on_node(spec, node)
        except (TypeError, ValueError, AttributeError):
            fault = "spec.template.spec.affinity.nodeAffinity is not in the form of a node affinity"
            raise BadTemplate(sharepod.metadata.key, (fault,)) from None
    ask_of(sharepod, body)  # the fields must be readable by the extender
    return body


def spec_digest(sharepod: SharePod) -> str:
    """Equal for two SharePods of which the same pod is made.

    Raises:
        BadTemplate: none can be made.
    """
    body = pod_of(sharepod)
    del body["metadata"]["annotations"][names.SHAREPOD_GENERATION]
    content = json.dumps([body, sharepod.spec.node_name], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def ask_of(sharepod: SharePod, body: Mapping[str, Any]) -> PodAsk:
    """The pod's request, as the extender will read it.

    Raises:
        BadTemplate: its words contradict each other.
    """
    try:
        ask = read(_understood(sharepod, body))
    except BadPod as error:
        raise BadTemplate(sharepod.metadata.key, error.under("spec.template.")) from None
    assert ask is not None
    return ask


def _understood(sharepod: SharePod, body: Mapping[str, Any]) -> Pod:
    """The pod in a body, with the fields that are read here.

    Raises:
        BadTemplate: a field is not of its type.
    """
    try:
        return decoded(body, Pod)
    except Undecodable as error:
        raise BadTemplate(sharepod.metadata.key, (f"spec.template.{error}",)) from None


def on_node(spec: dict[str, Any], node: str) -> None:
    """Restrict a pod to one node, in addition to its author's conditions; in place."""
    only = {"key": "metadata.name", "operator": "In", "values": [node]}
    place = spec
    for key in ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"):
        place[key] = dict(place.get(key) or {})
        place = place[key]
    terms = [dict(term) for term in place.get("nodeSelectorTerms") or [{}]]
    for term in terms:
        term["matchFields"] = [*(term.get("matchFields") or []), only]
    place["nodeSelectorTerms"] = terms


def _template_faults(sharepod: SharePod, spec: Mapping[str, Any]) -> list[str]:
    """Why the template's spec is not accepted."""
    faults = []
    if not spec.get("containers"):
        faults.append("spec.template.spec.containers is empty; write at least one container")
    if spec.get("nodeName"):
        faults.append("spec.template.spec.nodeName would pass the scheduler by; write spec.nodeName instead")
    for group in ("initContainers", "containers"):
        for container in spec.get(group) or []:
            resources = container.get("resources") or {}
            asked = {*(resources.get("limits") or {}), *(resources.get("requests") or {})} & set(names.RESOURCES)
            faults += [
                f"spec.template.spec.{group}[{container.get('name', '?')}].resources asks for {name}; "
                "a SharePod says it in spec.gpu alone"
                for name in sorted(asked)
            ]
    notes = (sharepod.spec.template.get("metadata") or {}).get("annotations") or {}
    faults += [
        f'spec.template.metadata.annotations["{key}"] is for plain pods; a SharePod says it in '
        + ("its own metadata.annotations" if base_of(key) == MEMORY_LIMIT else "spec.gpu")
        for key in sorted(notes)
        if base_of(key) in names.ASK_ANNOTATIONS and base_of(key) != names.CPU_BIND
    ]
    return faults + [
        f'spec.template.metadata.annotations["{key}"] is written by Aliquot alone; leave it out'
        for key in (names.PLAN, names.PLAN_STATUS, names.DIALECT)
        if key in notes
    ]


def _gpu_faults(sharepod: SharePod) -> list[str]:
    """The errors in each field of spec.gpu, and between them."""
    gpu, notes, faults = sharepod.spec.gpu, sharepod.metadata.annotations, []
    for path, parse, value in (
        ("spec.gpu.request", parse_milli, gpu.request),
        ("spec.gpu.limit", parse_milli, gpu.limit),
        ("spec.gpu.memory", parse_memory, gpu.memory),
        (path_of(MEMORY_LIMIT), parse_memory, notes.get(MEMORY_LIMIT)),
    ):
        try:
            if value is not None:
                parse(value)
        except BadQuantity as error:
            faults.append(f"{path}: {error}")
    if gpu.gpu_id and not _OBJECT_NAME.fullmatch(gpu.gpu_id):
        faults.append(
            f'spec.gpu.gpuID "{gpu.gpu_id}" cannot be the name of a vGPU; use lower-case letters, digits, - and ., '
            "as in team-a"
        )
    if gpu.affinity and gpu.affinity == gpu.anti_affinity:
        faults.append(
            f'spec.gpu.affinity and spec.gpu.antiAffinity are both "{gpu.affinity}"; the same label cannot mean '
            "together and apart"
        )
    if faults:
        return faults
    try:
        request = check_gpu(gpu, memory_limit=memory_limit_of(notes))
    except BadSharePod as error:
        return [str(error)]
    devices = request.whole + (request.rest_milli > 0)
    for name, value in (("gpuID", gpu.gpu_id), ("affinity", gpu.affinity)):
        if devices > 1 and value:
            faults.append(f"spec.gpu.{name} means one GPU, spec.gpu.request asks for {devices}; leave one of them out")
    return faults
