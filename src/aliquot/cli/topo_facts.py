"""What `aliquot topo` tells, as plain values: a machine, what is taken of it, and the best set of a size."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from aliquot.driver.cores import core_list
from aliquot.model.errors import UserError
from aliquot.model.quantities import MILLI, BadQuantity, parse_milli
from aliquot.topology import NotEnoughGpus, Topology, TreeNode, best_set, nearest, set_cost

_NUMBER: Final = re.compile(r"[0-9]{1,9}")


class BadUse(UserError):
    """A --used that names no GPU of the machine, or takes more of one than there is."""


@dataclass(frozen=True)
class TopologyPicture:
    """A machine at one moment; `free_milli[i]` is what is left of GPU i, `models[i]` its model where known."""

    source: str
    topology: Topology
    free_milli: tuple[int, ...]
    models: tuple[str, ...] = ()

    @property
    def free(self) -> tuple[int, ...]:
        """Indices of the wholly free GPUs."""
        return tuple(gpu for gpu, left in enumerate(self.free_milli) if left == MILLI)


def read_used(text: str, count: int) -> dict[int, int]:
    """Milli-GPU taken per GPU of `0,3=500`: a bare index is taken whole; amounts are milli, or `0.5`, or `500m`.

    Raises:
        BadUse: an index that the machine does not have, one named twice, or an amount that is not 1 to 1000 milli.
    """
    used: dict[int, int] = {}
    for part in (piece.strip() for piece in text.split(",")):
        index, equals, amount = part.partition("=")
        if not _NUMBER.fullmatch(index) or int(index) >= count:
            raise BadUse(
                f'--used: "{part}" names no GPU of this machine, which has 0 to {count - 1}; write --used 0,3=500'
            )
        if int(index) in used:
            raise BadUse(f"--used: GPU {int(index)} is named twice; name each once, with all that is taken of it")
        used[int(index)] = _taken(part, amount) if equals else MILLI
    return used


def _taken(part: str, amount: str) -> int:
    try:
        milli = int(amount) if _NUMBER.fullmatch(amount) else parse_milli(amount)
    except BadQuantity as error:
        raise BadUse(f"--used: {error}") from None
    if not 1 <= milli <= MILLI:
        raise BadUse(f'--used: "{part}" takes {milli} milli of a GPU; take 1 to {MILLI}')
    return milli


def facts(picture: TopologyPicture, ask: int | None) -> dict[str, Any]:
    """Everything for `-o json`; `ask` is the size of the set to choose."""
    topology = picture.topology
    leaves = {node.gpu: node for node in topology.tree.walk() if node.gpu is not None}
    gpus = []
    for gpu in range(topology.count):
        entry: dict[str, Any] = {"index": gpu, "free_milli": picture.free_milli[gpu], "numa": topology.numa[gpu]}
        if picture.models:
            entry["model"] = picture.models[gpu]
        entry["cores"] = core_list(list(topology.cores[gpu]))
        entry["access_cost"] = leaves[gpu].access_cost
        entry["links"] = list(topology.links[gpu])
        entry["costs"] = list(topology.cost[gpu])
        entry["nearest"] = nearest(topology, [gpu], [other for other in range(topology.count) if other != gpu])
        gpus.append(entry)
    told: dict[str, Any] = {
        "source": picture.source,
        "count": topology.count,
        "free": list(picture.free),
        "fragments": [gpu for gpu, milli in enumerate(picture.free_milli) if 0 < milli < MILLI],
        "exact_tree": topology.is_tree,
        "gpus": gpus,
        "tree": _tree_facts(topology.tree, picture.free),
    }
    if ask is not None:
        told["best"] = best_facts(topology, picture.free, ask)
    return told


def best_facts(topology: Topology, free: Sequence[int], ask: int) -> dict[str, Any]:
    """The best `ask` of the free GPUs, their pairs, and the nearest sets that stay free.

    Raises:
        UserError: that many are not free.
    """
    try:
        chosen = best_set(topology, free, ask)
    except NotEnoughGpus as error:
        raise NotEnoughGpus(f"--best {error}") from None
    rest = [gpu for gpu in free if gpu not in chosen]
    sizes = [size for size in (2, 4, 8) if size <= len(rest)]
    return {
        "asked": ask,
        **_set_facts(topology, chosen),
        "left": {"gpus": rest, "nearest": [_set_facts(topology, best_set(topology, rest, size)) for size in sizes]},
    }


def _set_facts(topology: Topology, gpus: tuple[int, ...]) -> dict[str, Any]:
    pairs = [
        {"gpus": [a, b], "link": topology.links[a][b], "cost": topology.cost[a][b]} for a, b in combinations(gpus, 2)
    ]
    return {"gpus": list(gpus), "cost": set_cost(topology, gpus), "links": link_counts(topology, gpus), "pairs": pairs}


def link_counts(topology: Topology, gpus: Collection[int]) -> dict[str, int]:
    """How many pairs of a set have each link, the nearest link first."""
    pairs = sorted(combinations(sorted(gpus), 2), key=lambda pair: topology.cost[pair[0]][pair[1]])
    counts: dict[str, int] = {}
    for a, b in pairs:
        counts[topology.links[a][b]] = counts.get(topology.links[a][b], 0) + 1
    return counts


def _tree_facts(node: TreeNode, free: Collection[int]) -> dict[str, Any]:
    here = {"gpus": list(node.gpus), "free": sum(gpu in free for gpu in node.gpus)}
    if node.gpu is not None:
        return {"gpu": node.gpu, **here, "access_cost": node.access_cost}
    children = [_tree_facts(child, free) for child in node.children]
    return {"mode": node.mode, "level_cost": node.level_cost, **here, "children": children}


def free_after(used: Mapping[int, int], count: int) -> tuple[int, ...]:
    """What is left of each GPU, in milli."""
    return tuple(max(0, MILLI - used.get(gpu, 0)) for gpu in range(count))
