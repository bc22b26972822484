"""Clusters to simulate: a table of nodes, GPU profiles with counts, or the ledger of a live cluster.

- a table: `sn, cpu_milli, memory_mib, gpu, model` (`name` may stand for `sn`, `gpu_memory_mib` may be added)
- profiles: `v100x4*8` are 8 machines of 4 V100 with their links; joined by commas: `v100x4*8,t4*10`
- a ledger: a `.json` file with a cluster's nodes, as the scheduler writes them; running pods are left out
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from aliquot.driver.emulation import UnknownProfile, parse_spec, profile_topology
from aliquot.model.errors import AliquotError, UserError
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device
from aliquot.placement.cluster import NodeSpec
from aliquot.placement.saved import load
from aliquot_lab.sim.openb.trace import node_specs, read_nodes
from aliquot_lab.sim.tables import read_text

MAX_NODES: Final = 20_000
CPU_MILLI_PER_GPU: Final = 12_000
MEMORY_MIB_PER_GPU: Final = 96 * 1024
_PROFILES: Final = re.compile(r"[a-z0-9-]+(\*[0-9]{1,9})?(,[a-z0-9-]+(\*[0-9]{1,9})?)*")


def read_cluster(text: str) -> list[NodeSpec]:
    """The nodes of a table, of a saved ledger, or of profiles.

    Raises:
        UserError: none of the three, a broken file, or no GPU at all.
    """
    path = Path(text)
    if path.name.endswith((".csv", ".csv.gz")) or os.path.isfile(text):  # noqa: PTH113 (no file is no error there)
        return _ledger(path) if path.suffix == ".json" else node_specs(read_nodes(path))
    if _PROFILES.fullmatch(text):
        return [node for part in text.split(",") for node in _machines(part)]
    raise UserError(f"--nodes {text}: is neither a file nor a list of profiles; write nodes.csv or v100x4*8")


def _machines(part: str) -> list[NodeSpec]:
    spec, _, number = part.partition("*")
    count = int(number or 1)
    if not 1 <= count <= MAX_NODES:
        raise UserError(f"--nodes {part}: {count} machines; allowed are 1 to {MAX_NODES}")
    try:
        profile, gpus = parse_spec(spec)
    except UnknownProfile as error:
        raise UserError(f"--nodes {part}: {error}") from None
    topology = profile_topology(profile, gpus)
    nodes = []
    for number_of in range(count):
        name = f"{spec}-{number_of:04}"
        devices = tuple(
            Device(index, GpuUuid(f"{name}/{index}"), profile.model, profile.memory_mib) for index in range(gpus)
        )
        nodes.append(NodeSpec(name, devices, CPU_MILLI_PER_GPU * gpus, MEMORY_MIB_PER_GPU * gpus, topology))
    return nodes


def ranked(nodes: list[NodeSpec]) -> list[NodeSpec]:
    """The same nodes with ranks in their order, so that of equal nodes the first is taken."""
    return [replace(node, rank=rank) for rank, node in enumerate(nodes)]


def _ledger(path: Path) -> list[NodeSpec]:
    try:
        ledger: Any = json.loads(read_text(path))
        nodes = load(ledger).nodes
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, AliquotError) as error:
        raise UserError(f"{path}: is not a dump of a cluster ({error})") from None
    if not any(node.gpus for node in nodes):
        raise UserError(f"{path}: no node has a GPU")
    return nodes
