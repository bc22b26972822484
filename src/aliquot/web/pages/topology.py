"""Topology of a node: the access-cost tree with its links drawn, free GPUs, and tenants.

Leaves are in a row, each place above the middle of what it holds, links are arcs: pure geometry in the units of the
drawing's viewBox. Only the nearest links are drawn as arcs (NVLink): what is further shown by the tree itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from aliquot.status import StatusSource, TopologyFacts, TreeNode
from aliquot.web.pages import NO_GPU, Drawn, NotHere, Query, commands, with_bars
from aliquot.web.render import block

LISTED: Final = 500
LEAF_WIDTH: Final = 120
LEVEL_HEIGHT: Final = 72
LEAF_HEIGHT: Final = 56
MARGIN: Final = 16
_ARC_STEP: Final = 18


def draw(facts: StatusSource, query: Query) -> Drawn:
    """The node that the query names, else the first."""
    nodes = facts.nodes()
    if not nodes:
        nothing = block("none", "blocks/none.html", text=NO_GPU)
        return Drawn("Topology", [nothing], {"nodes": [], "node": None})
    node = next((node for node in nodes if node.name == (query.get("node") or nodes[0].name)), None)
    if node is None:
        raise NotHere(f"There is no node {query['node'][:100]} here.")
    gpus = [gpu for gpu in facts.gpus() if gpu.node == node.name]
    known = facts.topology(node.name)
    by_row = dict(enumerate(sorted(gpus, key=lambda gpu: gpu.index)))
    picture = drawing(known) if known and known.tree else None
    rows = with_bars(gpus)
    blocks = [
        block("topology", "blocks/topology.html", node=node, topology=known, picture=picture, rows=rows, gpus=by_row)
    ]
    return Drawn(
        f"Topology of {node.name}",
        blocks,
        {"nodes": nodes[:LISTED], "node": node, "command": commands.topology(facts, node.name)},
    )


@dataclass(frozen=True)
class Place:
    """A box of the tree; `index` is that of the GPU, -1 for a box that is none."""

    x: float
    y: float
    label: str
    free: int
    cost: int
    index: int = -1


class TreeLine(NamedTuple):
    """From a box down to what it holds."""

    x1: float
    y1: float
    x2: float
    y2: float


class Arc(NamedTuple):
    """A direct link between two leaves, drawn below them; `lanes` is 2 for NV2."""

    x1: float
    x2: float
    y: float
    depth: float
    label: str
    lanes: int


class Drawing(NamedTuple):
    """Everything with its position; `words` describes the tree for viewers who do not see it."""

    width: float
    height: float
    places: list[Place]
    lines: list[TreeLine]
    arcs: list[Arc]
    words: str


def drawing(topology: TopologyFacts) -> Drawing:
    """A topology, whose tree must be known. The further apart a link's ends, the deeper it hangs."""
    assert topology.tree is not None
    bottom = MARGIN + LEVEL_HEIGHT * (_depth(topology.tree) - 1)
    places: list[Place] = []
    lines: list[TreeLine] = []
    leaves: dict[int, float] = {}

    def put(node: TreeNode, y: float) -> float:
        """Place a node and what is below, from left to right; where its middle is."""
        if node.gpu >= 0:
            x = leaves[node.gpu] = MARGIN + LEAF_WIDTH * (len(leaves) + 0.5)
            places.append(Place(x, bottom, node.label, node.free, node.cost, node.gpu))
            return x
        below = [(child, put(child, y + LEVEL_HEIGHT)) for child in node.children]
        x = (below[0][1] + below[-1][1]) / 2
        for child, child_x in below:
            lines.append(TreeLine(x, y + 28, child_x, bottom if child.gpu >= 0 else y + LEVEL_HEIGHT - 8))
        places.append(Place(x, y, node.label, node.free, node.cost))
        return x

    put(topology.tree, MARGIN)
    links = [
        (i, j, label)
        for i, row in enumerate(topology.links)
        for j, label in enumerate(row)
        if i < j and label.startswith("NV") and i in leaves and j in leaves
    ]
    if len({label for _, _, label in links}) == 1 and len(links) > len(leaves) * 2:
        links = []  # a fabric that joins all alike is left to words
    arcs = []
    for i, j, label in links:
        apart = abs(leaves[i] - leaves[j]) / LEAF_WIDTH
        lanes = int(label[2:]) if label[2:].isdigit() else 1
        arcs.append(Arc(leaves[i], leaves[j], bottom + LEAF_HEIGHT, _ARC_STEP * (1 + apart), label, lanes))
    lowest = max((arc.y + 0.75 * arc.depth for arc in arcs), default=bottom + LEAF_HEIGHT)
    return Drawing(2 * MARGIN + LEAF_WIDTH * len(leaves), lowest + MARGIN, places, lines, arcs, _words(topology.tree))


def _depth(node: TreeNode) -> int:
    return 1 + max((_depth(child) for child in node.children), default=0)


def _words(node: TreeNode) -> str:
    if node.gpu >= 0:
        return node.label
    return f"{node.label} ({', '.join(_words(child) for child in node.children)})"
