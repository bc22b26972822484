"""ResourceClaims on our devices: what Aliquot reads of them, and the plan that an allocation stands for.

Each GPU is two devices of a node's pool: `gpu-<uuid>`, which one claim has whole, and `gpu-<uuid>-shared`, on which
claims consume `compute`, in hundredths of the GPU, and `memory`. The names are the GPU's UUID, since its index may
change at a reboot while claims are allocated. What a capacity cannot say stands in opaque parameters:

    config: [{opaque: {driver: gpu.aliquot.dev, parameters: {apiVersion: aliquot.dev/v1alpha1, kind: ShareParameters,
                                                             limit: 0.6, wake: 5ms}}}]

Source: resource.k8s.io/v1. Nothing upstream checks an allocation against what a driver published.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final, Literal

import msgspec

from aliquot.kube.names import GROUP, PLAN
from aliquot.kube.objects import Meta, MetaOnly, Pod, PodSpec, Quantities, Resource, Value, Wire, without_nulls
from aliquot.kube.plan import ContainerPlan, PodPlan, write_plan
from aliquot.kube.quantities import parse_quantity
from aliquot.lib.decoding import convert_to
from aliquot.model.ids import GpuUuid
from aliquot.model.quantities import MILLI, BadQuantity, format_milli, parse_milli
from aliquot.model.requests import BadRequest, GpuRequest, Labels, Slice, checked, parse_label
from aliquot.model.validation import sentence
from aliquot.model.wake import parse_wake

DRIVER: Final = f"gpu.{GROUP}"
COMPUTE: Final = "compute"
MEMORY: Final = "memory"
SHARED: Final = "-shared"
POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation on the claims of templates: the name that the pod has for it."""
_PREFIX: Final = "gpu-"


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


class ClaimStatus(Value, frozen=True):
    """The allocation, and for whom it is reserved."""

    allocation: ClaimAllocation | None = None
    reserved_for: tuple[Consumer, ...] = ()


class ResourceClaim(Wire):
    """A claim."""

    metadata: Meta = msgspec.field(default_factory=Meta)
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


RESOURCE_CLAIMS: Final = Resource(ResourceClaim, "ResourceClaim", "resourceclaims", "resource.k8s.io")
RESOURCE_SLICES: Final = Resource(MetaOnly, "ResourceSlice", "resourceslices", "resource.k8s.io", namespaced=False)


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
        tuple(pieces), labels=first.labels, enforce="all" if shared else "memory", wake_us=wake_us
    )
    return PodPlan(claim.ours[0].pool, {claim.called: given_plan})


def holder_of(claim: ResourceClaim) -> Pod | None:
    """A claim with devices of ours, as the bound pod that would hold the same; None for another.

    Kube-scheduler counts what was consumed whatever the parameters say; bad ones are left out here.
    """
    try:
        plan = claim_plan(claim, {})
    except BadRequest:
        try:
            plan = claim_plan(claim, {}, lenient=True)
        except BadRequest:
            return None
    if plan is None:
        return None
    meta = claim.metadata  # no pod has such a name
    named = Meta(f"claim:{meta.name}", meta.namespace, meta.uid, annotations={PLAN: write_plan(plan)})
    return Pod(named, PodSpec(node_name=plan.node))


def parameters_of(claim: ResourceClaim, request: str) -> ShareParameters:
    """Our parameters for one request of a claim; what the claim says counts before what its class says.

    Raises:
        BadRequest: they are not in the form of our parameters; the text says how.
    """
    given: dict[str, Any] = {}
    main = request.partition("/")[0]  # a subrequest of `firstAvailable` is named with its request
    for config in claim.status.allocation.devices.config if claim.status.allocation else ():
        mine = config.opaque.driver == DRIVER and (not config.requests or {request, main} & set(config.requests))
        if mine and isinstance(config.opaque.parameters, dict):
            given |= without_nulls(config.opaque.parameters)
    try:
        return convert_to(ShareParameters, given) if given else _DEFAULTS
    except msgspec.ValidationError as error:
        raise BadRequest(f"parameters: {sentence(error, given, ShareParameters)}") from None


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
    consumed = int(parse_quantity(given.consumed_capacity[COMPUTE]) * 10)
    request = parse_milli(said.request) if said.request else consumed
    if consumed > MILLI:
        raise BadRequest(f"{COMPUTE} {consumed / 10:g} is more than one GPU; a share is at most 100")
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
