"""A pod's words for a part of a GPU become integers, or are refused with the path of every fault."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pods import documents, gpu, limits, pod, pod_of

from aliquot.kube.dialects import NATIVE, read, spoken
from aliquot.kube.objects import Pod
from aliquot.kube.quantities import mib_up, milli
from aliquot.kube.requests import BadPod, ClusterDevices, ContainerAsk, PodAsk, effective, shared_in_time
from aliquot.model.quantities import Memory
from aliquot.model.requests import GpuRequest, Labels


def ask(made: Pod) -> PodAsk:
    """What the pod asks for, which is something."""
    found = read(made)
    assert found is not None
    return found


def notes(**values: Any) -> dict[str, str]:
    """Annotations of ours; `_` stands for `-`, and `__` begins the container's name."""
    return {f"aliquot.dev/{k.replace('__', '.').replace('_', '-')}": str(v) for k, v in values.items()}


def test_hundredths_and_bytes_become_milli_and_mib():
    """30 hundredths and 4Gi are 300 milli-GPU and 4096 MiB, elastic up to the whole device."""
    (c,) = ask(pod(limits("main", gpu(30, "4Gi")))).containers

    assert GpuRequest(300, None, Memory(mib=4096)) == c.request
    assert 1000 == c.request.ceiling_milli


def test_whole_gpus_and_a_rest():
    """250 hundredths are two whole GPUs and half of a third."""
    (unit,) = ask(pod(limits("main", gpu(250)))).units()

    assert (2, 500, 0) == (unit.ask.whole, unit.ask.rest_milli, unit.ask.gpu_mib)


@pytest.mark.parametrize(
    ("expected", "percent", "words"),
    [
        ("never", 200, {}),
        ("memory", 200, {"enforce": "memory"}),
        ("all", 100, {"enforce__main": "all"}),
        ("memory", 100, {"cpu_bind": 4}),
        ("all", 250, {}),
    ],
)
def test_what_is_enforced_is_said_by_an_annotation(expected: str, percent: int, words: dict[str, Any]):
    """Without it whole GPUs are not, unless cores are to be bound, and everything else is."""
    made = pod(limits("main", gpu(percent)), annotations=notes(**words))

    assert expected == ask(made).containers[0].enforced


@pytest.mark.parametrize(
    ("percent", "words", "sentence"),
    [
        (30, {"enforce": "never"}, 'metadata.annotations["aliquot.dev/enforce"] never needs whole GPUs'),
        (100, {"enforce": "nevr"}, '"nevr" is not one of never, memory, all'),
        (100, {"enforce": "never", "cpu_bind": 2}, "is done by the library"),
    ],
)
def test_what_can_not_be_left_unenforced_is_refused(percent: int, words: dict[str, Any], sentence: str):
    """A shared GPU, a misspelt word, and what only the library in the program can do."""
    with pytest.raises(BadPod) as error:
        ask(pod(limits("main", gpu(percent)), annotations=notes(**words)))

    assert sentence in str(error.value)


def test_an_exact_request_stands_beside_its_hundredths():
    """0.333 with 33 hundredths is 333 milli-GPU."""
    made = pod(limits("main", gpu(33)), annotations=notes(gpu_request="0.333"))

    assert 333 == ask(made).containers[0].request.request_milli


def test_an_annotation_alone_is_enough_where_one_container_can_be_meant():
    """gpu-request without a resource asks for the only container; the resource it needs is one."""
    made = ask(pod({"name": "main"}, annotations=notes(gpu_request="0.005")))

    assert 5 == made.containers[0].request.request_milli
    assert 1 == made.containers[0].percent


def test_every_annotation_reaches_the_ask():
    """Limit, models, UUIDs, labels and near cores travel to placement."""
    made = pod(
        limits("main", gpu(40)),
        annotations=notes(
            gpu_limit="0.8",
            gpu_model="A100, V100",
            gpu_uuid="GPU-1,GPU-2",
            anti_affinity="noisy",
            exclusion="team-a",
            cpu_bind=4,
        ),
    )
    (unit,) = ask(made).units()

    assert (800, ("A100", "V100"), "GPU-1,GPU-2") == (unit.ask.request.limit_milli, unit.ask.models, unit.ask.gpu_uuid)
    assert (Labels("", "noisy", "team-a"), 4) == (unit.ask.labels, unit.ask.near_cores)


def test_a_suffix_narrows_an_annotation_to_one_container():
    """With a suffix the annotation is that container's; without one it is everyone's who asks."""
    made = pod(
        limits("train", gpu(40)),
        limits("serve", gpu(20)),
        {"name": "logs"},
        annotations=notes(gpu_limit="0.9", gpu_limit__serve="0.3"),
    )
    found = ask(made)

    assert [("train", 900), ("serve", 300)] == [(c.container, c.request.limit_milli) for c in found.containers]


@pytest.mark.parametrize("amounts", [{"cpu": "1"}, {"nvidia.com/gpu": 0}], ids=["no GPU", "0 as charts write it"])
def test_a_pod_without_words_for_gpus_asks_for_none(amounts: dict[str, Any]):
    """A pod that names no GPU is nobody's business, nor is one that names none of them."""
    assert read(pod(limits("main", amounts), annotations={"other.dev/x": "y"})) is None


def test_equal_parts_land_on_different_gpus():
    """gpu-parts divides request, limit and memory, and keeps the parts apart by a label that only this pod has."""
    made = pod(limits("main", gpu(60, "6Gi")), annotations=notes(gpu_parts=2, gpu_limit="1.0"), uid="u-1")
    first, second = ask(made).units()

    assert (0, 300, 500, 3072) == (
        first.ask.whole,
        first.ask.rest_milli,
        first.ask.request.limit_milli,
        first.ask.gpu_mib,
    )
    assert first.ask.labels == second.ask.labels == Labels(anti_affinity="u-1/main")
    assert ("default/a/main", "default/a/main#2") == (first.tenant, second.tenant)


def test_cpu_and_memory_are_counted_for_the_whole_pod():
    """CPU and memory of a pod are counted as kubelet does, and are no part of its requests for GPUs."""
    made = pod(
        limits("a", gpu(20) | {"cpu": "1500m", "memory": "1Gi"}),
        limits("b", gpu(50) | {"cpu": 1}),
        init=[limits("big", {"cpu": 4}), limits("side", {"cpu": "250m"}, always=True)],
        overhead={"memory": "64Mi"},
    )

    assert (4000, 1088) == (effective(made, "cpu", milli), effective(made, "memory", mib_up))
    assert [("b", 0, 0), ("a", 0, 0)] == [(s.container, s.ask.cpu_milli, s.ask.memory_mib) for s in ask(made).units()]


def test_an_init_container_uses_the_gpus_of_a_later_one():
    """A plain init container that asks for no more than an app container is counted with it."""
    made = ask(pod(limits("main", gpu(50)), init=[limits("warm", gpu(30) | {})], annotations=notes(gpu_limit="0.5")))

    assert ["main"] == [unit.container for unit in made.units()]
    assert "main" == {c.container: c.uses for c in made.containers}["warm"]


def test_a_larger_init_container_has_its_own_gpus():
    """An init container that asks for more than what starts last is placed by itself, in its place of the order."""
    side = limits("side", gpu(10), always=True)
    made = ask(pod(limits("main", gpu(20)), init=[limits("small", gpu(30)), side, limits("large", gpu(80))]))

    assert {"main": 0, "small": 1, "side": -2, "large": 3} == {unit.container: unit.init for unit in made.units()}


def test_a_sidecar_never_shares_in_time():
    """A sidecar runs beside the others, so its GPUs are its own."""
    made = ask(pod(limits("main", gpu(50)), init=[limits("side", gpu(30), always=True)]))

    assert {"main", "side"} == {unit.container for unit in made.units()}


@pytest.mark.parametrize("row", documents("refused"), ids=lambda row: row["says"][:60])
def test_contradictions_are_refused_with_their_path(row: dict[str, Any]):
    """The message names the pod, the field in the words that its author used, and what is allowed there."""
    with pytest.raises(BadPod) as caught:
        read(pod_of(row))

    assert str(caught.value).startswith('pod "default/a": ')
    assert row["says"] in str(caught.value)


def test_a_converted_pod_is_read_in_aliquots_words():
    """With the mark of its dialect a pod may keep its old words for old tools."""
    made = pod(limits("main", gpu(1, "3Gi") | {"aliyun.com/gpu-mem": 3}), annotations={"aliquot.dev/dialect": "aliyun"})

    assert NATIVE is spoken(made)


def test_exclusions_are_resolved_against_what_the_cluster_has():
    """Models and UUIDs to avoid become those that are left; where none is left, nothing matches."""
    request = GpuRequest(300)
    avoid = ContainerAsk("main", request, models_not=("1080",), uuids_not=("GPU-1",))
    known = ClusterDevices(("GeForce GTX 1080 Ti", "Tesla V100"), ("GPU-1", "GPU-2"))

    assert ("Tesla V100",) == avoid.ask(known, "").models
    assert "GPU-2" == avoid.ask(known, "").gpu_uuid
    assert ("none but 1080",) == avoid.ask(ClusterDevices(("GTX 1080",)), "").models


names = st.sampled_from(["main", "side", "warm"])
label = st.sampled_from(["", "red", "a.b-c"])


@st.composite
def container_asks(draw: st.DrawFn, name: str) -> ContainerAsk:
    """An ask that makes sense."""
    parts = draw(st.sampled_from([1, 1, 1, 2, 3]))
    milli = draw(st.integers(1, 999)) if parts > 1 else draw(st.integers(1, 4000))
    devices = -(-milli // 1000)
    limit = draw(st.none() | st.integers(milli, devices * 1000))
    memory = draw(
        st.none()
        | st.integers(1, 80_000).map(lambda m: Memory(mib=m))
        | st.integers(1, 100).map(lambda p: Memory(part=Fraction(p, 100)))
    )
    if milli % 1000 == 0 and milli > 1000:
        memory = None
    anti, exclusion = draw(label), draw(label)
    near_cores = draw(st.integers(0, 8))
    words = ["all"] if milli % 1000 else ["all", "memory"] if memory or near_cores else ["all", "memory", "never"]
    one = devices * parts == 1
    affinity = draw(label) if one else ""
    labels = Labels("" if affinity == anti else affinity, anti, exclusion)
    return ContainerAsk(
        name,
        GpuRequest(
            milli,
            limit,
            memory,
            model=draw(st.sampled_from(["", "V100", "A100|V100"])),
            gpu=draw(st.sampled_from(["", "GPU-1", "GPU-1,GPU-2"])),
            gpu_id=draw(label) if one else "",
            labels=labels,
            enforce=draw(st.sampled_from([None, *words])),
            mixed=draw(st.booleans()),
        ),
        parts=parts,
        models_not=draw(st.sampled_from([(), ("K80",)])),
        uuids_not=draw(st.sampled_from([(), ("GPU-9",)])),
        near_cores=near_cores,
    )


@given(st.data())
def test_what_is_written_is_read_back(data: st.DataObject):
    """Any ask that makes sense survives being written as a pod and read again."""
    asks = [data.draw(container_asks(name)) for name in data.draw(st.sampled_from([["main"], ["main", "side"]]))]
    written = NATIVE.write(PodAsk("default/a", "", tuple(asks)))
    made = pod(
        *(limits(c.container, dict(written.resources[c.container])) for c in asks), annotations=written.annotations
    )

    assert tuple(asks) == ask(made).containers


@given(st.lists(st.tuples(st.sampled_from(["app", "init", "sidecar"]), st.integers(1, 2500)), min_size=1, max_size=6))
def test_what_is_counted_covers_every_moment_of_a_pods_life(parts: list[tuple[str, int]]):
    """Counting only containers with a share of their own covers every set that runs at once, and nothing two times."""
    asks = [ContainerAsk(f"c{i}", GpuRequest(milli), role=role) for i, (role, milli) in enumerate(parts)]  # type: ignore[arg-type]
    found = shared_in_time(asks)
    counted = sum(c.total_milli for c in found if not c.uses)
    hosts = {c.container: c for c in found}
    running = sum(c.total_milli for c in found if c.role != "init")
    peaks = [
        c.total_milli + sum(s.total_milli for s in found if s.role == "sidecar") for c in found if c.role == "init"
    ]

    assert counted >= max([running, *peaks])
    assert all(hosts[c.uses].total_milli >= c.total_milli and not hosts[c.uses].uses for c in found if c.uses)
    assert counted <= sum(c.total_milli for c in found)
