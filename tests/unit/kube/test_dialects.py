"""The peers' own examples mean here what they mean there, and can be said back in the peers' words.

The manifests of the tables are written after the peers' documentation; each names its page.
"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pods import limits, pod

from aliquot.kube.dialects import FOREIGN, foreign, read
from aliquot.kube.dialects.aliyun import Aliyun, Used, inspect
from aliquot.kube.dialects.base import CanNotSay, DeviceFacts
from aliquot.kube.objects import Pod
from aliquot.kube.plan import ContainerPlan, PodPlan
from aliquot.kube.requests import BadPod, ContainerAsk, PodAsk
from aliquot.model.ids import GpuUuid
from aliquot.model.quantities import Memory
from aliquot.model.requests import GpuRequest, Labels, Slice


def half(part: int) -> Memory:
    """Hundredths of a device's memory."""
    return Memory(part=Fraction(part, 100))


def main(request: GpuRequest, **more: Any) -> ContainerAsk:
    """The ask of container main."""
    return ContainerAsk("main", request, **more)


TENCENT = {
    # tkestack/gpu-manager README.md, "Pod template example"
    "share": (
        pod(
            limits("main", {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 30}),
            annotations={"tencent.com/vcuda-core-limit": "50"},
        ),
        main(GpuRequest(500, 500, Memory(mib=7680))),
    ),
    "two GPUs": (
        pod(limits("main", {"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 60})),
        main(GpuRequest(2000)),
    ),
    # its text: 0.3 utilization with a limit of 0.5
    "elastic": (
        pod(
            limits("main", {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 30}),
            annotations={"tencent.com/vcuda-core-limit": "50"},
        ),
        main(GpuRequest(300, 500, Memory(mib=7680))),
    ),
    "model": (
        pod(
            limits("main", {"tencent.com/vcuda-core": 10, "tencent.com/vcuda-memory": 4}),
            nodeSelector={"gaia.tencent.com/gpu-model": "M40"},
        ),
        main(GpuRequest(100, 100, Memory(mib=1024), model="M40")),
    ),
}
ALIYUN = {
    # gpushare-scheduler-extender docs/userguide.md: 3 GiB
    "userguide": (pod(limits("main", {"aliyun.com/gpu-mem": 3})), main(GpuRequest(10, 1000, Memory(mib=3072)))),
}
HAMI = {
    # Project-HAMi/HAMi examples/nvidia/default_use.yaml
    "default_use": (
        pod(limits("main", {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30})),
        main(GpuRequest(300, 300, Memory(mib=3000)), parts=2),
    ),
    # use_memory_fraction.yaml
    "use_memory_fraction": (
        pod(limits("main", {"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 50, "nvidia.com/gpucores": 30})),
        main(GpuRequest(300, 300, half(50)), parts=2),
    ),
    # use_exclusive_card.yaml
    "use_exclusive_card": (
        pod(limits("main", {"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 100, "nvidia.com/gpucores": 100})),
        main(GpuRequest(2000)),
    ),
    # use_sharing_card.yaml, gpu-pod1
    "use_sharing_card": (
        pod(limits("main", {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 40, "nvidia.com/gpucores": 60})),
        main(GpuRequest(600, 600, half(40))),
    ),
    # specify_card_type_not_use.yaml
    "specify_card_type_not_use": (
        pod(limits("main", {"nvidia.com/gpu": 2}), annotations={"nvidia.com/nouse-gputype": "1080,2080"}),
        main(GpuRequest(2000), models_not=("1080", "2080")),
    ),
    # specify_card_type_to_use.yaml
    "specify_card_type_to_use": (
        pod(limits("main", {"nvidia.com/gpu": 2}), annotations={"nvidia.com/use-gputype": "A100,V100"}),
        main(GpuRequest(2000, model="A100|V100")),
    ),
    # specify_uuid_to_use.yaml
    "specify_uuid_to_use": (
        pod(limits("main", {"nvidia.com/gpu": 1}), annotations={"nvidia.com/use-gpuuuid": "GPU-123456"}),
        main(GpuRequest(1000, gpu="GPU-123456")),
    ),
    # specify_uuid_not_use.yaml
    "specify_uuid_not_use": (
        pod(limits("main", {"nvidia.com/gpu": 2}), annotations={"nvidia.com/nouse-gpuuuid": "GPU-123456"}),
        main(GpuRequest(2000), uuids_not=("GPU-123456",)),
    ),
    # memory alone: one vGPU, no guarantee and no limit of compute
    "memory alone": (
        pod(limits("main", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000})),
        main(GpuRequest(10, 1000, Memory(mib=3000))),
    ),
    "exclusive with little memory": (
        pod(limits("main", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 100})),
        main(GpuRequest(1000, memory=Memory(mib=3000))),
    ),
    "first among equals": (
        pod(limits("main", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/priority": 0})),
        main(GpuRequest(10, 1000, Memory(mib=3000)), priority=1),
    ),
}
KUBESHARE1 = {
    # NTHU-LSALAB/KubeShare README.md 1.0, "SharePod Specification"
    "sharepod1": (
        pod(
            {"name": "main"},
            annotations={
                "kubeshare/gpu_request": "0.5",
                "kubeshare/gpu_limit": "1.0",
                "kubeshare/gpu_mem": "1073741824",
                "kubeshare/sched_affinity": "red",
                "kubeshare/sched_anti-affinity": "green",
                "kubeshare/sched_exclusion": "blue",
            },
        ),
        main(GpuRequest(500, 1000, Memory(mib=1024), labels=Labels("red", "green", "blue"))),
    ),
    # "SharePod with NodeName and GPUID (advanced)"
    "advanced": (
        pod(
            {"name": "main"},
            annotations={
                "kubeshare/gpu_request": "0.5",
                "kubeshare/gpu_limit": "1.0",
                "kubeshare/gpu_mem": "1073741824",
                "kubeshare/GPUID": "abcde",
            },
        ),
        main(GpuRequest(500, 1000, Memory(mib=1024), gpu_id="abcde")),
    ),
}
KUBESHARE2 = {
    # NTHU-LSALAB/KubeShare README.md 2.0, "Pod specification"
    "mnist": (
        pod(
            {"name": "main"},
            labels={
                "sharedgpu/gpu_request": "0.5",
                "sharedgpu/gpu_limit": "1.0",
                "sharedgpu/gpu_model": "NVIDIA-GeForce-GTX-1080",
            },
        ),
        main(GpuRequest(500, 1000, model="NVIDIA-GeForce-GTX-1080")),
    ),
    # doc/test/pod2.yaml, with the memory that stands there commented out, in whole MiB
    "pod2": (
        pod(
            {"name": "main"},
            labels={
                "sharedgpu/gpu_request": "0.3",
                "sharedgpu/gpu_limit": "1.0",
                "sharedgpu/gpu_mem": "3145728000",
                "sharedgpu/priority": "100",
            },
        ),
        main(GpuRequest(300, 1000, Memory(mib=3000)), priority=100),
    ),
    "several": (
        pod({"name": "main"}, labels={"sharedgpu/gpu_request": "2.0", "sharedgpu/gpu_limit": "2.0"}),
        main(GpuRequest(2000, 2000)),
    ),
}
NVIDIA = {
    "whole": (pod(limits("main", {"nvidia.com/gpu": 2})), main(GpuRequest(2000))),
    "as text": (pod(limits("main", {"nvidia.com/gpu": "1"})), main(GpuRequest(1000))),
}
TABLE = {
    "tencent": TENCENT,
    "aliyun": ALIYUN,
    "hami": HAMI,
    "kubeshare1": KUBESHARE1,
    "kubeshare2": KUBESHARE2,
    "nvidia": NVIDIA,
}
CASES = [pytest.param(d, *case, id=f"{d}-{name}") for d, cases in TABLE.items() for name, case in cases.items()]


@pytest.mark.parametrize(("dialect", "made", "expected"), CASES)
def test_a_peers_example_means_the_same_here(dialect: str, made: Pod, expected: ContainerAsk):
    """The example is recognised as the peer's and asks for what the peer's page says."""
    found = read(made)

    assert found is not None
    assert dialect == found.dialect
    assert (expected,) == found.containers


@pytest.mark.parametrize(("dialect", "made", "expected"), CASES)
def test_what_was_read_can_be_said_back(dialect: str, made: Pod, expected: ContainerAsk):
    """Written in the peer's words and read again, the ask is the same."""
    found = read(made)
    assert found is not None
    words = FOREIGN[dialect].write(found)
    said = pod(
        limits("main", dict(words.resources.get("main", {}))),
        annotations=words.annotations,
        labels=words.labels,
        nodeSelector=words.node_selector,
    )

    assert found.containers == read(said).containers  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (
            pod(limits("main", {"tencent.com/vcuda-core": 150})),
            'spec.containers[main].resources.limits["tencent.com/vcuda-core"] 150 is neither below 100 nor a multiple',
        ),
        (
            pod(limits("main", {"tencent.com/vcuda-core": 50}), annotations={"tencent.com/vcuda-core-limit": "30"}),
            'metadata.annotations["tencent.com/vcuda-core-limit"] 30 is below',
        ),
        (
            pod(limits("main", {"tencent.com/vcuda-core": 50}), annotations={"tencent.com/vcuda-core-limit": "half"}),
            '"half" is no number of hundredths of a GPU; write 1 to 100',
        ),
        (pod(limits("main", {"aliyun.com/gpu-mem": "1.5"})), '["aliyun.com/gpu-mem"]: "1.5" is no whole number'),
        (
            pod(limits("main", {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 130})),
            '["nvidia.com/gpucores"] 130 is more than a device; the most is 100',
        ),
        (
            pod(limits("main", {"nvidia.com/gpumem": 3000, "nvidia.com/gpumem-percentage": 50})),
            'has both "nvidia.com/gpumem" and "nvidia.com/gpumem-percentage"; leave one of them out',
        ),
        (
            pod({"name": "main"}, annotations={"kubeshare/gpu_request": "0.5", "kubeshare/gpu_limit": "0.3"}),
            'metadata.annotations["kubeshare/gpu_limit"] 0.30 is below metadata.annotations["kubeshare/gpu_request"]',
        ),
        (
            pod({"name": "main"}, annotations={"kubeshare/gpu_request": "2", "kubeshare/gpu_limit": "2"}),
            "is above 1.0, the most that KubeShare 1 knows",
        ),
        (
            pod({"name": "main"}, labels={"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_mem": "1Gi"}),
            'metadata.labels["sharedgpu/gpu_mem"]: "1Gi" is no number of bytes; write 1073741824 for 1 GiB',
        ),
        (
            pod({"name": "main"}, labels={"sharedgpu/gpu_request": "0.5", "sharedgpu/priority": "101"}),
            'metadata.labels["sharedgpu/priority"]: "101" is no priority; write 0 to 100',
        ),
    ],
)
def test_a_peers_words_that_contradict_themselves_are_refused(made: Pod, sentence: str):
    """The message names the peer's own field and what is allowed there."""
    with pytest.raises(BadPod) as caught:
        read(made)

    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("dialect", "ask", "sentence"),
    [
        ("tencent", main(GpuRequest(333)), "asks for 333 milli-GPU; tencent knows hundredths of one GPU"),
        ("tencent", main(GpuRequest(1500)), "tencent knows hundredths of one GPU, or whole ones"),
        ("tencent", main(GpuRequest(300, labels=Labels("red"))), "labels on devices, for which tencent has no words"),
        (
            "aliyun",
            main(GpuRequest(300, memory=Memory(mib=1024))),
            "asks for compute; aliyun has words for memory only",
        ),
        ("aliyun", main(GpuRequest(10, memory=Memory(mib=1500))), "asks for 1500 MiB, no multiple of 1024 MiB"),
        ("hami", main(GpuRequest(300, 600)), "has a limit of its own; in hami the cores are request and limit"),
        ("kubeshare1", main(GpuRequest(300), parts=2), "has parts, UUIDs, cores or models to avoid"),
        ("nvidia", main(GpuRequest(300)), "asks for a part of a GPU; nvidia.com/gpu counts whole ones"),
    ],
)
def test_what_a_peer_can_not_say_is_an_error(dialect: str, ask: ContainerAsk, sentence: str):
    """Nothing is lost silently on the way back."""
    with pytest.raises(CanNotSay) as caught:
        FOREIGN[dialect].write(PodAsk("default/a", "", (ask,)))

    assert sentence in str(caught.value)


def test_what_has_no_counterpart_is_told():
    """Words that are read but not kept leave a note each."""
    group = {"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "1.0", "sharedgpu/group_name": "a"}
    found = read(pod({"name": "main"}, {"name": "logs"}, labels=group))

    assert (
        'the share is given to container "main"; logs get no GPU',
        "sharedgpu/group_name is not kept: pods are placed one by one",
    ) == found.notes  # type: ignore[union-attr]


def test_gpushare_can_count_in_mib():
    """Where the device plugin counts in MiB, so does the dialect."""
    made = pod(limits("main", {"aliyun.com/gpu-mem": 8138}))

    assert 8138 == read(made, foreign(aliyun_unit="MiB")).containers[0].request.memory.mib  # type: ignore[union-attr]


def test_containers_of_one_gpushare_pod_share_a_gpu():
    """Once the pod has a uid its containers carry a label that keeps them on one device."""
    made = pod(limits("a", {"aliyun.com/gpu-mem": 3}), limits("b", {"aliyun.com/gpu-mem": 2}), uid="u-1")

    found = read(made)
    assert ["pod-u-1", "pod-u-1"] == [c.request.labels.affinity for c in found.containers]  # type: ignore[union-attr]


DEVICES = {
    uuid: DeviceFacts(i, uuid, "Tesla V100-SXM2-16GB", 15360) for i, uuid in enumerate(("GPU-a", "GPU-b", "GPU-c"))
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
    """gpushare's tools find the GPU's number, the pod's memory and the device's; the container its own too."""
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
        "ALIYUN_COM_GPU_MEM_DEV": "15",
    } == Aliyun().environment(made, "b", plan, DEVICES)


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
        "CUDA_DEVICE_SM_LIMIT": "100",
    } == FOREIGN["hami"].environment(made, "main", plan, DEVICES)


def test_inspect_is_gpushares_byte_for_byte():
    """Order of fields, empty lists and the absence of spaces are those of Go's encoder on gpushare's structs."""
    nodes = [
        ("node-2", [DeviceFacts(0, "GPU-x", "T4", 15360)], []),
        (
            "node-1",
            [DEVICES["GPU-b"], DEVICES["GPU-a"]],
            [Used("default", "b-1", "GPU-a", 3072), Used("default", "a-1", "GPU-a", 2048)],
        ),
    ]

    assert (
        b'{"nodes":[{"name":"node-1","totalGPU":30,"usedGPU":5,"devs":[{"id":0,"totalGPU":15,"usedGPU":5,"pods":['
        b'{"name":"a-1","namespace":"default","usedGPU":2},{"name":"b-1","namespace":"default","usedGPU":3}]},'
        b'{"id":1,"totalGPU":15,"usedGPU":0,"pods":[]}]},'
        b'{"name":"node-2","totalGPU":15,"usedGPU":0,"devs":[{"id":0,"totalGPU":15,"usedGPU":0,"pods":[]}]}]}'
    ) == inspect(nodes)
    assert b'{"nodes":[],"error":"node x is unknown"}' == inspect([], error="node x is unknown")
    assert 15360 == json.loads(inspect(nodes[:1], unit="MiB"))["nodes"][0]["totalGPU"]


@given(
    core=st.integers(1, 99), blocks=st.integers(0, 300), limit=st.none() | st.integers(1, 120), gpus=st.integers(0, 8)
)
def test_tencents_numbers_survive_the_way_there_and_back(core: int, blocks: int, limit: int | None, gpus: int):
    """For every share and limit that gpu-manager accepts, reading and writing give the same numbers."""
    own = {"tencent.com/vcuda-core": core} | ({"tencent.com/vcuda-memory": blocks} if blocks else {})
    notes = {"tencent.com/vcuda-core-limit": str(limit)} if limit is not None and limit >= core else {}
    found = read(pod(limits("main", own), annotations=notes))
    assert found is not None
    words = FOREIGN["tencent"].write(found)

    assert own == words.resources["main"]
    kept = {"tencent.com/vcuda-core-limit": str(min(limit or 0, 100))} if notes and limit != core else {}
    assert kept == words.annotations


@example(number=1, mem=None, part=1, cores=100)  # a whole GPU with a part of its memory
@given(
    number=st.integers(1, 8),
    mem=st.none() | st.integers(1, 80_000),
    part=st.none() | st.integers(1, 99),
    cores=st.none() | st.integers(0, 100),
)
def test_hamis_vgpus_survive_the_way_there_and_back(number: int, mem: int | None, part: int | None, cores: int | None):
    """Whatever vGPUs HAMi accepts mean the same when they are written in HAMi's words again."""
    own: dict[str, Any] = {"nvidia.com/gpu": number}
    own |= {"nvidia.com/gpumem": mem} if mem else ({"nvidia.com/gpumem-percentage": part} if part else {})
    own |= {"nvidia.com/gpucores": cores} if cores is not None else {}
    found = read(pod(limits("main", own)))
    assert found is not None
    words = FOREIGN["hami"].write(found)
    again = read(pod(limits("main", dict(words.resources["main"]))))

    assert replace(found, dialect="") == replace(again, dialect="")  # type: ignore[type-var]
