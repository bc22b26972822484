"""The node's ResourceSlices: for each GPU a device that one claim has whole, and one whose capacity claims share.

A counter of one ties the two, so that kube-scheduler gives a GPU whole or shared by what is asked first. What pods with
extended resources hold is not kube-scheduler's to give: the shared device's capacity is less by that, and the whole
device is not there meanwhile. A claim's allocation never changes: the capacity is less by what the claim was grown
since, and more by what it was shrunk. A claim that names no amount gets a quarter of the GPU and of its memory. For
each fixed size there is one more device, whose claims get that size; the counter keeps a GPU to one of its devices.

Kubelet removes the slices of a driver that is away for half a minute, so what is missing is written again.

Source: resource.k8s.io/v1 with DRAConsumableCapacity, DRAPartitionableDevices and DRADeviceTaints, which are on by
default in Kubernetes 1.36.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from aliquot.driver.gpu import Gpu
from aliquot.kube.api import Api
from aliquot.kube.claims import (
    COMPUTE,
    DEFAULT_PART,
    DRIVER,
    MEMORY,
    RESOURCE_SLICES,
    ResourceClaim,
    claim_plan,
    device_name,
    holder_of,
    slice_name,
)  # fmt: skip
from aliquot.kube.names import label_value
from aliquot.kube.objects import ApiObject
from aliquot.kube.plan import BadPlan, PodPlan, read_applied, read_plan
from aliquot.kube.quantities import format_mib_quantity
from aliquot.kube.reflector import Reflector
from aliquot.model.quantities import MILLI
from aliquot.node.machine import Machine, NodeOffer
from aliquot.node.pods import NodePod
from aliquot.node.provisioner import ProvisionedTenant
from aliquot.topology import Topology

COUNTERS: Final = "gpus"
UNHEALTHY_TAINT: Final = f"{DRIVER}/unhealthy"
MANAGER: Final = "aliquot-node"
_SYSFS: Final = Path("/sys/bus/pci/devices")
_TEXT: Final = 64
"""The longest text of an attribute."""
ARCHITECTURES: Final = (
    ((10, 0), "Blackwell"), ((9, 0), "Hopper"), ((8, 9), "Ada Lovelace"), ((8, 0), "Ampere"), ((7, 5), "Turing"),
    ((7, 0), "Volta"), ((6, 0), "Pascal"),
)  # fmt: skip
"""From which compute capability on; the newest first. Source: CUDA programming guide, "Compute capabilities"."""
NO_SIZES: Final[Mapping[str, tuple[int, int]]] = {}
Held = Mapping[str, tuple[int, int]]
"""Milli-GPU and MiB that are held and kube-scheduler does not count, by UUID; below 0 where a claim was shrunk."""


def held_uncounted(
    pods: Iterable[NodePod], tenants: Mapping[str, ProvisionedTenant], claims: Iterable[ResourceClaim] = ()
) -> Held:
    """What the plans of these pods hold, from their bind on, and tenants that have outlasted their pods; and what these
    claims hold beyond their allocations, or less, once that is in force."""
    shares = {key: tenant.plan.slices for key, tenant in tenants.items() if not tenant.owner.claim}
    for pod in pods:
        try:
            plan = read_plan(pod.metadata.annotations) if not pod.ended else None
        except BadPlan:
            continue
        reserved = plan.reserved(read_applied(pod.metadata.annotations)) if plan is not None else PodPlan()
        for name, given in reserved.containers.items():
            if not given.uses and not (given.init > 0 and pod.status.initialized):
                shares[f"{pod.metadata.uid}/{name}"] = given.slices
    pieces = [(1, piece) for slices in shares.values() for piece in slices]
    for claim in claims:
        counted, holder = claim_plan(claim, {}, lenient=True), holder_of(claim)
        plan = read_plan(holder.metadata.annotations) if holder is not None else None
        if holder is not None and counted is not None and plan is not None and plan.generation:
            pieces += [(1, piece) for piece in plan.reserved(read_applied(holder.metadata.annotations)).slices]
            pieces += [(-1, piece) for piece in counted.slices]
    milli, mib = Counter[str](), Counter[str]()
    for sign, piece in pieces:
        milli[piece.gpu] += sign * piece.request_milli
        mib[piece.gpu] += sign * piece.memory_mib
    return {uuid: (milli[uuid], mib[uuid]) for uuid in milli}


def nvlink_groups(topology: Topology) -> list[int | None]:
    """For each GPU the lowest index of those that NVLink joins it with; None for one without NVLink."""
    groups: list[int | None] = [None] * topology.count
    for i in range(topology.count):
        joined = [j for j in range(topology.count) if topology.links[i][j].startswith("NV")]
        if joined:
            groups[i] = min([i, *joined, *(group for j in joined if (group := groups[j]) is not None)])
    return groups


def attributes(gpu: Gpu, nvlink: int | None, *, kind: str) -> dict[str, Any]:
    """What claims may select by; a fact that is not known is left out. `kind` is whole, shared or a fixed size."""
    facts: dict[str, Any] = {
        "type": {"string": kind},
        "uuid": {"string": gpu.uuid},
        "index": {"int": gpu.index},
        "model": {"string": gpu.model[:_TEXT]},
    }
    versions = {"driverVersion": gpu.driver, "cudaDriverVersion": gpu.cuda, "computeCapability": gpu.capability}
    facts |= {name: {"version": _semantic(text)} for name, text in versions.items() if re.match(r"\d+(\.|$)", text)}
    for least, name in ARCHITECTURES:
        if gpu.capability and tuple(map(int, gpu.capability.split("."))) >= least:
            facts["architecture"] = {"string": name}
            break
    if gpu.numa is not None and gpu.numa >= 0:
        facts["numaNode"] = {"int": gpu.numa}
    if nvlink is not None:
        facts["nvlinkGroup"] = {"int": nvlink}
    domain, _, rest = gpu.pci.lower().partition(":")
    root = next((part for part in (_SYSFS / f"{domain[-4:]}:{rest}").resolve().parts if part.startswith("pci0")), "")
    if root and gpu.pci:
        facts["resource.kubernetes.io/pcieRoot"] = {"string": root}
    return facts


def devices_of(
    machine: Machine, held: Held, why_not: Mapping[str, str], sizes: Mapping[str, tuple[int, int]] = NO_SIZES
) -> list[dict[str, Any]]:
    """The devices of the GPUs that are shared now; `why_not` says by UUID why a GPU takes no new claims.

    `sizes` are hundredths of a GPU and MiB by the name of a fixed size.
    """
    devices, groups = [], nvlink_groups(machine.topology) if machine.gpus else []
    for number, gpu in enumerate(machine.gpus):
        milli, mib = held.get(gpu.uuid, (0, 0))
        counter = {"counterSet": COUNTERS, "counters": {device_name(gpu.uuid, shared=False): {"value": "1"}}}
        taint = {"key": UNHEALTHY_TAINT, "effect": "NoSchedule", "value": label_value(why_not.get(gpu.uuid, ""))}
        base = {"consumesCounters": [counter], **({"taints": [taint]} if gpu.uuid in why_not else {})}
        percent, free_mib = (MILLI - milli) // 10, gpu.memory_mib - mib
        if not milli:
            facts = attributes(gpu, groups[number], kind="whole")
            whole = {"name": device_name(gpu.uuid, shared=False), "attributes": facts, **base}
            devices.append(whole | {"capacity": {MEMORY: {"value": format_mib_quantity(gpu.memory_mib)}}})
        quarter = min(percent, 100 // DEFAULT_PART), max(1, min(free_mib, gpu.memory_mib // DEFAULT_PART))
        for size, (part, part_mib) in {"": quarter, **sizes}.items():
            if not (0 < part <= percent and 0 < part_mib <= free_mib):
                continue
            capacity = {
                COMPUTE: _capacity(str(percent), "1", str(part)),
                MEMORY: _capacity(format_mib_quantity(free_mib), "1Mi", format_mib_quantity(part_mib)),
            }
            facts = attributes(gpu, groups[number], kind=size or "shared")
            name = device_name(gpu.uuid, shared=True, size=size)
            shared = {"name": name, "attributes": facts, "capacity": capacity, **base}
            devices.append(shared | {"allowMultipleAllocations": True})
    return devices


def _capacity(value: str, step: str, default: str) -> dict[str, Any]:
    return {"value": value, "requestPolicy": {"default": default, "validRange": {"min": step, "step": step}}}


def _semantic(version: str) -> str:
    """`570.124.06` -> `570.124.6`: attributes take semantic versions only, of three numbers without leading zeros."""
    return ".".join(str(int(part)) for part in [*re.findall(r"\d+", version), "0", "0"][:3])


class SlicePublisher:
    """Keeps the node's slices as they should be; `reflector` follows them."""

    def __init__(self, api: Api, offer: NodeOffer, node: str, sizes: Mapping[str, tuple[int, int]]) -> None:
        self._api = api
        self._offer = offer
        self._node = node
        self.sizes = sizes
        self._written: dict[str, dict[str, Any]] = {}
        fields = f"spec.driver={DRIVER},spec.nodeName={node}"
        self.reflector: Reflector[ApiObject] = Reflector(api, RESOURCE_SLICES, selectors={"fieldSelector": fields})

    @property
    def why_not(self) -> Mapping[str, str]:
        """Why GPUs take no new claims, by UUID."""
        offer = self._offer
        withheld = {gpu.uuid: offer.withheld for gpu in offer.machine.gpus if offer.withheld}
        return {str(uuid): why for uuid, why in (*withheld.items(), *offer.unhealthy.items())}

    async def publish(self, held: Held) -> None:
        """Write what has changed or is missing.

        Raises:
            KubeError: the API server refuses or is unavailable.
        """
        names = [device_name(gpu.uuid, shared=False) for gpu in self._offer.machine.gpus]
        counters = {"name": COUNTERS, "counters": {name: {"value": "1"} for name in names}}
        parts = {
            "counters": {"sharedCounters": [counters]},
            "devices": {"devices": devices_of(self._offer.shared, held, self.why_not, self.sizes)},
        }
        for part, content in parts.items():
            name = slice_name(self._node, part)
            if self._written.get(name) == content and self.reflector.get(name) is not None:
                continue
            pool = {"name": self._node, "generation": 1, "resourceSliceCount": len(parts)}
            spec = {"driver": DRIVER, "nodeName": self._node, "pool": pool, **content}
            body = {"metadata": {"name": name}, "spec": spec}
            await self._api.apply(RESOURCE_SLICES, body, manager=MANAGER)
            self._written[name] = content
