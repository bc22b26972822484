"""The webhook's registration at the API server: for which objects it is called, where, and the failure policy.

Only pods that Aliquot serves are sent to the webhook (CEL), so that an outage cannot stop the rest of the cluster. By
default they are refused during an outage, because a pod in another project's words would wait for ever without being
rewritten; `Ignore` lets them in unread.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any, Final

from aliquot.kube import names
from aliquot.kube.dialects import FOREIGN, hami, kubeshare, unread
from aliquot.kube.dialects.nvidia import GPU

NAME: Final = "aliquot"
_SERVED: Final = sorted(name for dialect in FOREIGN.values() for name in dialect.owned.resources)
_SYSTEM: Final = ("kube-system", "kube-node-lease", "kube-public")


def where(namespace: str, service: str, port: int, path: str, url: str = "") -> dict[str, Any]:
    """The webhook's address for the API server: a Service, or an IP address."""
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
        failure_policy: What the API server does with a pod that requests a share while no webhook answers.
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
    pods, planned = {"resources": ["pods"]}, {"resources": ["pods", "pods/status"]}
    ours = {"apiGroups": [names.GROUP], "apiVersions": [names.VERSION]}
    asks = [{"name": "speaks-of-gpus", "expression": asks_for_gpus(whole=whole)}]
    looks = [{"name": "words-to-look-at", "expression": looked_at(whole=whole)}]
    plans = [{"name": "plan-changes", "expression": plan_changes()}]
    both = ["CREATE", "UPDATE"]
    required = ignored | {"failurePolicy": failure_policy, "matchConditions": asks}
    optional = ignored | {"failurePolicy": "Ignore", "matchConditions": looks, "timeoutSeconds": 2}
    # Also before the API server compares them with their schema, whose refusals quote regular expressions.
    own = [
        hook(kind, "/validate", ours | {"resources": [kind], "operations": both}) for kind in ("sharepods", "gpuquotas")
    ]
    return [
        _whole(
            "Mutating",
            hook("pods", "/mutate", pods | {"operations": ["CREATE"]}, **required),
            hook("others.pods", "/mutate", pods | {"operations": both}, **optional),
            *own,
        ),
        _whole("Validating", hook("plans", "/validate", planned | {"operations": both}, matchConditions=plans), *own),
    ]


_HOST: Final = "kubernetes.io/metadata.name"


def asks_for_gpus(*, whole: bool = True) -> str:
    """CEL: does a pod have a resource, an annotation or a label by which one of the dialects requests a GPU?

    Names that begin alike, as of another plugin or of MIG instances, are not Aliquot's. Without `whole`, nvidia.com/gpu
    alone is the stock plugin's.
    """
    ours = f"key.startsWith('{names.PREFIX}')"
    served = [name for name in _SERVED if whole or name != GPU]
    found = [
        _resource(f"{ours} || key in {_listed(served)}"),
        _noted("annotations", f"{ours} || key in {_listed(kubeshare.ASKING_1)}"),
        _noted("labels", f"key in {_listed(kubeshare.ASKING_2)}"),
    ]
    if not whole:
        found.append(
            f"({_resource(f'key in {_listed([GPU])}')} && {_noted('annotations', f'key in {_listed(hami.NOTED)}')})"
        )
    return " || ".join(found)


def looked_at(*, whole: bool = True) -> str:
    """CEL: is this a new pod with words that are not read here, or one that asks for GPUs and whose spec changes?

    Nothing of what is done then is needed for a share, so these pods pass where no webhook answers.
    """
    asks = asks_for_gpus(whole=whole)
    starts = " || ".join(f"key.startsWith('{start}')" for start in unread.RESOURCES)
    words = _resource(f"({starts}) && !(key in {_listed(unread.READ)})")
    noted = _noted("annotations", f"key in {_listed(unread.ANNOTATIONS)}")
    return f"oldObject == null ? !({asks}) && ({words} || {noted}) : object.spec != oldObject.spec && ({asks})"


def _resource(matches: str) -> str:
    """CEL: does a container have a limit or request whose `key` matches?"""
    one = " || ".join(
        f"(has(c.resources) && has(c.resources.{side}) && c.resources.{side}.exists(key, {matches}))"
        for side in ("limits", "requests")
    )
    return (
        f"(object.spec.containers.exists(c, {one}) "
        f"|| (has(object.spec.initContainers) && object.spec.initContainers.exists(c, {one})))"
    )


def _noted(kind: str, matches: str) -> str:
    """CEL: does the pod have an annotation or label whose `key` matches?"""
    return f"(has(object.metadata.{kind}) && object.metadata.{kind}.exists(key, {matches}))"


def _listed(keys: Iterable[str]) -> str:
    return f"[{', '.join(repr(key) for key in keys)}]"


def plan_changes() -> str:
    """CEL: does the plan of a pod change? A new pod has none."""

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
