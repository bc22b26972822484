"""What the API server is told about the webhook: which objects it asks about, where, and what if nobody answers.

Only pods that Aliquot serves are sent to the webhook (CEL), so that an outage cannot stop the rest of the cluster. By
default they are refused during an outage, because a pod in another project's words would wait for ever without being
rewritten; `Ignore` lets them in unread.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from aliquot.kube import names

NAME: Final = "aliquot"
_RESOURCES: Final = ("aliquot.dev/", "tencent.com/vcuda", "aliyun.com/gpu", "nvidia.com/gpu")
_STOCK: Final = "nvidia.com/gpu"
_NOTES: Final = ("aliquot.dev/", "sharedgpu/", "kubeshare/")
_NOTES_BESIDE_STOCK: Final = ("nvidia.com/use-gpu", "nvidia.com/nouse-gpu", "hami.io/")
"""What makes a plain nvidia.com/gpu HAMi's, where those of the stock plugin are left alone."""
_SYSTEM: Final = ("kube-system", "kube-node-lease", "kube-public")


def where(namespace: str, service: str, port: int, path: str, url: str = "") -> dict[str, Any]:
    """How the API server reaches the webhook: by a Service, or by an address of its own."""
    if url:
        return {"url": f"{url.rstrip('/')}{path}"}
    return {"service": {"namespace": namespace, "name": service, "port": port, "path": path}}


def configurations(
    namespace: str,
    service: str = "aliquot-webhook",
    *,
    port: int = 443,
    url: str = "",
    bundle: bytes = b"",
    whole: bool = True,
    failure_policy: str = "Fail",
) -> list[dict[str, Any]]:
    """The MutatingWebhookConfiguration and the ValidatingWebhookConfiguration; `bundle` is added by the program.

    Args:
        whole: Plain nvidia.com/gpu pods are Aliquot's too; False where the stock plugin has them.
        failure_policy: What the API server does with a pod that asks for a share while nobody answers.
    """

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
    asks = [{"name": "speaks-of-gpus", "expression": asks_for_gpus(whole=whole)}]
    plans = [{"name": "plan-changes", "expression": plan_changes()}]
    both = ["CREATE", "UPDATE"]
    return [
        _whole(
            "Mutating",
            hook(
                "pods",
                "/mutate",
                pods | {"operations": ["CREATE"]},
                matchConditions=asks,
                **ignored | {"failurePolicy": failure_policy},
            ),
        ),
        _whole(
            "Validating",
            hook("plans", "/validate", pods | {"operations": both}, matchConditions=plans),
            hook("sharepods", "/validate", ours | {"resources": ["sharepods"], "operations": both}),
            hook("gpuquotas", "/validate", ours | {"resources": ["gpuquotas"], "operations": both}),
        ),
    ]


_HOST: Final = "kubernetes.io/metadata.name"


def asks_for_gpus(*, whole: bool = True) -> str:
    """CEL: does a pod name a resource, an annotation or a label of one of the dialects?

    Without `whole`, nvidia.com/gpu alone is the stock plugin's word.
    """
    starts = " || ".join(f"key.startsWith('{prefix}')" for prefix in _RESOURCES)
    names_of_notes: tuple[str, ...] = _NOTES
    if not whole:
        starts = f"(key != '{_STOCK}' && ({starts}))"
        names_of_notes = _NOTES + _NOTES_BESIDE_STOCK
    limits = f"(has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(key, {starts}))"
    asked = f"(has(c.resources) && has(c.resources.requests) && c.resources.requests.exists(key, {starts}))"
    notes = " || ".join(f"key.startsWith('{prefix}')" for prefix in names_of_notes)
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
