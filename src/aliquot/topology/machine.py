"""One machine's GPUs: links, pair costs, NUMA nodes, nearest cores and the access cost tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from aliquot.model.errors import UserError
from aliquot.topology.links import LABELS, SELF, known_label, link_cost

MAX_GPUS: Final = 64


class BadTopology(UserError):
    """A matrix that is cut off, contradicts itself or holds what no version of nvidia-smi prints."""


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One node of the access cost tree: a GPU (`gpu` is its index, no children) or a topology node (`gpu` is None).

    Where pair costs come from a real tree, each pair costs exactly what their lowest common node says. Where they do
    not (the NVLink mesh of a DGX-1V), the tree joins the groups whose *worst* pair is nearest first, so a node promises
    at most its cost for every pair below it; choices are then made by pair costs, the tree is the picture.

    Source: Gaia Scheduler (ISPA 2018), III.B. Readings: a topology node's level cost is what its children pay to talk
    to each other, so a GPU's access cost is the level cost of its parent; the number of resources of a topology node is
    the number of GPUs below it that are wholly free.

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
        # A part whose own level is this one gives its parts, so equals stand side by side.
        level, both = worst[a, b], (groups[a], groups[b])
        parts = [part for group in both for part in (group.parts if group.cost == level else (group,))]
        gpus = tuple(sorted(groups[a].gpus + groups[b].gpus))
        groups[a] = _Group(gpus, level, tuple(sorted(parts, key=lambda part: part.gpus)))
        alive.remove(b)
    return _frozen(groups[0], links, cost, 0)


def _ordered(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


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


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """How `count` GPUs are connected. Made by `Topology.of` or `parse_topo`; equal machines are equal and hash alike.

    `links[i][j]` is the label of a pair (`X` for i == j), `cost[i][j]` what it costs to talk (lower is nearer, 0 for
    i == j), `numa[i]` the GPU's NUMA node where it is one and known, `cores[i]` its nearest CPU cores, ascending, as
    far as known (nvidia-smi cuts long lists).
    """

    count: int
    links: tuple[tuple[str, ...], ...]
    cost: tuple[tuple[int, ...], ...]
    numa: tuple[int | None, ...]
    cores: tuple[tuple[int, ...], ...]
    tree: TreeNode
    is_tree: bool
    """Whether the tree gives every pair's cost; False for a mesh such as a DGX-1V's."""
    _hash: int = field(repr=False)

    @staticmethod
    def of(
        links: Sequence[Sequence[str]],
        *,
        numa: Sequence[int | None] | None = None,
        cores: Sequence[Sequence[int]] | None = None,
        where: str = "topology",
    ) -> Topology:
        """The topology of a matrix of labels [n][n]; `numa` and `cores` [n] where known; `where` begins an error.

        Raises:
            BadTopology: no GPU or more than 64, an unknown label, not square or not symmetric; names the cells.
        """
        matrix = _checked(links, where)
        count = len(matrix)
        nodes = tuple(numa) if numa is not None else (None,) * count
        near = tuple(tuple(sorted(set(each))) for each in cores) if cores is not None else ((),) * count
        cost = tuple(
            tuple(link_cost(label, apart=_apart(i, j, nodes, near)) for j, label in enumerate(row))
            for i, row in enumerate(matrix)
        )
        tree = build_tree(matrix, cost)
        return Topology(count, matrix, cost, nodes, near, tree, is_ultrametric(tree, cost), hash((matrix, nodes, near)))

    def __eq__(self, other: object) -> bool:
        """Whether the other machine is wired alike."""
        if self is other:
            return True
        if not isinstance(other, Topology):
            return NotImplemented
        return (self.links, self.numa, self.cores) == (other.links, other.numa, other.cores)

    def __hash__(self) -> int:
        """Reckoned once: choices are remembered by topology."""
        return self._hash


def _apart(i: int, j: int, numa: Sequence[int | None], cores: Sequence[tuple[int, ...]]) -> bool:
    """Whether two GPUs are known to be on different NUMA nodes: by number, else by cores that have none in common."""
    a, b = numa[i], numa[j]
    if a is not None and b is not None:
        return a != b
    return bool(cores[i]) and bool(cores[j]) and set(cores[i]).isdisjoint(cores[j])


def _checked(links: Sequence[Sequence[str]], where: str) -> tuple[tuple[str, ...], ...]:
    count = len(links)
    if not 1 <= count <= MAX_GPUS:
        raise BadTopology(f"{where}: {count} GPUs; a machine has 1 to {MAX_GPUS}")
    rows = tuple(tuple(known_label(text) or "" for text in row) for row in links)
    for i, row in enumerate(rows):
        for j, label in enumerate(row):
            if not label:
                raise BadTopology(f"{where}: row GPU{i}, column GPU{j} is {links[i][j]!r}; {LABELS}")
    for i, row in enumerate(rows):
        if len(row) != count:
            raise BadTopology(f"{where}: row GPU{i} has {len(row)} cells for {count} GPUs; a matrix is square")
        for j, label in enumerate(row):
            if (label == SELF) != (i == j):
                meant = f"{SELF} stands for a GPU and itself, and only for that"
                raise BadTopology(f"{where}: row GPU{i}, column GPU{j} is {label}; {meant}")
    for i, row in enumerate(rows):
        for j in range(i + 1, count):
            if row[j] != rows[j][i]:
                raise BadTopology(
                    f"{where}: row GPU{i}, column GPU{j} is {row[j]} but row GPU{j}, column GPU{i} is {rows[j][i]}; "
                    "a matrix is the same in both directions, so correct one of the two"
                )
    return rows
