"""The plan annotation, written once and read by scheduler and node alike, and what became of a plan on its node."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.kube.names import PLAN, PLAN_STATUS
from aliquot.kube.objects import Pod
from aliquot.kube.plan import (
    BadPlan,
    ContainerPlan,
    PodPlan,
    label_texts,
    read_missing,
    read_plan,
    write_plan,
    written_outcome,
)
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Labels, Slice


def test_the_form_is_fixed():
    """The text is compact, has its version first and leaves out what is empty: other programs read it too."""
    plan = PodPlan(
        "node-a",
        {
            "main": ContainerPlan((Slice(GpuUuid("GPU-5f2e"), 300, 600, 4096),), (0, 1), ("", "noisy", "")),
            "warm": ContainerPlan((), uses="main", memory_limit="30720Mi"),
        },
    )

    assert (
        '{"v":1,"n":"node-a","c":{"main":{"s":[["GPU-5f2e",300,600,4096]],"k":[0,1],"l":["","noisy",""]},'
        '"warm":{"u":"main","m":"30720Mi"}}}'
    ) == write_plan(plan)


def test_no_annotation_is_no_plan():
    """A pod without the annotation has no plan, which is no error."""
    assert read_plan({"other": "x"}) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"n":"a"}', "cannot be read: Object missing required field `v`"),
        ('{"v":2,"c":[]}', "is of version 2, this program reads version 1; upgrade it or let the pod end"),
        ('{"v":1,"c":{"main":{"s":[["GPU-1",300,200,0]]}}}', 'gives container "main" a slice that cannot be'),
        ('{"v":1,"c":{"main":{"s":[["GPU-1",0,1000,0]]}}}', "a slice that cannot be"),
        ('{"v":1,"c":{"main":{"s":[["GPU-1",1,1001,0]]}}}', "a slice that cannot be"),
        ('{"v":1,"c":{"main":{"s":[["GPU-1",1]]}}}', "cannot be read"),
        ('{"v":1,"c":{"main":{"s":[["GPU-1",1,2,3]],"m":"much"}}}', 'of container "main": "much" is not an amount'),
        ("x" * 70_000, "is longer than 65536 bytes"),
    ],
)
def test_a_plan_that_can_not_be_read_is_refused(text: str, sentence: str):
    """What is not a plan of this version is an error that names the annotation, never a guess."""
    with pytest.raises(BadPlan) as caught:
        read_plan({PLAN: text})

    assert f'metadata.annotations["{PLAN}"]' in str(caught.value)
    assert sentence in str(caught.value)


def test_unknown_keys_are_passed_over():
    """A later program may add keys within a version."""
    found = read_plan({PLAN: '{"v":1,"n":"a","new":1,"c":{"main":{"s":[["GPU-1",1,2,3]],"new":[]}}}'})

    assert found == PodPlan("a", {"main": ContainerPlan((Slice(GpuUuid("GPU-1"), 1, 2, 3),))})


slices = st.builds(
    lambda gpu, request, more, mib: Slice(GpuUuid(gpu), request, min(1000, request + more), mib),
    st.text(min_size=1, max_size=40),
    st.integers(1, 1000),
    st.integers(0, 999),
    st.integers(0, 10**6),
)
containers = st.builds(
    ContainerPlan,
    st.lists(slices, max_size=4).map(tuple),
    st.lists(st.integers(0, 255), max_size=4).map(tuple),
    st.builds(Labels, st.text(max_size=5), st.text(max_size=5), st.text(max_size=5)).map(label_texts),
    st.text(max_size=5),
    st.integers(1, 4),
    st.text(max_size=5),
)
plans = st.builds(PodPlan, st.text(max_size=10), st.dictionaries(st.text(max_size=10), containers, max_size=3))


@given(plans)
def test_what_is_written_is_read_back(plan: PodPlan):
    """Any plan survives the annotation."""
    assert plan == read_plan({PLAN: write_plan(plan)})


@given(
    st.binary(max_size=60) | st.text(max_size=60).map(str.encode) | st.just(b'{"v":1,"c":{"a":{"s":[["G",1,2,3]]}}}')
)
def test_no_text_does_harm(text: bytes):
    """Whatever stands in the annotation is a plan or a BadPlan."""
    try:
        found = read_plan({PLAN: text.decode("utf-8", "surrogateescape")})
    except BadPlan:
        return
    assert json.loads(text)["v"] == 1
    assert found is not None


def test_what_is_enforced_is_part_of_the_plan():
    """Whole GPUs that are not enforced say so; a plan that leaves a part of a GPU unenforced is refused."""
    whole, part = Slice(GpuUuid("GPU-1"), 1000, 1000, 4096), Slice(GpuUuid("GPU-1"), 300, 1000, 4096)
    plan = PodPlan("n", {"main": ContainerPlan((whole,), enforce="never")})
    forged = PodPlan("n", {"main": ContainerPlan((part,), enforce="never")})

    assert plan == read_plan({PLAN: write_plan(plan)})
    with pytest.raises(BadPlan, match="does not enforce"):
        read_plan({PLAN: write_plan(forged)})


def test_an_outcome_is_written_with_its_reason():
    """A container that waits or is refused is written with the reason in brackets."""
    assert "main: provisioned" == written_outcome("main", "provisioned", "")
    assert "main: waits (the GPU is full)" == written_outcome("main", "waits", "the GPU is full")


def test_containers_without_their_share_are_read_with_the_reason():
    """Names and reasons may have the same word, and the annotation may end within a reason."""
    status = "missing: waits (missing (1)); main: missing (no device); side: missing (a long rea"

    assert {"main": "no device", "side": "a long rea"} == read_missing(status)


def test_a_pod_is_said_to_miss_its_share_while_the_container_runs_or_waits():
    """The state of a pod is the word of kubectl once the container has ended or the pod leaves."""

    def pod(state: str, **metadata: str) -> Pod:
        said = written_outcome("main", "missing", "kubelet gave it no device")
        status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {state: {"reason": "Error"}}}]}
        body = {"metadata": {"annotations": {PLAN_STATUS: said}, **metadata}, "status": status}
        return msgspec.convert(body | {"spec": {"nodeName": "n"}}, Pod)

    leaving = pod("running", deletionTimestamp="2026-01-01T00:00:00Z")

    assert ["GpuShareMissing", "Error", "Terminating"] == [pod("running").state, pod("terminated").state, leaving.state]
    assert "container main runs without its share: kubelet gave it no device" == pod("running").share_missing
    assert "container main waits without its share: kubelet gave it no device" == pod("waiting").share_missing
    assert "" == pod("terminated").share_missing
