"""`aliquot topo`: which GPUs are near each other, what is free, and which ones to take together.

The facts are plain values, which `-o json` prints as they are; the lines for people are made of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import click

from aliquot.cli.calling import ask_engine
from aliquot.cli.forms import show
from aliquot.cli.options import emulate_option, output_option
from aliquot.cli.tables import aligned, columns
from aliquot.driver.gpu import core_list
from aliquot.model.errors import UserError
from aliquot.model.quantities import MILLI, BadQuantity, format_milli, parse_milli
from aliquot.topology import NotEnoughGpus, Topology, TreeNode, best_set, nearest, parse_topo, set_cost

MAX_CHARACTERS: Final = 1 << 20
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


@click.command()
@click.argument("file", required=False, type=click.Path())
@emulate_option
@click.option("--best", metavar="N", type=int, help="Name the best N free GPUs and what remains.")
@click.option("--used", metavar="GPUS", default="", help="Mark GPUs as taken, whole or in milli: 0,3=500.")
@output_option
def topo(file: str | None, emulate: str | None, best: int | None, used: str, output: str) -> None:
    """Show how GPUs are connected: of this machine, of FILE (what nvidia-smi topo -m printed; - is stdin), or emulated.

    Costs are of a pair, lower is nearer. The best set is the one whose pairs cost least in all.

    Example, which four GPUs of an emulated machine talk fastest:
      aliquot topo --emulate v100x8 --best 4
    """
    if file and emulate:
        raise UserError(f"{file} and --emulate {emulate} are two machines; give one of them")
    models: tuple[str, ...] = ()
    taken: Mapping[int, int] = {}
    if file:
        source, topology = read_topology(file)
    elif emulate:
        from aliquot.driver import emulation

        profile, count = emulation.parse_spec(emulate)
        source, topology = f"{emulate} (emulated)", emulation.profile_topology(profile, count)
        models = (profile.model,) * count
    else:
        source, topology, models, taken = _this_machine()
    if used:
        taken = {**taken, **read_used(used, topology.count)}
    free = tuple(max(0, MILLI - taken.get(gpu, 0)) for gpu in range(topology.count))
    show_topology(TopologyPicture(source, topology, free, models), best, output)


def show_topology(picture: TopologyPicture, best: int | None, form: str) -> None:
    """Print a machine, and the best set of a size where that is asked for."""
    told = facts(picture, best)
    show(form, told, lambda: (line.rstrip() for line in lines(picture, told)))


def read_topology(file: str) -> tuple[str, Topology]:
    """The name to show for a file (`-` is stdin) and the machine in it.

    Raises:
        UserError: it cannot be read, is not text or holds no whole matrix.
    """
    try:
        with click.open_file(file, encoding="utf-8") as stream:
            text = stream.read(MAX_CHARACTERS + 1)
    except UnicodeDecodeError:
        raise UserError(f"{file} is not text; give what nvidia-smi topo -m printed") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"{file} is longer than {MAX_CHARACTERS} characters; give what nvidia-smi topo -m printed")
    name = "stdin" if file == "-" else file
    return name, parse_topo(text, where=name)


def _this_machine() -> tuple[str, Topology, tuple[str, ...], dict[int, int]]:
    """The GPUs of the engine that is up, with what its tenants hold; the driver's where none is up."""
    from aliquot.driver.discovery import NoDriver, find_driver, gpu_topology, list_gpus
    from aliquot.standalone.client import NoEngine
    from aliquot.standalone.wire import InfoCall, TenantsCall

    taken = Counter[int]()
    try:
        up = ask_engine(InfoCall())
        gpus, source = up.gpus, f"{up.emulate} (emulated, engine up)" if up.emulate else "this machine (engine up)"
        index = {gpu.uuid: gpu.index for gpu in gpus}
        for tenant in ask_engine(TenantsCall()).tenants:
            for piece in tenant.slices:
                taken[index[piece.gpu]] += piece.request_milli
    except NoEngine:
        try:
            gpus, source = list_gpus(find_driver().libnvml), "this machine"
        except NoDriver as error:
            hint = "Give a file with what nvidia-smi topo -m printed, or: aliquot topo --emulate h100x8"
            raise NoDriver(f"{str(error).split('. Try ')[0]}. {hint}") from None
    if not gpus:
        raise NoDriver("the NVIDIA driver shows no GPU. Try an emulated machine: aliquot topo --emulate h100x8")
    return source, gpu_topology(gpus), tuple(gpu.model for gpu in gpus), taken


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
        try:
            milli = MILLI if not equals else int(amount) if _NUMBER.fullmatch(amount) else parse_milli(amount)
        except BadQuantity as error:
            raise BadUse(f"--used: {error}") from None
        if not 1 <= milli <= MILLI:
            raise BadUse(f'--used: "{part}" takes {milli} milli of a GPU; take 1 to {MILLI}')
        used[int(index)] = milli
    return used


def facts(picture: TopologyPicture, ask: int | None) -> dict[str, Any]:
    """Everything for `-o json`; `ask` is the size of the best set to choose of the free GPUs.

    Raises:
        UserError: that many are not free.
    """
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
        try:
            chosen = best_set(topology, picture.free, ask)
        except NotEnoughGpus as error:
            raise NotEnoughGpus(f"--best {error}") from None
        rest = [gpu for gpu in picture.free if gpu not in chosen]
        sizes = [size for size in (2, 4, 8) if size <= len(rest)]
        still_free = [_set_facts(topology, best_set(topology, rest, size)) for size in sizes]
        left = {"gpus": rest, "nearest": still_free}
        told["best"] = {"asked": ask, **_set_facts(topology, chosen), "left": left}
    return told


def _set_facts(topology: Topology, gpus: tuple[int, ...]) -> dict[str, Any]:
    """A set's pairs, and how many of them have each link, the nearest link first."""
    pairs = [
        {"gpus": [a, b], "link": topology.links[a][b], "cost": topology.cost[a][b]} for a, b in combinations(gpus, 2)
    ]
    by_cost = sorted(combinations(sorted(gpus), 2), key=lambda pair: topology.cost[pair[0]][pair[1]])
    links = Counter(topology.links[a][b] for a, b in by_cost)
    return {"gpus": list(gpus), "cost": set_cost(topology, gpus), "links": dict(links), "pairs": pairs}


def _tree_facts(node: TreeNode, free: Collection[int]) -> dict[str, Any]:
    here = {"gpus": list(node.gpus), "free": sum(gpu in free for gpu in node.gpus)}
    if node.gpu is not None:
        return {"gpu": node.gpu, **here, "access_cost": node.access_cost}
    children = [_tree_facts(child, free) for child in node.children]
    return {"mode": node.mode, "level_cost": node.level_cost, **here, "children": children}


def lines(picture: TopologyPicture, told: dict[str, Any]) -> Iterator[str]:
    """The facts as people read them: a summary, the tree, and the best set where one was asked for."""
    topology, count, free = picture.topology, picture.topology.count, len(picture.free)
    parts = len(told["fragments"])
    taken = count - free - parts
    states = [f"{free} free", f"{parts} taken in part" if parts else "", f"{taken} taken" if taken else ""]
    models = sorted(set(picture.models))
    summary = f"{count} GPU{'s' if count != 1 else ''}, {', '.join(filter(None, states))}"
    yield f"{picture.source}: {summary}" + (f", {' and '.join(models)}" if models else "")
    yield ""
    rows = [("", "COST", "FREE", "NUMA", "CORES"), *_tree_rows(picture, topology.tree, "", "")]
    yield from aligned(rows, right=(1,), width=columns())
    if not topology.is_tree:
        yield ""
        yield "These links are no tree: a cost above is that of the farthest pair below it. Nearer across the tree:"
        nearer: dict[str, list[str]] = {}
        for node in topology.tree.walk():
            for one, other in combinations(node.children, 2):
                for a, b in ((a, b) for a in one.gpus for b in other.gpus):
                    if topology.cost[a][b] < node.level_cost:
                        nearer.setdefault(topology.links[a][b], []).append(f"{min(a, b)}-{max(a, b)}")
        for link, pairs in sorted(nearer.items(), key=lambda item: (len(item[0]), item[0])):
            yield f"  {link}: {', '.join(sorted(pairs))}"
    if "best" in told:
        best = told["best"]
        rest = best["left"]
        yield ""
        yield f"Best {best['asked']}: {_set_line(best)}"
        if not rest["gpus"]:
            yield "Leaves no GPU free."
            return
        yield f"Leaves {_names(rest['gpus'])}" + ("; of these" if rest["nearest"] else ".")
        for each in rest["nearest"]:
            yield f"  nearest {len(each['gpus'])}: {_set_line(each)}"


def _tree_rows(
    picture: TopologyPicture, node: TreeNode, stem: str, branch: str
) -> Iterator[tuple[str, str, str, str, str]]:
    topology = picture.topology
    if node.gpu is not None:
        left, numa = picture.free_milli[node.gpu], topology.numa[node.gpu]
        free = "free" if left == 1000 else "taken" if left == 0 else f"{format_milli(left)} free"
        cores = core_list(list(topology.cores[node.gpu]))
        yield f"{stem}{branch}GPU {node.gpu}", str(node.access_cost), free, "" if numa is None else str(numa), cores
        return
    free = f"{sum(gpu in picture.free for gpu in node.gpus)} of {len(node.gpus)}"
    yield f"{stem}{branch}{node.mode}", str(node.level_cost), free, "", ""
    below = stem + {"": "", "├─ ": "│  ", "└─ ": "   "}[branch]
    for child in node.children:
        yield from _tree_rows(picture, child, below, "└─ " if child is node.children[-1] else "├─ ")


def _set_line(each: dict[str, Any]) -> str:
    links = ", ".join(f"{count} x {link}" if count > 1 else link for link, count in each["links"].items())
    return _names(each["gpus"]) + (f"   cost {each['cost']} ({links})" if links else "")


def _names(gpus: list[int]) -> str:
    return f"GPU {', '.join(map(str, gpus))}"
