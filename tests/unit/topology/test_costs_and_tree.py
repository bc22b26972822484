"""What a pair costs, and the access cost tree made of it."""

import pytest
from matrices import WHOLE, machine

from aliquot.topology import Topology, TreeNode, link_cost


def shape(node: TreeNode):
    """A node as (mode, children), a GPU as its index."""
    return node.gpu if node.gpu is not None else (node.mode, [shape(child) for child in node.children])


def lowest_common(node: TreeNode, a: int, b: int) -> TreeNode:
    """The node farthest from the root with both GPUs below it."""
    below = next((child for child in node.children if {a, b} <= set(child.gpus)), None)
    return node if below is None else lowest_common(below, a, b)


def test_links_cost_in_nvidias_order():
    """More NVLinks are nearer than fewer, any NVLink nearer than PCIe, and PCIe farther with every bridge."""
    order = ["NV18", "NV12", "NV6", "NV4", "NV2", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS"]

    assert order == sorted(order, key=link_cost)


@pytest.mark.parametrize("label", ["NV18", "NV2", "NV1", "PIX", "PXB", "PHB", "NODE"])
def test_another_numa_node_never_costs_as_much_as_a_worse_link(label):
    """The NUMA term separates equals and changes no order between labels."""
    order = ["NV18", "NV2", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS"]
    worse = order[order.index(label) + 1]

    assert link_cost(label) < link_cost(label, apart=True) < link_cost(worse)


def test_machines_that_hide_their_switches_are_parted_by_numa_node():
    """On eight RTX 4090, all pairs SYS, the two sockets make two groups."""
    assert ("SYS", [("SYS", [0, 1, 2, 3]), ("SYS", [4, 5, 6, 7])]) == shape(machine("host_8xrtx4090_sys").tree)


def test_cores_stand_for_nodes_that_are_not_told():
    """A matrix without a NUMA column still parts GPUs whose nearest cores differ."""
    dgx = machine("dgx1v_8xv100_sxm2")

    assert link_cost("NV2") == dgx.cost[0][3] < dgx.cost[0][4] == link_cost("NV2", apart=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tencent_test_6gpu", ("SYS", [("PHB", [("PIX", [0, 1]), ("PIX", [2, 3])]), ("PIX", [4, 5])])),
        ("aws_g5.12xlarge_4xa10g", ("PHB", [0, 1, 2, 3])),
        (
            "host_8gpu_pix_pxb_sys",
            ("SYS", [("PXB", [("PIX", [0, 1]), 2, 3]), ("PXB", [("PIX", [4, 5]), 6, 7])]),
        ),
        ("dgx2_16xv100_gpuonly", ("NV6", list(range(16)))),
        (
            "dgx1v_8xv100_sxm2",
            ("SYS", [("NV1", [("NV2", [0, 3]), ("NV2", [1, 2])]), ("NV1", [("NV2", [4, 7]), ("NV2", [5, 6])])]),
        ),
    ],
)
def test_the_tree_joins_those_that_are_nearest(name, expected):
    """GPUs are leaves; equals stand side by side under one node."""
    assert expected == shape(machine(name).tree)


@pytest.mark.parametrize("name", WHOLE)
def test_no_pair_costs_more_than_the_tree_says(name):
    """A pair costs at most its lowest common node, and exactly that where the tree tells everything."""
    topology = machine(name)
    for a in range(topology.count):
        for b in range(a):
            level = lowest_common(topology.tree, a, b).level_cost
            assert topology.cost[a][b] <= level
            assert not topology.is_tree or topology.cost[a][b] == level


@pytest.mark.parametrize("name", WHOLE)
def test_only_the_dgx_1_family_is_no_tree(name):
    """NVSwitch machines, bridges and PCIe are trees; the hybrid mesh of V100 boards is not."""
    mesh = name in ("dgx1v_8xv100_sxm2", "vm_8xv100_sxm2_phb", "aws_p3.8xlarge_4xv100")

    assert mesh is not machine(name).is_tree


def test_equal_machines_are_equal_and_hash_alike():
    """A cluster of one kind of machine has one topology for its memories."""
    one, other = machine("h20_4gpu"), machine("h20_4gpu")
    different = Topology.of(one.links, numa=[0, 0, 0, 0], cores=one.cores)

    assert (one == other, hash(one) == hash(other), one == different) == (True, True, False)
