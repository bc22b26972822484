"""Manifests as the peers' own documentation has them, each beside what it asks in Aliquot's words.

Written after the page that the line above each names.
"""

from fractions import Fraction
from typing import Any

from pods import limits, pod

from aliquot.kube.requests import ContainerAsk
from aliquot.model.quantities import Memory
from aliquot.model.requests import GpuRequest, Labels


def half(part: int) -> Memory:
    """Hundredths of a device's memory."""
    return Memory(part=Fraction(part, 100))


def main(request: GpuRequest, **more: Any) -> ContainerAsk:
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
    # README of the same examples: the full name of a type is NVIDIA- and NVML's name
    "full type names": (
        pod(
            limits("main", {"nvidia.com/gpu": 1}),
            annotations={
                "nvidia.com/use-gputype": "NVIDIA-Tesla V100-SXM2-16GB",
                "nvidia.com/nouse-gputype": "NVIDIA-NVIDIA A100-SXM4-40GB",
            },
        ),
        main(GpuRequest(1000, model="Tesla V100-SXM2-16GB"), models_not=("NVIDIA A100-SXM4-40GB",)),
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
