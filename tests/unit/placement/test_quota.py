"""Quota by namespace and model: seen while filtering, kept at the commit."""

import pytest
from scene import V100, Scene, ask, node

from aliquot.placement.cluster import Placement
from aliquot.placement.codes import Code
from aliquot.placement.quota import Quota, QuotaExceeded, Quotas
from aliquot.placement.reasons import Infeasible
from aliquot.placement.sentences import text_of

QUOTAS = Quotas([Quota("team", "V100", milli=1500), Quota("team", memory_mib=45_000)])


@pytest.fixture
def scene() -> Scene:
    """A node of two V100 and one of two A100."""
    return Scene(node("v", 2), node("a", ["NVIDIA A100", "NVIDIA A100"], mib=40960), quotas=QUOTAS)


def decide(scene: Scene, milli: int, **fields) -> Placement | Infeasible:
    """For the namespace that has a quota."""
    return scene.decider.decide(ask(milli, **fields), "team")


def test_a_model_whose_quota_is_used_up_is_closed(scene):
    """Beyond the quota of one model the other is taken; a namespace without quota goes on."""
    scene.place(1000, "team/a", models=("V100",))

    assert "a" == decide(scene, 600).node
    assert "v" == decide(scene, 500).node
    assert "v" == scene.decider.decide(ask(600), "others").node


def test_a_refusal_says_what_the_quota_is(scene):
    """The reason names the namespace, what it holds, what it may have and what was asked."""
    scene.place(1000, "team/a", models=("V100",))
    refusal = decide(scene, 600, models=("V100",))
    reason = refusal.reasons()[0].devices[1]

    assert Code.QUOTA == reason.code
    assert 'namespace "team" holds 1.00 of V100 GPUs of 1.50 it may have, 0.60 more were asked' == text_of(reason)


def test_memory_has_a_quota_too(scene):
    """GPU memory over all models counts."""
    scene.place(500, "team/a", models=("A100",), gpu_mib=30_000)

    assert isinstance(decide(scene, 100, gpu_mib=16_000), Infeasible)
    assert isinstance(decide(scene, 100, gpu_mib=14_000), Placement)


def test_the_commit_keeps_the_quota(scene):
    """Of two placements made at the same time the second is refused when it is to be written."""
    wanted = ask(800, models=("V100",))
    first, second = (scene.decider.decide(wanted, "team") for _ in range(2))
    scene.decider.commit("team/a", first, wanted)

    with pytest.raises(QuotaExceeded, match=r"holds 0\.80 of V100 GPUs of 1\.50 .*, 0\.80 more .*; ask for less"):
        scene.decider.commit("team/b", second, wanted)
    assert {V100: (800, 13107)} == dict(scene.cluster.usage("team"))


def test_a_gpu_that_is_closed_to_others_counts_whole(scene):
    """A small share with an exclusion label takes a GPU of the quota, and a second one beside it takes no more."""
    scene.place(10, "team/a", models=("V100",), exclusion="mine")

    assert {V100: (1000, 16384)} == dict(scene.cluster.usage("team"))
    refusal = decide(scene, 10, models=("V100",), exclusion="other")
    reason = text_of(refusal.reasons()[0].devices[1])
    assert reason.endswith("1.00 more were asked: with an exclusion label each GPU counts whole")
    scene.place(10, "team/b", models=("V100",), exclusion="mine")
    assert {V100: (1000, 16384)} == dict(scene.cluster.usage("team"))
    scene.decider.release("team/a")
    assert {V100: (1000, 16384)} == dict(scene.cluster.usage("team"))
    scene.decider.release("team/b")
    assert {} == dict(scene.cluster.usage("team"))


def test_the_commit_counts_a_closed_gpu_whole(scene):
    """Of two labels placed at the same time the second is refused: two GPUs are more than one and a half."""
    wanted = [ask(10, gpu_uuid=gpu, exclusion=label) for gpu, label in (("v/0", "mine"), ("v/1", "other"))]
    first, second = (scene.decider.decide(one, "team") for one in wanted)
    scene.decider.commit("team/a", first, wanted[0])

    with pytest.raises(
        QuotaExceeded, match=r"holds 1\.00 of V100 GPUs of 1\.50 .*, 1\.00 more .* label each GPU counts whole; ask"
    ):
        scene.decider.commit("team/b", second, wanted[1])
