"""ResourceClaims on our devices: what Aliquot reads of them, and the plan that an allocation stands for.

Each GPU is two devices of a node's pool: `gpu-<uuid>`, which one claim has whole, and `gpu-<uuid>-shared`, on which
claims consume `compute`, in hundredths of the GPU, and `memory`. The names are the GPU's UUID, since its index may
change at a reboot while claims are allocated. What a capacity cannot say stands in opaque parameters:

    config: [{opaque: {driver: gpu.aliquot.dev, parameters: {apiVersion: aliquot.dev/v1alpha1, kind: ShareParameters,
                                                             limit: 0.6, wake: 5ms}}}]

Source: resource.k8s.io/v1. Nothing upstream checks an allocation against what a driver published.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final, Literal

import msgspec

from aliquot.kube.names import GROUP, PLAN
from aliquot.kube.objects import ApiObject, Meta, Pod, PodSpec, Quantities, Resource, Value, without_nulls
from aliquot.kube.plan import ContainerPlan, PodPlan, label_texts, write_plan
from aliquot.kube.quantities import Quantity, format_mib_quantity, parse_quantity
from aliquot.kube.requests import ContainerAsk, PodAsk
from aliquot.lib.decoding import convert_to
from aliquot.model.ids import CLAIM, GpuUuid, claim_key
from aliquot.model.quantities import MILLI, BadQuantity, Memory, format_milli, parse_milli
from aliquot.model.requests import BadRequest, GpuRequest, Labels, Slice, checked, parse_label
from aliquot.model.validation import sentence
from aliquot.model.wake import parse_wake

DRIVER: Final = f"gpu.{GROUP}"
COMPUTE: Final = "compute"
MEMORY: Final = "memory"
SHARED: Final = "-shared"
POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation on the claims of templates: the name that the pod has for it."""
SHARE_CLASS: Final = f"gpu-share.{GROUP}"
WHOLE_CLASS: Final = f"gpu-whole.{GROUP}"
DEFAULT_PART: Final = 4
"""What a claim that names no amount gets of a GPU: a quarter."""
_PREFIX: Final = "gpu-"
_EQUAL: Final = re.compile(rf"""device\.attributes\[["']{DRIVER}["']\]\.(model|uuid) *== *["']([^"']+)["']""")
"""The terms of selectors that `claims_ask` understands."""


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
    def tenant(self) -> str:
        """The name that its node's agent has, or will have, for its tenant: that of the pod it was prepared for."""
        said = [one.data for one in self.status.devices if one.driver == DRIVER and isinstance(one.data, dict)]
        pod = self.pods[0].name if self.pods else self.metadata.name
        return str(said[0].get("tenant")) if said else f"{self.metadata.namespace}/{pod}/{self.called}"

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
RESOURCE_SLICES: Final = Resource(ApiObject, "ResourceSlice", "resourceslices", "resource.k8s.io", namespaced=False)


class ShareParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Our opaque parameters; `request` is for a share finer than hundredths, within the compute that was consumed."""

    api_version: Literal["aliquot.dev/v1alpha1"] = "aliquot.dev/v1alpha1"
    kind: Literal["ShareParameters"] = "ShareParameters"
    request: str | float = ""
    limit: str | float = ""
    wake: str = ""
    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""

    @property
    def labels(self) -> Labels:
        """The labels of its devices."""
        return Labels(*(parse_label(text) if text else "" for text in (
            self.affinity, self.anti_affinity, self.exclusion
        )))  # fmt: skip


_DEFAULTS: Final = ShareParameters()


def slice_name(node: str, part: str) -> str:
    """The ResourceSlice with a part, `counters` or `devices`, of what a node's agent publishes."""
    return f"{node}-{DRIVER}-{part}"


def device_name(uuid: str, *, shared: bool) -> str:
    """The device of a GPU."""
    return uuid.lower() + (SHARED if shared else "")


def uuid_of(device: str) -> GpuUuid:
    """The GPU of a device."""
    return GpuUuid("GPU-" + device.removeprefix(_PREFIX).removesuffix(SHARED))


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
        if len({(said.wake, said.labels) for said in parameters.values()}) > 1:
            raise BadRequest("wake and labels are those of the whole claim; give them without requests")
        if not slices:
            return None
        first = next(iter(parameters.values()))
        wake_us = parse_wake(first.wake) if first.wake else 0
        if wake_us and len(slices) > 1:
            raise BadRequest(f"wake {first.wake} is for a share of one GPU, the claim has {len(slices)}; leave it out")
    except (BadQuantity, BadRequest) as error:
        raise BadRequest(str(error)) from None
    shared = any(given.device.endswith(SHARED) for given in claim.ours)
    pieces = sorted(slices.values(), key=lambda piece: piece.request_milli < MILLI)
    given_plan = ContainerPlan(
        tuple(pieces), label_texts=label_texts(first.labels), enforce="all" if shared else "memory", wake_us=wake_us
    )
    return PodPlan(claim.ours[0].pool, {claim.called: given_plan})


def prepared_body(claim: ResourceClaim, plan: PodPlan, tenant: str, now: str) -> dict[str, Any]:
    """What its driver applies to the status of a claim that it has prepared as this tenant: what each device became."""
    slices = {piece.gpu: piece for piece in plan.slices}
    ready = {"type": "Ready", "status": "True", "reason": "Prepared", "message": "", "lastTransitionTime": now}
    devices = []
    for given in claim.ours:
        piece = slices[uuid_of(given.device)]
        data = {
            "tenant": tenant, "uuid": piece.gpu, "request": format_milli(piece.request_milli),
            "limit": format_milli(piece.limit_milli), "memory": format_mib_quantity(piece.memory_mib),
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
    """A claim with devices of ours, as the bound pod that would hold the same; None for another.

    Kube-scheduler counts what was consumed whatever the parameters say; bad ones are left out here.
    """
    plan, _ = readable_plan(claim, {})
    if plan is None:
        return None
    meta = claim.metadata
    named = Meta(CLAIM + meta.name, meta.namespace, meta.uid, annotations={PLAN: write_plan(plan)})
    return Pod(named, PodSpec(node_name=plan.node))


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
        notes += [f"not judged here: its GPUs need the same {c.get('matchAttribute')}" for c in devices.constraints]
        for request in devices.requests:
            exact = request.exactly or next(iter(request.first_available), ExactRequest())
            if exact.device_class_name not in (SHARE_CLASS, WHOLE_CLASS):
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
                asked, parts = _asked(exact, parameters_of(claim, request.name)), 1
            except BadQuantity as error:
                raise BadRequest(str(error)) from None
            if exact.device_class_name == SHARE_CLASS:
                parts = exact.count
            several = f"{claim.called}/{request.name}"
            name = several if len(devices.requests) > 1 else claim.called
            asks.append(ContainerAsk(name, replace(asked, **named), parts=parts))
    return PodAsk(uid or "claim", uid, tuple(asks), notes=tuple(notes)) if asks else None


def _asked(exact: ExactRequest, said: ShareParameters) -> GpuRequest:
    """The request for one shared GPU, or for all the whole ones."""
    if exact.device_class_name == WHOLE_CLASS:
        return GpuRequest(MILLI * exact.count, mixed=True)
    amounts = exact.capacity.get("requests", {})
    request = _consumed_milli(amounts.get(COMPUTE, 100 // DEFAULT_PART))
    memory = Memory(part=Fraction(1, DEFAULT_PART))
    if MEMORY in amounts:
        memory = Memory(mib=int(Fraction(parse_quantity(amounts[MEMORY])) / (1 << 20)))
    limit = parse_milli(said.limit) if said.limit else None
    asked = GpuRequest(request, limit, memory, labels=said.labels)
    return checked(asked, request_name=COMPUTE, limit_name="limit")


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
    if not given.device.endswith(SHARED):
        if said.request or said.limit or said.wake:
            raise BadRequest("request, limit and wake are for shares, and the device is a whole GPU; leave them out")
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
    asked = GpuRequest(
        request, parse_milli(said.limit) if said.limit else None, wake_us=parse_wake(said.wake) if said.wake else 0
    )
    checked(asked, request_name=COMPUTE, limit_name="limit")
    memory = int(Fraction(parse_quantity(given.consumed_capacity[MEMORY])) / (1 << 20))
    return Slice(uuid, request, asked.ceiling_milli, memory)
