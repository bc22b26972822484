"""Policies by examples from their sources; that all decide as their plain forms do is in `tests/property/placement`."""

import pytest
from asking import asking
from scene import Scene, node

from aliquot.placement.asks import Shape
from aliquot.placement.cluster import Cluster
from aliquot.placement.decide import Decider
from aliquot.placement.policies.fgd import target_workload
from aliquot.placement.policy import POLICIES, UnknownPolicy, policy
from aliquot.topology import Topology

# Gaia's Fig. 7: gpu2 and gpu3 on one switch, gpu0 and gpu1 under a host bridge, the pairs two sockets apart.
FIG7 = Topology.of(
    [["X", "PHB", "SYS", "SYS"], ["PHB", "X", "SYS", "SYS"], ["SYS", "SYS", "X", "PIX"], ["SYS", "SYS", "PIX", "X"]]
)


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


# Gaia, Tables I to IV


def test_gaia_table_1_two_gpus():
    """On the empty tree two GPUs are gpu2 and gpu3."""
    assert ["n/2", "n/3"] == Scene(node("n", 4, topology=FIG7), by="gaia").where(2000)


def test_gaia_table_2_fragments_stay_together():
    """With half of gpu2 taken, 0.4 and then 0.1 go to gpu2."""
    scene = Scene(node("n", 4, topology=FIG7), by="gaia")
    scene.put("n/2", 500)

    assert [["n/2"], ["n/2"]] == [scene.place(400), scene.place(100)]


# FGD's target


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
