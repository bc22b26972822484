"""The drawn topology."""

import itertools
from importlib.resources import files

import pytest

from aliquot.driver.wiring import topology_facts
from aliquot.status import TreeNode
from aliquot.topology import Topology, parse_topo
from aliquot.web.pages.topology import LEAF_WIDTH, Drawing, drawing

FOLDER = files("aliquot.driver") / "profiles" / "topologies"
MACHINES = sorted(entry.name for entry in FOLDER.iterdir() if entry.name.endswith(".txt"))


def topology(name: str) -> Topology:
    """A machine as nvidia-smi printed it."""
    return parse_topo((FOLDER / name).read_text())


def drawn(name: str, idle: frozenset[int] = frozenset()) -> Drawing:
    return drawing(topology_facts("here", topology(name), idle))


@pytest.mark.parametrize("name", MACHINES)
def test_every_gpu_has_one_place(name: str):
    """Each GPU is drawn once, and no two boxes of a row overlap."""
    picture = drawn(name)
    leaves = [place for place in picture.places if place.index >= 0]

    assert list(range(topology(name).count)) == sorted(place.index for place in leaves)
    across = sorted(place.x for place in leaves)
    assert all(right - left >= LEAF_WIDTH for left, right in itertools.pairwise(across))
    assert all(0 < place.x < picture.width and 0 <= place.y < picture.height for place in picture.places)


@pytest.mark.parametrize("name", MACHINES)
def test_lines_go_down(name: str):
    """Each box but the root hangs on one line from a box above it."""
    picture = drawn(name)

    assert len(picture.places) - 1 == len(picture.lines)
    assert all(line.y1 < line.y2 for line in picture.lines)


def test_each_link_of_a_mesh_is_an_arc():
    """On a DGX-1V every pair with NVLink has its arc, with its number of lanes."""
    machine = topology("dgx1v_8xv100_sxm2.txt")
    linked = [label for i, row in enumerate(machine.links) for label in row[i + 1 :] if label.startswith("NV")]

    assert sorted(linked) == sorted(arc.label for arc in drawn("dgx1v_8xv100_sxm2.txt").arcs)
    assert {arc.lanes for arc in drawn("dgx1v_8xv100_sxm2.txt").arcs} == {int(label[2:]) for label in linked}


def test_a_fabric_that_joins_all_alike_is_not_a_tangle():
    """On an NVSwitch machine no arcs are drawn: the tree's one node says it."""
    assert [] == drawn("host_8xh100_sxm.txt").arcs


def test_idle_gpus_are_counted_below_each_place():
    """A place says how many of the GPUs below it are idle."""
    facts = topology_facts("here", topology("dgx1v_8xv100_sxm2.txt"), {0, 1, 4})

    def check(node: TreeNode) -> set[int]:
        below = {node.gpu} if node.gpu >= 0 else set().union(*(check(child) for child in node.children))
        assert len(below & {0, 1, 4}) == node.free
        return below

    assert facts.tree is not None and set(range(8)) == check(facts.tree)


def test_the_tree_is_told_in_words():
    """Who does not see the drawing hears every GPU and every link class."""
    words = drawn("dgx1v_8xv100_sxm2.txt").words

    assert all(f"GPU {index}" in words for index in range(8)) and words.startswith("SYS (NV1 (NV2 (")


def test_gpus_are_called_by_their_indices():
    """Where a GPU of the node is left out, those behind it keep their numbers and their links."""
    facts = topology_facts("here", Topology.of([["X", "NV2"], ["NV2", "X"]]), {1}, [0, 5])

    assert facts.tree is not None
    assert ["GPU 0", "GPU 5"] == [child.label for child in facts.tree.children]
    assert [0, 1] == [child.free for child in facts.tree.children]
    assert ["NV2"] == [arc.label for arc in drawing(facts).arcs]
