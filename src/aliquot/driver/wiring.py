"""A machine's topology in the form of the pages and the API."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from aliquot.driver.gpu import core_list
from aliquot.status import Gpu, TopologyFacts, TreeNode
from aliquot.topology import Topology
from aliquot.topology import TreeNode as Branch


def topology_of_gpus(node: str, topology: Topology, gpus: Iterable[Gpu]) -> TopologyFacts:
    """The links among these GPUs of a node, whose indices may have gaps."""
    placed = sorted(gpus, key=lambda gpu: gpu.index)
    idle = {place for place, gpu in enumerate(placed) if gpu.state == "idle"}
    return topology_facts(node, topology, idle, [gpu.index for gpu in placed])


def topology_facts(node: str, topology: Topology, idle: Collection[int], indices: Sequence[int] = ()) -> TopologyFacts:
    """The links; `idle` are the positions of the GPUs that are wholly free, `indices` their names."""
    if len(indices) != topology.count:
        indices = range(topology.count)
    return TopologyFacts(
        node=node,
        links=[list(row) for row in topology.links],
        costs=[list(row) for row in topology.cost],
        numa=list(topology.numa),
        cores=[core_list(list(cores)) for cores in topology.cores],
        tree=_tree(topology.tree, frozenset(idle), indices),
    )


def _tree(branch: Branch, idle: frozenset[int], indices: Sequence[int]) -> TreeNode:
    free = len(idle.intersection(branch.gpus))
    if branch.gpu is not None:
        return TreeNode(f"GPU {indices[branch.gpu]}", branch.access_cost, free, branch.gpu)
    below = [_tree(child, idle, indices) for child in branch.children]
    return TreeNode(branch.mode, branch.level_cost, free, children=below)
