"""What each policy prefers, by examples from its source."""

import numpy as np
import pytest
from asking import asking
from scene import Scene, node

from aliquot.placement.asks import Shape
from aliquot.placement.cluster import Cluster
from aliquot.placement.decide import Decider
from aliquot.placement.policies.fgd import Fgd, target_workload
from aliquot.placement.policy import POLICIES, UnknownPolicy, policy
from aliquot.topology import Topology

# Gaia's Fig. 7: gpu2 and gpu3 on one switch, gpu0 and gpu1 under a host bridge, the pairs two sockets apart.
FIG7 = Topology.of(
    [["X", "PHB", "SYS", "SYS"], ["PHB", "X", "SYS", "SYS"], ["SYS", "SYS", "X", "PIX"], ["SYS", "SYS", "PIX", "X"]]
)


def score(scene: Scene, shape: Shape) -> list[int]:
    """The policy's scores of all nodes."""
    return scene.decider.policy.scores(shape, np.arange(len(scene.cluster.index))).tolist()


def test_an_unknown_policy_is_told_with_the_list():
    """A policy that does not exist is refused with those that do."""
    with pytest.raises(UnknownPolicy, match=r'no policy "best"; there are aliquot, bestfit, binpack, .*spread'):
        policy("best")


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_carries_its_name(name):
    """A policy made by name has that name, and says where its rule comes from."""
    made = policy(name)
    module = __import__(type(made).__module__, fromlist=["x"])

    assert name == made.name
    assert "Source: " in module.__doc__


# Binpack


def test_binpack_takes_the_fullest_card_of_all_nodes():
    """gpushare's example: of cards with 12207, 8138, 4069 and 16276 MiB left, an ask for 8138 takes the second."""
    scene = Scene(node("n", 4, mib=16276))
    for gpu, left in (("n/0", 12207), ("n/1", 8138), ("n/2", 4069)):
        scene.put(gpu, 100, gpu_mib=16276 - left)

    assert ["n/1"] == scene.where(100, gpu_mib=8138)


def test_binpack_adds_no_cards_up():
    """Two cards with 4069 MiB each do not hold 8138."""
    scene = Scene(node("n", 2, mib=4069))

    assert [] == scene.where(100, gpu_mib=8138)


def test_spread_takes_the_emptiest_card():
    """An idle card is taken while there is one, then the one with the most left."""
    scene = Scene(node("a", 1), node("b", 1), by="spread")

    assert ["a/0", "b/0", "b/0"] == [scene.place(300)[0], scene.place(200)[0], scene.place(300)[0]]


# Gaia, Tables I to IV


def test_gaia_table_1_two_gpus():
    """On the empty tree two GPUs are gpu2 and gpu3."""
    assert ["n/2", "n/3"] == Scene(node("n", 4, topology=FIG7), by="gaia").where(2000)


def test_gaia_table_2_fragments_stay_together():
    """With half of gpu2 taken, 0.4 and then 0.1 go to gpu2."""
    scene = Scene(node("n", 4, topology=FIG7), by="gaia")
    scene.put("n/2", 500)

    assert [["n/2"], ["n/2"]] == [scene.place(400), scene.place(100)]


def test_gaia_a_cousin_in_part_is_no_broken_group():
    """With half of gpu0 taken, one GPU is not gpu1, whose cousin has something left."""
    scene = Scene(node("n", 4, topology=FIG7), by="gaia")
    scene.put("n/0", 500)

    assert ["n/2"] == scene.where(1000)


def test_gaia_fragments_take_the_least_access_cost():
    """A fragment that needs a fresh GPU takes the idle one of least access cost, in an intact group too."""
    scene = Scene(node("n", 4, topology=FIG7), by="gaia")
    scene.put("n/0", 1000)

    assert ["n/2"] == scene.where(300)


# KubeShare's Algorithm 1


def test_kubeshare_fills_unlabelled_devices_first():
    """Best fit goes to busy devices without an affinity label, before labelled and idle ones."""
    scene = Scene(node("n", 3), by="kubeshare")
    scene.put("n/0", 600, affinity="team")
    scene.put("n/1", 300)

    assert ["n/1"] == scene.where(300)


def test_kubeshare_takes_the_emptiest_labelled_device_before_an_idle_one():
    """Where only labelled devices are busy, worst fit among them is taken."""
    scene = Scene(node("n", 3), by="kubeshare")
    scene.put("n/0", 600, affinity="a")
    scene.put("n/1", 300, affinity="b")

    assert ["n/1"] == scene.where(300)


def test_kubeshare_gives_the_first_of_a_label_an_idle_device():
    """A new affinity label begins on an idle device, though a busy one has room; without one on the emptiest."""
    scene = Scene(node("n", 2), by="kubeshare")
    scene.put("n/0", 300)

    assert ["n/1"] == scene.place(300, affinity="team")
    assert ["n/0"] == scene.where(300, affinity="other")


def test_kubeshare_never_splits_a_label():
    """A request whose label is on a device that has no room waits, though others have."""
    scene = Scene(node("n", 2), by="kubeshare")
    scene.place(700, affinity="team")

    assert [] == scene.where(700, affinity="team")


# The published benchmark's scores, computed by hand


def test_dotprod_is_cut_to_an_integer():
    """With 32 of 128 cores asked of 64 and 0.5 GPU of 8: 100 x (1 - (0.125 + 0.0625) / 2) is 90.625, so 90."""
    scene = Scene(node("n", 8, cpu=64000), by="dotprod")

    assert [90] == score(scene, Shape(0, 500, cpu_milli=32000))


def test_bestfit_is_stretched_over_the_candidates():
    """The node left with least has 100, the one left with most 0, and equal nodes 0."""
    scene = Scene(node("a", 8), node("b", 2), node("c", 4), by="bestfit")

    assert [0, 100, 67] == score(scene, Shape(0, 500))  # of 28, 65 and 53
    assert [0, 0] == score(Scene(node("a", 2), node("b", 2), by="bestfit"), Shape(0, 500))


def test_clustering_prefers_its_own_kind():
    """Own kind alone 75, with others 50, no GPU pod 25, others only 0; each plus up to 25 for what is used."""
    scene = Scene(node("own", 8), node("both", 8), node("none", 8), node("other", 8), by="clustering")
    scene.put("own/0", 500)
    scene.put("both/0", 500)
    scene.put("both/1", 1000)
    scene.put("other/0", 1000)

    assert [75 + 1, 50 + 4, 25, 3] == score(scene, Shape(0, 300))
    assert [0, 0, 0, 0] == score(scene, Shape(cpu_milli=1000))


def test_packing_has_three_bands():
    """Shared GPUs score by what is left on them, free GPUs of a used node under 50, free nodes 33 and less."""
    scene = Scene(node("shared", 2), node("used", 2), node("free", 2), by="packing")
    scene.put("shared/0", 500)
    scene.put("used/0", 900)

    assert [95, 49, 31] == score(scene, Shape(0, 300))
    assert [49, 49, 31] == score(scene, Shape(1))


def test_fgd_avoids_what_the_workload_can_not_use():
    """With a workload of halves, a part of 0.2 goes where a half is broken already."""
    target = [(Shape(0, 500), 1.0)]
    scene = Scene(node("whole", 1), node("broken", 1), by=Fgd(target))
    scene.put("broken/0", 600)

    assert ["broken/0"] == scene.where(200)


def test_fgd_scores_the_fall_of_fragmentation():
    """For pods of whole GPUs, 0.1 makes 0.9 of an idle GPU useless (100 x sigmoid(-0.9) = 28), and uses 0.1 of the
    useless half of another (100 x sigmoid(0.1) = 52)."""
    target = [(Shape(1), 1.0)]
    scene = Scene(node("idle", 1), node("busy", 1), by=Fgd(target))
    scene.put("busy/0", 500)

    assert [28, 52] == score(scene, Shape(0, 100))


def test_fgd_without_a_target_learns_from_arrivals():
    """What arrived is the workload expected; at the learning points all scores are forgotten."""
    scene = Scene(node("n", 2), by="fgd")
    epochs = []
    for _ in range(5):
        scene.decide(500)
        epochs.append(scene.decider.policy.epoch)

    assert [1, 2, 2, 3, 3] == [epoch - epochs[0] + 1 for epoch in epochs]


def test_the_target_workload_covers_95_percent():
    """The most frequent shapes are taken until 95 % of the pods are covered, and their shares made to sum to one."""
    counts = {Shape(0, 500): 90, Shape(1): 6, Shape(2): 3, Shape(3): 1}
    found = target_workload(counts)

    assert [Shape(0, 500), Shape(1)] == [shape for shape, _ in found]
    assert 1.0 == pytest.approx(sum(share for _, share in found))


def test_random_is_repeatable_and_random():
    """The same seed gives the same places, another seed others, and every device has its turn."""

    def places(seed: int) -> list[str]:
        scene = Scene(node("a", 4), node("b", 4), by="random", seed=seed)
        return [scene.place(100)[0] for _ in range(40)]

    assert places(1) == places(1) != places(2)
    assert 8 == len(set(places(1)))


# All


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_whole_gpus_are_close_and_the_rest_near_them(name):
    """Two and a half GPUs of two pairs are a pair and half of a third, under every policy."""
    scene = Scene(node("n", 4, topology=FIG7), by=name)
    got = scene.where(2500)

    assert 3 == len(set(got))
    assert {"n/2", "n/3"} == set(got[:2])


@pytest.mark.parametrize("name", sorted({*POLICIES} - {"random"}))
def test_equal_nodes_fall_to_the_smallest_rank(name):
    """Of nodes that are alike the one of the smallest rank is taken."""
    cluster = Cluster([node("c", 2, rank=3), node("a", 2, rank=1), node("b", 2, rank=2)])

    assert "a" == Decider(cluster, policy(name)).decide(asking(0, 300)).node
