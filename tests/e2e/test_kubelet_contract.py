"""What a device plugin may count on, held against a real kubelet and against the stand-in that unit tests use."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import grpc
import pytest
from cluster import programs
from cluster.images import BUSYBOX
from cluster.kubelet_node import KubeletNode
from cluster.parts import until
from kubelet_stand_in import AdmissionError, KubeletStandIn
from plugins import FOLDER, POD_RESOURCES, DevicePlugin, held_devices

from aliquot.node.kubelet_api import deviceplugin_pb2 as pb
from aliquot.node.kubelet_api import deviceplugin_pb2_grpc as rpc

ROOT = Path(__file__).resolve().parents[2]
RESOURCE = "contract.aliquot.dev/part"
IDS = [f"g0-{number:02}" for number in range(8)]


class Kubelet(Protocol):
    """What the sentences below need of a kubelet; a pod has one container, `main`."""

    folder: Path
    pod_resources: Path

    def wait_allocatable(self, count: int) -> None:
        """Waits until the node advertises this many of the resource."""

    def run(self, pod: str, count: int) -> None:
        """Runs a pod that holds some of the resource, until its container has started."""

    def start_again(self, pod: str) -> None:
        """Lets the pod's container end and start again."""

    def end(self, pod: str) -> None:
        """Ends the pod for good."""

    def restart(self) -> None:
        """A new kubelet takes over."""

    def owner(self, pod: str) -> tuple[str, str, str, str]:
        """How PodResources names the pod's holding."""


class Real:
    """The kubelet of the test cluster."""

    def __init__(self, node: KubeletNode, namespace: str) -> None:
        self._node = node
        self._plane = node.control_plane
        self._namespace = namespace
        self.folder = node.path(FOLDER)
        self.pod_resources = node.path(POD_RESOURCES)

    def wait_allocatable(self, count: int) -> None:
        def told() -> bool:
            node = self._plane.api.get(f"/api/v1/nodes/{self._node.name}")
            return node["status"]["allocatable"].get(RESOURCE, "0") == str(count)

        until(told, f"{count} of {RESOURCE}")

    def run(self, pod: str, count: int) -> None:
        container = {"resources": {"limits": {RESOURCE: str(count)}}}
        self._plane.create_pod(
            self._namespace, pod, BUSYBOX, "/bin/sleep", "1000", container=container, restartPolicy="Always"
        )
        self._plane.wait_running(self._namespace, pod)

    def start_again(self, pod: str) -> None:
        status = self._plane.pod(self._namespace, pod)["status"]["containerStatuses"][0]
        number = status["containerID"].removeprefix("containerd://")
        self._node.ctr("tasks", "kill", "--signal", "KILL", number)

        def again() -> bool:
            now = self._plane.pod(self._namespace, pod)["status"]["containerStatuses"][0]
            return now["restartCount"] == status["restartCount"] + 1 and "running" in now["state"]

        until(again, "the container's next start", 60)

    def end(self, pod: str) -> None:
        self._plane.api.delete(f"/api/v1/namespaces/{self._namespace}/pods/{pod}")
        until(lambda: self.owner(pod) not in held_devices(self.pod_resources), f"the end of {pod}")

    def restart(self) -> None:
        self._plane["kubelet"].restart()

    def owner(self, pod: str) -> tuple[str, str, str, str]:
        return (self._namespace, pod, "main", RESOURCE)


class StandIn:
    """The stand-in, played in the same words."""

    def __init__(self, root: Path) -> None:
        self._kubelet = KubeletStandIn(root)
        self._kubelet.start()
        self.folder = self._kubelet.plugins_folder
        self.pod_resources = self._kubelet.pod_resources

    def wait_allocatable(self, count: int) -> None:
        self._kubelet.wait_allocatable(RESOURCE, count)

    def run(self, pod: str, count: int) -> None:
        self._kubelet.admit("default", pod, "main", RESOURCE, count)
        self._kubelet.start_container("default", pod, "main", RESOURCE)

    def start_again(self, pod: str) -> None:
        self._kubelet.start_container("default", pod, "main", RESOURCE)

    def end(self, pod: str) -> None:
        self._kubelet.end_pod("default", pod)

    def restart(self) -> None:
        self._kubelet.restart()

    def owner(self, pod: str) -> tuple[str, str, str, str]:
        return ("default", pod, "main", RESOURCE)

    def stop(self) -> None:
        self._kubelet.stop()


@pytest.fixture(params=["real", "stand-in"])
def kubelet(request: pytest.FixtureRequest) -> Iterator[Kubelet]:
    """Each of the two in turn."""
    if request.param == "real":
        node = request.getfixturevalue("kubelet_node")
        yield Real(node, request.getfixturevalue("namespace"))
        return
    root = Path(tempfile.mkdtemp(prefix="kubelet-"))
    stand_in = StandIn(root)
    yield stand_in
    stand_in.stop()
    shutil.rmtree(root)


class Recorder:
    """A plugin that notes whom PodResources names as the owner during each call."""

    def __init__(self, kubelet: Kubelet) -> None:
        self.known_in_allocate: list[bool] = []
        self.owners_in_start: list[list[tuple[str, str, str, str]]] = []
        self._kubelet = kubelet
        self.plugin = DevicePlugin(kubelet.folder, RESOURCE, IDS, allocate=self._allocate, pre_start=self._pre_start)

    def _owners(self, ids: tuple[str, ...]) -> list[tuple[str, str, str, str]]:
        return [owner for owner, held in held_devices(self._kubelet.pod_resources).items() if held == set(ids)]

    def _allocate(self, ids: tuple[str, ...]) -> Any:
        self.known_in_allocate.append(bool(self._owners(ids)))
        return pb.ContainerAllocateResponse()

    def _pre_start(self, ids: tuple[str, ...]) -> None:
        self.owners_in_start.append(self._owners(ids))


@pytest.fixture
def recorder(kubelet: Kubelet) -> Iterator[Recorder]:
    """The plugin above, registered and advertised."""
    made = Recorder(kubelet)
    made.plugin.start()
    kubelet.wait_allocatable(len(IDS))
    yield made
    made.plugin.stop()
    # The next plugin must not take for its own what the node still advertises of this one.
    kubelet.wait_allocatable(0)


def test_the_owner_is_known_at_the_start_and_not_at_the_allocation(kubelet: Kubelet, recorder: Recorder):
    """PodResources names the container during PreStartContainer; during Allocate it does not yet."""
    kubelet.run("one", 3)

    assert [False] == recorder.known_in_allocate
    assert [[kubelet.owner("one")]] == recorder.owners_in_start


def test_a_container_starts_again_with_the_ids_it_was_given(kubelet: Kubelet, recorder: Recorder):
    """A restart of the container is announced with the same ids, and nothing is allocated again."""
    kubelet.run("one", 2)

    kubelet.start_again("one")

    assert 1 == len(recorder.plugin.asked.allocated)
    assert recorder.plugin.asked.allocated * 2 == recorder.plugin.asked.started


def test_ids_belong_to_one_container_until_its_pod_ends(kubelet: Kubelet, recorder: Recorder):
    """No id is given to two containers at a time; those of a pod that ended are given again."""
    kubelet.run("one", 5)
    kubelet.run("two", 3)
    first, second = recorder.plugin.asked.allocated
    assert not set(first) & set(second)

    kubelet.end("one")
    kubelet.run("three", 5)

    assert set(first) == set(recorder.plugin.asked.allocated[2])


def test_the_preferred_devices_are_taken(kubelet: Kubelet, recorder: Recorder):
    """Kubelet asks the plugin which of the free devices it prefers, and takes those."""
    kubelet.run("one", 3)

    assert [3] == recorder.plugin.asked.preferred
    assert [tuple(IDS[:3])] == recorder.plugin.asked.allocated


def test_a_new_kubelet_knows_who_holds_what(kubelet: Kubelet, recorder: Recorder):
    """After a restart the plugin registers again, and what was held is still held by the same containers."""
    kubelet.run("one", 4)
    before = held_devices(kubelet.pod_resources)

    kubelet.restart()

    until(lambda: recorder.plugin.registrations == 2, "the second registration")
    kubelet.wait_allocatable(len(IDS))
    until(lambda: before == held_devices(kubelet.pod_resources), "who holds what")
    assert set(IDS[:4]) == before[kubelet.owner("one")]


def test_an_unhealthy_device_is_not_advertised(kubelet: Kubelet, recorder: Recorder):
    """A device that the plugin calls unhealthy is not advertised until it is healthy again."""
    recorder.plugin.set_health(IDS[0], healthy=False)
    kubelet.wait_allocatable(len(IDS) - 1)

    recorder.plugin.set_health(IDS[0], healthy=True)
    kubelet.wait_allocatable(len(IDS))


def test_a_plugin_that_ended_advertises_nothing(kubelet: Kubelet, recorder: Recorder):
    """With its plugin gone a resource is not allocatable any more."""
    recorder.plugin.stop()

    kubelet.wait_allocatable(0)


@pytest.mark.parametrize("fault", [{"version": "v1alpha"}, {"resource_name": "no-domain"}])
def test_a_wrong_registration_is_refused(kubelet: Kubelet, recorder: Recorder, fault: dict[str, str]):
    """A version that kubelet does not speak, or a name that can be no extended resource, is refused at once."""
    request = {"version": "v1beta1", "resource_name": RESOURCE, "endpoint": "nobody.sock", **fault}

    with grpc.insecure_channel(f"unix://{kubelet.folder}/kubelet.sock") as channel, pytest.raises(grpc.RpcError):
        rpc.RegistrationStub(channel).Register(pb.RegisterRequest(**request), timeout=15)


def test_the_stand_in_refuses_more_than_is_free():
    """The stand-in fails a pod that asks for more than is free, as kubelet's admission does."""
    root = Path(tempfile.mkdtemp(prefix="kubelet-"))
    kubelet = KubeletStandIn(root)
    kubelet.start()
    plugin = DevicePlugin(kubelet.plugins_folder, RESOURCE, IDS)
    plugin.start()
    kubelet.wait_allocatable(RESOURCE, len(IDS))

    with pytest.raises(AdmissionError, match=r"9 of contract\.aliquot\.dev/part asked, 8 are free"):
        kubelet.admit("default", "greedy", "main", RESOURCE, 9)

    plugin.stop()
    kubelet.stop()
    shutil.rmtree(root)


def test_the_committed_stubs_are_fresh():
    """The stubs are what tools/gen_proto.py makes of the proto files of the version in tools/go.mod."""
    command = [sys.executable, str(ROOT / "tools/gen_proto.py"), "--check"]
    path = f"{Path(programs.find_go()).parent}:{os.environ['PATH']}"
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})

    assert 0 == done.returncode, done.stderr
