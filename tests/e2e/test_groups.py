"""Pod groups with the real kube-scheduler, which asks for all pods of a group before it binds any."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.control_plane import ControlPlane
from cluster.prepare import Parts
from scheduling import OurScheduler, Pods, asking, gpu_pod, percent

pytestmark = pytest.mark.timeout(180)
GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true"
GROUPS = "/apis/scheduling.k8s.io/v1alpha2"


@pytest.fixture(scope="module")
def plane(cluster_parts: Parts) -> Iterator[ControlPlane]:
    """A control plane that knows pod groups, with two GPUs and our scheduler."""
    made = ControlPlane(cluster_parts, apiserver_flags=(GATES, "--runtime-config=scheduling.k8s.io/v1alpha2=true"))
    made.start()
    try:
        made.fake_nodes(1, "v100", gpus=2)
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def scheduler(plane: ControlPlane) -> Iterator[OurScheduler]:
    """Ours, and the stock one with the gates."""
    with asking(OurScheduler(plane), flags=(GATES,)) as ours:
        yield ours


def make_group(into: Pods, name: str, count: int, needed: int = 0) -> None:
    """A group of pods of 0.6 of a GPU each, all or so many of which are needed."""
    body: dict[str, Any] = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
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
