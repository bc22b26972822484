"""Shares by ResourceClaims on a stock control plane: kube-scheduler allocates, the node's agent prepares."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import images
from cluster.images import BUSYBOX, PYTHON
from cluster.kubelet_node import KubeletNode
from cluster.ours import OurScheduler
from cluster.parts import until
from node_scene import LONG, Scene, running, volumes

from aliquot.kube.claims import DRIVER
from aliquot.kube.names import GPU_MEMORY, GPU_PERCENT

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "dra"
API = "/apis/resource.k8s.io/v1"
Share = tuple[int, int, int]
"""Request and limit in milli-GPU, MiB."""


class Claims:
    """Pods with claims in a scene."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.root = f"{API}/namespaces/{scene.namespace}/resourceclaims"

    def claim(
        self, name: str, *, kind: str = "gpu-share", count: int = 1, parameters: Any = None, **capacity: str
    ) -> None:
        """A claim, as kubectl writes it: of one with spaces in its parameters no status can be written later."""
        exactly: dict[str, Any] = {"deviceClassName": f"{kind}.aliquot.dev", "count": count}
        if capacity:
            exactly["capacity"] = {"requests": capacity}
        devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
        if parameters:
            stamped = {"apiVersion": "aliquot.dev/v1alpha1", "kind": "ShareParameters", **parameters}
            devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": stamped}}]
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
        self.scene.plane.kubectl(
            "create", "-n", self.scene.namespace, "-f", "-", input_=json.dumps(body | {"spec": {"devices": devices}})
        )

    def pod(self, name: str, *claims: str, containers: tuple[str, ...] = ("main",), container: Any = None) -> None:
        """A pod whose containers all use these claims, the one of its own name without any; or are as `container`."""
        spec = {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "volumes": volumes(),
            "resourceClaims": [] if container else [
                {"name": claim, "resourceClaimName": claim} for claim in claims or [name]
            ],
            "containers": [
                {
                    "name": each, "image": PYTHON, "imagePullPolicy": "Never",
                    "command": ["python3", "/probe/probe.py"], "env": [{"name": "PYTHONPATH", "value": "/site"}],
                    "resources": {"claims": [{"name": claim} for claim in claims or [name]]},
                    "volumeMounts": [
                        {"name": "probe", "mountPath": "/probe", "readOnly": True},
                        {"name": "site", "mountPath": "/site", "readOnly": True},
                    ],
                } | (container or {})
                for each in containers
            ],
        }  # fmt: skip
        pods = f"/api/v1/namespaces/{self.scene.namespace}/pods"
        self.scene.plane.api.create(pods, {"metadata": {"name": name}, "spec": spec})

    def share(self, name: str, *, parameters: Any = None, **capacity: str) -> None:
        """A claim and a pod of that name."""
        self.claim(name, parameters=parameters, **capacity)
        self.pod(name)

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.scene.plane.api.get(f"{self.root}/{name}").get("status", {})
        return found

    def devices(self) -> dict[str, dict[str, Any]]:
        """The devices that the node publishes, by name."""
        slices = self.scene.plane.api.get(f"{API}/resourceslices")["items"]
        found = [
            device for one in slices for device in one["spec"].get("devices", ()) if one["spec"]["driver"] == DRIVER
        ]
        return {device["name"]: device for device in found}

    def shared(self, gpu: int) -> dict[str, Any]:
        """The shared device of a GPU."""
        return self.devices()[f"{self.scene.gpus[gpu].lower()}-shared"]

    def facts(self, *words: str) -> Any:
        """What `kubectl aliquot` says of the namespace, as JSON."""
        where = ("-n", self.scene.namespace, "--kubeconfig", str(self.scene.plane.kubeconfig), "-o", "json")
        command = [sys.executable, "-m", "aliquot.cli.kubectl", *words, *where]
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)

    def failure(self, name: str) -> str:
        """Why kubelet does not start the pod, by its last event."""
        return (self.scene.events("FailedPrepareDynamicResources") or [""])[-1]

    def clear(self) -> None:
        """Deletes pods and claims."""
        self.scene.clear()
        self.scene.plane.api.call("DELETE", self.root)
        until(lambda: not self.scene.plane.api.get(self.root)["items"], "no claims", 30)


@pytest.fixture(scope="module")
def one_node(kubelet_node: KubeletNode, helm: str) -> Iterator[Scene]:
    """An agent with two V100 that serves claims."""
    name = f"claims-{uuid.uuid4().hex[:8]}"
    plane = kubelet_node.control_plane
    plane.make_namespace(name)
    chart = ("--kube-version", "1.36.0", "--set", "claims.enabled=true", "--show-only", "templates/claims.yaml")
    command = [helm, "template", "aliquot", str(ROOT / "deploy" / "chart"), *chart]
    plane.kubectl("apply", "-f", "-", input_=subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    kubelet_node.import_image(images.example(Path(plane.programs.program("busybox"))))
    try:
        with running(kubelet_node, name, "v100x2", "--claims") as made:
            yield made
    finally:
        plane.remove_namespace(name)


@pytest.fixture
def claims(one_node: Scene) -> Iterator[Claims]:
    """A node without claims whose four devices are published."""
    made = Claims(one_node)
    until(lambda: len(made.devices()) == 4, "four devices", 30)
    yield made
    made.clear()


@pytest.mark.timeout(300)
def test_three_claims_share_two_gpus(claims: Claims):
    """Claims of 0.3, 0.6 and 0.6 run on two GPUs with their memory as the limit, outlive an agent that is killed in
    between, and leave nothing."""
    scene = claims.scene
    claims.share("a", compute="30", memory="4Gi")
    claims.share("b", compute="60", memory="4Gi")
    seen = {name: scene.told(name) for name in ("a", "b")}
    scene.agent.kill()
    scene.agent.start()
    # Kubelet asks a driver that it does not reach again after a minute or more.
    until(lambda: scene.agent.log.read_text().count(" driver-registered ") == 2, "kubelet knows the new agent", 30)
    claims.share("c", compute="60", memory="6Gi", parameters={"limit": 0.8, "wake": "50ms"})
    seen["c"] = scene.told("c")

    assert {"a": 4096, "b": 4096, "c": 6144} == {name: one["total_mib"] for name, one in seen.items()}
    assert all(len(one["uuids"]) == 1 and one["largest_mib"] <= one["total_mib"] for one in seen.values())
    assert seen["c"]["uuids"] != seen["b"]["uuids"]
    assert {f"{scene.namespace}/{name}/{name}" for name in "abc"} == scene.tenants()
    (record,) = [t for gpu in scene.status().gpus for t in gpu.tenants if t.name.endswith("/c/c")]
    assert (600, 800) == (record.request_milli, record.limit_milli)
    (device,) = until(lambda: claims.status("c").get("devices"), "what the agent says of the claim")
    assert ("0.60", "0.80", "6Gi") == tuple(device["data"][key] for key in ("request", "limit", "memory"))
    assert device["data"]["uuid"] == seen["c"]["uuids"][0]
    gpus = claims.facts("get", "gpus")
    held = {one["claim"]: (gpu["uuid"], one["pods"], one["request_milli"]) for gpu in gpus for one in gpu["residents"]}
    assert {n: (seen[n]["uuids"][0], [n], milli) for n, milli in (("a", 300), ("b", 600), ("c", 600))} == held
    claims.share("late", compute="60", memory="4Gi")
    until(lambda: claims.facts("explain", "pod", "late")["state"] == "waiting", "late waits", 10)
    (asked,) = claims.facts("explain", "claim", "late")["requests"]
    assert [400, 100] == sorted((d["reason"]["have"] for d in asked["verdicts"][0]["devices"]), reverse=True)
    assert "ask 0.20 GPU less, and it fits" in asked["changes"][0]["text"]
    assert ("placed", ["c"]) == tuple(claims.facts("explain", "claim", "c")[key] for key in ("state", "pods"))
    scene.delete("late")

    for name in "abc":
        scene.delete(name)
    until(lambda: not scene.tenants() and not scene.specs(), "no trace of the claims", 30)


def test_a_gpu_is_whole_or_shared_by_demand(claims: Claims):
    """A claim of a whole GPU gets one that is not shared, another waits until the shares of a GPU have ended."""
    scene = claims.scene
    claims.share("small")
    small = scene.told("small")
    for name in ("w1", "w2"):
        claims.claim(name, kind="gpu-whole")
        claims.pod(name)
    allocated = lambda: [name for name in ("w1", "w2") if claims.status(name).get("allocation")]  # noqa: E731
    (first,) = until(allocated, "one whole GPU")
    (second,) = {"w1", "w2"} - {first}
    whole = scene.told(first)

    assert (4096, 16384) == (small["total_mib"], whole["total_mib"])
    assert small["uuids"] != whole["uuids"]
    assert [first] == allocated()
    scene.delete("small")
    scene.plane.api.delete(f"{claims.root}/small")
    assert small["uuids"] == scene.told(second)["uuids"]


def test_a_claim_is_shared_by_containers_and_pods_and_may_be_several_gpus(claims: Claims):
    """Two containers and another pod that name one claim of two whole GPUs are one tenant on both."""
    scene = claims.scene
    claims.claim("both", kind="gpu-whole", count=2)
    claims.pod("one", "both", containers=("x", "y"))
    claims.pod("two", "both")

    seen = [scene.told("one", "x"), scene.told("one", "y"), scene.told("two")]
    assert [sorted(scene.gpus)] * 3 == [sorted(one["uuids"]) for one in seen]
    assert 1 == len(scene.tenants()) == len(scene.specs())
    scene.delete("one")
    assert 1 == len(scene.tenants())
    scene.delete("two")
    until(lambda: not scene.tenants() and not scene.specs(), "no trace of the claim", 30)


def test_claims_and_pods_share_one_ledger(claims: Claims):
    """What a pod with extended resources holds is not published; a pod on a GPU that a claim holds waits for it."""
    scene = claims.scene
    scene.create("pod", {"main": scene.slice(0, 700, mib=12288)})
    scene.told("pod")
    until(lambda: claims.shared(0)["capacity"]["compute"]["value"] == "30", "less capacity", 10)
    claims.share("a", compute="60", memory="4Gi")
    assert [scene.gpus[1]] == scene.told("a")["uuids"]
    scene.create("late", {"main": scene.slice(1, 500, mib=4096)})
    until(lambda: "waits" in str(scene.plane.pod(scene.namespace, "late")["metadata"]["annotations"]), "it waits", 30)

    scene.delete("a")
    assert [scene.gpus[1]] == scene.told("late")["uuids"]


def test_parameters_that_cannot_be_are_said(claims: Claims):
    """A pod whose claim has impossible parameters waits, and its event says what to write instead."""
    claims.share("wrong", compute="30", memory="4Gi", parameters={"limit": 0.2})

    why = until(lambda: claims.failure("wrong"), "an event", 30)
    assert "limit 0.20 is below compute 0.30; a limit is at least the request" in why


@LONG
def test_an_unhealthy_gpu_takes_no_new_claims(claims: Claims):
    """Its devices are tainted while its driver reports an error, and claims go to the other GPU."""
    scene = claims.scene
    faults = scene.node.path(scene.emulated) / "faults"
    faults.write_text("xid 0 79\n")
    until(lambda: "taints" in claims.shared(0), "a taint", 30)
    claims.share("a")
    assert [scene.gpus[1]] == scene.told("a")["uuids"]
    faults.unlink()
    scene.plane.kubectl("annotate", "node", scene.node.name, "aliquot.dev/gpu-healthy=all")
    until(lambda: "taints" not in claims.shared(0), "no taint", 30)


@pytest.mark.parametrize(("example", "tenants"), [
    ("share", {"share/gpu": [(300, 600, 4096)]}),
    ("together", {"first/together": [(500, 1000, 6144)]}),
    ("pair", {"pair/gpus": [(1000, 1000, 16384)] * 2}),
])  # fmt: skip
def test_the_examples_get_what_they_ask_for(
    claims: Claims, example: str, tenants: dict[str, list[tuple[int, int, int]]]
):
    """Each manifest is applied as it stands; its pods run, with the share that it names."""
    scene = claims.scene
    where = ("-n", scene.namespace, "-f", str(EXAMPLES / f"{example}.yaml"))
    scene.plane.kubectl("apply", *where)
    scene.plane.kubectl("wait", *where[:2], "pod", "--all", "--for=condition=Ready", "--timeout=60s", timeout_s=70)

    found: dict[str, list[Share]] = {}
    for tenant in (tenant for gpu in scene.status().gpus for tenant in gpu.tenants):
        share = (tenant.request_milli, tenant.limit_milli, tenant.memory_limit_mib)
        found.setdefault(tenant.name.partition("/")[2], []).append(share)
    assert found.keys() <= tenants.keys() | {"second/together"}
    assert [*tenants.values()] == [*found.values()]
    scene.plane.kubectl("delete", "--wait=false", *where)


@pytest.mark.timeout(300)
def test_aliquots_scheduler_and_counts_lead_to_the_same_shares(claims: Claims):
    """A claim that Aliquot places is prepared as any other, with memory in the same part as compute; so is a whole GPU
    that a container asks for by count."""
    scene, plane = claims.scene, claims.scene.plane
    scheduler = OurScheduler(plane, 8774, "--claims")
    scheduler.part.start()
    try:
        claims.claim("placed", kind="gpu-placed", compute="30", parameters={"limit": "0.6"})
        claims.pod("placed")
        seen = {"placed": scene.told("placed")}
        # Made at once, both schedulers may choose the same GPU; then the node lets one of the two wait.
        claims.pod("counted", container={"resources": {"limits": {"aliquot.dev/gpu": "1"}}})
        seen["counted"] = scene.told("counted")
    finally:
        scheduler.part.stop()

    assert {"placed": 4915, "counted": 16384} == {name: one["total_mib"] for name, one in seen.items()}
    assert seen["placed"]["uuids"] != seen["counted"]["uuids"]
    assert (300, 600) in [(t.request_milli, t.limit_milli) for gpu in scene.status().gpus for t in gpu.tenants]


@pytest.mark.timeout(300)
def test_a_claim_is_resized_and_what_is_published_follows(claims: Claims):
    """A share that came by a claim grows into what is free and shrinks again, as the command says; kube-scheduler gives
    what a shrunk one leaves, and nothing of what a grown one took; without room the command says what is missing."""
    scene, plane = claims.scene, claims.scene.plane
    scheduler = OurScheduler(plane, 8775, "--claims")
    scheduler.part.start()
    try:
        claims.claim("a", compute="30", memory="4Gi")
        claims.pod("a")
        (uuid_a,) = scene.told("a")["uuids"]
        gpu = scene.gpus.index(uuid_a)
        value = lambda: claims.shared(gpu)["capacity"]["compute"]["value"]  # noqa: E731

        grown = claims.facts("resize", "pod/a", "--gpu-request", "0.7", "--gpu-mem", "6Gi")
        assert ("claim", "a", "resized", 700, 6144) == (
            *(grown[key] for key in ("resource", "name", "state")), grown["after"]["request_milli"],
            grown["after"]["memory_mib"],
        )  # fmt: skip
        (tenant,) = [t for g in scene.status().gpus for t in g.tenants]
        assert (700, 6144) == (tenant.request_milli, tenant.memory_limit_mib)
        until(lambda: value() == "60", "less capacity", 10)
        claims.share("b", compute="40", memory="4Gi")
        assert [uuid_a] != scene.told("b")["uuids"]
        claims.share("c", compute="30", memory="4Gi")
        assert [uuid_a] == scene.told("c")["uuids"]
        where = ("-n", scene.namespace, "--kubeconfig", str(plane.kubeconfig))
        command = [sys.executable, "-m", "aliquot.cli.kubectl", "resize", "claim/a", "--gpu-request", "0.8", *where]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert 1 == refused.returncode and "Deferred" in refused.stdout
        claims.facts("resize", "claim/a", "--gpu-request", "0.1")
        until(lambda: value() == "120", "more capacity", 10)
        claims.share("d", compute="50", memory="4Gi")
        assert [uuid_a] == scene.told("d")["uuids"]
        shares = sorted(t.request_milli for g in scene.status().gpus for t in g.tenants if g.uuid == uuid_a)
        assert [100, 300, 500] == shares
    finally:
        scheduler.part.stop()


@LONG
def test_two_schedulers_never_give_one_gpu_twice(claims: Claims):
    """Claims by kube-scheduler and pods by Aliquot's come in a burst to one node: what runs fits each GPU, and all have
    run in the end."""
    scene, plane = claims.scene, claims.scene.plane
    scheduler = OurScheduler(plane, 8773, "--claims")
    scheduler.part.start()
    plane.parts["aliquot-scheduler"] = scheduler.part
    try:
        scheduler.configure()
        names = [f"p{number}" for number in range(6)]
        for number, name in enumerate(names):
            if number % 2:
                claims.share(name, compute="60", memory="2Gi")
            else:
                container = {"resources": {"limits": {GPU_PERCENT: "60", GPU_MEMORY: "2Gi"}}}
                plane.create_pod(scene.namespace, name, BUSYBOX, "/bin/sleep", "4", container=container)
        most, left, until_s = 0, set(names), time.monotonic() + 200
        while left and time.monotonic() < until_s:
            gpus = scene.status().gpus
            most = max(most, *(sum(tenant.request_milli for tenant in gpu.tenants) for gpu in gpus))
            for name in [name for name in names if name in left and scene.phase(name) in ("Running", "Succeeded")]:
                scene.delete(name)
                if int(name[1:]) % 2:
                    plane.api.delete(f"{claims.root}/{name}")
                left.discard(name)
    finally:
        plane.parts.pop("aliquot-scheduler")
        scheduler.part.stop()
        plane.schedule_with({})
    assert (set(), 600) == (left, most)
