"""A program that reaches a shared GPU past Aliquot is found, told on its pod, counted, and killed where asked."""

import http.client
from collections.abc import Iterator

import pytest
from auditing_scene import EMULATED, audited, create
from cluster.kubelet_node import KubeletNode
from cluster.parts import until
from node_scene import LONG, Scene

BYPASS = (
    "import ctypes, time\n"
    f"cuda, context = ctypes.CDLL('{EMULATED}/libcuda.so.1'), ctypes.c_void_p()\n"
    "assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n"
    "time.sleep(1000)\n"
)
COMMAND = ("python3", "-c", BYPASS)
DISPLAY = 5678


@pytest.fixture(scope="module")
def scene(kubelet_node: KubeletNode) -> Iterator[Scene]:
    """A node whose arbiter compares NVML's processes, and whose agent gives a second of grace."""
    with audited(kubelet_node, "--audit-grace-s", "1") as made:
        yield made


@pytest.fixture
def clean(scene: Scene) -> Iterator[Scene]:
    """The node, and nothing of the test's left afterwards."""
    yield scene
    scene.clear()


def told(scene: Scene, metric: str) -> list[float]:
    """The values of a metric, of all GPUs where it is told of each."""
    connection = http.client.HTTPConnection("127.0.0.1", DISPLAY)
    connection.sock = scene.plane.rooms.connect(DISPLAY)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{metric}{{")]


def neighbours(scene: Scene) -> None:
    """A pod with a share of GPU 0, and one that mounts the driver and asks for nothing."""
    create(scene, "shares", scene.slice(0, 300), ["python3", "/probe/probe.py"])
    scene.told("shares")
    create(scene, "bypasses", None, COMMAND, mounts={EMULATED: EMULATED})


@LONG
def test_a_pod_that_reaches_a_shared_gpu_without_a_share_is_told(clean: Scene):
    """The event is on that pod and names its container; the one that shares is not accused, nor is anybody ended."""
    until(lambda: told(clean, "aliquot_node_audited") == [1.0], "the audit")
    neighbours(clean)

    (message, *_) = until(lambda: clean.events("GpuUnregisteredProcess"), "the finding")

    expected = "container main bypasses Aliquot on GPU 0: a process of it did not register, and no share limits it"
    assert expected == message
    until(lambda: told(clean, "aliquot_node_gpu_unregistered_processes") == [1.0, 0.0], "the metric")
    assert ({"bypasses"}, [1.0], [0.0]) == (
        accused(clean),
        told(clean, "aliquot_node_unregistered_found_total"),
        told(clean, "aliquot_node_unregistered_killed_total"),
    )
    assert ("Running", "Running") == (clean.phase("shares"), clean.phase("bypasses"))
    assert "unregistered-process" in clean.agent.log.read_text()


def accused(scene: Scene) -> set[str]:
    """Pods that an event of the audit is about."""
    items = scene.plane.api.get(f"/api/v1/namespaces/{scene.namespace}/events")["items"]
    return {i["involvedObject"]["name"] for i in items if i["reason"].startswith("GpuUnregisteredProcess")}
