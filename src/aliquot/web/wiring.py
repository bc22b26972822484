"""A machine's topology as the pages and the API tell it."""

from __future__ import annotations

from collections.abc import Collection

from aliquot.driver.cores import core_list
from aliquot.topology import Topology
from aliquot.topology import TreeNode as Branch
from aliquot.web.api import TopologyFacts, TreeNode


def topology_facts(node: str, topology: Topology, idle: Collection[int]) -> TopologyFacts:
    """What is near what; `idle` are the indices of the GPUs that are wholly free."""
    return TopologyFacts(
        node=node,
        links=[list(row) for row in topology.links],
        costs=[list(row) for row in topology.cost],
        numa=list(topology.numa),
        cores=[core_list(list(cores)) for cores in topology.cores],
        tree=_tree(topology.tree, frozenset(idle)),
    )


def _tree(branch: Branch, idle: frozenset[int]) -> TreeNode:
    free = len(idle.intersection(branch.gpus))
    if branch.gpu is not None:
        return TreeNode(f"GPU {branch.gpu}", branch.access_cost, free, branch.gpu)
    return TreeNode(branch.mode, branch.level_cost, free, children=[_tree(child, idle) for child in branch.children])
