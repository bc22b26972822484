"""One agent with two emulated V100 for a whole file of tests; each test has pods of its own names."""

import uuid
from collections.abc import Iterator

import pytest
from cluster.kubelet_node import KubeletNode
from cluster.parts import until
from node_scene import Scene, running


@pytest.fixture(scope="module")
def one_scene(kubelet_node: KubeletNode) -> Iterator[Scene]:
    name = f"node-{uuid.uuid4().hex[:8]}"
    plane = kubelet_node.control_plane
    plane.make_namespace(name)
    try:
        with running(kubelet_node, name) as made:
            yield made
            plane.remove_namespace(name)
    finally:
        plane.remove_namespace(name)


@pytest.fixture
def scene(one_scene: Scene) -> Iterator[Scene]:
    """The agent, fit; the test's pods are gone when it ends, and so is every trace of them."""
    until(one_scene.fit, "a fit agent")
    yield one_scene
    one_scene.clear()
