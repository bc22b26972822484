"""Claims with the real kube-scheduler: old manifests that become claims, those that Aliquot places, fixed sizes."""

import json
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from claiming import Lab, claims_served
from cluster.control_plane import ControlPlane
from operating import wait_for
from scheduling import OurScheduler, percent

from aliquot.kube.names import GATE


@pytest.fixture(scope="module")
def scheduler(control_plane: ControlPlane, helm: str) -> Iterator[OurScheduler]:
    """Three nodes of two V100 that serve claims."""
    with claims_served(control_plane, helm, control_plane.fake_nodes(3, "v100", gpus=2, prefix="claims")) as ours:
        yield ours


@pytest.fixture
def lab(control_plane: ControlPlane, namespace: str, scheduler: OurScheduler) -> Iterator[Lab]:
    """A namespace, empty of claims afterwards."""
    made = Lab(control_plane, namespace)
    yield made
    made.clear()


MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: old, annotations: {aliquot.dev/gpu-limit: "0.6"}}
spec:
  terminationGracePeriodSeconds: 0
  initContainers:
    - {name: warm, image: busybox, resources: {limits: {aliquot.dev/gpu-percent: 10, aliquot.dev/gpu-memory: 1Gi}}}
  containers:
    - {name: main, image: busybox, resources: {limits: {aliquot.dev/gpu-percent: 30, aliquot.dev/gpu-memory: 4Gi}}}
"""


@pytest.mark.parametrize("kind", ["share", "placed"])
@pytest.mark.timeout(180)
def test_an_old_manifest_runs_by_a_claim_and_may_be_applied_again(lab: Lab, kind: str):
    """One claim of one template serves its containers; the manifest again changes nothing; both go with the pod."""
    lab.label(kind)
    where = ("apply", "-n", lab.namespace, "-f", "-")
    lab.plane.kubectl(*where, input_=MANIFEST)
    (claim,) = lab.running("old").values()
    before = lab["old"]["spec"]
    lab.plane.kubectl(*where, input_=MANIFEST)

    assert [(300, 600, 4096)] == lab.slices(claim)
    assert "main" == claim["metadata"]["annotations"]["resource.kubernetes.io/pod-claim-name"]
    assert before == lab["old"]["spec"] and "aliquot.dev/plan" not in lab["old"]["metadata"]["annotations"]
    (template,) = lab.plane.api.get(lab.templates)["items"]
    assert template["metadata"]["name"] == lab["old"]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    saved = lab.plane.kubectl("get", "pod", "old", "-n", lab.namespace, "-o", "json")
    lab.delete("old")
    wait_for(lambda: lab.plane.api.get(lab.claims)["items"], lambda left: not left, "the claim stays")
    lab.plane.kubectl("create", "-n", lab.namespace, "-f", "-", input_=saved)
    assert [(300, 600, 4096)] == lab.slices(lab.running("old")["old"])
    lab.delete("old")
    wait_for(lambda: lab.plane.api.get(lab.templates)["items"], lambda left: not left, "the template stays", 60)


@pytest.mark.timeout(180)
def test_what_claims_cannot_say_runs_with_extended_resources(lab: Lab):
    """The pod is let in as before, with a warning that says why; another dialect's words become a claim."""
    lab.label("share")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "left"}, "spec": {"containers": [
        {"name": "main", "image": "busybox", "resources": {"limits": percent(30)}}
    ], "schedulerName": "aliquot-scheduler"}}  # fmt: skip
    lab.plane.kubectl("create", "-n", lab.namespace, "-f", "-", input_=json.dumps(pod))
    lab.ask("tencent", 0, limits={"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 8})
    (claim,) = lab.running("tencent").values()

    lab.wait_bound(2)
    assert [(300, 300, 2048)] == lab.slices(claim) and "resourceClaims" not in lab["left"]["spec"]
    assert "aliquot.dev/plan" in lab["left"]["metadata"]["annotations"]


@pytest.mark.timeout(180)
def test_aliquot_places_claims_by_its_policy_and_in_its_ledger(lab: Lab, scheduler: OurScheduler):
    """Shares are put together so that whole GPUs stay; six GPUs take what they can, nobody has what another has."""
    lab.label("placed")
    for number in range(6):
        lab.ask(f"p{number}", 300)
    for number in range(4):
        lab.ask(f"whole{number}", 1000)
    claims = lab.running(*(f"p{number}" for number in range(6)), *(f"whole{number}" for number in range(4)))
    held: dict[str, int] = {}
    for claim in claims.values():
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        gpu = f"{result['pool']} {result['device'].removesuffix('-shared')}"
        held[gpu] = held.get(gpu, 0) + sum(milli for milli, _, _ in lab.slices(claim))

    assert [900, 900, 1000, 1000, 1000, 1000] == sorted(held.values())
    assert [(300, 1000, 4915)] == lab.slices(claims["p0"])
    lab.ask("late", 500)
    said = wait_for(lambda: lab.events("late"), bool, "nobody says why")
    assert "0/3 nodes with GPUs can take it" in said[0] and [{"name": GATE}] == lab["late"]["spec"]["schedulingGates"]
    lab.delete("whole0")
    lab.running("late")


@pytest.mark.timeout(240)
def test_a_node_that_kube_scheduler_refuses_is_left_for_another(lab: Lab):
    """Affinity between pods is kube-scheduler's to know: it gives allocations back until one is where the friend is."""
    lab.label("placed")
    lab.plane.api.create(lab.path, {"metadata": {"name": "friend", "labels": {"app": "friend"}}, "spec": {
        "containers": [{"name": "c", "image": "busybox"}], "nodeSelector": {"type": "kwok"},
    }})  # fmt: skip
    wait_for(lambda: lab["friend"], lambda pod: pod["status"]["phase"] == "Running", "friend waits")
    near = {"labelSelector": {"matchLabels": {"app": "friend"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
    lab.ask("p", 300, affinity=affinity)
    (claim,) = lab.running("p", timeout_s=120.0).values()

    assert lab["friend"]["spec"]["nodeName"] == claim["status"]["allocation"]["devices"]["results"][0]["pool"]


@pytest.mark.timeout(240)
def test_a_killed_scheduler_leaves_no_share_lost_or_given_twice(lab: Lab, scheduler: OurScheduler):
    """Thirty shares of 0.3 on six GPUs, killed in between: three are on each GPU, twelve wait behind their gate."""
    lab.label("placed")
    for number in range(30):
        lab.ask(f"p{number}", 300)
        if number in (8, 20):
            scheduler.part.kill()
            scheduler.part.start()
    wait_for(lab.bound, lambda bound: len(bound) == 18, "not eighteen are bound", 90)
    time.sleep(5)
    allocations = [c.get("status", {}).get("allocation") for c in lab.plane.api.get(lab.claims)["items"]]
    devices = [result["device"] for each in allocations if each for result in each["devices"]["results"]]

    assert 18 == len(lab.bound()) and [3] * 6 == list(Counter(devices).values())
    assert [[{"name": GATE}]] * 12 == [pod["spec"].get("schedulingGates") for pod in lab.waiting()]


@pytest.mark.timeout(240)
def test_cpu_that_is_taken_is_never_counted_on(lab: Lab):
    """Pods that need most of a node's CPU get a node each, the fourth waits and is never tried in vain."""
    lab.label("placed")
    cpu = int(lab.plane.api.get("/api/v1/nodes")["items"][0]["status"]["allocatable"]["cpu"])
    for number in range(4):
        limits = percent(10) | {"cpu": str(cpu * 3 // 4)}
        lab.ask(f"p{number}", 0, limits=limits)
    wait_for(lab.bound, lambda bound: len(bound) == 3, "not three are bound", 90)
    (waiting,) = lab.waiting()
    name = waiting["metadata"]["name"]
    said = wait_for(lambda: lab.events(name), bool, "nobody says why")
    time.sleep(5)

    assert "of cpu free" in said[0] and 3 == len({pod["spec"]["nodeName"] for pod in lab.bound()})
    claims = lab.plane.api.get(lab.claims)["items"]
    (open_claim,) = [c for c in claims if c["metadata"]["ownerReferences"][0]["name"] == name]
    assert "allocation" not in open_claim.get("status", {})
    assert [{"name": GATE}] == lab[name]["spec"]["schedulingGates"]


@pytest.mark.timeout(240)
def test_a_more_important_pod_gets_the_share_of_a_lesser_one(lab: Lab):
    """Kubernetes evicts nobody for claims; Aliquot does, by the API's eviction."""
    lab.label("placed")
    for name, value in (("high-claims", 1000), ("low-claims", 1)):
        classed = {"metadata": {"name": name}, "value": value, "description": "x"}
        lab.plane.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", classed)
    try:
        for number in range(6):
            lab.ask(f"low{number}", 1000, priorityClassName="low-claims")
        lab.running(*(f"low{number}" for number in range(6)))
        lab.ask("high", 1000, priorityClassName="high-claims")
        lab.running("high", timeout_s=90.0)
        assert 6 == len(lab.bound())
    finally:
        for name in ("high-claims", "low-claims"):
            lab.plane.api.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")


@pytest.mark.timeout(180)
def test_who_only_counts_gets_fixed_sizes(lab: Lab):
    """Three halves are on two GPUs at least, each of 50 and 8 GiB; a whole GPU by count is not one of these."""
    for number in range(3):
        lab.ask(f"half{number}", 0, limits={"aliquot.dev/half": 1})
    lab.ask("whole", 0, limits={"aliquot.dev/gpu": 1})
    claims = lab.running("half0", "half1", "half2", "whole")
    devices = {n: claim["status"]["allocation"]["devices"]["results"][0]["device"] for n, claim in claims.items()}

    assert [[(500, 1000, 8192)]] * 3 == [lab.slices(claims[f"half{number}"]) for number in range(3)]
    halves = {device.removesuffix("-shared-half") for name, device in devices.items() if name != "whole"}
    assert 2 <= len(halves) and devices["whole"] not in halves and "-" + "shared" not in devices["whole"]
