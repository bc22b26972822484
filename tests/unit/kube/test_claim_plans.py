"""What an allocation of our devices stands for, and what is said of one that is not possible."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aliquot.kube.claims import DRIVER, ResourceClaim, claim_plan, device_name, uuid_of
from aliquot.kube.plan import ContainerPlan
from aliquot.model.requests import BadRequest, Labels, Slice

A, B = "GPU-0a", "GPU-0b"


def claim(*devices: str, parameters: Any = None, compute: str = "30", called: str = "") -> ResourceClaim:
    """A claim on devices, those that are shared at `compute` and 4Gi."""
    consumed = {"compute": compute, "memory": "4Gi"} if compute else {}
    results = [
        {"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": device}
        | ({"consumedCapacity": consumed} if device.endswith("-shared") else {})
        for device in devices
    ]
    config = [{"opaque": {"driver": DRIVER, "parameters": one}} for one in parameters or ()]
    allocation = {"devices": {"results": results, "config": config}}
    annotations = {"resource.kubernetes.io/pod-claim-name": called} if called else {}
    metadata = {"name": "c", "namespace": "ns", "annotations": annotations}
    body = {"metadata": metadata, "status": {"allocation": allocation}}
    return msgspec.convert(body, ResourceClaim)


def planned(made: ResourceClaim, **how: Any) -> ContainerPlan:
    plan = claim_plan(made, {A: 16384, B: 16384}, **how)
    assert plan is not None and plan.node == "node-1"
    return plan.containers[made.called]


def test_devices_are_called_by_the_uuid_of_their_gpu():
    """A device's name leads back to its GPU, whatever index it has today."""
    assert [A, A] == [uuid_of(device_name(A, shared=shared)) for shared in (False, True)]


@pytest.mark.parametrize(("made", "slices", "enforce"), [
    (claim("gpu-0a-shared"), (Slice(A, 300, 1000, 4096),), "all"),
    (claim("gpu-0a-shared", parameters=[{"limit": 0.4}, {"limit": "0.6"}]), (Slice(A, 300, 600, 4096),), "all"),
    (claim("gpu-0a-shared", parameters=[{"request": "0.25"}]), (Slice(A, 250, 1000, 4096),), "all"),
    (claim("gpu-0a-shared", "gpu-0a-shared"), (Slice(A, 600, 1000, 8192),), "all"),
    (claim("gpu-0a", "gpu-0b"), (Slice(A, 1000, 1000, 16384), Slice(B, 1000, 1000, 16384)), "memory"),
    (claim("gpu-0a-shared", "gpu-0b"), (Slice(B, 1000, 1000, 16384), Slice(A, 300, 1000, 4096)), "all"),
])  # fmt: skip
def test_an_allocation_is_a_plan_of_one_container(made: ResourceClaim, slices: tuple[Slice, ...], enforce: str):
    """Shares are what was consumed, whole GPUs all of theirs and first; what the claim says counts before its class."""
    given = planned(made)

    assert (slices, enforce) == (given.slices, given.enforce)


def test_labels_wake_and_memory_limit_are_those_of_the_claim():
    """They are in the plan as they are in that of a pod, and the container is called as the pod calls its claim."""
    said = {"wake": "5ms", "memoryLimit": "6Gi", "exclusion": "team-a", "antiAffinity": "noisy"}
    made = claim("gpu-0a-shared", parameters=[said], called="mine")

    given = planned(made)

    assert ("mine", 5000, "6144Mi") == (made.called, given.wake_us, given.memory_limit)
    assert Labels("", "noisy", "team-a") == given.labels


def test_a_claim_of_others_has_no_plan():
    """A claim without an allocation, or with devices of other drivers only, is none of ours."""
    other = msgspec.convert({"status": {"allocation": {"devices": {"results": [{"driver": "x"}]}}}}, ResourceClaim)

    assert [None, None] == [claim_plan(made, {}) for made in (ResourceClaim(), other)]


@pytest.mark.parametrize(("made", "text"), [
    (claim("gpu-0a-shared", parameters=[{"limit": 0.2}]), "limit 0.20 is below compute 0.30"),
    (claim("gpu-0a-shared", parameters=[{"limit": 2}]), "limit 2.00 is more than the 1 GPU"),
    (claim("gpu-0a-shared", parameters=[{"request": "0.4"}]), "claim consumes, 0.30; ask for capacity compute: 40"),
    (claim("gpu-0a-shared", parameters=[{"limits": 0.2}]), 'a ShareParameters has no field "limits"'),
    (claim("gpu-0a-shared", parameters=[{"kind": "Share"}]), "kind"),
    (claim("gpu-0a-shared", parameters=[{"wake": "soon"}]), '"soon" is not a duration'),
    (claim("gpu-0a-shared", parameters=[{"memoryLimit": "2Gi"}]), "memoryLimit 2.0 GiB is below the memory 4.0 GiB"),
    (claim("gpu-0a", parameters=[{"memoryLimit": "2Gi"}]), "wake and memoryLimit are for shares, and the device is"),
    (claim("gpu-0a-shared", "gpu-0b-shared", parameters=[{"memoryLimit": "6Gi"}]), "memoryLimit 6Gi is for a share of"),
    (claim("gpu-0a-shared", parameters=[{"exclusion": "a b"}]), '"a b" is not a label'),
    (claim("gpu-0a", parameters=[{"limit": 0.2}]), "the device is a whole GPU; leave them out"),
    (claim("gpu-0a-shared", "gpu-0b-shared", parameters=[{"wake": "5ms"}]), "is for a share of one GPU"),
    (claim("gpu-0a-shared", compute=""), "does not say how much compute and memory it consumes"),
    (claim("gpu-0a-shared", compute="120"), "compute 120 is more than one GPU"),
    (claim("gpu-0a-shared", compute="0"), "asks for nothing"),
])  # fmt: skip
def test_what_cannot_be_is_said_in_a_sentence(made: ResourceClaim, text: str):
    """The sentence names the field, the value and what is allowed."""
    with pytest.raises(BadRequest, match=r".") as refusal:
        planned(made)

    assert text in str(refusal.value)
