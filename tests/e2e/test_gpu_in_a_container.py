"""A real CUDA client in a container of the real node, on an emulated GPU that a device plugin handed out."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.emulated import driver_edits, emulated_gpus, with_packages
from cluster.images import PYTHON
from cluster.kubelet_node import KubeletNode
from cluster.parts import until
from plugins import FOLDER, DevicePlugin

from aliquot.driver.emulation import EmulatedMachine
from aliquot.node.kubelet_api import deviceplugin_pb2 as pb

RESOURCE = "test.aliquot.dev/emulated"
DEVICE = "test.aliquot.dev/emulated=all"
CLIENT = """
from cuda.bindings import driver

def ask(answer):
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]

ask((*driver.cuInit(0), None))
device = ask(driver.cuDeviceGet(1))
ask(driver.cuCtxCreate(None, 0, device))
free, total = ask(driver.cuMemGetInfo())
held = ask(driver.cuMemAlloc(1 << 30))
print(ask(driver.cuDeviceGetCount()), ask(driver.cuDeviceGetName(64, device)).split(b"\\0")[0].decode())
print((free - ask(driver.cuMemGetInfo())[0]) >> 20)
"""


@pytest.fixture
def machine(kubelet_node: KubeletNode) -> Iterator[EmulatedMachine]:
    """Two emulated GPUs that a plugin advertises together."""
    made = emulated_gpus(kubelet_node, "v100x2")
    specs = kubelet_node.path("/run/cdi")
    specs.mkdir(exist_ok=True)
    kind, _, name = DEVICE.partition("=")
    device = {"name": name, "containerEdits": driver_edits(made)}
    (specs / "emulated.json").write_text(json.dumps({"cdiVersion": "0.6.0", "kind": kind, "devices": [device]}))

    def allocate(ids: tuple[str, ...]) -> Any:
        return pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=DEVICE)])

    plugin = DevicePlugin(kubelet_node.path(FOLDER), RESOURCE, ["all"], allocate=allocate)
    plugin.start()
    yield made
    plugin.stop()
    (specs / "emulated.json").unlink()


def test_a_cuda_client_runs_in_a_container(kubelet_node: KubeletNode, machine: EmulatedMachine, namespace: str):
    """cuda-bindings in a container sees the node's emulated GPUs and takes memory of one."""
    plane = kubelet_node.control_plane
    spec = with_packages({"resources": {"limits": {RESOURCE: "1"}}})

    plane.create_pod(namespace, "client", PYTHON, "python3", "-c", CLIENT, **spec)

    until(lambda: plane.pod(namespace, "client")["status"]["phase"] in ("Succeeded", "Failed"), "its end", 60)
    told = plane.kubectl("logs", "-n", namespace, "client").splitlines()
    assert [f"2 {machine.profile.model}", "1024"] == told
