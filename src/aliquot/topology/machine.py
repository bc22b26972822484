"""One machine's GPUs: links, pair costs, NUMA nodes, nearest cores and the access cost tree.

What a link between two GPUs costs, by the label that `nvidia-smi topo -m` gives it.

The order is NVIDIA's: bonded NVLinks, then one PCIe switch (PIX), several switches (PXB), the host bridge (PHB), two
host bridges of one NUMA node (NODE), two NUMA nodes (SYS, in old drivers SOC). The Gaia paper's text puts PXB above
PHB, its figures and NVIDIA the other way round; NVIDIA's order is taken, with NODE and NVLink added.

A machine that hides its switches (all pairs SYS on a server of eight RTX 4090, all PHB in a virtual machine) still has
two sockets: GPUs known to be on different ones cost a little more than the label says, never as much as a worse label.

Reads what `nvidia-smi topo -m` (or `-mp`) prints, from any of its versions and through any terminal.

Columns are separated by blanks or tabs alone; a header may lack its leading column, columns and rows of network cards
may stand between the GPUs and the affinities, and legends may follow. What is refused is a matrix that does not hold
every pair of the GPUs it names: half a machine would be placed on as if it were whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from aliquot.model.errors import UserError

SELF: Final = "X"
PCIE_COST: Final = {"PIX": 2000, "PXB": 3000, "PHB": 4000, "NODE": 5000, "SYS": 6000}
"""Cost of a pair that talks over PCIe."""
NVLINK_COST: Final = 1000
"""Cost of a pair with one NVLink; with k links it is divided by k and rounded."""
APART_COST: Final = 500
"""Added to a PCIe pair on different NUMA nodes."""
APART_NVLINK_COST: Final = 1
"""The same for an NVLink pair, whose traffic does not pass the sockets: only a tie-break."""
MAX_NVLINKS: Final = 36
LABELS: Final = "a link is one of NV1 to NV36, PIX, PXB, PHB, NODE, SYS (or the old SOC), and X on the diagonal"
"""For errors."""

_NVLINK: Final = re.compile(r"NV([1-9][0-9]?)")
_SAME: Final = {"SOC": "SYS"}
# Effective GB/s a direction, by NCCL's table (graph/topo.h) for one generation of machine: NVLink of a V100, PCIe Gen3
# x16, a Broadwell socket link; what passes an Intel host bridge is slowed by 6/5 there.
_NVLINK_GBPS: Final = 20.0
_PCIE_GBPS: Final = {"PIX": 12.0, "PXB": 12.0, "PHB": 10.0, "NODE": 10.0, "SYS": 5.0}


def nvlinks(label: str) -> int:
    """Number of bonded NVLinks that a label such as `NV12` tells; 0 for any other."""
    found = _NVLINK.fullmatch(label)
    return int(found.group(1)) if found else 0


def known_label(text: str) -> str | None:
    """The label in today's spelling (`SOC` is `SYS`), or None when no version of nvidia-smi prints it."""
    label = _SAME.get(text, text)
    if label == SELF or label in PCIE_COST or 0 < nvlinks(label) <= MAX_NVLINKS:
        return label
    return None


def link_cost(label: str, *, apart: bool = False) -> int:
    """What a pair costs, lower is nearer, in hundredths of the paper's rank (PIX 2000); `apart` = other NUMA node.

    Raises:
        KeyError: no such label.
    """
    if label == SELF:
        return 0
    links = nvlinks(label)
    if links:
        return round(NVLINK_COST / links) + APART_NVLINK_COST * apart
    return PCIE_COST[label] + APART_COST * apart


def bandwidth_gbps(label: str) -> float:
    """Modelled bandwidth of a pair in GB/s a direction, the same generation of hardware for all machines.

    It compares sets on one machine; it predicts no machine's measured figure.

    Raises:
        KeyError: no such label.
    """
    links = nvlinks(label)
    return _NVLINK_GBPS * links if links else _PCIE_GBPS[label]


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


_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # nvidia-smi underlines its header
_GPU: Final = re.compile(r"GPU(\d{1,3})", re.ASCII)
_RANGE: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)
_CORES_MAX: Final = 65536
_WHOLE: Final = "paste the whole output of nvidia-smi topo -m"


@dataclass(frozen=True)
class _Header:
    """Device columns in order, and which affinities follow them."""

    devices: tuple[str, ...]
    has_cores: bool
    has_numa: bool


class _Refused(Exception):
    """The sentence without the place."""


def parse_topo(text: str, *, where: str = "topology") -> Topology:
    """The topology of the GPUs in a printed matrix; `where` (a file's name) begins the sentence of an error.

    Raises:
        BadTopology: no matrix in the text, a row missing or cut off, an unknown label, or a pair that has two labels.
    """
    try:
        header, rows = _read(text)
    except _Refused as refused:
        raise BadTopology(f"{where}: {refused}") from None
    gpus = [name for name in header.devices if _GPU.fullmatch(name)]
    at = [header.devices.index(name) for name in gpus]
    cells = [[rows[name][column] for column in at] for name in gpus]
    tails = [rows[name][len(header.devices) :] for name in gpus]
    numa, cores = [_numa(tail, header) for tail in tails], [_cores(tail, header) for tail in tails]
    return Topology.of(cells, numa=numa, cores=cores, where=where)


def _is_row(words: Sequence[str]) -> bool:
    return len(words) > 1 and known_label(words[1]) is not None


def _header(lines: Iterable[list[str]]) -> _Header | None:
    """The first line that begins with a GPU and is not a row: names of devices, then of affinities."""
    for words in lines:
        if words and _GPU.fullmatch(words[0]) and not _is_row(words):
            end = next((i for i, word in enumerate(words) if word in ("CPU", "NUMA", "GPU")), len(words))
            tail = " ".join(words[end:])
            return _Header(tuple(words[:end]), "CPU Affinity" in tail, re.search(r"NUMA(?! ID)", tail) is not None)
    return None


def _read(text: str) -> tuple[_Header, dict[str, list[str]]]:
    """The header and the rows of GPUs, which hold every pair of the GPUs that the header names."""
    lines = [_ESCAPE.sub("", line).split() for line in text.splitlines()]
    rows: dict[str, list[str]] = {}
    for words in lines:
        if words and _GPU.fullmatch(words[0]) and _is_row(words):
            if words[0] in rows:
                raise _Refused(f"row {words[0]} is there twice; give one matrix at a time")
            rows[words[0]] = words[1:]
    header = _header(lines)
    if header is None:  # the rows name the columns, which is certain only when every column has its row
        if not rows:
            raise _Refused(f"there is no matrix in this text (no row begins with GPU0); {_WHOLE}")
        names = [words[0] for words in lines if _is_row(words) and known_label(words[0]) is None]
        width = max(sum(known_label(cell) is not None for cell in row) for row in rows.values())
        if width != len(names):
            raise _Refused(
                f"the line that names the columns is missing, and {len(names)} rows do not explain {width} columns; "
                f"{_WHOLE}"
            )
        header = _Header(tuple(names), True, True)
    # Columns and rows are GPU0, GPU1, ... without a gap.
    gpus = [name for name in header.devices if _GPU.fullmatch(name)]
    for index, name in enumerate(gpus):
        if name != f"GPU{index}":
            raise _Refused(f"column {name} stands where GPU{index} is due; {_WHOLE}")
    missing = [name for name in gpus if name not in rows]
    if missing:
        which = f"row {missing[0]} is" if len(missing) == 1 else f"rows {', '.join(missing)} are"
        raise _Refused(f"{which} missing, the columns go up to {gpus[-1]}; {_WHOLE}")
    for name in rows:
        if name not in gpus:
            raise _Refused(f"row {name} has no column, the columns end at {gpus[-1]}; {_WHOLE}")
    # Every row has a link in every device column, of network cards too: else what follows would be misread.
    for name, row in rows.items():
        for column, cell in zip(header.devices, row, strict=False):
            if known_label(cell) is None:
                raise _Refused(f"row {name}, column {column} is {cell!r}; {LABELS}")
        if len(row) < len(header.devices):
            raise _Refused(f"row {name} is cut off, it has {len(row)} of {len(header.devices)} columns; {_WHOLE}")
    return header, rows


def _cores(tail: Sequence[str], header: _Header) -> list[int]:
    """The nearest cores; a list that nvidia-smi or a terminal cut keeps what is whole of it."""
    if not header.has_cores or not tail:
        return []
    cores: list[int] = []
    for part in tail[0].split(","):
        found = _RANGE.fullmatch(part)
        first, last = (int(found.group(1)), int(found.group(2) or found.group(1))) if found else (1, 0)
        if last < first or last >= _CORES_MAX:
            break
        cores += range(first, last + 1)
    return cores


def _numa(tail: Sequence[str], header: _Header) -> int | None:
    """The one NUMA node; None for N/A, for several (`0-1`) and where the column is missing."""
    at = int(header.has_cores)
    if not header.has_numa or len(tail) <= at or "-" in tail[at] or not _RANGE.fullmatch(tail[at]):
        return None
    return int(tail[at])
