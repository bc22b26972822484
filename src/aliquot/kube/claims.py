"""ResourceClaims on our devices: what Aliquot reads of them, and the plan that an allocation stands for.

Each GPU is two devices of a node's pool: `gpu-<uuid>`, which one claim has whole, and `gpu-<uuid>-shared`, on which
claims consume `compute`, in hundredths of the GPU, and `memory`; and one more, `gpu-<uuid>-shared-<size>`, for each
fixed size, of which a claim that names no amount gets just that. The names are the GPU's UUID, since its index may
change at a reboot while claims are allocated. What a capacity cannot say stands in opaque parameters:

    config: [{opaque: {driver: gpu.aliquot.dev, parameters: {apiVersion: aliquot.dev/v1alpha1, kind: ShareParameters,
                                                             limit: 0.6, wake: 5ms}}}]

Source: resource.k8s.io/v1. Nothing upstream checks an allocation against what a driver published.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final, Literal

import msgspec

from aliquot.kube import names
from aliquot.kube.objects import (
    PODS,
    ApiObject,
    Container,
    Pod,
    PodSpec,
    Quantities,
    Resource,
    Resources,
    Value,
    without_nulls,
)  # fmt: skip
from aliquot.kube.plan import BadPlan, ContainerPlan, PodPlan, label_texts, read_plan, write_plan
from aliquot.kube.quantities import Quantity, format_mib_quantity, parse_quantity
from aliquot.kube.requests import ContainerAsk, PodAsk
from aliquot.lib.decoding import convert_to, decode_json
from aliquot.model.errors import UserError
from aliquot.model.ids import CLAIM, GpuUuid, claim_key
from aliquot.model.quantities import MILLI, BadQuantity, Memory, format_milli, parse_memory, parse_milli
from aliquot.model.requests import BadRequest, GpuRequest, Labels, Slice, checked, parse_label
from aliquot.model.validation import sentence
from aliquot.model.wake import format_wake, parse_wake

DRIVER: Final = f"gpu.{names.GROUP}"
COMPUTE: Final = "compute"
MEMORY: Final = "memory"
SHARED: Final = "-shared"
POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation on the claims of templates: the name that the pod has for it."""
SHARE_CLASS: Final = f"gpu-share.{names.GROUP}"
WHOLE_CLASS: Final = f"gpu-whole.{names.GROUP}"
PLACED_CLASS: Final = f"gpu-placed.{names.GROUP}"
"""No device is of it for kube-scheduler: Aliquot's scheduler alone allocates."""
CLASSES: Final = (SHARE_CLASS, WHOLE_CLASS, PLACED_CLASS)
ONE_MODEL: Final = f"{DRIVER}/model"
DEFAULT_PART: Final = 4
"""What a claim that names no amount gets of a GPU: a quarter."""
_PREFIX: Final = "gpu-"
_EQUAL: Final = re.compile(rf"""device\.attributes\[["']{DRIVER}["']\]\.(model|uuid) *== *["']([^"']+)["']""")
"""The terms of selectors that `claims_ask` understands."""
_LIST: Final = re.compile(r"\s*[,|]\s*")


class ClaimedDevice(Value, frozen=True):
    """One allocated device."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str = msgspec.field(name="shareID", default="")
    consumed_capacity: Quantities = {}  # noqa: RUF012


class OpaqueParameters(Value, frozen=True):
    """Parameters that only the driver of that name reads."""

    driver: str = ""
    parameters: Any = None


class ClaimConfig(Value, frozen=True):
    """Parameters for some requests of a claim, for all where none is named; those of its class come first."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueParameters = OpaqueParameters()


class ClaimedDevices(Value, frozen=True):
    """The devices of an allocation, and their parameters."""

    results: tuple[ClaimedDevice, ...] = ()
    config: tuple[ClaimConfig, ...] = ()


class ClaimAllocation(Value, frozen=True):
    """The decision of kube-scheduler, or of another allocator."""

    devices: ClaimedDevices = ClaimedDevices()


class Consumer(Value, frozen=True):
    """Who may use a claim; a pod where `resource` is `pods`."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class DeviceStatus(Value, frozen=True):
    """What a driver says of a device that it has prepared; `data` is in its own words."""

    driver: str = ""
    data: Any = None


class ClaimStatus(Value, frozen=True):
    """The allocation, for whom it is reserved, and what became of its devices."""

    allocation: ClaimAllocation | None = None
    reserved_for: tuple[Consumer, ...] = ()
    devices: tuple[DeviceStatus, ...] = ()


class ExactRequest(Value, frozen=True):
    """What a request asks for: devices of a class, `{cel: {expression}}`, and so much of each, `{requests: {...}}`."""

    device_class_name: str = ""
    allocation_mode: str = ""
    count: int = 1
    selectors: tuple[dict[str, dict[str, str]], ...] = ()
    capacity: dict[str, Quantities] = {}  # noqa: RUF012


class ClaimRequest(Value, frozen=True):
    """A request of a claim, exactly one thing or the first of several that is available."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: tuple[ExactRequest, ...] = ()


class RequestedDevices(Value, frozen=True):
    """The requests of a claim, what their devices have in common, and their parameters."""

    requests: tuple[ClaimRequest, ...] = ()
    constraints: tuple[dict[str, Any], ...] = ()
    config: tuple[ClaimConfig, ...] = ()


class ClaimSpec(Value, frozen=True):
    """What a claim asks for."""

    devices: RequestedDevices = RequestedDevices()


class ResourceClaim(ApiObject):
    """A claim."""

    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    @property
    def ours(self) -> list[ClaimedDevice]:
        """The devices of our driver that it has."""
        allocation = self.status.allocation
        return [given for given in allocation.devices.results if given.driver == DRIVER] if allocation else []

    @property
    def called(self) -> str:
        """Its name within its pod, where a template made it; else its own."""
        return self.metadata.annotations.get(POD_CLAIM_NAME, self.metadata.name)

    @property
    def pods(self) -> list[Consumer]:
        """The pods for which it is reserved."""
        return [consumer for consumer in self.status.reserved_for if consumer.resource == "pods"]

    @property
    def workload(self) -> str:
        """Its name among the workloads."""
        return f"{self.metadata.namespace}/{CLAIM}{self.metadata.name}"

    @property
    def prepared(self) -> dict[str, Any]:
        """What its node's agent says of its devices (`prepared_body`); nothing before it has prepared them."""
        return next((d.data for d in self.status.devices if d.driver == DRIVER and isinstance(d.data, dict)), {})

    @property
    def tenant(self) -> str:
        """The name that its node's agent has, or will have, for its tenant: that of the pod it was prepared for."""
        pod = self.pods[0].name if self.pods else self.metadata.name
        return str(self.prepared.get("tenant", f"{self.metadata.namespace}/{pod}/{self.called}"))

    def name_in(self, pod: Pod) -> str:
        """What a pod calls it; empty where it does not use it."""
        meta, own = self.metadata, pod.metadata
        if meta.namespace != own.namespace:
            return ""
        mine = any(owner.uid == own.uid for owner in meta.owner_references)
        for use in pod.spec.resource_claims:
            if (
                (use.resource_claim_name == meta.name)
                if use.resource_claim_name
                else (mine and use.name == self.called)
            ):
                return use.name
        return ""


RESOURCE_CLAIMS: Final = Resource(ResourceClaim, "ResourceClaim", "resourceclaims", "resource.k8s.io")
TEMPLATES: Final = Resource(ApiObject, "ResourceClaimTemplate", "resourceclaimtemplates", "resource.k8s.io")
RESOURCE_SLICES: Final = Resource(ApiObject, "ResourceSlice", "resourceslices", "resource.k8s.io", namespaced=False)


class ShareParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Our opaque parameters; `request` is for a share finer than hundredths, within the compute that was consumed.

    Those from `memory` on, a part of the GPU's as `30%`, are for claims that Aliquot places.
    """

    api_version: Literal["aliquot.dev/v1alpha1"] = "aliquot.dev/v1alpha1"
    kind: Literal["ShareParameters"] = "ShareParameters"
    request: str | float = ""
    limit: str | float = ""
    wake: str = ""
    memory_limit: str = ""
    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""
    memory: str = ""
    models: str = ""
    models_not: str = ""
    uuids: str = ""
    uuids_not: str = ""

    @property
    def labels(self) -> Labels:
        """The labels of its devices."""
        return Labels(*(parse_label(text) if text else "" for text in (
            self.affinity, self.anti_affinity, self.exclusion
        )))  # fmt: skip

    def asked(self, request_milli: int, memory: Memory | None) -> GpuRequest:
        """The request for a share of these amounts."""
        limit, wake_us = parse_milli(self.limit) if self.limit else None, parse_wake(self.wake) if self.wake else 0
        most = parse_memory(self.memory_limit) if self.memory_limit else None
        return GpuRequest(request_milli, limit, memory, labels=self.labels, wake_us=wake_us, memory_limit=most)


_DEFAULTS: Final = ShareParameters()
_PLACED_ONLY: Final = {"memory", "models", "modelsNot", "uuids", "uuidsNot"}


def slice_name(node: str, part: str) -> str:
    """The ResourceSlice with a part, `counters` or `devices`, of what a node's agent publishes."""
    return f"{node}-{DRIVER}-{part}"


def device_name(uuid: str, *, shared: bool, size: str = "") -> str:
    """The device of a GPU, or that for shares of a fixed size."""
    return uuid.lower() + (SHARED if shared else "") + (f"-{size}" if size else "")


def uuid_of(device: str) -> GpuUuid:
    """The GPU of a device."""
    return GpuUuid("GPU-" + device.removeprefix(_PREFIX).partition(SHARED)[0])


def claim_plan(claim: ResourceClaim, memory_mib: Mapping[str, int], *, lenient: bool = False) -> PodPlan | None:
    """The plan that its allocation stands for: one container, called as the claim is, has all of its devices.

    `memory_mib` is that of the GPUs by UUID, 0 where it is not known. None where it has no device of ours. `lenient` is
    for those who only count what is consumed: bad parameters are left out.

    Raises:
        BadRequest: its parameters or its allocation are not possible.
    """
    try:
        slices: dict[str, Slice] = {}
        parameters = {}
        for given in claim.ours:
            said = parameters[given.request] = _DEFAULTS if lenient else parameters_of(claim, given.request)
            uuid = uuid_of(given.device)
            piece = _slice(given, uuid, said, memory_mib.get(uuid, 0))
            if (before := slices.get(uuid)) is not None:  # two requests of one claim may have shares of one device
                request = before.request_milli + piece.request_milli
                limit = min(MILLI, before.limit_milli + piece.limit_milli)
                piece = Slice(uuid, request, limit, before.memory_mib + piece.memory_mib)
            slices[uuid] = piece
        if len({(said.wake, said.labels, said.memory_limit) for said in parameters.values()}) > 1:
            raise BadRequest("wake, memoryLimit and labels are those of the whole claim; give them without requests")
        if not slices:
            return None
        first = next(iter(parameters.values()))
        asked = first.asked(0, None)
        for name, text in (("wake", first.wake), ("memoryLimit", first.memory_limit)):
            if text and len(slices) > 1:
                raise BadRequest(f"{name} {text} is for a share of one GPU, the claim has {len(slices)}; leave it out")
    except (BadQuantity, BadRequest) as error:
        raise BadRequest(str(error)) from None
    shared = any(SHARED in given.device for given in claim.ours)
    pieces = sorted(slices.values(), key=lambda piece: piece.request_milli < MILLI)
    given_plan = ContainerPlan(
        tuple(pieces), label_texts=label_texts(asked.labels), enforce="all" if shared else "memory",
        wake_us=asked.wake_us, memory_limit=asked.memory_limit_text,
    )  # fmt: skip
    return PodPlan(claim.ours[0].pool, {claim.called: given_plan})


def prepared_body(claim: ResourceClaim, plan: PodPlan, tenant: str, applied: str, now: str) -> dict[str, Any]:
    """What its driver applies to the status of a claim that it has prepared as this tenant: what each device became.

    `applied` is what a pod's annotation `aliquot.dev/plan-applied` would say.
    """
    slices = {piece.gpu: piece for piece in plan.slices}
    ready = {"type": "Ready", "status": "True", "reason": "Prepared", "message": "", "lastTransitionTime": now}
    devices = []
    for given in claim.ours:
        piece = slices[uuid_of(given.device)]
        data = {
            "tenant": tenant, "uuid": piece.gpu, "request": format_milli(piece.request_milli),
            "limit": format_milli(piece.limit_milli), "memory": format_mib_quantity(piece.memory_mib),
            "applied": applied,
        }  # fmt: skip
        key = {"driver": DRIVER, "pool": given.pool, "device": given.device}
        share = {"shareID": given.share_id} if given.share_id else {}
        devices.append(key | share | {"conditions": [ready], "data": data})
    meta = claim.metadata
    metadata = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
    return {"metadata": metadata, "status": {"devices": devices}}


def readable_plan(claim: ResourceClaim, memory_mib: Mapping[str, int]) -> tuple[PodPlan | None, str]:
    """Its plan, without parameters where these are not possible, and what is wrong with them."""
    try:
        return claim_plan(claim, memory_mib), ""
    except BadRequest as error:
        with contextlib.suppress(BadRequest):
            return claim_plan(claim, memory_mib, lenient=True), str(error)
        return None, str(error)


def holder_of(claim: ResourceClaim) -> Pod | None:
    """A claim with devices of ours, as the bound pod that would hold the same, and is resized by the same annotations;
    None for another.

    Kube-scheduler counts what was consumed whatever the parameters say; bad ones are left out here. A later plan counts
    as long as the claim has the allocation that it was made for.
    """
    plan, _ = readable_plan(claim, {})
    if plan is None:
        return None
    meta, notes = claim.metadata, claim.metadata.annotations
    plan = msgspec.structs.replace(plan, allocation=" ".join(given.share_id for given in claim.ours))
    with contextlib.suppress(BadPlan):
        later = read_plan(notes)
        if later is not None and later.place == plan.place:
            plan = later
    total, (piece, *others) = sum(piece.request_milli for piece in plan.slices), plan.slices
    said: dict[str, str] = {}
    if not others and piece.request_milli < MILLI:
        said |= {names.GPU_REQUEST: format_milli(piece.request_milli), names.GPU_LIMIT: format_milli(piece.limit_milli)}
        said |= {names.GPU_MEMORY: format_mib_quantity(piece.memory_mib)} if names.GPU_MEMORY_PART not in notes else {}
        said |= {names.GPU_MEMORY_LIMIT: most} if (most := plan.containers[claim.called].memory_limit) else {}
    said |= {name: text for name, text in notes.items() if name in (*names.SIZES, names.RESIZE)}
    said |= {names.PLAN: write_plan(plan), names.PLAN_APPLIED: str(claim.prepared.get("applied", "{}"))}
    asking = Container(claim.called, Resources({names.GPU_PERCENT: str(max(1, total // 10))}))
    named = msgspec.structs.replace(meta, name=CLAIM + meta.name, labels={}, annotations=said)
    return Pod(named, PodSpec(node_name=plan.node, containers=[asking]))


def written_to(pod: Pod) -> tuple[Resource[Any], str]:
    """The kind and the name of the object that this pod is, or stands for."""
    name = pod.metadata.name
    return (RESOURCE_CLAIMS, name.removeprefix(CLAIM)) if name.startswith(CLAIM) else (PODS, name)


def claim_called(name: str, claims: Mapping[str, ResourceClaim]) -> ResourceClaim | None:
    """The claim that a tenant or a workload is of; `claims` are by `namespace/name`."""
    return claims.get(claim_key(name))


def claims_ask(claims: Iterable[ResourceClaim], uid: str = "") -> PodAsk | None:
    """What these claims ask of our devices, in the form of a pod's request; None where they ask for none.

    Its key is without a namespace, since no GPUQuota bounds claims. The notes say what of them cannot be judged by it.

    Raises:
        BadRequest: an amount or the parameters of one are not possible.
    """
    asks: list[ContainerAsk] = []
    notes: list[str] = []
    for claim in claims:
        devices = claim.spec.devices
        same = [str(constraint.get("matchAttribute")) for constraint in devices.constraints]
        one_model = len(devices.requests) == 1 and ONE_MODEL in same
        unjudged = [name for name in same if not one_model or name != ONE_MODEL]
        notes += [f"not judged here: its GPUs need the same {name}" for name in unjudged]
        for request in devices.requests:
            exact = request.exactly or next(iter(request.first_available), ExactRequest())
            if exact.device_class_name not in CLASSES:
                if exact.device_class_name:
                    notes.append(f"not judged here: devices of class {exact.device_class_name}")
                continue
            if exact.allocation_mode == "All":
                notes.append(f'not judged here: request "{request.name}" wants all devices of the class, one is judged')
            if len(request.first_available) > 1:
                notes.append(f'of request "{request.name}" the first alternative is judged')
            named: dict[str, Any] = {}
            for term in " && ".join(each["cel"]["expression"] for each in exact.selectors).split("&&"):
                if equal := _EQUAL.fullmatch(term.strip(" ()\n")):
                    named["gpu" if equal[1] == "uuid" else "model"] = equal[2]
                elif term.strip():
                    notes.append(f"not judged here: selector {term.strip()}")
            try:
                said = parameters_of(claim, request.name)
                asked, parts = _asked(exact, said, mixed=not one_model)
            except BadQuantity as error:
                raise BadRequest(str(error)) from None
            several = f"{claim.called}/{request.name}"
            name = several if len(devices.requests) > 1 else claim.called
            not_these = _listed(said.models_not), _listed(said.uuids_not)
            asks.append(ContainerAsk(name, replace(asked, **named), "app", parts, *not_these))
    return PodAsk(uid or "claim", uid, tuple(asks), notes=tuple(notes)) if asks else None


def _asked(exact: ExactRequest, said: ShareParameters, *, mixed: bool) -> tuple[GpuRequest, int]:
    """The request for one shared GPU and how many of them are wanted, or the one for all the whole ones."""
    if exact.device_class_name == WHOLE_CLASS:
        return GpuRequest(MILLI * exact.count, mixed=mixed), 1
    amounts, placed = exact.capacity.get("requests", {}), exact.device_class_name == PLACED_CLASS
    request, parts = _consumed_milli(amounts.get(COMPUTE, 100 // DEFAULT_PART)), exact.count
    memory = None if placed else Memory(part=Fraction(1, DEFAULT_PART))
    if said.memory:
        memory = parse_memory(said.memory)
    if MEMORY in amounts:
        memory = Memory(mib=int(Fraction(parse_quantity(amounts[MEMORY])) / (1 << 20)))
    if placed and said.request:
        request = parse_milli(said.request)
    if placed and request == MILLI and memory is None:
        request, parts = MILLI * parts, 1
    model, gpu = "|".join(_listed(said.models)), ",".join(_listed(said.uuids))
    asked = replace(said.asked(request, memory), model=model, gpu=gpu, mixed=mixed)
    return checked(asked, request_name=COMPUTE, limit_name="limit", memory_limit_name="memoryLimit"), parts


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, _LIST.split(text.strip())))


class NotByClaim(UserError):
    """A request that no claim can say; the text gives the reason."""


def requested(asked: ContainerAsk, class_name: str) -> RequestedDevices:
    """The claim that asks for what a container asks for, of `PLACED_CLASS`, or else as kube-scheduler allocates it.

    Raises:
        NotByClaim: it cannot be said in a claim.
    """
    request, placed = asked.request, class_name == PLACED_CLASS
    part = request.memory.part if request.memory is not None else None
    whole = request.whole > 0 and not request.rest_milli and request.memory is None
    for given, why in (
        (request.gpu_id, "it names a vGPU, and claims know none"),
        (asked.near_cores, "claims bind no cores"),
        (request.whole and request.rest_milli, "it asks for whole GPUs and a part of one; ask for one or the other"),
        (request.enforce not in (None, "memory" if whole else "all"), f"claims cannot say enforce {request.enforce}"),
        (not placed and request.labels != Labels(), "kube-scheduler does not know the labels of GPUs"),
        (
            not placed and not whole and (request.memory is None or part),
            "kube-scheduler needs an amount of memory; add aliquot.dev/gpu-memory",
        ),
    ):
        if given:
            raise NotByClaim(f"container {asked.container}: {why}")
    said = {
        "request": format_milli(request.request_milli) if request.request_milli % 10 else "",
        "limit": format_milli(request.limit_milli) if request.limit_milli is not None and not whole else "",
        "wake": format_wake(request.wake_us) if request.wake_us else "",
        "memoryLimit": request.memory_limit_text,
        "affinity": request.labels.affinity,
        "antiAffinity": request.labels.anti_affinity,
        "exclusion": request.labels.exclusion,
    }
    models, uuids = request.models, _listed(request.gpu)
    terms: list[str] = []
    if placed:
        said |= {
            "memory": str(request.memory) if part else "",
            "models": "|".join(models),
            "modelsNot": "|".join(asked.models_not),
            "uuids": ",".join(uuids),
            "uuidsNot": ",".join(asked.uuids_not),
        }
    else:
        model, uuid = (f'device.attributes["{DRIVER}"].{name}' for name in ("model", "uuid"))
        for sign, ones in (("", models), ("!", asked.models_not)):  # as `model_matches` does
            words = "|".join("[^a-z0-9]+".join(re.findall("[a-z0-9]+", one.lower())) for one in ones)
            terms += [f'{sign}{model}.matches("(?i)(^|[^a-z0-9])({words})([^a-z0-9]|$)")'] if ones else []
        for sign, ones in (("", uuids), ("!", asked.uuids_not)):
            terms += [f"{sign}({uuid} in {msgspec.json.encode(ones).decode()})"] if ones else []
    amounts: Quantities = {COMPUTE: str(-(-min(request.request_milli, MILLI) // 10))}
    if request.memory is not None and request.memory.mib:
        amounts[MEMORY] = format_mib_quantity(request.memory.mib)
    exact = ExactRequest(
        class_name if placed else WHOLE_CLASS if whole else SHARE_CLASS,
        count=request.whole if whole else asked.parts,
        selectors=tuple({"cel": {"expression": term}} for term in terms),
        capacity={"requests": amounts} if placed or not whole else {},
    )
    parameters = {"apiVersion": "aliquot.dev/v1alpha1", "kind": "ShareParameters"}
    parameters |= {name: text for name, text in said.items() if text}
    return RequestedDevices(
        (ClaimRequest("gpu", exact),),
        ({"matchAttribute": ONE_MODEL},) if request.whole > 1 and not request.mixed else (),
        (ClaimConfig(opaque=OpaqueParameters(DRIVER, parameters)),) if len(parameters) > 2 else (),
    )


def template_name(devices: RequestedDevices) -> str:
    """The name of the ResourceClaimTemplate with these requests, which every pod that asks the same shares."""
    return f"aliquot-{hashlib.sha256(msgspec.json.encode(devices)).hexdigest()[:16]}"


def claims_made(annotations: Mapping[str, str]) -> dict[str, RequestedDevices]:
    """What admission asked for in place of a pod's resources, by the pod's names for the claims.

    Only what any pod may ask for by its resources: devices of our classes. What is written otherwise is left out.
    """
    try:
        said = decode_json(annotations.get(names.CLAIMS, "{}"), dict[str, RequestedDevices])
    except msgspec.MsgspecError:
        return {}
    return {
        name: devices for name, devices in said.items()
        if all(one.exactly is not None and one.exactly.device_class_name in CLASSES for one in devices.requests)
    }  # fmt: skip


def parameters_of(claim: ResourceClaim, request: str) -> ShareParameters:
    """Our parameters for one request of a claim; what the claim says counts before what its class says.

    Raises:
        BadRequest: they are not in the form of our parameters; the text says how.
    """
    given: dict[str, Any] = {}
    main = request.partition("/")[0]  # a subrequest of `firstAvailable` is named with its request
    for config in (claim.status.allocation or claim.spec).devices.config:
        mine = config.opaque.driver == DRIVER and (not config.requests or {request, main} & set(config.requests))
        if mine and isinstance(config.opaque.parameters, dict):
            given |= without_nulls(config.opaque.parameters)
    classes = {one.name: one.exactly.device_class_name for one in claim.spec.devices.requests if one.exactly}
    if (wrong := given.keys() & _PLACED_ONLY) and classes.get(main) != PLACED_CLASS:
        listed = ", ".join(sorted(wrong))
        raise BadRequest(f"parameters: {listed} is for class {PLACED_CLASS}; use capacity and selectors")
    try:
        return convert_to(ShareParameters, given) if given else _DEFAULTS
    except msgspec.ValidationError as error:
        raise BadRequest(f"parameters: {sentence(error, given, ShareParameters)}") from None


def _consumed_milli(compute: Quantity) -> int:
    consumed = int(parse_quantity(compute) * 10)
    if consumed > MILLI:
        raise BadRequest(f"{COMPUTE} {consumed / 10:g} is more than one GPU; a share is at most 100")
    return consumed


def _slice(given: ClaimedDevice, uuid: GpuUuid, said: ShareParameters, memory_mib: int) -> Slice:
    if SHARED not in given.device:
        if said.request or said.limit or said.wake or said.memory_limit:
            words = "request, limit, wake and memoryLimit"
            raise BadRequest(f"{words} are for shares, and the device is a whole GPU; leave them out")
        return Slice(uuid, MILLI, MILLI, memory_mib)
    missing = {COMPUTE, MEMORY} - given.consumed_capacity.keys()
    if missing:
        raise BadRequest(
            f"the allocation of {given.device} does not say how much {' and '.join(sorted(missing))} it consumes; "
            "the allocator has to write consumedCapacity"
        )
    consumed = _consumed_milli(given.consumed_capacity[COMPUTE])
    request = parse_milli(said.request) if said.request else consumed
    if request > consumed:
        raise BadRequest(
            f"request {format_milli(request)} is above the compute that the claim consumes, {format_milli(consumed)}; "
            f"ask for capacity {COMPUTE}: {-(-request // 10)}"
        )
    memory = int(Fraction(parse_quantity(given.consumed_capacity[MEMORY])) / (1 << 20))
    asked = said.asked(request, Memory(mib=memory))
    checked(asked, request_name=COMPUTE, limit_name="limit", memory_limit_name="memoryLimit")
    return Slice(uuid, request, asked.ceiling_milli, memory)
