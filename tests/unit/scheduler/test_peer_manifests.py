"""Manifests of other projects' own repositories run as they ask: through the webhook, their dialect, and placement.

Each is written here with the same requests and in our own words; the comment above it names the file. The node has four
V100 of 16 GiB.

Sources: Project-HAMi/HAMi examples/nvidia, NTHU-LSALAB/KubeShare test and doc/yaml, AliyunContainerService/
gpushare-scheduler-extender samples, tkestack/gpu-manager README.md, NVIDIA/k8s-device-plugin README.md.
"""

import asyncio
import copy
from typing import Any

import pytest
from control_scene import Scene, Truth
from kit.objects import node

from aliquot.kube.convert import convert
from aliquot.kube.dialects import read
from aliquot.kube.plan import read_plan
from aliquot.model.sharepod import parse_sharepod
from aliquot.scheduler.admission.rules import Admission
from aliquot.scheduler.verdicts import verdicts

Document = dict[str, Any]
Given = list[tuple[int, int, int, int]]
"""(GPU, milli guaranteed, milli at most, MiB) of each slice."""


class Node:
    """A node whose cluster has Aliquot's webhook and scheduler."""

    def __init__(self) -> None:
        self.truth = Truth()
        self.scene = Scene(self.truth, [node("n", 4)])
        self.warnings: tuple[str, ...] = ()

    def run(self, document: Document, name: str = "p") -> Given | str:
        """What the pod is given, or why it is refused or waits."""
        sent = copy.deepcopy(document)
        sent["metadata"] = {"name": name, **sent.get("metadata", {})}
        said = Admission().mutate({"object": sent})
        if said.faults:
            return f"refused: {said.faults[0]}"
        self.warnings = said.warnings
        made = said.changed or sent
        self.truth.create(name, {}, **{k: v for k, v in made["metadata"].items() if k != "name"})
        self.truth.pods[name]["spec"] = made["spec"]
        pod = self.truth.pod(name)
        ask = read(pod)
        if ask is None:
            return "asks for no GPU"
        found = verdicts(self.scene.ledger, ask, ["n"])
        if not found.fitting:
            return f"waits: {[*found.failed.values(), *found.unresolvable.values()][0]}"
        assert "" == asyncio.run(self.scene.bind(pod, "n"))
        self.scene.catch_up()
        plan = read_plan(self.truth.pods[name]["metadata"]["annotations"])
        assert plan is not None
        slices = [piece for given in plan.containers.values() for piece in given.slices]
        return [(int(s.gpu.rpartition("-")[2]), s.request_milli, s.limit_milli, s.memory_mib) for s in slices]


def asking(limits: Document | None = None, *, spec: Document | None = None, **meta: Document) -> Document:
    """A pod of one container with these limits."""
    container = {"name": "main", "resources": {"limits": limits or {}}}
    return {"metadata": meta, "spec": {"containers": [container], **(spec or {})}}


def hami(gpus: int, spec: Document | None = None, notes: dict[str, str] | None = None, **more: int) -> Document:
    """HAMi's resources, and annotations by what follows `nvidia.com/`."""
    limits = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in {"gpu": gpus, **more}.items()}
    named = {f"nvidia.com/{key}": value for key, value in (notes or {}).items()}
    return asking(limits, spec=spec, **({"annotations": named} if named else {}))


def share(request: str, limit: str, **more: str) -> Document:
    """KubeShare 2's labels."""
    texts = {"gpu_request": request, "gpu_limit": limit, **more}
    labels = {f"sharedgpu/{key}": text for key, text in texts.items()}
    return asking(spec={"schedulerName": "kubeshare-scheduler"}, labels=labels)


WHOLE = (1000, 1000, 16384)
AS_ASKED = {
    # HAMi
    "hami default_use": (hami(1, gpumem=3000, gpucores=30), [(300, 300, 3000)]),
    "hami use_memory_fraction": (hami(2, gpumem_percentage=50, gpucores=30), [(300, 300, 8192)] * 2),
    "hami benchmarks job-on-hami": (hami(1, gpumem_percentage=50), [(10, 1000, 8192)]),
    # KubeShare: test/pod1, pod4, OpportunisticPod, mnist1, cifar10
    "kubeshare pod4": (share("0.5", "1.0"), [(500, 1000, 8192)]),
    "kubeshare opportunistic": (share("0", "1.0", gpu_mem="3073741824"), [(10, 1000, 2932)]),
    # gpushare: samples/1.yaml
    "gpushare sample 1": (asking({"aliyun.com/gpu-mem": 2}), [(10, 1000, 2048)]),
    # gpu-manager: README.md, both pods
    "gpu-manager README 1": (
        asking(
            {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 30},
            annotations={"tencent.com/vcuda-core-limit": "50"},
        ),
        [(500, 500, 7680)],
    ),
    "gpu-manager core alone": (asking({"tencent.com/vcuda-core": 30}), [(300, 300, 4915)]),
    # NVIDIA: README.md, "Running GPU Jobs"
    "nvidia README": (asking({"nvidia.com/gpu": 1}), [WHOLE]),
}


@pytest.mark.parametrize("name", AS_ASKED)
def test_a_manifest_is_given_what_it_asks_for(name: str):
    """Guarantee, limit and memory of each GPU are those of the project, to the MiB, on GPUs of its own each."""
    document, expected = AS_ASKED[name]
    given = Node().run(document)

    assert not isinstance(given, str), given
    assert expected == [piece[1:] for piece in given]
    assert len(expected) == len({piece[0] for piece in given})


NOT_RUN = {
    # HAMi: specify_uuid_to_use names a GPU that is not there
    "hami specify_uuid_to_use": (
        hami(1, notes={"use-gpuuuid": "GPU-123456"}),
        "waits: has no GPU called GPU-123456",
    ),
    # HAMi: mig_example, which asks for no share
    "hami mig_example": (asking({"nvidia.com/mig-3g.20gb": 1}), "asks for no GPU"),
    "hami more than a device": (hami(1, gpucores=101), "refused: spec.containers[main].resources.limits"),
    # KubeShare: test/pod7, pod8, pod10, RegularPod/pod9, cifar10_ubuntu
    "kubeshare pod7": (share("2.0", "2.5"), 'refused: metadata.labels["sharedgpu/gpu_limit"]'),
    "kubeshare pod8": (share("0.5", "0.3"), 'refused: metadata.labels["sharedgpu/gpu_limit"]'),
    "kubeshare pod10": (share("0.5", "1.0", gpu_model="test"), "waits: has no GPU of model test"),
    "kubeshare regular pod9": (asking({"nvidia.com/gpu": 6}), "waits: has 4 GPUs, 6 were asked"),
    "kubeshare cifar10_ubuntu": (
        share("0.5", "1.0", gpu_model="Tesla-V100-PCIE-32GB"),
        "waits: has no GPU of model Tesla-V100-PCIE-32GB",
    ),
    # gpushare: samples/4.yaml, made for a cluster that counts MiB
    "gpushare sample 4": (asking({"aliyun.com/gpu-mem": 16276}), "waits: has no GPU with 16276.0 GiB"),
    # gpu-manager: neither a share nor whole GPUs
    "gpu-manager 150": (asking({"tencent.com/vcuda-core": 150}), "refused: spec.containers[main].resources.limits"),
}


@pytest.mark.parametrize("name", NOT_RUN)
def test_a_manifest_that_its_project_does_not_run_is_not_run_here(name: str):
    """It waits or is refused with a sentence that names what it asked for."""
    document, said = NOT_RUN[name]
    given = Node().run(document)

    assert isinstance(given, str) and given.startswith(said), given


def test_pods_that_can_share_a_gpu_do():
    """HAMi's use_sharing_card: 60 cores with 40 % and 40 cores with 60 % are one GPU."""
    cluster = Node()
    first = cluster.run(hami(1, gpumem_percentage=40, gpucores=60), "a")
    second = cluster.run(hami(1, gpumem_percentage=60, gpucores=40), "b")

    assert [(0, 600, 600, 6553)] == first
    assert [(0, 400, 400, 9830)] == second


def test_pods_with_a_gpu_each_have_two():
    """HAMi's use_as_normal: two pods without memory and cores."""
    cluster = Node()

    assert {0, 1} == {piece[0] for name in "ab" for piece in cluster.run(hami(1), name) if not isinstance(piece, str)}


def test_gpushares_samples_are_packed_onto_one_gpu():
    """samples/1 to 3: 2 GiB each."""
    cluster = Node()
    given = [cluster.run(asking({"aliyun.com/gpu-mem": 2}), f"binpack-{n}") for n in (1, 2, 3)]

    assert 3 * [[(0, 10, 1000, 2048)]] == given


def test_kubeshares_job_of_ten_is_packed():
    """test/job1: five of 0.2 on each of two GPUs."""
    cluster = Node()
    for number in range(10):
        assert not isinstance(cluster.run(share("0.2", "0.5"), f"job1-{number}"), str)

    assert [1000, 1000] == [milli for milli, _ in cluster.scene.reserved().values()]


@pytest.mark.parametrize(
    ("notes", "lost"),
    [
        # HAMi: specify_scheduling_policy
        ({"hami.io/node-scheduler-policy": "binpack", "hami.io/gpu-scheduler-policy": "spread"}, 2),
        # HAMi: dynamic_mig_example
        ({"nvidia.com/vgpu-mode": "mig"}, 1),
    ],
)
def test_what_is_not_kept_of_a_manifest_is_a_warning_when_it_is_created(notes: dict[str, str], lost: int):
    """The pod runs with its share, and the answer has a line for each annotation without a counterpart."""
    cluster = Node()
    given = cluster.run(asking({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 8000}, annotations=notes))

    assert [(10, 1000, 8000)] * 2 == [piece[1:] for piece in given if not isinstance(piece, str)]
    assert lost == len(cluster.warnings) and all("is not kept" in text for text in cluster.warnings)


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ({"gpu_request": "0.4", "gpu_limit": "1.0", "gpu_mem": "3145728000"}, (400, 1000, 3000)),
        ({"gpu_request": "0.6", "gpu_limit": "1.0"}, (600, 1000, None)),
        ({"gpu_request": "0.5", "gpu_limit": "0.5"}, (500, 500, None)),
    ],
)
def test_sharepods_of_kubeshare_1_are_converted_to_what_they_ask(
    notes: dict[str, str], expected: tuple[int, int, int | None]
):
    """doc/yaml of its release 1.0: request, limit, and memory in bytes."""
    metadata = {"name": "s", "annotations": {f"kubeshare/{key}": text for key, text in notes.items()}}
    spec = {"containers": [{"name": "main", "command": ["sleep"]}]}
    (made,) = convert({"apiVersion": "kubeshare.nthu/v1", "kind": "SharePod", "metadata": metadata, "spec": spec})
    request = parse_sharepod(made.document).request

    assert expected == (request.request_milli, request.limit_milli, request.memory.mib if request.memory else None)
