"""All GPUs of one container are of one model unless it says otherwise."""

import pytest
from asking import asking

from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device
from aliquot.model.sharepod import GpuSpec, gpu_request
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster
from aliquot.placement.decide import Decider
from aliquot.placement.entries import NodeSpec, Placement
from aliquot.placement.policy import POLICIES
from aliquot.placement.reasons import Infeasible
from aliquot.placement.sentences import sentence_of

V100, A100 = "Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-40GB"


def decider(policy: str, *models: str) -> Decider:
    """One node with a GPU of each of these models."""
    gpus = tuple(
        Device(g, GpuUuid(f"GPU-{g}"), model, 16384 if model == V100 else 40960) for g, model in enumerate(models)
    )
    return Decider(Cluster([NodeSpec("n", gpus, cpu_milli=64000, memory_mib=1 << 20)]), POLICIES[policy]())


def gpus_of(placed: Placement | Infeasible) -> set[str]:
    assert isinstance(placed, Placement), [str(verdict.reason) for verdict in placed.reasons()]
    return {piece.gpu for piece in placed.slices}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_two_gpus_are_of_one_model(policy: str):
    """Every policy takes the two A100, though a V100 has the lowest index."""
    assert {"GPU-1", "GPU-2"} == gpus_of(decider(policy, V100, A100, A100).decide(asking(whole=2)))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_whole_gpu_and_a_part_are_of_one_model(policy: str):
    """The shared GPU is of the model of the whole ones."""
    found = decider(policy, V100, A100, V100, A100)
    found.cluster.reserve("a", found.decide(asking(whole=1, models=("V100",))), asking(whole=1, models=("V100",)))

    assert {"GPU-1", "GPU-3"} == gpus_of(found.decide(asking(whole=1, rest_milli=500)))


def test_models_are_mixed_where_that_is_asked():
    """An ask that allows mixed models gets two GPUs of a node that has one of each."""
    found = decider("aliquot", V100, A100)

    assert isinstance(found.decide(asking(whole=2)), Infeasible)
    assert {"GPU-0", "GPU-1"} == gpus_of(found.decide(asking(whole=2, mixed=True)))


def test_a_refusal_says_that_models_are_the_reason():
    """A node with enough GPUs of different models never has enough of one; a busy one may have later."""
    few = decider("aliquot", V100, A100).decide(asking(whole=2))
    assert isinstance(few, Infeasible) and all(verdict.lasting for verdict in few.reasons())
    assert ["n has 1 GPU of one model, 2 were asked"] == [sentence_of(verdict.reason) for verdict in few.reasons()]

    busy = decider("aliquot", V100, V100, A100)
    busy.cluster.reserve("a", busy.decide(asking(whole=1, models=("V100",))), asking(whole=1, models=("V100",)))
    now = busy.decide(asking(whole=2))
    assert isinstance(now, Infeasible) and not any(verdict.lasting for verdict in now.reasons())
    assert ["n does not have 2 free GPUs of one model"] == [sentence_of(verdict.reason) for verdict in now.reasons()]


def test_the_smaller_model_is_taken_first():
    """Of two models that both have enough GPUs, the larger one is kept."""
    assert {"GPU-2", "GPU-3"} == gpus_of(decider("aliquot", A100, A100, V100, V100).decide(asking(whole=2)))


def test_sharepods_may_allow_mixed_models():
    """The word of a SharePod reaches placement."""
    assert Ask(gpu_request(GpuSpec(2, mixed_models=True))).mixed
