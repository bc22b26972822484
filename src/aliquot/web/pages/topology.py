"""Topology of a node: the access-cost tree with its links drawn, free GPUs, and tenants."""

from __future__ import annotations

from typing import Final

from aliquot.status import StatusSource
from aliquot.web.pages import NO_GPU, Drawn, NotHere, Query, commands
from aliquot.web.pages.bars import with_bars
from aliquot.web.pages.tree import drawing
from aliquot.web.render import block

LISTED: Final = 500


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
    picture = drawing(known, by_row) if known and known.tree else None
    rows = with_bars(gpus)
    blocks = [
        block("topology", "blocks/topology.html", node=node, topology=known, picture=picture, rows=rows, gpus=by_row)
    ]
    return Drawn(
        f"Topology of {node.name}",
        blocks,
        {"nodes": nodes[:LISTED], "node": node, "command": commands.topology(facts, node.name)},
    )
