"""Where a tenant goes that is promised to wake in time, and what keeps it from a device."""

import pytest
from scene import Scene, ask, node

from aliquot.placement.cluster import Cluster
from aliquot.placement.codes import Code
from aliquot.placement.explain import explain_with
from aliquot.placement.reasons import Infeasible
from aliquot.placement.sentences import sentence_of

WAKE = {"wake_us": 5000}


def measure(cluster: Cluster, gpu: str, **kernels_us: int) -> None:
    """The longest kernels of tenants on a GPU."""
    cluster.measured.kernels[gpu] = kernels_us


def refusal(scene: Scene, **fields: int) -> list[tuple[Code, str]]:
    """What stands against it on the devices of the first node."""
    found = scene.decide(300, **WAKE, **fields)
    assert isinstance(found, Infeasible)
    return [(reason.code, sentence_of(reason)) for reason in found.reasons()[0].devices if reason]


def test_long_kernels_keep_it_off_with_their_tenant_and_length():
    """The reason names the tenant, how long its kernels are and how long they may be."""
    scene = Scene(node("a", 1))
    scene.place(500, "training")
    measure(scene.cluster, "a/0", training=20_000)

    assert [(Code.GPU_WAKE, 'GPU 0 has "training" with kernels of 20 ms, wake allows 3.2 ms')] == refusal(scene)
    assert ["a/0"] == scene.where(300)
    assert ["a/0"] == scene.where(300, wake_us=100_000)


def test_measured_devices_go_before_unmeasured_ones():
    """Among devices that a policy likes alike or better, one where the promise is certain is taken."""
    scene = Scene(node("a", 3))
    scene.place(600, "unmeasured", gpu_uuid="a/0")
    scene.place(600, "short", gpu_uuid="a/1")
    scene.place(600, "long", gpu_uuid="a/2")
    measure(scene.cluster, "a/1", short=1000)
    measure(scene.cluster, "a/2", long=20_000)

    assert ["a/1"] == scene.where(300, **WAKE)
    scene.place(400, "more", gpu_uuid="a/1")
    assert ["a/0"] == scene.where(300, **WAKE)


def test_the_ledger_of_nodes_prefers_those_where_it_is_certain():
    """A node where the promise is certain scores above one where it is not; both are feasible."""
    scene = Scene(node("a", 1, rank=0), node("b", 1, rank=1))
    scene.place(600, "unmeasured", gpu_uuid="a/0")
    wanted = ask(300, **WAKE)

    assert [True, True] == scene.decider.feasible(wanted)[:2].tolist()
    scores = scene.decider.scores(wanted)
    assert scores[1] > scores[0]


def test_a_tenant_that_has_left_stands_against_nothing():
    """What was measured of a tenant counts only while it is there."""
    scene = Scene(node("a", 1))
    scene.place(500, "training")
    measure(scene.cluster, "a/0", training=20_000)
    scene.decider.release("training")

    assert ["a/0"] == scene.where(300, **WAKE)


def test_others_with_a_promise_take_time_from_it():
    """Each other promise on the device adds its least turn; when that is all there is, no more are taken."""
    scene = Scene(node("a", 1))
    scene.place(300, "first", **WAKE)

    assert ["a/0"] == scene.where(300, **WAKE)
    scene.place(300, "second", **WAKE)
    assert [Code.GPU_WAKE] == [code for code, _ in refusal(scene)]


@pytest.mark.parametrize("turns", ["kubeshare", "gemini"])
def test_an_order_of_turns_without_promises_refuses_it(turns: str):
    """A node that takes turns otherwise is named with its order, even while nobody is there."""
    scene = Scene(node("a", 1))
    scene.cluster.measured.turns["a"] = turns

    assert [(Code.GPU_TURNS, f"GPU 0 takes turns by {turns}, wake is kept by fluid alone")] == refusal(scene)


def test_an_explanation_says_what_is_not_certain_and_what_would_help():
    """A place on an unmeasured device is said to be provisional; a refusal says who would have to go."""
    scene = Scene(node("a", 1))
    scene.place(500, "training")

    account = explain_with(scene.decider, ask(300, **WAKE)).account

    assert any("kernels of training were not measured" in line for line in account)
    measure(scene.cluster, "a/0", training=20_000)
    found = explain_with(scene.decider, ask(300, **WAKE))
    assert found.placement is None
    assert "0.30 GPU, to wake in 5ms" in found.lines("x")[0]
    assert 'has "training" with kernels of 20 ms' in "\n".join(found.lines("x"))


def test_a_refusal_of_a_wake_names_the_wake_and_no_labels():
    """Where only the promise of waking stands against a request, the answer says so, and that it fits without."""
    scene = Scene(node("a", 1))
    scene.place(500, "training")
    measure(scene.cluster, "a/0", training=20_000)

    lines = explain_with(scene.decider, ask(300, **WAKE)).lines("x")
    labelled = explain_with(scene.decider, ask(300, affinity="lab", **WAKE)).lines("x")

    assert lines[0].endswith("does not have a GPU with 0.30 free that can promise when it wakes.")
    assert "without wake 5ms it fits on a now" in "\n".join(lines)
    assert labelled[0].endswith("free that its labels allow and that can promise when it wakes.")
