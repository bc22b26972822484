"""What differs between machines: device nodes in another order than the GPUs, and kubelet's Topology Manager."""

import os
import stat
import uuid
from collections.abc import Iterator

import pytest
import yaml
from cluster.kubelet_node import KubeletNode
from cluster.parts import until
from node_scene import Scene

from aliquot.driver import emulation
from aliquot.kube.names import GPU_HEALTHY

SPEC = "a100x8"
MAJOR = 195
"""Of NVIDIA's device nodes. Source: Linux, Documentation/admin-guide/devices.txt."""
LISTS = """
import glob, os
print({name: os.minor(os.stat(name).st_rdev) for name in sorted(glob.glob("/dev/nvidia*"))}, flush=True)
"""


@pytest.fixture(scope="module")
def scene(kubelet_node: KubeletNode) -> Iterator[Scene]:
    """An agent with eight emulated A100 that have device nodes, beside a kubelet that aligns all to one NUMA node."""
    plane, name = kubelet_node.control_plane, f"real-{uuid.uuid4().hex[:8]}"
    file = plane.rooms.state / "kubelet.yaml"
    before = file.read_text()
    file.write_text(yaml.safe_dump(yaml.safe_load(before) | {"topologyManagerPolicy": "single-numa-node"}))
    plane["kubelet"].stop()
    plane["kubelet"].start()
    plane.make_namespace(name)
    made = Scene(kubelet_node, name, SPEC)
    try:
        _make_nodes(kubelet_node)
        made.start()
        yield made
        made.clear()
    finally:
        made.close()
        plane.remove_namespace(name)
        file.write_text(before)
        plane["kubelet"].stop()
        plane["kubelet"].start()


def _make_nodes(node: KubeletNode) -> None:
    """Device nodes with the driver's numbers, where the emulated machine is going to be; nobody opens them."""
    folder = node.path("/run/aliquot/emulated") / emulation.NODES
    folder.mkdir(parents=True)
    numbers = {f"nvidia{minor}": minor for minor in emulation.profile_minors(*emulation.parse_spec(SPEC))}
    for name, minor in ({"nvidiactl": 255, "nvidia-uvm": 254} | numbers).items():
        os.mknod(folder / name, 0o666 | stat.S_IFCHR, os.makedev(MAJOR, minor))


def test_a_container_has_the_device_node_of_its_gpu_and_no_other(scene: Scene):
    """GPU 4 of this machine is /dev/nvidia6; that is what the container of a plan for GPU 4 has."""
    scene.create("nodes", {"main": scene.slice(4, 300)}, "python3", "-c", LISTS)
    until(lambda: scene.phase("nodes") == "Succeeded", "the end of the program", 60)

    found = scene.plane.kubectl("logs", "-n", scene.namespace, "nodes").strip()

    assert "{'/dev/nvidia-uvm': 254, '/dev/nvidia6': 6, '/dev/nvidiactl': 255}" == found


def test_the_topology_manager_refuses_no_pod_for_the_ids_of_other_gpus(scene: Scene):
    """Plans over GPUs of several NUMA nodes are started as they are, whichever ids kubelet finds for them."""
    wide = [scene.slice(gpu, 1000, mib=40960) for gpu in (0, 2, 4)]
    scene.create("wide", {"main": wide})
    scene.create("part", {"main": scene.slice(6, 300)})

    assert [scene.gpus[gpu] for gpu in (0, 2, 4)] == scene.told("wide")["uuids"]
    assert [scene.gpus[6]] == scene.told("part")["uuids"]
    for name in ("wide", "part"):
        scene.delete(name)


def test_a_lost_gpu_is_withdrawn_alone_and_an_agent_starts_without_it(scene: Scene):
    """The others stay on offer through its loss and through a restart; when it answers again it is offered again."""
    faults = scene.node.path("/run/aliquot/emulated/faults")
    faults.write_text("lost 3\n")
    until(lambda: scene.allocatable()[0] == "700", "one GPU less")
    scene.agent.stop()
    scene.agent.start()
    until(lambda: scene.allocatable()[0] == "700" and len(scene.devices()) == 7, "seven GPUs of an agent made anew")

    scene.create("else", {"main": scene.slice(5, 300)})
    assert [scene.gpus[5]] == scene.told("else")["uuids"]
    scene.delete("else")
    faults.unlink()
    until(lambda: not scene.agent.running, "the end of an agent that is to be started anew", 30)
    scene.agent.start()
    until(lambda: scene.allocatable()[0] == "800", "all GPUs")


def test_the_administrators_word_is_heard_on_the_node(scene: Scene):
    """The agent takes the annotation away; a GPU that the driver still wants to be reset stays withdrawn."""
    faults = scene.node.path("/run/aliquot/emulated/faults")
    faults.write_text("xid 1 79\n")
    until(lambda: scene.allocatable()[0] == "700", "one GPU less")

    node = f"/api/v1/nodes/{scene.node.name}"
    scene.plane.api.merge(node, {"metadata": {"annotations": {GPU_HEALTHY: scene.gpus[1]}}})
    until(
        lambda: GPU_HEALTHY not in scene.plane.api.get(node)["metadata"]["annotations"],
        "an annotation that is heard",
        30,
    )
    (unhealthy,) = [device["unhealthy"] for device in scene.devices() if device.get("unhealthy")]
    assert unhealthy in ("XID 79", "the driver asks for a reset of the GPU")

    faults.unlink()
    until(lambda: scene.allocatable()[0] == "800", "all GPUs")
