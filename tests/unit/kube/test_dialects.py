"""The peers' own examples mean here what they mean there, and can be said back in the peers' words.

The examples are in `tests/data/requests/peer_examples.yaml`, each with the page it was written after.
"""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from peer_examples import TABLE, main
from pods import limits, pod

from aliquot.kube.dialects import FOREIGN, foreign, read, spoken
from aliquot.kube.dialects.base import ORDERED, CanNotSay
from aliquot.kube.objects import Pod
from aliquot.kube.requests import BadPod, ContainerAsk, PodAsk
from aliquot.model.quantities import Memory
from aliquot.model.requests import GpuRequest, Labels

CASES = [pytest.param(d, *case, id=f"{d}-{name}") for d, cases in TABLE.items() for name, case in cases.items()]


@pytest.mark.parametrize(("dialect", "made", "expected"), CASES)
def test_a_peers_example_means_the_same_here(dialect: str, made: Pod, expected: ContainerAsk):
    """The example is recognised as the peer's and asks for what the peer's page says."""
    found = read(made)

    assert found is not None
    assert FOREIGN[dialect] is spoken(made)
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

    assert found == again


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (pod(limits("main", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1, "nvidia.com/priority": 0})), "nvidia.com/"),
        (pod({"name": "main"}, labels={"sharedgpu/gpu_request": "0.5", "sharedgpu/priority": "7"}), "sharedgpu/"),
    ],
)
def test_a_peers_priority_is_told_as_not_kept(made: Pod, says: str):
    """Pods wait in the order of their PriorityClass, whatever number a peer's word has."""
    found = read(made)

    assert found is not None
    assert [f"{says}priority is not kept: {ORDERED}"] == list(found.notes)


def test_hamis_priority_alone_asks_for_no_gpu():
    """As in HAMi; beside a container that asks, the one with a priority alone gets nothing, and its author is told."""
    alone, beside = limits("side", {"nvidia.com/priority": 1}), limits("main", {"nvidia.com/gpumem": 1000})

    assert read(pod(alone)) is None
    found = read(pod(alone, beside))
    assert found is not None and ["main"] == [c.container for c in found.containers]
    assert [
        'spec.containers[side].resources.limits["nvidia.com/priority"] asks for no GPU; add "nvidia.com/gpu", or '
        "leave it out"
    ] == list(found.notes)


def test_the_annotation_priority_is_refused_with_what_orders_pods():
    """The word that Aliquot once knew orders nothing, and says so instead of being passed over."""
    made = pod(limits("main", {"aliquot.dev/gpu-percent": 30}), annotations={"aliquot.dev/priority": "5"})

    with pytest.raises(BadPod, match=r'"aliquot.dev/priority"\] orders nothing: pods wait in the order of their Pri'):
        read(made)
