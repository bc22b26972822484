"""What the API server is told about the webhook: which objects it asks about, where, and what if nobody answers.

Only pods that speak of GPUs are asked about (CEL), so that an outage can not stop the rest of the cluster; those are
refused while nobody answers, for a pod in other words than Aliquot's would wait for ever without being rewritten.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from aliquot.kube import names

NAME: Final = "aliquot"
_RESOURCES: Final = ("aliquot.dev/", "tencent.com/vcuda", "aliyun.com/gpu", "nvidia.com/gpu")
_NOTES: Final = ("aliquot.dev/", "sharedgpu/", "kubeshare/")
_SYSTEM: Final = ("kube-system", "kube-node-lease", "kube-public")


def where(namespace: str, service: str, port: int, path: str, url: str = "") -> dict[str, Any]:
    """How the API server reaches the webhook: by a Service, or by an address of its own."""
    if url:
        return {"url": f"{url.rstrip('/')}{path}"}
    return {"service": {"namespace": namespace, "name": service, "port": port, "path": path}}


def configurations(
    namespace: str, service: str = "aliquot-webhook", *, port: int = 443, url: str = "", bundle: bytes = b""
) -> list[dict[str, Any]]:
    """The MutatingWebhookConfiguration and the ValidatingWebhookConfiguration; `bundle` is added by the program."""

    def hook(name: str, path: str, rule: dict[str, Any], **more: Any) -> dict[str, Any]:
        client = where(namespace, service, port, path, url)
        trust = {"caBundle": base64.b64encode(bundle).decode()} if bundle else {}
        return {
            "name": f"{name}.{names.GROUP}",
            "clientConfig": {**client, **trust},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "scope": "Namespaced", **rule}],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 5,
            "failurePolicy": "Fail",
            "namespaceSelector": {"matchExpressions": [_not_in(_HOST, *_SYSTEM)]},
            **more,
        }

    ignored = {
        "objectSelector": {"matchExpressions": [_not_in(names.WEBHOOK, "ignore")]},
        "namespaceSelector": {"matchExpressions": [_not_in(names.WEBHOOK, "ignore"), _not_in(_HOST, *_SYSTEM)]},
    }
    pods = {"resources": ["pods"]}
    ours = {"apiGroups": [names.GROUP], "apiVersions": [names.VERSION]}
    asks = [{"name": "speaks-of-gpus", "expression": asks_for_gpus()}]
    plans = [{"name": "plan-changes", "expression": plan_changes()}]
    both = ["CREATE", "UPDATE"]
    return [
        _whole(
            "Mutating",
            hook("pods", "/mutate", pods | {"operations": ["CREATE"]}, matchConditions=asks, **ignored),
        ),
        _whole(
            "Validating",
            hook("plans", "/validate", pods | {"operations": both}, matchConditions=plans),
            hook("sharepods", "/validate", ours | {"resources": ["sharepods"], "operations": both}),
            hook("gpuquotas", "/validate", ours | {"resources": ["gpuquotas"], "operations": both}),
        ),
    ]


_HOST: Final = "kubernetes.io/metadata.name"


def asks_for_gpus() -> str:
    """CEL: does a pod name a resource, an annotation or a label of one of the dialects?"""
    starts = " || ".join(f"key.startsWith('{prefix}')" for prefix in _RESOURCES)
    limits = f"(has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(key, {starts}))"
    asked = f"(has(c.resources) && has(c.resources.requests) && c.resources.requests.exists(key, {starts}))"
    notes = " || ".join(f"key.startsWith('{prefix}')" for prefix in _NOTES)
    one = f"({limits} || {asked})"
    return (
        f"object.spec.containers.exists(c, {one}) "
        f"|| (has(object.spec.initContainers) && object.spec.initContainers.exists(c, {one})) "
        f"|| (has(object.metadata.annotations) && object.metadata.annotations.exists(key, {notes})) "
        f"|| (has(object.metadata.labels) && object.metadata.labels.exists(key, {notes}))"
    )


def plan_changes() -> str:
    """CEL: is the plan of a pod another one than before? One that is new has none."""

    def plan(thing: str) -> str:
        notes = f"{thing}.metadata.annotations"
        return f"(has({notes}) && '{names.PLAN}' in {notes} ? {notes}['{names.PLAN}'] : '')"

    return f"{plan('object')} != (oldObject == null ? '' : {plan('oldObject')})"


def _whole(kind: str, *hooks: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": list(hooks),
    }


def _not_in(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "NotIn", "values": list(values)}
