"""Topology of a node: the access-cost tree with its links drawn, free GPUs, and tenants."""

from __future__ import annotations

from typing import Final

from aliquot.web.api import Gpu, TopologyFacts
from aliquot.web.facts import Facts
from aliquot.web.pages import NO_GPU, Drawn, NotHere, Query
from aliquot.web.pages.bars import compute_bar, memory_bar
from aliquot.web.pages.tree import Drawing, drawing
from aliquot.web.render import block

LISTED: Final = 500


def draw(facts: Facts, query: Query) -> Drawn:
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
    picture = _picture(known, gpus) if known else None
    rows = [(gpu, compute_bar(gpu), memory_bar(gpu)) for gpu in gpus]
    blocks = [block("topology", "blocks/topology.html", node=node, topology=known, picture=picture, rows=rows)]
    return Drawn(f"Topology of {node.name}", blocks, {"nodes": nodes[:LISTED], "node": node})


def _picture(topology: TopologyFacts, gpus: list[Gpu]) -> Drawing | None:
    return drawing(topology, dict(enumerate(sorted(gpus, key=lambda gpu: gpu.index)))) if topology.tree else None
