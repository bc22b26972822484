"""What is written back to pods for the peers' own tools: annotations, variables, and gpushare's inspect answer."""

import json

import pytest
from pods import limits, pod

from aliquot.kube.dialects import FOREIGN
from aliquot.kube.dialects.aliyun import Aliyun, Unit, inspect
from aliquot.kube.plan import ContainerPlan, PodPlan
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device, Slice
from aliquot.status.gpus import Gpu, Share

DEVICES = {
    uuid: Device(i, GpuUuid(uuid), "Tesla V100-SXM2-16GB", 15360) for i, uuid in enumerate(("GPU-a", "GPU-b", "GPU-c"))
}
NOW = 1_700_000_000_123_456_789


def planned(**slices: list[tuple[str, int, int]]) -> PodPlan:
    """A plan on node-1: per container (UUID, milli, MiB)."""
    return PodPlan(
        "node-1",
        {
            name: ContainerPlan(tuple(Slice(GpuUuid(u), m, 1000 if m == 10 else m, mib) for u, m, mib in pieces))
            for name, pieces in slices.items()
        },
    )


def test_gpu_admissions_annotations_are_written():
    """gpu-manager's own tools find the node, the time and the GPU numbers by the container's place in the pod."""
    made = pod({"name": "logs"}, limits("main", {"tencent.com/vcuda-core": 200}))

    assert {
        "tencent.com/predicate-time": str(NOW),
        "tencent.com/predicate-node": "node-1",
        "tencent.com/gpu-assigned": "false",
        "tencent.com/predicate-gpu-idx-1": "1,2",
    } == FOREIGN["tencent"].planned(made, planned(main=[("GPU-b", 1000, 15360), ("GPU-c", 1000, 15360)]), DEVICES, NOW)


def test_gpushares_annotations_and_variables_are_written():
    """gpushare's tools find the GPU's number, the pod's memory and the device's; a container finds its own share."""
    made = pod(limits("a", {"aliyun.com/gpu-mem": 3}), limits("b", {"aliyun.com/gpu-mem": 2}))
    plan = planned(a=[("GPU-b", 10, 3072)], b=[("GPU-b", 10, 2048)])

    assert {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_POD": "5",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(NOW),
    } == Aliyun().planned(made, plan, DEVICES, NOW)
    assert {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "5",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "2",
        "ALIYUN_COM_GPU_MEM_DEV": "2",
    } == Aliyun().environment(made, "b", plan, DEVICES)


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize(("unit", "asked", "share_mib"), [("MiB", 1024, 1024), ("GiB", 3, 3072), ("MiB", "16k", 16000)])
def test_gpushares_recipe_takes_the_whole_share(rewritten: bool, unit: Unit, asked: int | str, share_mib: int):
    """A program that takes CONTAINER / DEV of the memory that CUDA shows it takes its share, whoever wrote the pod,
    and as the API server writes what was asked."""
    words = {"aliquot.dev/gpu-percent": 1, "aliquot.dev/gpu-memory": f"{share_mib}Mi"}
    made = pod(limits("main", words if rewritten else {"aliyun.com/gpu-mem": asked}))
    found = Aliyun(unit).environment(made, "main", planned(main=[("GPU-b", 10, share_mib)]), DEVICES)
    part = int(found["ALIYUN_COM_GPU_MEM_CONTAINER"]) / int(found["ALIYUN_COM_GPU_MEM_DEV"])

    assert share_mib == part * share_mib


def test_hamis_annotations_are_written():
    """HAMi's monitor finds UUID, type, MiB and cores of each device, container after container."""
    made = pod({"name": "logs"}, limits("main", {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000}))
    plan = planned(main=[("GPU-a", 10, 3000), ("GPU-b", 10, 3000)])
    found = FOREIGN["hami"].planned(made, plan, DEVICES, NOW)

    assert ";GPU-a,NVIDIA,3000,0:GPU-b,NVIDIA,3000,0:;" == found["hami.io/vgpu-devices-allocated"]
    assert ("node-1", "success") == (found["hami.io/vgpu-node"], found["hami.io/bind-phase"])
    assert {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "3000m",
        "CUDA_DEVICE_SM_LIMIT": "0",
    } == FOREIGN["hami"].environment(made, "main", plan, DEVICES)
    assert (
        "30"
        == FOREIGN["hami"].environment(made, "main", planned(main=[("GPU-a", 300, 1)]), DEVICES)["CUDA_DEVICE_SM_LIMIT"]
    )
    assert {"hami.io/vgpu-devices-to-allocate": ";;"} == FOREIGN["hami"].started(made)


def test_pods_whose_containers_have_their_devices_are_marked_as_their_project_marks_them():
    """gpushare and gpu-manager turn a flag from false to true when the device plugin has allocated."""
    made = pod(limits("main", {"aliyun.com/gpu-mem": 3}))
    plan = planned(main=[("GPU-b", 10, 3072)])
    before = {name: FOREIGN[name].planned(made, plan, DEVICES, NOW) for name in FOREIGN}
    after = {name: FOREIGN[name].started(made) for name in FOREIGN if name != "hami"}

    assert {"aliyun": {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}, "tencent": {"tencent.com/gpu-assigned": "true"}} == {
        name: notes for name, notes in after.items() if notes
    }
    assert {"false"} == {before[name][key] for name, notes in after.items() for key in notes}


def gpu(uuid: str, index: int, **held_mib: int) -> Gpu:
    """A GPU of 15 GiB, of which these tenants hold so much."""
    shares = [Share(tenant, 100, 100, 0, mib, 0) for tenant, mib in held_mib.items()]
    return Gpu(uuid, index, "", "T4", 15360, "shared", 0, 0, 0, 0, shares)


def test_inspect_is_gpushares_byte_for_byte():
    """Order of fields, empty lists and the absence of spaces are those of Go's encoder on gpushare's structs."""
    nodes = [
        ("node-2", [gpu("GPU-x", 0)]),
        ("node-1", [gpu("GPU-b", 1), gpu("GPU-a", 0, **{"default/b-1/main": 3072, "default/a-1/main": 2048})]),
    ]

    assert (
        b'{"nodes":[{"name":"node-1","totalGPU":30,"usedGPU":5,"devs":[{"id":0,"totalGPU":15,"usedGPU":5,"pods":['
        b'{"name":"a-1","namespace":"default","usedGPU":2},{"name":"b-1","namespace":"default","usedGPU":3}]},'
        b'{"id":1,"totalGPU":15,"usedGPU":0,"pods":[]}]},'
        b'{"name":"node-2","totalGPU":15,"usedGPU":0,"devs":[{"id":0,"totalGPU":15,"usedGPU":0,"pods":[]}]}]}'
    ) == inspect(nodes)
    assert b'{"nodes":[],"error":"node x is unknown"}' == inspect([], error="node x is unknown")
    assert 15360 == json.loads(inspect(nodes[:1], unit="MiB"))["nodes"][0]["totalGPU"]
