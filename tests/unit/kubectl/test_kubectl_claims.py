"""What `kubectl aliquot` says of ResourceClaims: who holds what, why one waits, and what would let it in."""

from typing import Any

import msgspec
import pytest
from kit import objects

from aliquot.cli.kubectl.explain import explained, explained_claim, lines_of
from aliquot.cli.kubectl.get import quotas, table_of
from aliquot.cli.kubectl.inspect import compared
from aliquot.cli.kubectl.scene import ClusterScene
from aliquot.cli.kubectl.top import lines as top_lines
from aliquot.kube.claims import DRIVER, ResourceClaim, slice_name
from aliquot.kube.custom import GPUQuota
from aliquot.kube.objects import Node, Pod

NODE = "n"
SELECTED = f'device.attributes["{DRIVER}"].model == "A100"'


def node(model: str = "V100") -> Node:
    """A node with two GPUs."""
    return objects.node(NODE, 2, model, uuids=["GPU-00", "GPU-01"])


def pod(name: str, *claims: str, said: str = "", **spec: Any) -> Pod:
    """A pod of namespace `lab` that uses claims."""
    uses = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    conditions = [{"type": "PodScheduled", "status": "False", "message": said}] if said else []
    meta = {"name": name, "namespace": "lab", "uid": f"uid-{name}"}
    return msgspec.convert(
        {"metadata": meta, "spec": {"resourceClaims": uses, **spec}, "status": {"conditions": conditions}}, Pod
    )


def claim(
    name: str, *held: str, kind: str = "gpu-share", pods: tuple[str, ...] = (), selector: str = "", limit: str = "",
    mode: str = "ExactCount", **capacity: str,
) -> ResourceClaim:  # fmt: skip
    """A claim of namespace `lab` that asks for one GPU or a share of one; on `held` devices where there are any."""
    exactly: dict[str, Any] = {"deviceClassName": f"{kind}.aliquot.dev", "allocationMode": mode, "count": 1}
    exactly |= {"capacity": {"requests": capacity}} if capacity else {}
    exactly |= {"selectors": [{"cel": {"expression": selector}}]} if selector else {}
    config = [{"opaque": {"driver": DRIVER, "parameters": {"limit": limit}}}] if limit else []
    body: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "lab", "uid": f"claim-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}], "config": config}},
    }
    results = [
        {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device, "consumedCapacity": capacity}
        for device in held
    ]
    if held:
        reserved = [{"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in pods]
        allocation = {"devices": {"results": results, "config": config}}
        body["status"] = {"allocation": allocation, "reservedFor": reserved}
    return msgspec.convert(body, ResourceClaim)


def scene(*objects: Pod | ResourceClaim, **more: Any) -> ClusterScene:
    """The node with these pods and claims."""
    pods = [each for each in objects if isinstance(each, Pod)]
    claims = [each for each in objects if isinstance(each, ResourceClaim)]
    quota = more.pop("quotas", [])
    return ClusterScene([node()], pods, [], [], quota, "lab", claims=claims, **more)


HALF = claim("half", "gpu-00-shared", pods=("a", "b"), compute="50", memory="8Gi")
WHOLE = claim("all", "gpu-01", kind="gpu-whole", pods=("c",))


def test_gpus_show_what_claims_hold_and_for_which_pods():
    """A share and a whole GPU, with all of its memory, are taken; the table names the claim and its pods."""
    made = scene(HALF, WHOLE)
    first, second = made.gpus()

    assert (500, 8192, 0, 0) == (first["free_milli"], first["free_mib"], second["free_milli"], second["free_mib"])
    (one,) = first["residents"]
    assert ("lab/claim:half/half", "half", ["a", "b"]) == (one["tenant"], one["claim"], one["pods"])
    assert "lab/claim:half/half (a, b) 0.50" == table_of("gpus", [first], made, wide=True)[1][5]
    for gpu in (first, second):
        gpu["residents"][0] |= {"usage": None, "memory_used_mib": None, "notes": []}
    assert any("lab/claim:all/all (c)" in line for line in top_lines([first, second], [first, second]))


def test_inspect_counts_claims_on_both_sides():
    """A scheduler that does not count claims differs from what is held."""
    gpus = scene(HALF).gpus()
    answer = {"nodes": [{"name": NODE, "devices": scene(HALF).gpus()}]}
    unaware = {"nodes": [{"name": NODE, "devices": scene().gpus()}]}

    assert (True, False) == (compared(answer, gpus)["agree"], compared(unaware, gpus)["agree"])


def test_a_quota_counts_claims():
    """What claims hold of a namespace's quota is in it, the memory of whole GPUs too."""
    quota = {"metadata": {"name": "q", "namespace": "lab"}, "spec": {"limits": [{"gpus": "2", "memory": "32Gi"}]}}
    (bound,) = quotas(scene(HALF, WHOLE, quotas=[msgspec.convert(quota, GPUQuota)]))

    assert (1500, 24576) == (bound["held_milli"], bound["held_mib"])


def test_a_waiting_claim_is_told_what_each_gpu_lacks_and_the_smallest_change():
    """Kube-scheduler says that not all claims fit; each GPU is explained, for the claim and for its pod."""
    waits = claim("w", compute="60", memory="4Gi")
    user = pod("p", "w", said="0/1 nodes are available: 1 cannot allocate all claims.")
    made = scene(HALF, WHOLE, waits, user)
    of_pod, of_claim = (list(lines_of(told)) for told in (explained(made, user), explained_claim(made, waits)))

    assert "lab/p waits: asks 0.60 GPU, 4.0 GiB of GPU memory; node n does not have a GPU with 0.60" in of_pod[0]
    assert of_claim[0].replace("claim lab/w", "lab/p") == of_pod[0] and of_claim[1:] == of_pod[1:]
    assert "  GPU 0  has 0.50 free, 0.60 were asked" in of_pod and "  GPU 1  has 0.00 free, 0.60 were asked" in of_pod
    assert "Nearest: ask 0.10 GPU less, and it fits on GPU 0 of n." in of_pod
    assert of_pod[-1].startswith("kube-scheduler reports: 0/1 nodes")


def test_a_claim_of_a_whole_gpu_waits_for_the_claims_on_it_to_end():
    """It is told whose end would let it in."""
    waits = claim("w", kind="gpu-whole")
    said = list(lines_of(explained_claim(scene(HALF, WHOLE, waits, pod("p", "w")), waits)))

    assert "Or: after lab/claim:half/half (0.50, 8.0 GiB) has ended, it fits on GPU 0 of n." in said


@pytest.mark.parametrize(
    ("waits", "sentence"),
    [
        (claim("w", selector=SELECTED), 'is "V100", another model was asked'),
        (claim("w", selector='device.attributes["x"].y > 3'), 'not judged here: selector device.attributes["x"].y > 3'),
        (claim("w", kind="gpu-whole", mode="All"), 'request "gpu" wants all devices of the class, one is judged'),
        (claim("w", compute="30", limit="0.2"), "limit 0.20 is below compute 0.30"),
        (claim("w", compute="120"), "a share is at most 100"),
        (claim("w", kind="other"), "it asks for no GPU of Aliquot's"),
        (claim("w", compute="30", memory="20Gi"), "20.0 GiB were asked"),
        (claim("w"), "1 node has the GPUs it requests; kube-scheduler has not considered it yet"),
    ],
)
def test_what_else_keeps_a_claim_waiting_is_said(waits: ResourceClaim, sentence: str):
    """Selectors by model are judged, others named; impossible requests are said."""
    told = explained_claim(scene(waits, pod("p", "w")), waits)

    assert sentence in "\n".join(lines_of(told))


def test_a_claim_that_no_pod_uses_is_not_waiting_for_room():
    """A claim is allocated when a pod that uses it is scheduled."""
    waits = claim("w")

    assert "no pod uses it" in explained_claim(scene(waits), waits)["sentences"][-1]


def test_nodes_that_do_not_serve_claims_are_not_counted():
    """Only the slices of an agent that serves claims can be allocated."""
    waits = claim("w")
    served, other = (
        explained_claim(scene(waits, pod("p", "w"), slices=frozenset({name})), waits)
        for name in (slice_name(NODE, "devices"), slice_name("m", "devices"))
    )

    assert (1, 0) == (served["requests"][0]["nodes_fitting"], other["requests"][0]["nodes_fitting"])
    assert "does not serve claims" in other["closed"][NODE]


def test_an_allocated_claim_is_told_where_it_is():
    """Both for the claim and for its pod: the GPU, the share and who uses it."""
    user = pod("a", "half", nodeName=NODE)
    made = scene(HALF, user)
    of_pod, of_claim = explained(made, user), explained_claim(made, HALF)

    assert ("placed", "placed", ["a"]) == (of_pod["state"], of_claim["state"], of_claim["pods"])
    assert of_pod["slices"] == of_claim["slices"]
    assert "claim lab/half is on n:" == next(iter(lines_of(of_claim)))
    assert "GPU 0  request 0.50, limit 1.00, 8.0 GiB" in list(lines_of(of_pod))[1]
