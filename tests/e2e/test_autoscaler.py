"""Karpenter makes and removes nodes for shares, with its kwok provider, beside the real kube-scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cluster.control_plane import ControlPlane
from cluster.karpenter import Karpenter
from operating import wait_for
from scheduling import OurScheduler, Pods, asking, gpu_pod, percent
from test_kubectl import facts

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def scheduler(control_plane: ControlPlane) -> Iterator[OurScheduler]:
    """Our scheduler, in a cluster without nodes."""
    with asking(OurScheduler(control_plane)) as ours:
        yield ours


@pytest.fixture(scope="module")
def karpenter(control_plane: ControlPlane, scheduler: OurScheduler) -> Iterator[Karpenter]:
    """Karpenter, for nodes of one V100, which has not been told to make any."""
    made = Karpenter(control_plane, {"small": "v100x1"})
    made.start()
    yield made
    made.stop()


@pytest.fixture
def pods(pods: Pods) -> Iterator[Pods]:
    """The pods of the namespace, whose Deployments end before it."""
    yield pods
    pods.plane.kubectl("delete", "deployment", "--all", "--cascade=foreground", "-n", pods.namespace)


def deploy(pods: Pods, name: str, replicas: int, limits: dict[str, Any]) -> None:
    """A Deployment of pods that each want this share."""
    template = gpu_pod("", limits)
    template["metadata"] = {"labels": {"app": name}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    pods.plane.api.create(f"/apis/apps/v1/namespaces/{pods.namespace}/deployments", {
        "metadata": {"name": name}, "spec": spec,
    })  # fmt: skip


def scale(pods: Pods, name: str, replicas: int) -> None:
    """Another number of pods of a Deployment."""
    pods.plane.api.merge(
        f"/apis/apps/v1/namespaces/{pods.namespace}/deployments/{name}", {"spec": {"replicas": replicas}}
    )


def settled(karpenter: Karpenter, nodes: int) -> list[dict[str, Any]]:
    """The nodes, once there are so many and none is on its way out."""

    def enough(seen: list[dict[str, Any]]) -> bool:
        return len(seen) == nodes and not any(node["metadata"].get("deletionTimestamp") for node in seen)

    seen: list[dict[str, Any]] = wait_for(karpenter.nodes, enough, f"not {nodes} nodes", 150)
    return seen


def test_three_shares_of_a_third_lead_to_one_node(pods: Pods, karpenter: Karpenter):
    """From zero: the trial says one node, Karpenter makes one, all three are bound there; when they end, it goes."""
    deploy(pods, "thirds", 3, percent(30, "4Gi"))
    wait_for(pods.waiting, lambda waiting: len(waiting) == 3, "three pods do not wait")
    trial = facts(pods.plane, "nodes", "-n", pods.namespace, "--type", "small=v100")
    karpenter.make_pool()
    bound = pods.wait_bound(3, 120)
    (node,) = settled(karpenter, 1)
    scale(pods, "thirds", 0)

    assert {"small": 1} == trial["add"]
    assert {node["metadata"]["name"]} == {pod["spec"]["nodeName"] for pod in bound}
    assert [] == settled(karpenter, 0)


def test_scale_down_strands_nobody(pods: Pods, karpenter: Karpenter, scheduler: OurScheduler):
    """Two shares of 0.3 that are left on two nodes are on one node afterwards, with their shares, and none waits."""
    karpenter.make_pool()
    deploy(pods, "large", 2, percent(60, "8Gi"))
    pods.wait_bound(2, 120)
    deploy(pods, "small", 2, percent(30, "4Gi"))
    spread = {pod["spec"]["nodeName"] for pod in pods.wait_bound(4, 60)}
    scale(pods, "large", 0)
    (node,) = settled(karpenter, 1)
    left = wait_for(
        pods.staying,
        lambda all_: [2, 2] == [len(all_), sum("nodeName" in pod["spec"] for pod in all_)],
        "one waits",
        60,
    )

    assert 2 == len(spread)
    assert {node["metadata"]["name"]} == {pod["spec"]["nodeName"] for pod in left}
    pods.agree(scheduler)
