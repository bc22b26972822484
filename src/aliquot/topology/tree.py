"""The resource access cost tree: GPUs are leaves, a topology node joins those that talk at its cost.

Where pair costs come from a real tree, each pair costs exactly what their lowest common node says. Where they do not
(the NVLink mesh of a DGX-1V), the tree joins the groups whose *worst* pair is nearest first, so a node promises at most
its cost for every pair below it; choices are then made by pair costs, the tree is the picture.

Source: Gaia Scheduler (ISPA 2018), III.B. Readings: a topology node's level cost is what its children pay to talk to
each other, so a GPU's access cost is the level cost of its parent; the number of resources of a topology node is the
number of GPUs below it that are wholly free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One node: a GPU (`gpu` is its index, no children) or a topology node (`gpu` is None).

    `mode` is how its children talk (a link label; empty for a GPU), `level_cost` what the worst pair of them costs,
    `access_cost` the level cost of the parent for a GPU and 0 for a topology node, `gpus` all indices below, ascending.
    """

    gpus: tuple[int, ...]
    mode: str = ""
    level_cost: int = 0
    access_cost: int = 0
    gpu: int | None = None
    children: tuple[TreeNode, ...] = ()

    def walk(self) -> Iterator[TreeNode]:
        """This node and all below, parents first, children in order of their first GPU."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass
class _Group:
    """A node in the making."""

    gpus: tuple[int, ...]
    cost: int
    parts: tuple[_Group, ...]


def build_tree(links: Sequence[Sequence[str]], cost: Sequence[Sequence[int]]) -> TreeNode:
    """The tree of a symmetric matrix of pair costs [n][n] and of its labels; ties join the lowest indices first."""
    groups = [_Group((gpu,), -1, ()) for gpu in range(len(cost))]
    worst = {(a, b): cost[a][b] for b in range(len(cost)) for a in range(b)}
    alive = list(range(len(cost)))
    while len(alive) > 1:
        a, b = min(combinations(alive, 2), key=lambda pair: (worst[pair], pair))
        for other in alive:
            if other not in (a, b):
                into, gone = _ordered(a, other), _ordered(b, other)
                worst[into] = max(worst[into], worst[gone])
        groups[a] = _joined(groups[a], groups[b], worst[a, b])
        alive.remove(b)
    return _frozen(groups[0], links, cost, 0)


def _ordered(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


def _joined(a: _Group, b: _Group, cost: int) -> _Group:
    """One node of both; a part whose own level is this one gives its parts, so equals stand side by side."""
    parts = [part for group in (a, b) for part in (group.parts if group.cost == cost else (group,))]
    return _Group(tuple(sorted(a.gpus + b.gpus)), cost, tuple(sorted(parts, key=lambda part: part.gpus)))


def _frozen(group: _Group, links: Sequence[Sequence[str]], cost: Sequence[Sequence[int]], parent_cost: int) -> TreeNode:
    if not group.parts:
        return TreeNode(group.gpus, access_cost=parent_cost, gpu=group.gpus[0])
    mode = next(links[a][b] for a in group.gpus for b in group.gpus if a < b and cost[a][b] == group.cost)
    children = tuple(_frozen(part, links, cost, group.cost) for part in group.parts)
    return TreeNode(group.gpus, mode, group.cost, children=children)


def is_ultrametric(root: TreeNode, cost: Sequence[Sequence[int]]) -> bool:
    """Whether each pair costs exactly the level of its lowest common node: the tree loses nothing."""
    return all(
        cost[a][b] == node.level_cost
        for node in root.walk()
        for at, one in enumerate(node.children)
        for other in node.children[at + 1 :]
        for a in one.gpus
        for b in other.gpus
    )
