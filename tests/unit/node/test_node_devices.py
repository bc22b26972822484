"""Device ids, their health and their order; what the node says of itself; the file of emulated faults."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.driver.cdi import DeviceNode, Edits, Mount, remove_spec, write_spec, written_names
from aliquot.driver.gpu import Gpu
from aliquot.kube.names import label_value
from aliquot.node.allocation.kubelet import CHECKPOINT, PodDevicesEntry, read_device_checkpoint
from aliquot.node.kubelet_api import deviceplugin_pb2 as pb
from aliquot.node.machine import Machine
from aliquot.node.plugin import HEALTHY, devices_of, gpu_of, id_of, offered, preferred
from aliquot.node.status import described, labels_of

KUBELETS_LIMIT = 4 << 20
GPUS = tuple(Gpu(i, f"GPU-{i}", "Tesla V100-SXM2-16GB", 16384, "580.95.05", numa=i // 2) for i in range(4))
MACHINE = Machine(GPUS, Path("/libcuda"), Path("/libnvml"))
IDS = st.lists(st.builds(id_of, st.integers(0, 3), st.integers(0, 99)), max_size=30, unique=True)


def test_the_largest_list_stays_far_below_kubelets_limit():
    """16 GPUs of 1000 ids each with memory nodes are less than an eighth of what kubelet takes as one message."""
    sixteen = [Gpu(i, f"GPU-{i}", "H200", 143771, numa=i // 8) for i in range(16)]
    told = pb.ListAndWatchResponse(devices=devices_of(sixteen, offered(sixteen, 1000, (), {}), {}))

    assert 16000 == len(told.devices)
    assert told.ByteSize() < KUBELETS_LIMIT // 8


def test_an_unhealthy_gpu_takes_its_own_ids_along():
    """The ids of an unhealthy GPU are unhealthy and no others."""
    told = devices_of(GPUS, offered(GPUS, 10, (), {}), {"GPU-2": "XID 79"})

    assert {2} == {gpu_of(d.ID) for d in told if d.health != HEALTHY}


def test_ids_have_a_memory_node_only_where_all_gpus_have_the_same():
    """Otherwise the node of the ids that kubelet chooses need not be that of the GPU that the plan means."""
    assert not any(d.topology.nodes for d in devices_of(GPUS, offered(GPUS, 10, (), {}), {}))
    assert [1] == [node.ID for node in devices_of(GPUS[2:], offered(GPUS[2:], 10, (), {}), {})[-1].topology.nodes]


@given(IDS, st.integers(0, 30), st.permutations(range(4)), st.data())
def test_the_planned_gpus_ids_come_first(available, size, order, data):
    """As many as are asked, what must be among them first, then those of the planned GPUs in order."""
    must = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=size) if available else st.just([]))

    chosen = preferred(available, must, size, order)

    rest = sorted(set(available) - set(must), key=lambda d: (order.index(gpu_of(d)), d))
    assert [*sorted(must), *rest][:size] == chosen


def test_foreign_ids_belong_to_no_gpu():
    """Only ids of our own form name a GPU."""
    assert [3, None, None, None] == [gpu_of(d) for d in ("g3-042", "GPU-8f1d", "g-1", "x3-042")]


def test_the_node_tells_its_devices_as_the_scheduler_reads_them():
    """The annotation has devices, links, memory nodes and cores by index; labels are such as Kubernetes takes."""
    told = json.loads(described(MACHINE, {"GPU-3": "is lost"}))

    assert ["GPU-0", "GPU-1", "GPU-2", "GPU-3"] == [d["uuid"] for d in told["devices"]]
    assert [None, None, None, "is lost"] == [d.get("unhealthy") for d in told["devices"]]
    assert [0, 0, 1, 1] == told["numa"]
    assert 4 == len(told["links"]) == len(told["cores"])
    assert "Tesla-V100-SXM2-16GB" == labels_of(MACHINE)["aliquot.dev/gpu-model"]
    assert "NVIDIA-H100-80GB-HBM3" == label_value("NVIDIA H100 80GB HBM3 (")


def test_each_model_of_a_node_has_a_label():
    """A node of several models is `mixed`, and counts each of them; one of one model is called by it."""
    more = Gpu(4, "GPU-4", "NVIDIA A100-SXM4-40GB", 40960, numa=0)
    mixed = labels_of(Machine((*GPUS, more), Path("a"), Path("b")))

    assert "mixed" == mixed["aliquot.dev/gpu-model"]
    assert "4" == mixed["aliquot.dev/gpu-model.Tesla-V100-SXM2-16GB"]
    assert "1" == mixed["aliquot.dev/gpu-model.NVIDIA-A100-SXM4-40GB"]
    assert "4" == labels_of(MACHINE)["aliquot.dev/gpu-model.Tesla-V100-SXM2-16GB"]


def test_further_devices_are_given_to_every_container(tmp_path: Path):
    """Those of the node that match, by their paths there; what is no device, or is not there, is passed over."""
    machine = Machine(GPUS, Path("a"), Path("b"), devices=None, extra=("/dev/nul[l]", "/dev/none", "/dev/shm"))

    assert ["/dev/null"] == [str(node.inside) for node in machine.edits([GPUS[0]]).device_nodes]


def test_a_cdi_file_is_written_whole_and_taken_away(tmp_path: Path):
    """One file per device, with what is changed of the container and no empty lists."""
    edits = Edits(("A=b",), (Mount(Path("/h"), Path("/c"), writable=True),)) + Edits(
        device_nodes=(DeviceNode(Path("/dev/nvidia0")),)
    )

    path = write_spec(tmp_path, "ab12", edits)

    spec = json.loads(path.read_text())
    assert ("aliquot.dev/gpu", "ab12") == (spec["kind"], spec["devices"][0]["name"])
    changed = spec["devices"][0]["containerEdits"]
    assert {"env", "mounts", "deviceNodes"} == set(changed)
    assert "rw" == changed["mounts"][0]["options"][0]
    assert {"ab12"} == written_names(tmp_path)
    assert [path] == list(tmp_path.iterdir())
    remove_spec(tmp_path, "ab12")
    remove_spec(tmp_path, "ab12")
    assert set() == written_names(tmp_path)


def test_what_a_device_changes_is_told_to_tools_without_cdi_too(tmp_path: Path):
    """The same variables, mounts and devices as options of `docker run` and `podman run`."""
    mounts = Mount(Path("/h"), Path("/c")), Mount(Path("/w"), Path("/w"), writable=True)
    nodes = DeviceNode(Path("/dev/a")), DeviceNode(Path("/dev/b"), Path("/run/dev/b"))

    words = Edits(("A=b",), mounts, nodes).options()

    assert ["--env", "A=b"] == words[:2]
    assert ["type=bind,source=/h,target=/c,readonly", "type=bind,source=/w,target=/w"] == words[3:6:2]
    assert ["--device", "/dev/a:/dev/a", "--device", "/run/dev/b:/dev/b"] == words[6:]


@pytest.mark.parametrize("ids", [{"-1": ["g0-000"], "1": ["g0-001"]}, ["g0-000", "g0-001"]])
def test_kubelets_own_file_names_containers_and_our_answer(tmp_path: Path, ids):
    """Both forms of kubelet's checkpoint give uid, container, ids and the CDI name that we answered with."""
    answer = pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name="aliquot.dev/gpu=ab12")])
    ours = {
        "PodUID": "uid-1", "ContainerName": "main", "ResourceName": "aliquot.dev/gpu-percent", "DeviceIDs": ids,
        "AllocResp": base64.b64encode(answer.SerializeToString()).decode(),
    }  # fmt: skip
    others = ours | {"ResourceName": "nvidia.com/gpu"}
    data = {"PodDeviceEntries": [ours, others], "RegisteredDevices": {}}
    (tmp_path / CHECKPOINT).write_text(json.dumps({"Data": data, "Checksum": 1}))

    assert [PodDevicesEntry("uid-1", "main", frozenset({"g0-000", "g0-001"}), ("ab12",))] == read_device_checkpoint(
        tmp_path
    )


@pytest.mark.parametrize("text", [None, "", "{}", '{"Data":{"PodDeviceEntries":[{}]}}', "\0\0"])
def test_a_file_in_another_form_can_not_be_read(tmp_path: Path, text):
    """Kubelet promises nothing about its file: what is not in the known form counts as unreadable, not as empty."""
    if text is not None:
        (tmp_path / CHECKPOINT).write_text(text)

    assert read_device_checkpoint(tmp_path) is None


@pytest.mark.parametrize("inside", ["", "run/nvidia/driver"], ids=["node", "driver-container"])
def test_only_the_devices_of_the_given_gpus_are_shown(tmp_path: Path, inside: str):
    """And those of the driver itself that there are; from where they lie on the node, however the agent sees that."""
    devices = tmp_path / inside / "dev"
    devices.mkdir(parents=True)
    (devices / "nvidiactl").touch()
    gpus = [msgspec.structs.replace(gpu, minor=(gpu.index + 1) % 4) for gpu in GPUS]
    machine = Machine(tuple(gpus), Path("a"), Path("b"), devices=devices, root=tmp_path)

    nodes = [node.body() for node in machine.edits([gpus[2]]).device_nodes]

    assert ["/dev/nvidiactl", "/dev/nvidia3"] == [node["path"] for node in nodes]
    hosts = [f"/{inside}/dev/nvidiactl", f"/{inside}/dev/nvidia3"] if inside else [None, None]
    assert hosts == [node.get("hostPath") for node in nodes]
