"""The operator with the real control plane: SharePods, vGPUs in both ways to own a GPU, quotas."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster.control_plane import ControlPlane
from operating import create, install_crds, operating, sharepod, vgpus, wait_for, wait_phase
from scheduling import OurScheduler, slices_of


@pytest.fixture(scope="module")
def scheduler(control_plane: ControlPlane) -> Iterator[OurScheduler]:
    """Our scheduler with its operator, which owns a node of four V100."""
    install_crds(control_plane)
    nodes = control_plane.fake_nodes(1, "v100", gpus=4, prefix="own")
    with operating(control_plane, 8780) as ours:
        yield ours
    control_plane.remove_nodes(nodes)


def test_a_sharepod_becomes_a_pod_on_a_gpu(control_plane: ControlPlane, namespace: str, scheduler: OurScheduler):
    """SharePod, pod with owner and plan, vGPU and status all say the same; the vGPU goes with the last one on it."""
    create(control_plane, namespace, sharepod("a", "0.3", memory="4Gi"))

    seen = wait_phase(control_plane, namespace, "a", "Running")
    pod = control_plane.pod(namespace, "a")
    status = seen["status"]
    assert [(status["gpuUUID"], 300, 4096)] == slices_of(pod)
    assert (pod["spec"]["nodeName"], "a") == (status["nodeName"], status["podName"])
    assert [("SharePod", seen["metadata"]["uid"])] == [
        (owner["kind"], owner["uid"]) for owner in pod["metadata"]["ownerReferences"]
    ]
    named = wait_for(
        lambda: vgpus(control_plane)[status["gpuID"]], lambda v: v["status"]["phase"] == "Active", "not Active"
    )
    assert status["gpuUUID"] == named["status"]["uuid"]
    assert [f"{namespace}/a/main"] == [who["tenant"] for who in named["status"]["attached"]]
    assert "0.30" == named["status"]["requested"]

    control_plane.kubectl("delete", "sharepod", "a", "-n", namespace, "--wait=false")
    wait_for(lambda: vgpus(control_plane), lambda v: v == {}, "the vGPU stays")
