"""Why a request waits and what would let it in, or why it goes where it goes, in words and as facts."""

import json
from dataclasses import replace

import pytest
from scene import Scene, ask, node

from aliquot.placement.codes import Code, UnmetConstraint, Verdict
from aliquot.placement.explain import PlacementExplanation, explain_with
from aliquot.placement.saved import dump
from aliquot.placement.sentences import refusal, suggestion, wish
from aliquot.topology import Topology


def explained(scene: Scene, milli: int = 0, **fields) -> PlacementExplanation:
    """The explanation of an ask."""
    return explain_with(scene.decider, ask(milli, **fields))


def codes(scene: Scene, milli: int = 0, **fields) -> list[str | None]:
    """Codes of the first node's devices."""
    return [reason and reason.code.value for reason in explained(scene, milli, **fields).verdicts[0].devices]


@pytest.fixture
def full() -> Scene:
    """One node; GPU 0 has 0.4 and 2 GiB left, GPU 1 nothing."""
    scene = Scene(node("n", 2))
    scene.put("n/0", 600, "web", gpu_mib=14 * 1024)
    scene.put("n/1", 1000, "train")
    return scene


def test_less_memory_is_told_by_how_much(full):
    """A request for 4 GiB where 2 are left is told 2 GiB less and where."""
    found = explained(full, 300, gpu_mib=4096)
    nearest = found.changes[0]

    assert ("less", "n", 2048) == (nearest.kind, nearest.node, nearest.ask.gpu_mib)
    assert "ask 2.0 GiB of GPU memory less, and it fits on GPU 0 of n" == found.nearest


def test_less_compute_is_told_by_how_much(full):
    """A request for 0.5 where 0.4 is left is told 0.1 less."""
    assert "ask 0.10 GPU less, and it fits on GPU 0 of n" == explained(full, 500, gpu_mib=1024).nearest


def test_who_has_to_end_is_told_by_name(full):
    """A whole GPU waits for the smaller tenant; what it holds is said."""
    changes = explained(full, 1000).changes

    assert "after web (0.60, 14.0 GiB) has ended, it fits on GPU 0 of n" in [suggestion(change) for change in changes]


def test_the_first_obstacle_of_every_device_has_a_code():
    """Each device tells its first constraint that fails by a stable code."""
    scene = Scene(node("n", ["Tesla T4", *["Tesla V100"] * 6]))
    scene.put("n/1", 800)
    scene.put("n/2", 100, gpu_mib=16000)
    scene.put("n/3", 100, exclusion="x")
    scene.put("n/4", 100, anti_affinity="noisy")
    scene.put("n/5", 100, gpu_id="other")
    scene.put("n/6", 1000)

    assert [
        "gpu-model", "gpu-compute", "gpu-memory", "gpu-exclusion", "gpu-anti-affinity", "gpu-name", "gpu-compute",
    ] == codes(scene, 300, models=("V100",), anti_affinity="noisy", gpu_id="mine")  # fmt: skip


def test_labels_that_are_elsewhere_have_codes():
    """Devices where an affinity label or a named vGPU is not say so."""
    scene = Scene(node("n", 2))
    scene.put("n/1", 900, affinity="team")
    named = Scene(node("n", 2))
    named.put("n/1", 900, gpu_id="one")

    assert ["gpu-affinity", "gpu-compute"] == codes(scene, 300, affinity="team")
    assert ["gpu-named-elsewhere", "gpu-compute"] == codes(named, 300, gpu_id="one")


@pytest.mark.parametrize(
    ("fields", "code", "lasting"),
    [
        ({"milli": 100, "cpu_milli": 3000}, Code.NODE_CPU, False),
        ({"milli": 100, "cpu_milli": 5000}, Code.NODE_CPU, True),
        ({"milli": 100, "memory_mib": 9000}, Code.NODE_MEMORY, True),
        ({"milli": 3000}, Code.NODE_FEW_GPUS, True),
        ({"milli": 2000}, Code.NODE_GPUS, False),
        ({"milli": 100, "models": ("H100",)}, Code.NODE_FEW_GPUS, True),
    ],
)
def test_a_node_tells_whether_waiting_can_help(fields, code, lasting):
    """What fails on an empty node too is marked as lasting."""
    scene = Scene(node("n", 2, cpu=4000, memory=8192))
    scene.place(300, cpu_milli=2000)
    reason = explained(scene, **fields).verdicts[0].reason

    assert (code, lasting) == (reason.code, reason.lasting)


def test_a_cordoned_node_may_be_reopened():
    """Where only a cordon is in the way, reopening is the nearest change."""
    scene = Scene(node("n", 1))
    scene.cluster.set_cordoned("n")

    assert "reopen node n, and it fits there" == explained(scene, 500).nearest


def test_a_wish_may_be_dropped():
    """A model that nobody has free is told to be dropped where another would do."""
    scene = Scene(node("v", 1), node("t", ["Tesla T4"]))
    scene.put("v/0", 1000)

    changes = explained(scene, 1000, models=("V100",)).changes

    assert "without model V100 it fits on t now" in [suggestion(change) for change in changes]


def test_many_nodes_are_told_in_few_lines():
    """Nodes with the same obstacle share a line, the answer comes first, the nearest change last."""
    nodes = [node(f"t{i}", ["Tesla T4"] * 4) for i in range(9)] + [node(f"v{i}", 2) for i in range(4)]
    scene = Scene(*nodes)
    for i in range(4):
        scene.put(f"v{i}/0", 1000, f"ns/busy-{i}")
    lines = explained(scene, 2000, models=("V100",)).lines("default/train-7")

    assert [
        "default/train-7 waits: asks 2 GPUs of model V100 close to each other, none of 13 nodes has that much free.",
        "  9 nodes  has no GPU of model V100, 2 were asked: "
        '4 x is "Tesla T4", another model was asked  (cannot change)',
        "  4 nodes  does not have 2 free GPUs: has 0.00 free, 1.00 were asked",
        "Nearest: ask 1.00 GPU less, and it fits on v0.",
    ] == lines[:4]


def test_what_fits_is_told_with_the_reason():
    """For a request that fits: device, what is left after, what the policy looks for, the next best node."""
    scene = Scene(node("a", 1), node("b", 1, rank=1))
    scene.put("b/0", 500)
    found = explained(scene, 300)

    assert ("b", 2, 2) == (found.placement.node, found.nodes_fitting, found.nodes)
    assert [
        "GPU 0 of b: 0.50 free now, 0.20 after; 8.0 GiB now, 3.2 GiB after",
        "binpack takes the fullest GPU that holds the request",
    ] == found.account[:2]
    assert found.account[2].startswith("2 of 2 nodes have room; the next best is ")


def test_links_of_several_gpus_are_told():
    """For several GPUs the links between them are counted."""
    pairs = Topology.of([["X", "NV2", "SYS"], ["NV2", "X", "SYS"], ["SYS", "SYS", "X"]])

    assert "links between them: 1 x NV2" in explained(Scene(node("n", 3, topology=pairs)), 2000).account


def test_devices_are_called_by_their_own_index():
    """Where a machine's first GPU is left out, the others keep the numbers that people know them by."""
    spec = node("n", 3)
    scene = Scene(replace(spec, gpus=spec.gpus[1:]))
    scene.put("n/1", 600)
    scene.put("n/2", 700)
    found = explained(scene, 500)

    assert [1, 2] == [reason.gpu for reason in found.verdicts[0].devices]
    assert "ask 0.10 GPU less, and it fits on GPU 1 of n" == found.nearest
    assert "GPU 2 of n: 0.30 free now" in explained(scene, 200).account[0]


def test_explaining_changes_and_teaches_nothing():
    """PlainLedger, versions and what the policy learned are as before."""
    scene = Scene(node("n", 1), by="fgd")
    scene.place(600)
    before = (dump(scene.cluster), scene.cluster.version.tolist(), scene.decider.policy.epoch)
    for milli in (300, 700):
        explained(scene, milli)

    assert before == (dump(scene.cluster), scene.cluster.version.tolist(), scene.decider.policy.epoch)


def test_facts_are_for_programs(full):
    """The facts are JSON and have codes, numbers and changes."""
    facts = json.loads(json.dumps(explained(full, 300, gpu_mib=4096).facts()))

    assert (False, "binpack") == (facts["fits"], facts["policy"])
    assert {"code": "gpu-memory", "asked": 4096, "have": 2048, "lasting": False} == {
        key: value for key, value in facts["verdicts"][0]["devices"][0]["reason"].items() if key != "text"
    }
    assert "less" == facts["changes"][0]["kind"]


def test_a_wish_is_told_in_words():
    """Everything that was asked is in the sentence."""
    words = wish(ask(500, gpu_mib=2048, cpu_milli=1500, memory_mib=512, models=("V100", "A10"), affinity="team"))

    assert '0.50 GPU of model A10 or V100, 2.0 GiB of GPU memory, 1.5 CPU, 512 MiB of memory, affinity "team"' == words


def test_gpus_that_were_not_named_are_no_reason():
    """Where one GPU was named and lacks something, the sentence says that, and nothing of the others."""
    others = UnmetConstraint(Code.GPU_UUID, gpu=1, lasting=True)
    lacks = UnmetConstraint(Code.GPU_COMPUTE, gpu=0, asked=900, have=500)

    assert "GPU 0 has 0.50 free, 0.90 were asked" == refusal(Verdict("here", lacks, (lacks, others), (0, 1)), 3)
    assert "GPU 1 is not the one that was named" == refusal(Verdict("here", others, (others,), (1,)), 3)
