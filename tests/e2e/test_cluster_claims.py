"""Claims with the real kube-scheduler: old manifests that become claims, those that Aliquot places, fixed sizes."""

import asyncio
import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cluster.control_plane import ControlPlane
from cluster.ours import OurWebhook
from operating import install_crds, wait_for
from scheduling import ROOT, OurScheduler, Pods, asking, percent

from aliquot.driver.gpu import Gpu
from aliquot.kube.api import Api
from aliquot.kube.claims import ResourceClaim as Claim
from aliquot.kube.claims import claim_plan
from aliquot.kube.names import CLAIMS, GATE, GPUS
from aliquot.node.machine import Machine, NodeOffer
from aliquot.node.slices import SlicePublisher

API = "/apis/resource.k8s.io/v1"
SIZES = {"half": (50, 8192)}


async def publish(plane: ControlPlane, node: str) -> None:
    """What the agent of a fake node would publish of its GPUs."""
    told = json.loads(plane.api.get(f"/api/v1/nodes/{node}")["metadata"]["annotations"][GPUS])
    gpus = tuple(
        Gpu(**each, links=["X" if number == other else "SYS" for other in range(len(told["devices"]))])
        for number, each in enumerate(told["devices"])
    )
    offer = NodeOffer(Machine(gpus, Path("libcuda"), Path("libnvml")))
    offer.withheld = ""
    async with Api.connect(str(plane.kubeconfig)) as api:
        await SlicePublisher(api, offer, node, SIZES).publish({})


@pytest.fixture(scope="module")
def scheduler(control_plane: ControlPlane, helm: str) -> Iterator[OurScheduler]:
    """Three nodes of two V100 that serve claims, our scheduler with its webhook, and the chart's classes."""
    install_crds(control_plane)
    values = "claims.enabled=true,claims.sizes[0].name=half,claims.sizes[0].compute=50,claims.sizes[0].memory=8Gi"
    chart = ("--kube-version", "1.36.0", "--set", values, "--show-only", "templates/claims.yaml")
    command = [helm, "template", "aliquot", str(ROOT / "deploy" / "chart"), *chart]
    classes = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    control_plane.kubectl("apply", "-f", "-", input_=classes)
    for node in control_plane.fake_nodes(3, "v100", gpus=2, prefix="claims"):
        asyncio.run(publish(control_plane, node))
    webhook = OurWebhook(control_plane, 8783)
    webhook.register()
    flags = (*webhook.flags, "--claims", "--claim-sizes", "half=50/8Gi")
    with asking(OurScheduler(control_plane, 8782, *flags)) as ours:
        webhook.wait_trusted()
        yield ours


class Lab(Pods):
    """A namespace whose pods' words become claims of a kind."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        super().__init__(plane, namespace)
        self.claims = f"{API}/namespaces/{namespace}/resourceclaims"
        self.templates = f"{API}/namespaces/{namespace}/resourceclaimtemplates"

    def label(self, kind: str) -> None:
        self.plane.kubectl("label", "namespace", self.namespace, f"{CLAIMS}={kind}")

    def ask(self, name: str, milli: int, **spec: Any) -> None:
        """A pod as an old manifest has it."""
        annotations, resources = spec.pop("annotations", {}), {"limits": spec.pop("limits", percent(milli // 10))}
        container = {"name": "main", "image": "busybox", "resources": resources}
        meta = {"name": name, "annotations": annotations, "labels": {"app": name}}
        body = {"metadata": meta, "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}}
        self.create(body)

    def running(self, *names: str, timeout_s: float = 90.0) -> dict[str, dict[str, Any]]:
        """The claims of these pods by the pods' names, once they run."""

        def waiting() -> list[str]:
            return [name for name in names if self[name]["status"]["phase"] != "Running"]

        wait_for(waiting, lambda left: not left, "pods wait", timeout_s)
        by_pod = {
            claim["metadata"]["ownerReferences"][0]["name"]: claim for claim in self.plane.api.get(self.claims)["items"]
        }
        return {name: by_pod[name] for name in names}

    def slices(self, claim: dict[str, Any]) -> list[tuple[int, int, int]]:
        """Request, limit and MiB of a claim, as its node would give it."""
        plan = claim_plan(msgspec.convert(claim, Claim), {})
        assert plan is not None
        return [(piece.request_milli, piece.limit_milli, piece.memory_mib) for piece in plan.slices]


@pytest.fixture
def lab(control_plane: ControlPlane, namespace: str, scheduler: OurScheduler) -> Iterator[Lab]:
    """A namespace, empty of claims afterwards."""
    made = Lab(control_plane, namespace)
    yield made
    for pod in made.all():
        made.delete(pod["metadata"]["name"])
    wait_for(lambda: control_plane.api.get(made.claims)["items"], lambda left: not left, "claims stay", 60)


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
    said = wait_for(lambda: events(lab, "late"), bool, "nobody says why")
    assert "0/3 nodes with GPUs can take it" in said[0] and [{"name": GATE}] == lab["late"]["spec"]["schedulingGates"]
    lab.delete("whole0")
    lab.running("late")


def events(lab: Lab, name: str) -> list[str]:
    """Why we do not place a pod."""
    found = lab.plane.api.get(f"/api/v1/namespaces/{lab.namespace}/events")["items"]
    return [e["message"] for e in found if e["reason"] == "FailedPlacement" and e["involvedObject"]["name"] == name]


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
    said = wait_for(lambda: events(lab, name), bool, "nobody says why")
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
