"""A cluster promises how soon a tenant wakes by what the nodes measure."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.objects import node

from aliquot.kube.dialects import read
from aliquot.kube.inventory import KernelLengths, read_kernels, rounded_up, write_kernels
from aliquot.kube.names import GPU_KERNELS, GPU_PERCENT, PLAN, WAKE
from aliquot.kube.objects import Node, Pod
from aliquot.kube.plan import ContainerPlan, PodPlan, read_plan, write_plan
from aliquot.kube.reflector import Change
from aliquot.kube.requests import BadPod, PodAsk
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Slice
from aliquot.placement.policy import policy
from aliquot.scheduler.ledger import Ledger, NodeFull

GPU = "GPU-n-0"


def node_saying(kernels: KernelLengths | None = None) -> Node:
    """A node with one GPU that says this of its tenants' kernels."""
    return node("n", 1, metadata={"annotations": {GPU_KERNELS: write_kernels(kernels)} if kernels else {}})


def ledger(*said: KernelLengths | None) -> Ledger:
    """PlainLedger with a pod `default/training` on that GPU, after the node has said these things."""
    made = Ledger(policy("binpack"))
    made.node_changed(Change("added", node_saying()))
    plan = PodPlan("n", {"main": ContainerPlan((Slice(GpuUuid(GPU), 500, 1000, 1024),))})
    notes = {PLAN: write_plan(plan)}
    document = {"metadata": {"name": "training", "namespace": "default", "uid": "t", "annotations": notes},
                "spec": {"nodeName": "n"}}  # fmt: skip
    made.pod_changed(Change("added", msgspec.convert(document, Pod)))
    for kernels in said:
        made.node_changed(Change("changed", node_saying(kernels)))
    return made


def server(**notes: str) -> PodAsk:
    """A pod that asks for 0.3 of a GPU and to wake in 5 ms."""
    document = {
        "metadata": {"name": "server", "namespace": "default", "uid": "s", "annotations": {WAKE: "5ms"} | notes},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {GPU_PERCENT: 30}}}]},
    }
    found = read(msgspec.convert(document, Pod))
    assert found is not None
    return found


def test_a_node_that_measures_long_kernels_is_refused_with_their_tenant():
    """The sentence names the container and the length of its kernels."""
    made = ledger(KernelLengths("fluid", {GPU: {"default/training/main": 20_000}}))

    with pytest.raises(NodeFull, match=r'has "default/training/main" with kernels of 20 ms, wake allows 3.2 ms'):
        made.allocate(server(), "n", 0.0)


def test_the_last_word_of_a_node_counts():
    """Kernels that grew short, or a node that says nothing now, stand against nothing; the plan has the promise."""
    long = KernelLengths("fluid", {GPU: {"default/training/main": 20_000}})
    for later in (KernelLengths("fluid", {GPU: {"default/training/main": 1000}}), None):
        plan = ledger(long, later).allocate(server(), "n", 0.0).plan

        assert 5000 == plan.containers["main"].wake_us
        assert plan == read_plan({PLAN: write_plan(plan)})


def test_a_node_is_not_believed_about_the_gpus_of_others():
    """What it says of a GPU that is not in its inventory is passed over."""
    made = ledger(KernelLengths("fluid", {"GPU-other": {"default/training/main": 20_000}}))

    assert {} == made.cluster.measured.kernels


def test_a_node_with_another_order_of_turns_is_refused():
    """The sentence names the order."""
    with pytest.raises(NodeFull, match="takes turns by gemini"):
        ledger(KernelLengths("gemini")).allocate(server(), "n", 0.0)


@pytest.mark.parametrize(
    ("notes", "says"),
    [
        ({WAKE: "5"}, r'aliquot\.dev/wake"\]: "5" is not a duration; write 5ms'),
        ({WAKE: "1h"}, "1ms to 10s"),
        ({"aliquot.dev/wakes": "5ms"}, "not an annotation of Aliquot; it knows .*wake"),
        ({"aliquot.dev/wake.other": "5ms"}, 'names a container "other"; the pod has main'),
    ],
)
def test_what_is_written_wrong_is_refused_by_its_path(notes: dict[str, str], says: str):
    """A misspelt name, a bad duration and a container that is not there are told with what is allowed."""
    with pytest.raises(BadPod, match=says):
        server(**notes)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"gpus": 1}', '{"turns": 3}', "\ud800"])
def test_what_cannot_be_understood_says_nothing(text: str):
    """An annotation in another form leaves the promise provisional."""
    assert KernelLengths() == read_kernels({GPU_KERNELS: text})


@given(st.integers(1, 10**10))
def test_lengths_are_rounded_up_by_a_quarter_at_most(length_us: int):
    """What is written is never less, and the same for lengths that are nearly equal."""
    assert length_us <= rounded_up(length_us) <= length_us * 5 / 4
    assert rounded_up(length_us) == rounded_up(rounded_up(length_us))
