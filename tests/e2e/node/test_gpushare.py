"""gpushare's own sample: its program finds its variables, its tools what they read."""

from collections.abc import Iterator
from typing import Any

import pytest
from cluster.images import EXAMPLE
from cluster.kubelet_node import KubeletNode
from cluster.parts import until
from cluster.whole import Whole, whole
from node_scene import LONG

pytestmark = [LONG, pytest.mark.timeout(180)]
TOLD = "echo total $ALIYUN_COM_GPU_MEM_DEV allocated $ALIYUN_COM_GPU_MEM_CONTAINER; sleep 1000"


@pytest.fixture(scope="module")
def cluster(kubelet_node: KubeletNode) -> Iterator[Whole]:
    """All of Aliquot on a node of two GPUs, with what `kubectl inspect gpushare` reads."""
    flags = ("--gpushare-inspect",)
    with whole(kubelet_node, "v100x2", scheduler_flags=flags, agent_flags=flags) as made:
        yield made


def sample(name: str, gib: int) -> dict[str, Any]:
    """A pod like those of gpushare's samples, whose program computes its part of the memory from two variables."""
    container = {
        "name": "main",
        "image": EXAMPLE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", TOLD],
        "resources": {"limits": {"aliyun.com/gpu-mem": gib}},
    }
    return {"metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}


def inspected(cluster: Whole, namespace: str) -> dict[str, tuple[int, int]]:
    """(used, total) by GPU as the plugin adds them up: cmd/inspect/nodeinfo.go of gpushare-device-plugin."""
    api = cluster.plane.api
    allocatable = api.get(f"/api/v1/nodes/{cluster.gpus.node.name}")["status"]["allocatable"]
    total, count = (int(allocatable.get(f"aliyun.com/gpu-{name}", 0)) for name in ("mem", "count"))
    found = {str(number): (0, total // count) for number in range(count)}
    for pod in api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]:
        memory = sum(int(c["resources"]["limits"]["aliyun.com/gpu-mem"]) for c in pod["spec"]["containers"])
        number = pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"]
        found[number] = (found[number][0] + memory, found[number][1])
    return found


def test_gpushares_samples_run_and_its_plugin_shows_them(cluster: Whole, namespace: str):
    """Three samples are packed, told their part, marked as assigned, and in gpushare's sums."""
    plane, names = cluster.plane, ("binpack-1", "binpack-2", "binpack-3")
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", *(sample(name, 2) for name in names))

    def said(name: str) -> str:
        return plane.kubectl("logs", "-n", namespace, name, check=False).strip()

    def assigned() -> set[str]:
        pods = [plane.pod(namespace, name) for name in names]
        return {pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"] for pod in pods}

    until(lambda: {"total 2 allocated 2"} == {said(name) for name in names}, "the samples' variables", 60)
    assert {"0": (6, 16), "1": (0, 16)} == inspected(cluster, namespace)
    until(lambda: {"true"} == assigned(), "the pods' flags", 40)
