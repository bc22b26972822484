"""The answer to an AdmissionReview: change the object, admit it, or refuse it with every error and its path.

Pods are changed: those written for other projects get the resources that the scheduler sees, those with a request
in an annotation alone get its resource, those without a limit the cluster's default, and those that name no scheduler
the one that calls Aliquot, where the cluster's own does not. In namespaces with the label `aliquot.dev/claims`, what
pods ask for then becomes claims, whose templates the operator makes. A copy of a pod that was placed loses its plan, so
that it is placed anew. Nothing else is changed.

The same is done to a pod's spec when it is updated: a client that applies a manifest again adds the words that were
replaced at admission, and without that the API server would refuse them as a change of resources.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from aliquot.kube import names
from aliquot.kube.claims import (
    PLACED_CLASS,
    SHARE_CLASS,
    NotByClaim,
    RequestedDevices,
    claims_made,
    requested,
    template_name,
)
from aliquot.kube.custom import GPUQuota, SharePod
from aliquot.kube.dialects import FOREIGN, NATIVE, read, speaking, spoken
from aliquot.kube.dialects.base import Dialect, Owned, Words, put, strip
from aliquot.kube.dialects.native import resources_for, unknown_words
from aliquot.kube.objects import ApiObject, Pod, Undecodable, decoded
from aliquot.kube.quantities import parse_quantity
from aliquot.kube.quotas import bound
from aliquot.kube.quotas import faults as quota_faults
from aliquot.kube.requests import MAX_CONTAINERS, BadPod, PodAsk, containers_of, improbable, require_readable, too_many
from aliquot.kube.sharepods import BadTemplate, ask_of, pod_of
from aliquot.kube.unread import unread
from aliquot.lib.decoding import convert_to
from aliquot.model.errors import UserError
from aliquot.model.quantities import MILLI, BadQuantity, format_milli, parse_milli
from aliquot.model.sharepod import FOLLOWS, MEMORY_LIMIT, MOVABLE, PARK_AFTER, GpuSpec, gpu_request
from aliquot.placement.quota import Usage

Document = dict[str, Any]
DEFAULT_SCHEDULER: Final = "default-scheduler"
_RESOURCES: Final = Owned(frozenset(names.RESOURCES))
WRITTEN_BY_US: Final = (names.PLAN, names.PLAN_STATUS, names.PLAN_APPLIED, names.RESIZE)


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
    claims: bool = True
    """Whether nodes serve ResourceClaims."""
    sizes: frozenset[str] = frozenset()
    """Resources by which kube-scheduler makes claims of its own, of fixed sizes."""
    pod_scheduler: str = ""
    """Name of the scheduler for pods that name none; empty where the cluster's default one calls Aliquot."""

    def mutate(self, request: Document) -> AdmissionAnswer:
        """A pod on its way in, or changed."""
        spec = request["object"].get("spec")
        lists = [spec.get(place) for place in ("initContainers", "containers")] if isinstance(spec, dict) else []
        containers = [c for containers in lists if isinstance(containers, list) for c in containers]  # not decoded yet
        if request.get("oldObject"):
            if len(containers) > MAX_CONTAINERS:
                return AdmissionAnswer()
            return self._updated(request["object"], request["oldObject"])
        try:
            if len(containers) > MAX_CONTAINERS:
                # One container with the resources of all says cheaply whether any asks for a GPU.
                every = [
                    c["resources"] for c in containers if isinstance(c, dict) and isinstance(c.get("resources"), dict)
                ]
                resources = {
                    side: {name: "1" for r in every if isinstance(r.get(side), dict) for name in r[side]}
                    for side in ("limits", "requests")
                }
                spec = {"containers": [{"name": "all", "resources": resources}]}
                merged = decoded({"metadata": request["object"].get("metadata"), "spec": spec}, Pod)
                if spoken(merged, self.dialects) is None:
                    return AdmissionAnswer()
                return AdmissionAnswer((too_many(len(containers)),))
            pod = decoded(request["object"], Pod)
            dialect = spoken(pod, self.dialects)
            document = copy.deepcopy(request["object"])
            # The copy of a placed pod is to be placed anew.
            notes = (document.get("metadata") or {}).get("annotations") or {}
            dropped = [f'metadata.annotations["{key}"]' for key in WRITTEN_BY_US if notes.pop(key, None) is not None]
            placed = dropped or names.CLAIMS in notes
            if placed and isinstance(document.get("spec"), dict) and document["spec"].pop("nodeName", ""):
                dropped.append("spec.nodeName")
            warnings = [f"{', '.join(dropped)} dropped: the copy of a placed pod is placed anew"] if dropped else []
            warnings, admitted = [*warnings, *unread(document)], document if dropped else None
            if dialect is None:
                # Misspelt words would silently request nothing.
                return AdmissionAnswer(tuple(unknown_words(pod, self.sizes)), admitted, (*warnings,))
            if dialect.name == "nvidia" and not self.whole:
                return AdmissionAnswer((), admitted, (*warnings,))
            ask = dialect.read(pod)
            if not ask.containers:
                return AdmissionAnswer((), admitted, (*warnings, *ask.notes))
            self._rewrite(document, ask, dialect)
            read(decoded(document, Pod), self.dialects)
        except BadPod as error:
            return AdmissionAnswer(error.faults)
        except Undecodable as error:
            return AdmissionAnswer((str(error),))
        warnings += [*ask.notes, *_privileged(document, ask)]
        if document["spec"].get("nodeName"):
            warnings.append("spec.nodeName passes the scheduler by: without a plan the pod gets no GPU")
        return AdmissionAnswer(changed=document, warnings=tuple(warnings))

    def claim(self, request: Document, kind: str) -> AdmissionAnswer:
        """A pod in our words, in a namespace labelled `kind`: its containers ask by claims, where claims can say it."""
        document = copy.deepcopy(request["object"])
        try:
            pod = decoded(document, Pod)
            ask = read(pod, self.dialects)
            if ask is None or names.SHAREPOD_SPEC in pod.metadata.annotations:
                return AdmissionAnswer()
            if not self.claims:
                raise NotByClaim("nodes serve no claims (claims.enabled)")
            if names.WORKLOAD in pod.metadata.annotations:
                raise NotByClaim("its share is promised to a Kueue Workload")
            asked = _claims_of(ask, kind)
            taken = [use.name for use in pod.spec.resource_claims if use.name in asked]
            if taken:
                raise NotByClaim(f"spec.resourceClaims has a {taken[0]} of its own")
        except NotByClaim as error:
            return AdmissionAnswer(warnings=(f"extended resources, no claims: {error}",))
        except (BadPod, Undecodable):
            return AdmissionAnswer()  # refused in our words
        strip(document, _RESOURCES)
        users = {c.container: c.uses or c.container for c in ask.containers}
        spec = document["spec"]
        for c in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
            if (name := users.get(c["name"])) is not None:
                resources = c.setdefault("resources", {})
                resources["claims"] = [*(resources.get("claims") or []), {"name": name}]
        made = [{"name": name, "resourceClaimTemplateName": template_name(each)} for name, each in asked.items()]
        spec["resourceClaims"] = [*(spec.get("resourceClaims") or []), *made]
        if kind == "placed":
            spec["schedulingGates"] = [*(spec.get("schedulingGates") or []), {"name": names.GATE}]
        put(document, Words(annotations={names.CLAIMS: msgspec.json.encode(asked).decode()}))
        return AdmissionAnswer(changed=document)

    def _updated(self, now: Document, old: Document) -> AdmissionAnswer:
        """Words that admission had replaced go again where the rest asks for what the pod has; else they stay, and the
        API server refuses them.
        """
        try:
            pod = decoded(now, Pod)
            dialect = next(iter(speaking(pod, self.dialects)), NATIVE if NATIVE.speaks(pod) else None)
            if dialect is None or (dialect.name == "nvidia" and not self.whole):
                return AdmissionAnswer()
            require_readable(pod)
            document = copy.deepcopy(now)
            self._rewrite(document, dialect.read(pod), dialect)
            if made := claims_made(decoded(old, Pod).metadata.annotations):
                ask, placed = NATIVE.read(decoded(document, Pod)), PLACED_CLASS in str(made)
                if _claims_of(ask, "placed" if placed else "share") == made:
                    strip(document, _RESOURCES)
            same = _fixed(decoded(document, Pod)) == _fixed(decoded(old, Pod))
        except (BadPod, BadQuantity, NotByClaim, Undecodable):
            return AdmissionAnswer()
        return AdmissionAnswer(changed={**now, "spec": document["spec"]} if same else None)

    def validate(self, request: Document) -> AdmissionAnswer:
        """Objects that are not changed: SharePods, quotas, and pods and claims whose plan was edited."""
        kind = (request.get("kind") or {}).get("kind", "")
        document = request["object"]
        try:
            if kind == "SharePod":
                return self._sharepod(decoded(document, SharePod), request)
            if kind == "GPUQuota":
                quota = decoded(document, GPUQuota)
                usage = self.usage(request.get("namespace") or quota.metadata.namespace)
                if faults := quota_faults(quota.spec, usage):
                    return AdmissionAnswer(tuple(faults))
                bounds = [bound(limit, cohort=quota.spec.cohort) for limit in quota.spec.limits]
                none = [n for n, limit in enumerate(bounds) if limit.milli == 0]
                kinds = [f" of model {model}" if (model := bounds[n].model) else "" for n in none]
                sentence = "spec.limits[{}].gpus is 0: no pod of the namespace gets a GPU{}"
                warnings = [*map(sentence.format, none, kinds)]
                if not (bounds or quota.spec.forbid):
                    warnings = ["spec.limits and spec.forbid are empty: the quota limits nothing"]
                return AdmissionAnswer(warnings=tuple(warnings))
            if kind in ("Pod", "ResourceClaim"):
                objects = (document, request.get("oldObject") or {})
                metas = [decoded({"metadata": o.get("metadata")}, ApiObject).metadata for o in objects]
                return AdmissionAnswer(
                    tuple(
                        f'metadata.annotations["{key}"] is written by {writer} alone; leave it out of a new one, and '
                        "resize one that runs: kubectl aliquot resize"
                        for key, writer in ((names.PLAN, "the scheduler"), (names.PLAN_APPLIED, "the node's agent"))
                        if len({meta.annotations.get(key) for meta in metas}) > 1
                    )
                )
        except Undecodable as error:
            return AdmissionAnswer((str(error),))
        return AdmissionAnswer()

    def _rewrite(self, document: Document, ask: PodAsk, dialect: Dialect) -> None:
        """Write the request into the document as the scheduler reads it, in place."""
        words = Words()
        if dialect.name == NATIVE.name:
            words.resources = {c.container: dict(resources_for(c)) for c in ask.containers}
        else:
            owned = dialect.owned
            strip(document, Owned(owned.resources - self.kept, (), (), owned.node_selector, owned.schedulers))
            words = NATIVE.write(ask)
            words.annotations[names.DIALECT] = dialect.name
        # Pods that specify no limit get one, of up to one GPU, that is never below their request.
        for c in ask.containers if self.default_limit_milli is not None else ():
            if c.request.limit_milli is None and c.request.request_milli < MILLI and c.parts == 1:
                key = names.GPU_LIMIT if len(ask.containers) == 1 else f"{names.GPU_LIMIT}.{c.container}"
                words.annotations[key] = format_milli(max(self.default_limit_milli or 0, c.request.request_milli))
        put(document, words)
        # The API server has written its default by now: a pod that names it cannot be distinguished from one that names
        # none.
        if self.pod_scheduler and document["spec"].get("schedulerName") in (None, "", DEFAULT_SCHEDULER):
            document["spec"]["schedulerName"] = self.pod_scheduler

    def _sharepod(self, sharepod: SharePod, request: Document) -> AdmissionAnswer:
        sharepod.metadata.namespace = sharepod.metadata.namespace or request.get("namespace", "")
        if old := request.get("oldObject"):
            before, now = old.get("spec") or {}, request["object"].get("spec") or {}
            changed = [f"spec.{name}" for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
            if "spec.gpu" in changed:
                with contextlib.suppress(BadQuantity, msgspec.ValidationError):  # the same amounts in another spelling
                    if gpu_request(convert_to(GpuSpec, before.get("gpu"))) == gpu_request(sharepod.spec.gpu):
                        changed.remove("spec.gpu")
            lent_before = ((old.get("metadata") or {}).get("annotations") or {}).get(MEMORY_LIMIT)
            if lent_before != sharepod.metadata.annotations.get(MEMORY_LIMIT):
                changed.append(f'metadata.annotations["{MEMORY_LIMIT}"]')
            if not changed or sharepod.metadata.deletion_timestamp:
                return AdmissionAnswer()  # objects admitted before may lose their finalizers and get labels
            status = old.get("status") or {}
            resized = (
                not [name for name in changed if name.startswith("spec.") and name != "spec.gpu"]
                and status.get("nodeName")
                and _resized(before.get("gpu") or {}, now.get("gpu") or {})
            )
            if (pod := status.get("podName")) and not resized:
                name = sharepod.metadata.name
                return AdmissionAnswer(
                    (
                        f'{", ".join(changed)} cannot be changed in place once pod "{pod}" is made of it, but for '
                        "request, limit and memory of a part of one GPU once the pod is on its node; to run it "
                        f"changed, end it and apply it again: kubectl delete sharepod {name}, then kubectl apply",
                    )
                )
        try:
            ask = ask_of(sharepod, pod_of(sharepod))
        except BadTemplate as error:
            return AdmissionAnswer(error.faults)
        warnings = [
            f'metadata.annotations["{key}"] is for one machine, and changes nothing in a cluster'
            for key in (PARK_AFTER, MOVABLE, FOLLOWS)
            if key in sharepod.metadata.annotations
        ]
        warnings += improbable(
            ask.containers[0], "spec.gpu.request", "spec.gpu.memory", sharepod.spec.gpu.memory, "MiB"
        )
        return AdmissionAnswer(warnings=tuple(warnings))


def _resized(before: Document, now: Document) -> bool:
    """Whether two spec.gpu differ in the sizes of a part of one GPU and in nothing else."""
    sizes = {"request", "limit", "memory"}
    if {key: before[key] for key in before.keys() - sizes} != {key: now[key] for key in now.keys() - sizes}:
        return False
    with contextlib.suppress(BadQuantity):  # an amount that is none is refused by its name
        return all(parse_milli(gpu.get("request", "")) < MILLI for gpu in (before, now))
    return True


def _claims_of(ask: PodAsk, kind: str) -> dict[str, RequestedDevices]:
    """The claims of a pod's containers, each called as its container; one that uses another's share uses its claim."""
    alone = [c.container for c in ask.containers if c.role == "init" and not c.uses]
    if alone:
        raise NotByClaim(f"init container {alone[0]} asks for more than the others, and would keep it to the pod's end")
    class_name = PLACED_CLASS if kind == "placed" else SHARE_CLASS
    return {c.container: requested(c, class_name) for c in ask.containers if not c.uses}


def _fixed(pod: Pod) -> list[Any]:
    """What admission writes of a pod's spec and no update may change; a request that is left out is the limit."""
    amounts = [
        {name: [parse_quantity(value) for value in (limits[name], requests.get(name, limits[name]))] for name in limits}
        for c, _, _ in containers_of(pod)
        for limits, requests in [(c.resources.limits, c.resources.requests)]
    ]
    return [pod.spec.scheduler_name or DEFAULT_SCHEDULER, *amounts]


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
