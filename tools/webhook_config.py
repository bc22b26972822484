"""The registration of the admission webhook at the API server: for which objects it is called, where, and how it fails.

Only pods that Aliquot serves are sent to it (CEL), so that an outage cannot stop the rest of the cluster. By default
they are refused during an outage, because a pod in another project's words would wait for ever without being rewritten;
`Ignore` lets them in unread. `gen_deploy.py` writes it into the chart; tests register it at clusters of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from generated import ROOT

sys.path.insert(0, str(ROOT / "src"))

from aliquot.kube import names, unread
from aliquot.kube.dialects import FOREIGN, hami, kubeshare
from aliquot.kube.dialects.nvidia import GPU
from aliquot.scheduler.admission.certificates import WEBHOOK_NAME

_SERVED: Final = sorted(name for dialect in FOREIGN.values() for name in dialect.owned.resources)
_HOST: Final = "kubernetes.io/metadata.name"
_SYSTEM: Final = ("kube-system", "kube-node-lease", "kube-public")


def configurations(
    namespace: str,
    service: str = "aliquot-webhook",
    *,
    port: int = 443,
    url: str = "",
    whole: bool = True,
    failure_policy: str = "Fail",
    scheduler: str = "",
    agent: str = "",
) -> list[dict[str, Any]]:
    """The MutatingWebhookConfiguration and the ValidatingWebhookConfiguration; the program adds their trust bundle.

    Args:
        whole: Plain nvidia.com/gpu pods are Aliquot's too; False where the stock plugin has them.
        failure_policy: What the API server does with a pod that requests a share while no webhook answers.
        scheduler: The user who may change plans; the service account that the chart gives the scheduler without it.
        agent: The user who may say what a node has applied; the chart's account of the node agents without it.
    """

    def hook(name: str, path: str, rule: dict[str, Any], **more: Any) -> dict[str, Any]:
        client: dict[str, Any] = {"url": f"{url.rstrip('/')}{path}"}
        if not url:
            client = {"service": {"namespace": namespace, "name": service, "port": port, "path": path}}
        return {
            "name": f"{name}.{names.GROUP}",
            "clientConfig": client,
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
    planned = {"apiGroups": ["", "resource.k8s.io"], "resources": ["pods", "pods/status", "resourceclaims"]}
    ours = {"apiGroups": [names.GROUP], "apiVersions": [names.VERSION]}
    asks = [{"name": "speaks-of-gpus", "expression": asks_for_gpus(whole=whole)}]
    looks = [{"name": "words-to-look-at", "expression": looked_at(whole=whole)}]
    writers = {
        names.PLAN: scheduler or f"system:serviceaccount:{namespace}:aliquot-scheduler",
        names.PLAN_APPLIED: agent or f"system:serviceaccount:{namespace}:aliquot-node",
    }
    plans = [{"name": "not-by-its-writer", "expression": changed_by_others(writers)}]
    both = ["CREATE", "UPDATE"]
    required = ignored | {"failurePolicy": failure_policy, "matchConditions": asks}
    optional = ignored | {"failurePolicy": "Ignore", "matchConditions": looks, "timeoutSeconds": 2}
    news, kinds = pods | {"operations": ["CREATE"]}, ("share", "placed")
    by_claims = [hook(f"{k}.claims.pods", f"/mutate/{k}", news, **required | _becomes_claims(k)) for k in kinds]
    # Also before the API server compares them with their schema, whose refusals quote regular expressions.
    own = [
        hook(kind, "/validate", ours | {"resources": [kind], "operations": both}) for kind in ("sharepods", "gpuquotas")
    ]
    return [
        _whole(
            "Mutating",
            hook("pods", "/mutate", news, **required),
            hook("others.pods", "/mutate", pods | {"operations": both}, **optional),
            *by_claims,
            *own,
        ),
        _whole("Validating", hook("plans", "/validate", planned | {"operations": both}, matchConditions=plans), *own),
    ]


def _becomes_claims(kind: str) -> dict[str, Any]:
    """Pods of namespaces with that label, which the first webhook has put into our words."""
    labelled = {"key": names.CLAIMS, "operator": "In", "values": [kind]}
    others = [_not_in(names.WEBHOOK, "ignore"), _not_in(_HOST, *_SYSTEM)]
    ours = [{"name": "asks-in-our-words", "expression": _resource(f"key == '{names.GPU_PERCENT}'")}]
    return {"matchConditions": ours, "namespaceSelector": {"matchExpressions": [labelled, *others]}}


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
    prefixes = {*unread.RESOURCES, *unread.READ}
    shortest = sorted(one for one in prefixes if not any(one != other and one.startswith(other) for other in prefixes))
    starts = " || ".join(f"key.startsWith('{start}')" for start in shortest)
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


def changed_by_others(writers: Mapping[str, str]) -> str:
    """CEL: does one of these annotations change by another than its writer? A new pod or claim has none of them."""

    def value(thing: str, key: str) -> str:
        notes = f"{thing}.metadata.annotations"
        return f"(has({notes}) && '{key}' in {notes} ? {notes}['{key}'] : '')"

    return " || ".join(
        f"(request.userInfo.username != '{writer}' && "
        f"{value('object', key)} != (oldObject == null ? '' : {value('oldObject', key)}))"
        for key, writer in writers.items()
    )


def _whole(kind: str, *hooks: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": WEBHOOK_NAME},
        "webhooks": list(hooks),
    }


def _not_in(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "NotIn", "values": list(values)}
