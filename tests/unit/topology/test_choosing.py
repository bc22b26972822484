"""Golden cases: which GPUs are taken, by the Gaia paper, by gpu-manager and by NVIDIA's own tables."""

from collections import Counter
from random import Random

import pytest
from matrices import machine

from aliquot.topology import NotEnoughGpus, Topology, best_set, nearest, singular


def linked(count: int, default: str, **pairs: str) -> Topology:
    """A machine whose pairs are `default` apart from those given, as p03="NV2"."""
    labels = [["X" if i == j else default for j in range(count)] for i in range(count)]
    for pair, label in pairs.items():
        a, b = int(pair[1]), int(pair[2])
        labels[a][b] = labels[b][a] = label
    return Topology.of(labels)


PAPER = linked(4, "SYS", p01="PHB", p23="PIX")
"""Fig. 7 of the paper: two pairs, GPU 2 and 3 nearer to each other than 0 and 1."""
TENCENT = machine("tencent_test_6gpu")


def test_table_1_one_gpu_is_either_of_the_nearest_pair():
    """Of 500 seeded draws on the empty tree all fall to GPU 2 and 3, about evenly (the paper: 227 and 273)."""
    draw = Random(7)
    drawn = Counter(singular(PAPER, range(4), [], tie=draw.choice) for _ in range(500))

    assert {2, 3} == set(drawn)
    assert 200 <= drawn[2] <= 300


@pytest.mark.parametrize(
    ("gpu", "topology", "taken"),
    [(2, PAPER, []), (3, PAPER, [2]), (5, TENCENT, [4]), (4, TENCENT, [])],
    ids=["the lowest of equals", "table 3", "figure 5", "of the smallest group where none is broken"],
)
def test_a_single_gpu_breaks_the_least(gpu: int, topology: Topology, taken: list[int]):
    """One GPU comes from a pair that is broken already, else from the smallest group, without a draw the lowest id."""
    assert gpu == singular(topology, [g for g in range(topology.count) if g not in taken], taken)


def test_a_single_gpu_leaves_a_mesh_its_pairs():
    """On a DGX-1V with GPU 0 taken, a single GPU leaves three pairs with two links and the other board whole."""
    dgx = machine("dgx1v_8xv100_sxm2")
    rest = set(range(1, 8)) - {singular(dgx, range(1, 8), [0])}
    pairs = []
    while rest:
        pairs.append(best_set(dgx, rest, 2))
        rest -= set(pairs[-1])

    assert ["NV2"] * 3 == [dgx.links[a][b] for a, b in pairs]
    assert {4, 5, 6, 7} == {gpu for pair in pairs[1:] for gpu in pair}


def test_a_tree_of_one_gpu_works():
    """One GPU is every set and every single."""
    alone = linked(1, "SYS")

    assert ((0,), 0) == (best_set(alone, [0], 1), singular(alone, [0], []))


@pytest.mark.parametrize(
    ("name", "n", "sets"),
    [
        ("dgx1v_8xv100_sxm2", 2, [(0, 3), (1, 2), (4, 7), (5, 6)]),
        ("dgx1v_8xv100_sxm2", 4, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("vm_8xv100_sxm2_phb", 4, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("aws_p3.8xlarge_4xv100", 2, [(0, 3), (1, 2)]),
        ("host_8xrtx4090_sys", 4, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("host_8gpu_pcie_sys_64cpu", 4, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("host_4xa30_nvbridge", 2, [(0, 1), (2, 3)]),
        ("dgx2_16xv100_gpuonly", 8, [tuple(range(8)), tuple(range(8, 16))]),
    ],
)
def test_jobs_of_one_size_divide_a_machine_well(name, n, sets):
    """One after the other, jobs get the sets of NVIDIA's own tables for DGX machines, and whole sockets elsewhere."""
    topology = machine(name)
    free, taken = set(range(topology.count)), []
    while free:
        taken.append(best_set(topology, free, n))
        free -= set(taken[-1])

    assert sets == taken


def test_the_rest_of_a_request_goes_nearest_to_its_whole_gpus():
    """GPUs are ordered by what they cost to talk with all of a set."""
    assert [1, 3, 4, 5] == nearest(TENCENT, [0, 2], [1, 3, 4, 5])
    assert [3, 0, 1] == nearest(TENCENT, [2], [0, 1, 3])


@pytest.mark.parametrize(("free", "n"), [([0, 1], 3), ([0, 1], 0), ([], 1), ([0, 9], 1)])
def test_what_is_not_free_can_not_be_chosen(free, n):
    """A set is 1 to as many as are free, of the machine's own GPUs."""
    with pytest.raises(NotEnoughGpus):
        best_set(TENCENT, free, n)


def test_no_free_gpu_has_no_single():
    """A machine without a wholly free GPU has none to give."""
    with pytest.raises(NotEnoughGpus, match="no GPU is wholly free"):
        singular(TENCENT, [], range(6))
