"""The thread through all parts: a pod with a plan gets exactly what was planned, seen from inside its container."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from cluster.kubelet_node import KubeletNode
from cluster.parts import until
from node_scene import Scene, running


@pytest.fixture
def scene(kubelet_node: KubeletNode, namespace: str) -> Iterator[Scene]:
    """An agent with two emulated V100."""
    with running(kubelet_node, namespace) as made:
        yield made


def test_a_container_gets_the_gpu_the_memory_and_the_share_of_its_plan(scene: Scene):
    """A CUDA program sees the planned GPU alone, with the planned memory, and computes by its share beside another."""
    scene.create("a", {"main": scene.slice(1, 300, 600, 2048)})
    scene.create("b", {"main": scene.slice(1, 600, 1000, 4096)})

    for name, mib in (("a", 2048), ("b", 4096)):
        seen = scene.told(name)
        assert ([scene.gpus[1]], mib) == (seen["uuids"], seen["total_mib"])
        assert 0 < seen["largest_mib"] <= mib
    time.sleep(11)
    (gpu,) = [gpu for gpu in scene.status().gpus if gpu.tenants]
    usage = {tenant.name.split("/")[1]: tenant.usage for tenant in gpu.tenants}
    assert usage["a"] == pytest.approx(0.35, abs=0.08)
    assert usage["b"] == pytest.approx(0.65, abs=0.08)
    for name in ("a", "b"):
        scene.delete(name)
    until(lambda: not scene.tenants() and not scene.specs(), "no trace of the pods")
