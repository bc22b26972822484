"""A manifest of the documentation, held against what reads manifests: CRDs, `aliquot apply`, the webhook, `convert`."""

from pathlib import Path
from typing import Any

import yaml

from aliquot.kube.convert import WHERE_PODS_ARE, convert
from aliquot.kube.names import API_VERSION
from aliquot.model.sharepod import parse_sharepod
from aliquot.scheduler.admission.rules import Admission

CRDS = Path(__file__).resolve().parents[3] / "deploy" / "crds"
SCHEMAS = {
    crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for crd in (yaml.safe_load(path.read_text()) for path in CRDS.glob("*.yaml"))
}
OTHERS = {
    "Service", "ConfigMap", "Namespace", "ResourceQuota", "KubeSchedulerConfiguration", "ServiceMonitor",
    "ResourceClaim", "ResourceClaimTemplate",
}  # fmt: skip
"""Kinds that pages show and that say nothing about GPUs."""


def documents(text: str) -> list[Any]:
    """The documents of a text, as YAML."""
    return [document for document in yaml.safe_load_all(text) if document is not None]


def is_manifest(text: str) -> bool:
    """Whether every document names its kind; settings and Helm values do not."""
    return all(isinstance(document, dict) and "kind" in document for document in documents(text))


def faults(text: str) -> list[str]:
    """All that would be said against the manifests of a text."""
    return [fault for document in documents(text) for fault in _faults(document)]


def _faults(document: dict[str, Any]) -> list[str]:
    kind = document["kind"]
    if kind in SCHEMAS and document.get("apiVersion") == API_VERSION:
        return [*_unknown(document, SCHEMAS[kind], kind), *_of_ours(document)]
    if kind in WHERE_PODS_ARE:
        return _of_pod(document)
    if kind == "SharePod":  # of KubeShare 1
        return [fault for made in convert(document) for fault in _faults(made.document)]
    return [] if kind in OTHERS else [f"{kind}: nobody here knows this kind"]


def _of_ours(document: dict[str, Any]) -> list[str]:
    if document["kind"] == "SharePod":
        parse_sharepod(document)
    request = {"kind": {"kind": document["kind"]}, "object": document}
    return list(Admission().validate(request).faults)


def _of_pod(document: dict[str, Any]) -> list[str]:
    convert(document)
    pod = document
    for key in WHERE_PODS_ARE[document["kind"]]:
        pod = pod[key]
    answer = Admission().mutate({"object": {"metadata": {}, **pod}})
    return list(answer.faults)


def _unknown(value: Any, schema: dict[str, Any], path: str) -> list[str]:
    """Fields that the CRD does not have or misses; the rest of the schema is the API server's to check."""
    if isinstance(value, list):
        return [fault for i, item in enumerate(value) for fault in _unknown(item, schema["items"], f"{path}[{i}]")]
    properties = schema.get("properties")
    if not isinstance(value, dict) or properties is None:
        return []
    found = [f"{path}.{name} is missing" for name in schema.get("required", ()) if name not in value]
    for name, inner in value.items():
        if name in properties:
            found += _unknown(inner, properties[name], f"{path}.{name}")
        elif not schema.get("x-kubernetes-preserve-unknown-fields"):
            found.append(f"{path}.{name} does not exist")
    return found
