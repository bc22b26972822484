"""Pod groups with the real kube-scheduler, which asks for all pods of a group before it binds any."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from claiming import Lab, claims_served
from cluster import programs
from cluster.control_plane import ControlPlane
from cluster.prepare import Parts
from operating import wait_for
from scheduling import ROOT, OurScheduler, Pods, gpu_pod, percent

pytestmark = pytest.mark.timeout(180)
VERSION, GATES = programs.gangs()
FLAG = f"--feature-gates={GATES}"
GROUPS = f"/apis/scheduling.k8s.io/{VERSION}"


@pytest.fixture(scope="module")
def plane(cluster_parts: Parts) -> Iterator[ControlPlane]:
    """A control plane that knows pod groups."""
    runtime = f"--runtime-config=scheduling.k8s.io/{VERSION}=true"
    made = ControlPlane(cluster_parts, flags=(FLAG,), apiserver_flags=(runtime,))
    made.start()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def scheduler(plane: ControlPlane, helm: str) -> Iterator[OurScheduler]:
    """A node of two V100 that serves claims, our scheduler, and the stock one with the gates."""
    with claims_served(plane, helm, plane.fake_nodes(1, "v100", gpus=2), (FLAG,)) as ours:
        yield ours


def make_group(into: Pods, name: str, count: int, needed: int = 0) -> None:
    """A group of pods of 0.6 of a GPU each, all or so many of which are needed."""
    body: dict[str, Any] = {
        "apiVersion": f"scheduling.k8s.io/{VERSION}",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": needed or count}}},
    }
    into.plane.api.create(f"{GROUPS}/namespaces/{into.namespace}/podgroups", body)
    group = {"podGroupName": name}
    into.create(*(gpu_pod(f"{name}{i}", percent(60, "1Gi"), schedulingGroup=group) for i in range(count)))


def test_a_group_is_placed_whole_or_not_at_all(plane: ControlPlane, scheduler: OurScheduler):
    """Of three pods for two GPUs none is bound; a group of two is, meanwhile, and holds what its plans say."""
    plane.make_namespace("gang")
    pods = Pods(plane, "gang")
    make_group(pods, "three", 3)
    time.sleep(4)
    bound = [pod["metadata"]["name"] for pod in pods.bound()]
    make_group(pods, "two", 2)
    found = pods.wait_bound(2)

    assert [] == bound
    assert {"two0", "two1"} == {pod["metadata"]["name"] for pod in found}
    pods.agree(scheduler)


def test_a_group_may_start_with_as_many_pods_as_it_needs(plane: ControlPlane, scheduler: OurScheduler):
    """Of three pods for two GPUs two are bound where two are enough."""
    plane.make_namespace("some")
    pods = Pods(plane, "some")
    plane.remove_namespace("gang")
    make_group(pods, "three", 3, 2)
    found = pods.wait_bound(2)

    assert 2 == len(found)
    pods.agree(scheduler)
    plane.remove_namespace("some")


def test_the_example_runs(plane: ControlPlane, scheduler: OurScheduler):
    """The two pods of examples/gangs/podgroup.yaml are bound, in the version of PodGroup that this Kubernetes has."""
    plane.make_namespace("example")
    text = (ROOT / "examples/gangs/podgroup.yaml").read_text()
    plane.kubectl("apply", "-n", "example", "-f", "-", input_=text.replace("v1beta1", VERSION))
    pods = Pods(plane, "example")
    pods.wait_bound(2)

    pods.agree(scheduler)
    plane.kubectl("delete", "job", "two", "-n", "example")
    plane.remove_namespace("example")


@pytest.mark.parametrize("kind", ["share", "placed"])
def test_a_group_in_a_namespace_of_claims_is_placed_whole_or_not_at_all(
    plane: ControlPlane, scheduler: OurScheduler, kind: str
):
    """Of three pods for two GPUs none has a node or an allocated claim; a group of two runs, a claim on each GPU."""
    plane.make_namespace(kind)
    lab = Lab(plane, kind)
    lab.label(kind)
    make_group(lab, "three", 3)
    wait_for(lambda: plane.api.get(lab.claims)["items"], lambda claims: len(claims) == 3, "claims are missing", 60)
    time.sleep(4)
    claims = plane.api.get(lab.claims)["items"]
    early = [claim for claim in claims if claim.get("status", {}).get("allocation")], lab.bound()
    lab.clear()
    make_group(lab, "two", 2)
    found = lab.running("two0", "two1")

    assert ([], []) == early
    assert 2 == len({claim["status"]["allocation"]["devices"]["results"][0]["device"] for claim in found.values()})
    lab.clear()
