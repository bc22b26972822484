"""What a real kubelet does with a device plugin; the node's agent is built on this."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import programs
from cluster.images import BUSYBOX
from cluster.kubelet_node import KubeletNode
from cluster.parts import until
from plugins import FOLDER, POD_RESOURCES, DevicePlugin, held_devices, stock_plugin

from aliquot.node.kubelet_api import deviceplugin_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
RESOURCE = "test.aliquot.dev/part"
KIND = "test.aliquot.dev/gpu"
PARTS = [f"g0-{number:02}" for number in range(20)]


def cdi_name(ids: tuple[str, ...]) -> str:
    """A name for what a container gets, derived from its ids alone."""
    return "-".join(ids)


class Scene:
    """A plugin whose Allocate names a CDI device that only comes to be when the container starts."""

    def __init__(self, node: KubeletNode) -> None:
        self.node = node
        self.refusal = ""
        self.specs = node.path("/run/cdi")
        self.specs.mkdir(exist_ok=True)
        self.plugin = DevicePlugin(node.path(FOLDER), RESOURCE, PARTS, allocate=self.allocate, pre_start=self.pre_start)

    def allocate(self, ids: tuple[str, ...]) -> Any:
        """Names the CDI device; nothing is known of the pod yet."""
        return pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=f"{KIND}={cdi_name(ids)}")])

    def pre_start(self, ids: tuple[str, ...]) -> None:
        """Finds out whose ids these are, and writes what this very container gets."""
        if self.refusal:
            raise RuntimeError(self.refusal)
        owners = [key for key, held in held_devices(self.node.path(POD_RESOURCES)).items() if held == set(ids)]
        namespace, pod, container, _ = owners[0]
        edits = {"env": [f"OWNER={namespace}/{pod}/{container}"]}
        device = {"name": cdi_name(ids), "containerEdits": edits}
        spec = {"cdiVersion": "0.6.0", "kind": KIND, "devices": [device]}
        fresh = self.specs / f".{cdi_name(ids)}"
        fresh.write_text(json.dumps(spec))
        fresh.rename(self.specs / f"{cdi_name(ids)}.json")

    def allocatable(self, resource: str = RESOURCE) -> str:
        """What the node advertises."""
        node = self.node.control_plane.api.get(f"/api/v1/nodes/{self.node.name}")
        return node["status"]["allocatable"].get(resource, "")

    def create(self, namespace: str, name: str, parts: int, *command: str, resource: str = RESOURCE) -> None:
        """A pod that asks for some of the resource."""
        limits = {"resources": {"limits": {resource: str(parts)}}}
        self.node.control_plane.create_pod(namespace, name, BUSYBOX, *command, container=limits)


@pytest.fixture
def scene(kubelet_node: KubeletNode) -> Iterator[Scene]:
    """The plugin above, registered and advertised."""
    made = Scene(kubelet_node)
    made.plugin.start()
    until(lambda: made.allocatable() == str(len(PARTS)), "the resource on the node")
    yield made
    made.plugin.stop()
    # Else the next test takes what this plugin advertised for its own, and kubelet refuses its pods.
    until(lambda: made.allocatable() != str(len(PARTS)), "the resource off the node")
    for spec in made.specs.iterdir():
        spec.unlink()


def test_the_committed_stubs_are_fresh():
    """The stubs are what tools/gen_proto.py makes of the proto files of the version in tools/go.mod."""
    command = [sys.executable, str(ROOT / "tools/gen_proto.py"), "--check"]
    path = f"{Path(programs.find_go()).parent}:{os.environ['PATH']}"
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})

    assert 0 == done.returncode, done.stderr


def test_every_container_gets_what_was_written_for_it(scene: Scene, namespace: str):
    """Of equal containers started at once, each gets the device that was made for it just before its start."""
    for number in range(6):
        scene.create(namespace, f"equal-{number}", 3, "/bin/sh", "-c", "echo $OWNER; sleep 1000")
    plane = scene.node.control_plane

    for number in range(6):
        plane.wait_running(namespace, f"equal-{number}")
        told = until(lambda pod=f"equal-{number}": plane.kubectl("logs", "-n", namespace, pod), "its first line")
        assert f"{namespace}/equal-{number}/main" == told.strip()
    held = held_devices(scene.node.path(POD_RESOURCES))
    assert 18 == len(set().union(*held.values()))
    assert sorted(scene.plugin.asked.allocated) == sorted(scene.plugin.asked.started)


def test_a_refused_start_waits_and_says_why(scene: Scene, namespace: str):
    """When the plugin refuses before the start, the container waits with the plugin's sentence in its status."""
    scene.refusal = "the share is not ready"
    scene.create(namespace, "refused", 1, "/bin/sleep", "1000")
    plane = scene.node.control_plane

    def reason() -> str:
        statuses = plane.pod(namespace, "refused")["status"].get("containerStatuses", ())
        return "".join(status["state"].get("waiting", {}).get("message", "") for status in statuses)

    assert "the share is not ready" in until(reason, "the reason")


def test_a_plugin_registers_again_after_a_crash_of_kubelet(scene: Scene, namespace: str):
    """After kubelet's crash the plugin registers again, and pods that run keep their ids.

    A new kubelet's PodResources is empty until it has seen its pods: nothing there is no proof that nothing is held.
    """
    scene.create(namespace, "keeps", 5, "/bin/sleep", "1000")
    scene.node.control_plane.wait_running(namespace, "keeps")
    before = held_devices(scene.node.path(POD_RESOURCES))
    kubelet = scene.node.control_plane["kubelet"]

    kubelet.kill()
    kubelet.start()

    until(lambda: scene.plugin.registrations == 2, "the second registration")
    until(lambda: scene.allocatable() == str(len(PARTS)), "the resource on the node")
    until(lambda: before == held_devices(scene.node.path(POD_RESOURCES)), "kubelet's knowledge of who holds what")
    assert 5 == len(before[namespace, "keeps", "main", RESOURCE])


def test_a_stock_plugin_gives_whole_gpus_beside_ours(scene: Scene, namespace: str):
    """A plugin like NVIDIA's serves whole GPUs by UUID on the same node, and kubelet tells who holds them."""
    gpus = ["GPU-8f1d9a4e-6c1b-5a0e-9b1f-2d6b2f6d7a10", "GPU-8f1d9a4e-6c1b-5a0e-9b1f-2d6b2f6d7a11"]
    stock = stock_plugin(scene.node.path(FOLDER), gpus)
    stock.start()
    try:
        until(lambda: scene.allocatable("nvidia.com/gpu") == "2", "the stock plugin's GPUs")
        scene.create(namespace, "whole", 1, "/bin/sleep", "1000", resource="nvidia.com/gpu")
        scene.create(namespace, "part", 1, "/bin/sleep", "1000")
        for name in ("whole", "part"):
            scene.node.control_plane.wait_running(namespace, name)

        held = held_devices(scene.node.path(POD_RESOURCES))

        assert {gpus[0]} == held[namespace, "whole", "main", "nvidia.com/gpu"]
        assert 1 == len(held[namespace, "part", "main", RESOURCE])
    finally:
        stock.stop()


def test_memory_is_advertised_by_the_nodes_own_word(scene: Scene, namespace: str):
    """A counted resource that no plugin owns is set in the node's status, and the scheduler holds pods to it."""
    plane = scene.node.control_plane
    status = f"/api/v1/nodes/{scene.node.name}/status"
    plane.api.merge(status, {"status": {"capacity": {"test.aliquot.dev/memory": "4Gi"}}})
    until(lambda: scene.allocatable("test.aliquot.dev/memory") == "4Gi", "the memory on the node")

    def ask(name: str, amount: str) -> None:
        limits = {"resources": {"limits": {"test.aliquot.dev/memory": amount}}}
        plane.create_pod(namespace, name, BUSYBOX, "/bin/sleep", "1000", container=limits)

    ask("fits", "3Gi")
    plane.wait_running(namespace, "fits")
    ask("too-much", "2Gi")

    def told() -> str:
        conditions = plane.pod(namespace, "too-much")["status"].get("conditions", ())
        return "".join(item.get("message", "") for item in conditions)

    assert "Insufficient test.aliquot.dev/memory" in until(told, "why it waits")
    plane.api.merge(status, {"status": {"capacity": {"test.aliquot.dev/memory": None}}})
