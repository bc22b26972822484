"""The answer to an AdmissionReview: change the object, admit it, or refuse it with every error and its path.

Pods are changed: those written for other projects get the resources that the scheduler sees, those with a request
in an annotation alone get its resource, those without a limit the cluster's default, and those that name no scheduler
the one that calls Aliquot, where the cluster's own does not. Nothing else is changed.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aliquot.kube import names
from aliquot.kube.custom import GPUQuota, SharePod
from aliquot.kube.dialects import FOREIGN, NATIVE, read, spoken
from aliquot.kube.dialects.base import Dialect, Owned, Words, put, strip
from aliquot.kube.dialects.native import resources_for, unknown_words
from aliquot.kube.objects import MetaOnly, Pod, Undecodable, decoded
from aliquot.kube.requests import BadPod, PodAsk
from aliquot.model.errors import UserError
from aliquot.model.quantities import MILLI, format_milli
from aliquot.scheduler.operator.bodies import BadTemplate, pod_of
from aliquot.scheduler.operator.quotas import Usage
from aliquot.scheduler.operator.quotas import faults as quota_faults

Document = dict[str, Any]
DEFAULT_SCHEDULER: Final = "default-scheduler"
WRITTEN_BY_US: Final = (names.PLAN, names.PLAN_STATUS)


class BadReview(UserError):
    """A body that is not an AdmissionReview."""


@dataclass(frozen=True)
class AdmissionAnswer:
    """`changed` is the changed object, None if it is admitted unchanged; with errors it is refused."""

    faults: tuple[str, ...] = ()
    changed: Document | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Admission:
    """The rules of one cluster. `usage` says what a namespace holds; `whole` are plain nvidia.com/gpu pods ours too?"""

    dialects: Mapping[str, Dialect] = field(default_factory=lambda: FOREIGN)
    usage: Callable[[str], Usage] = lambda namespace: {}
    whole: bool = True
    default_limit_milli: int | None = None
    kept: frozenset[str] = frozenset()
    """Resources of other projects that stay on a pod beside ours, for tools that read them there."""
    pod_scheduler: str = ""
    """Name of the scheduler for pods that name none; empty where the cluster's default one calls Aliquot."""

    def mutate(self, request: Document) -> AdmissionAnswer:
        """A pod on its way in."""
        document = request["object"]
        try:
            pod = decoded(document, Pod)
            if forged := [key for key in WRITTEN_BY_US if key in pod.metadata.annotations]:
                return AdmissionAnswer(
                    tuple(f'metadata.annotations["{key}"] is written by Aliquot alone' for key in forged)
                )
            dialect = spoken(pod, self.dialects)
            if dialect is None:
                return AdmissionAnswer(tuple(unknown_words(pod)))  # misspelt fields would silently request nothing
            if dialect.name == "nvidia" and not self.whole:
                return AdmissionAnswer()
            ask = dialect.read(pod)
        except BadPod as error:
            return AdmissionAnswer(error.faults)
        except Undecodable as error:
            return AdmissionAnswer((str(error),))
        if not ask.containers:
            return AdmissionAnswer()
        return self._rewritten(copy.deepcopy(document), pod, ask, dialect)

    def validate(self, request: Document) -> AdmissionAnswer:
        """Objects that are not changed: SharePods, quotas, and pods whose plan was edited."""
        kind = (request.get("kind") or {}).get("kind", "")
        document = request["object"]
        try:
            if kind == "SharePod":
                return self._sharepod(decoded(document, SharePod), request)
            if kind == "GPUQuota":
                quota = decoded(document, GPUQuota)
                usage = self.usage(request.get("namespace") or quota.metadata.namespace)
                return AdmissionAnswer(tuple(quota_faults(quota.spec.limits, usage)))
            if kind == "Pod":
                return _plan_untouched(document, request.get("oldObject") or {})
        except Undecodable as error:
            return AdmissionAnswer((str(error),))
        return AdmissionAnswer()

    def _rewritten(self, document: Document, pod: Pod, ask: PodAsk, dialect: Dialect) -> AdmissionAnswer:
        words = Words()
        if dialect.name == NATIVE.name:
            words.resources = {c.container: dict(resources_for(c)) for c in ask.containers}
        else:
            owned = dialect.owned
            strip(document, Owned(owned.resources - self.kept, (), (), owned.node_selector, owned.schedulers))
            words = NATIVE.write(ask)
            words.annotations[names.DIALECT] = dialect.name
        words.annotations |= self._default_limits(pod, ask)
        put(document, words)
        # The API server has written its default by now: a pod that names it cannot be distinguished from one that names
        # none.
        if self.pod_scheduler and document["spec"].get("schedulerName") in (None, "", DEFAULT_SCHEDULER):
            document["spec"]["schedulerName"] = self.pod_scheduler
        try:
            read(decoded(document, Pod), self.dialects)
        except BadPod as error:
            return AdmissionAnswer(error.faults)
        warnings = [*ask.notes, *_privileged(document, ask)]
        if pod.spec.node_name:
            warnings.append("spec.nodeName passes the scheduler by: without a plan the pod gets no GPU")
        return AdmissionAnswer(changed=document, warnings=tuple(warnings))

    def _default_limits(self, pod: Pod, ask: PodAsk) -> dict[str, str]:
        """A limit for pods that specify none, up to one GPU; never below their request."""
        if self.default_limit_milli is None:
            return {}
        found = {}
        for c in ask.containers:
            if c.request.limit_milli is None and c.request.request_milli < MILLI and c.parts == 1:
                key = names.GPU_LIMIT if len(ask.containers) == 1 else f"{names.GPU_LIMIT}.{c.container}"
                found[key] = format_milli(max(self.default_limit_milli, c.request.request_milli))
        return found

    def _sharepod(self, sharepod: SharePod, request: Document) -> AdmissionAnswer:
        sharepod.metadata.namespace = sharepod.metadata.namespace or request.get("namespace", "")
        old = request.get("oldObject")
        if old and (old.get("spec") == request["object"].get("spec") or sharepod.metadata.deletion_timestamp):
            return AdmissionAnswer()  # objects admitted before may lose their finalizers and get labels
        try:
            pod_of(sharepod)
        except BadTemplate as error:
            return AdmissionAnswer(error.faults)
        return AdmissionAnswer()


def _privileged(document: Document, ask: PodAsk) -> Iterator[str]:
    """Containers that can reach every GPU of their node, whatever their share says."""
    shared = {c.container for c in ask.containers if c.request.rest_milli}
    for place in ("initContainers", "containers"):
        for c in document["spec"].get(place) or []:
            name = c.get("name", "")
            if (c.get("securityContext") or {}).get("privileged") and name in shared:
                yield (
                    f"spec.{place}[{name}].securityContext.privileged: the container reaches every GPU of "
                    "its node past its share; leave it out where neighbours count on theirs"
                )


def answer(body: bytes, say: Callable[[Document], AdmissionAnswer]) -> Document:
    """The AdmissionReview to answer with.

    Raises:
        BadReview: the body is none.
    """
    try:
        review = json.loads(body)
        request = review["request"]
        uid = request["uid"]
        if not isinstance(uid, str) or not (isinstance(request.get("object"), dict)):
            raise TypeError("request.uid and request.object")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadReview(f"the body is not an AdmissionReview with a request: {type(error).__name__} {error}") from None
    try:
        said = _response(request, say(request))
    except RecursionError:
        said = _response(request, AdmissionAnswer(("its fields are nested more deeply than can be read",)))
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": uid, **said}}


def _response(request: Document, said: AdmissionAnswer) -> Document:
    made: Document = {"allowed": not said.faults}
    if said.warnings:
        made["warnings"] = [text[:250] for text in said.warnings]
    if said.faults:
        message = "; ".join(dict.fromkeys(said.faults))
        return made | {"status": {"code": 422, "reason": "Invalid", "message": f"aliquot: {message}"}}
    patch = difference(request["object"], said.changed) if said.changed is not None else []
    if patch:
        made |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    return made


def difference(before: Any, after: Any, path: str = "") -> list[Document]:
    """The JSON patch (RFC 6902) from one to the other: by keys in mappings, by place in lists of equal length."""
    if before == after:
        return []
    if isinstance(before, dict) and isinstance(after, dict):
        found: list[Document] = []
        for key in before.keys() | after.keys():
            place = f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"
            if key not in after:
                found.append({"op": "remove", "path": place})
            elif key not in before:
                found.append({"op": "add", "path": place, "value": after[key]})
            else:
                found += difference(before[key], after[key], place)
        return sorted(found, key=lambda step: str(step["path"]))
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [s for i, (b, a) in enumerate(zip(before, after, strict=True)) for s in difference(b, a, f"{path}/{i}")]
    return [{"op": "replace", "path": path, "value": after}]


def _plan_untouched(document: Document, old: Document) -> AdmissionAnswer:
    now, before = (decoded(d, MetaOnly).metadata.annotations.get(names.PLAN) for d in (document, old))
    if now == before:
        return AdmissionAnswer()
    return AdmissionAnswer(
        (f'metadata.annotations["{names.PLAN}"] is written once, when the pod is bound, and never changed',)
    )
