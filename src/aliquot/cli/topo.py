"""`aliquot topo`: which GPUs are near each other, what is free, and which ones to take together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from aliquot.cli.calling import ask_engine
from aliquot.cli.forms import show
from aliquot.cli.options import emulate_option, output_option
from aliquot.cli.tables import aligned
from aliquot.model.errors import UserError

if TYPE_CHECKING:
    from aliquot.cli.topo_facts import TopologyPicture
    from aliquot.topology import Topology, TreeNode

LONGEST: Final = 1 << 20


@click.command()
@click.argument("file", required=False, type=click.Path())
@emulate_option
@click.option("--best", metavar="N", type=int, help="Name the best N free GPUs and what remains.")
@click.option("--used", metavar="GPUS", default="", help="Mark GPUs as taken, whole or in milli: 0,3=500.")
@output_option
def topo(file: str | None, emulate: str | None, best: int | None, used: str, output: str) -> None:
    """Show how GPUs are connected: of this machine, of FILE (what nvidia-smi topo -m printed; - is stdin), or emulated.

    Costs are of a pair, lower is nearer. The best set is the one whose pairs cost least in all.
    """
    from aliquot.cli.topo_facts import facts

    if file and emulate:
        raise UserError(f"{file} and --emulate {emulate} are two machines; give one of them")
    picture = _picture(file, emulate, used)
    told = facts(picture, best)
    show(output, told, lambda: (line.rstrip() for line in lines(picture, told)))


def _picture(file: str | None, emulate: str | None, used: str) -> TopologyPicture:
    from aliquot.cli.topo_facts import TopologyPicture, free_after, read_used

    models: tuple[str, ...] = ()
    taken: dict[int, int] = {}
    if file:
        source, topology = read_topology(file)
    elif emulate:
        source, topology, models = _from_profile(emulate)
    else:
        source, topology, models, taken = _this_machine()
    if used:
        taken = taken | read_used(used, topology.count)
    return TopologyPicture(source, topology, free_after(taken, topology.count), models)


def read_topology(file: str) -> tuple[str, Topology]:
    """The name to show for a file (`-` is stdin) and the machine in it.

    Raises:
        UserError: it cannot be read, is not text or holds no whole matrix.
    """
    from aliquot.topology import parse_topo

    try:
        with click.open_file(file, encoding="utf-8") as stream:
            text = stream.read(LONGEST + 1)
    except UnicodeDecodeError:
        raise UserError(f"{file} is not text; give what nvidia-smi topo -m printed") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(text) > LONGEST:
        raise UserError(f"{file} is longer than {LONGEST} characters; give what nvidia-smi topo -m printed")
    name = "stdin" if file == "-" else file
    return name, parse_topo(text, where=name)


def _from_profile(spec: str) -> tuple[str, Topology, tuple[str, ...]]:
    from aliquot.driver import emulation

    profile, count = emulation.parse_spec(spec)
    return f"{spec} (emulated)", emulation.profile_topology(profile, count), (profile.model,) * count


def _this_machine() -> tuple[str, Topology, tuple[str, ...], dict[int, int]]:
    """The GPUs of the engine that is up, with what its tenants hold; the driver's where none is up."""
    from aliquot.driver.discovery import NoDriver, find_driver, gpu_topology, list_gpus
    from aliquot.standalone.client import NoEngine
    from aliquot.standalone.wire import InfoCall, TenantsCall

    taken: dict[int, int] = {}
    try:
        up = ask_engine(InfoCall())
        gpus, source = up.gpus, f"{up.emulate} (emulated, engine up)" if up.emulate else "this machine (engine up)"
        index = {gpu.uuid: gpu.index for gpu in gpus}
        for tenant in ask_engine(TenantsCall()).tenants:
            for piece in tenant.slices:
                at = index[piece.gpu]
                taken[at] = taken.get(at, 0) + piece.request_milli
    except NoEngine:
        try:
            gpus, source = list_gpus(find_driver().libnvml), "this machine"
        except NoDriver as error:
            hint = "Give a file with what nvidia-smi topo -m printed, or: aliquot topo --emulate h100x8"
            raise NoDriver(f"{str(error).split('. Try ')[0]}. {hint}") from None
    if not gpus:
        raise NoDriver("the NVIDIA driver shows no GPU. Try an emulated machine: aliquot topo --emulate h100x8")
    return source, gpu_topology(gpus), tuple(gpu.model for gpu in gpus), taken


def lines(picture: TopologyPicture, told: dict[str, Any]) -> Iterator[str]:
    topology = picture.topology
    models = sorted(set(picture.models))
    yield f"{picture.source}: {_summary(picture)}" + (f", {' and '.join(models)}" if models else "")
    yield ""
    rows = [("", "COST", "FREE", "NUMA", "CORES"), *_tree_rows(picture, topology.tree, "", "")]
    yield from aligned(rows, right=(1,))
    if not topology.is_tree:
        yield ""
        yield "These links are no tree: a cost above is that of the farthest pair below it. Nearer across the tree:"
        yield from (f"  {line}" for line in _across(topology))
    if "best" in told:
        yield ""
        yield from _best_lines(told["best"])


def _summary(picture: TopologyPicture) -> str:
    count, free = picture.topology.count, len(picture.free)
    parts = sum(0 < left < 1000 for left in picture.free_milli)
    taken = count - free - parts
    told = [f"{free} free", f"{parts} taken in part" if parts else "", f"{taken} taken" if taken else ""]
    return f"{count} GPU{'s' if count != 1 else ''}, {', '.join(each for each in told if each)}"


def _tree_rows(
    picture: TopologyPicture, node: TreeNode, stem: str, branch: str
) -> Iterator[tuple[str, str, str, str, str]]:
    from aliquot.driver.cores import core_list
    from aliquot.model.quantities import format_milli

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


def _across(topology: Topology) -> Iterator[str]:
    """Pairs that are nearer than the tree says, by link."""
    nearer: dict[str, list[str]] = {}
    for node in topology.tree.walk():
        for at, one in enumerate(node.children):
            for a, b in ((a, b) for other in node.children[at + 1 :] for a in one.gpus for b in other.gpus):
                if topology.cost[a][b] < node.level_cost:
                    nearer.setdefault(topology.links[a][b], []).append(f"{min(a, b)}-{max(a, b)}")
    for link, pairs in sorted(nearer.items(), key=lambda item: (len(item[0]), item[0])):
        yield f"{link}: {', '.join(sorted(pairs))}"


def _best_lines(best: dict[str, Any]) -> Iterator[str]:
    yield f"Best {best['asked']}: {_set_line(best)}"
    left = best["left"]
    if not left["gpus"]:
        yield "Leaves no GPU free."
        return
    yield f"Leaves {_names(left['gpus'])}" + ("; of these" if left["nearest"] else ".")
    for each in left["nearest"]:
        yield f"  nearest {len(each['gpus'])}: {_set_line(each)}"


def _set_line(each: dict[str, Any]) -> str:
    links = ", ".join(f"{count} x {link}" if count > 1 else link for link, count in each["links"].items())
    return _names(each["gpus"]) + (f"   cost {each['cost']} ({links})" if links else "")


def _names(gpus: list[int]) -> str:
    return f"GPU {', '.join(map(str, gpus))}"
