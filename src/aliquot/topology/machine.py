"""One machine's GPUs: links, pair costs, NUMA nodes, nearest cores and the access cost tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from aliquot.model.errors import UserError
from aliquot.topology.links import LABELS, SELF, known_label, link_cost
from aliquot.topology.tree import TreeNode, build_tree, is_ultrametric

MAX_GPUS: Final = 64


class BadTopology(UserError):
    """A matrix that is cut off, contradicts itself or holds what no version of nvidia-smi prints."""


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
    rows = tuple(tuple(_label(i, j, text, where) for j, text in enumerate(row)) for i, row in enumerate(links))
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


def _label(i: int, j: int, text: str, where: str) -> str:
    label = known_label(text)
    if label is None:
        raise BadTopology(f"{where}: row GPU{i}, column GPU{j} is {text!r}; {LABELS}")
    return label
