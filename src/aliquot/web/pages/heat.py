"""The heat map: a cell for each GPU, or where there are many for each node or run of nodes, in shades of one hue.

A cell shows its percentage, so the shade is never the only sign. GPUs are in rows by node; nodes are in rows by model.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple
from urllib.parse import quote

from aliquot.model.quantities import MILLI
from aliquot.status import Gpu, Node
from aliquot.web.pages.gpu import abbreviated
from aliquot.web.render import address

MAX_CELLS: Final = 1500
"""A page with more would be more than a browser draws at once; what is larger is drawn by node."""
MAX_TITLES: Final = 256
STEPS_MILLI: Final = (50, 250, 500, 750, 950)
LEGEND: Final = ("0–4", "5–24", "25–49", "50–74", "75–94", "95–100")


class Metric(NamedTuple):
    """A quantity that a map can show, in thousandths of the GPU; None where it is not known."""

    label: str
    title: str
    value: Callable[[Gpu], int | None]


METRICS: Final[Mapping[str, Metric]] = {
    "": Metric("use", "in use", lambda gpu: gpu.busy_milli if gpu.measured else None),
    "promised": Metric("promised", "promised", lambda gpu: MILLI - gpu.free_milli),
    "memory": Metric(
        "memory",
        "of memory in use",
        lambda gpu: gpu.memory_used_mib * MILLI // max(1, gpu.memory_mib) if gpu.measured else None,
    ),
}


class Cell(NamedTuple):
    """One square: where it leads, its shade's class, its text, and what it says when pointed at."""

    href: str
    shade: str
    text: str
    title: str = ""


class HeatRow(NamedTuple):
    """Cells with their common name; `note` says why nothing of them is known."""

    name: str
    href: str
    note: str
    cells: list[Cell]


class HeatMap(NamedTuple):
    """A drawn map; `unit` is what a cell is."""

    unit: str
    metric: str
    rows: list[HeatRow]


def heat_map(gpus: Sequence[Gpu], nodes: Sequence[Node], metric: str) -> HeatMap:
    """The map of GPUs, which are in order of their nodes; an unknown metric is the first."""
    metric = metric if metric in METRICS else ""
    if len(gpus) <= MAX_CELLS:
        return HeatMap("GPU", metric, list(_rows_of_gpus(gpus, nodes, metric)))
    by_node = [(name, list(own)) for name, own in groupby(gpus, key=lambda gpu: gpu.node)]
    size = -(-len(by_node) // MAX_CELLS)
    by_model: dict[str, list[tuple[str, list[Gpu]]]] = {}
    for name, own in by_node:
        by_model.setdefault(", ".join(sorted({gpu.model for gpu in own})), []).append((name, own))
    unit = "node" if size == 1 else f"{size} nodes"
    rows = [
        HeatRow(f"{model}, {len(own)} node{'s' * (len(own) != 1)}", address("/gpus", model=own[0][1][0].model), "",
            [_cell_of_nodes(own[at : at + size], metric) for at in range(0, len(own), size)])
        for model, own in sorted(by_model.items())
    ]  # fmt: skip
    return HeatMap(unit, metric, rows)


def _rows_of_gpus(gpus: Sequence[Gpu], nodes: Sequence[Node], metric: str) -> Iterator[HeatRow]:
    value = METRICS[metric].value
    silent = {node.name: node.silent for node in nodes if node.silent}
    short = abbreviated([gpu.uuid for gpu in gpus])
    titled = len(gpus) <= MAX_TITLES
    for name, own in groupby(gpus, key=lambda gpu: gpu.node):
        cells = []
        for gpu in own:
            known = value(gpu)
            href = f"/gpus/{quote(gpu.uuid[:short], safe='')}"
            cells.append(Cell(href, _shade(known, gpu.healthy), _text(known, gpu.healthy), _title(gpu, titled)))
        yield HeatRow(name, f"/gpus?node={quote(name, safe='')}", silent.get(name, ""), cells)


def _cell_of_nodes(some: Sequence[tuple[str, list[Gpu]]], metric: str) -> Cell:
    """The mean over the GPUs of some nodes, whose names are in order."""
    value = METRICS[metric].value
    known = [milli for _, gpus in some for gpu in gpus if (milli := value(gpu)) is not None]
    mean = sum(known) // len(known) if known else None
    healthy = all(gpu.healthy for _, gpus in some for gpu in gpus)
    first, last = some[0][0], some[-1][0]
    if len(some) == 1:
        return Cell(f"/gpus?node={quote(first, safe='')}", _shade(mean, healthy), _text(mean, healthy))
    href = address("/", first=first, last=last, show=metric)
    return Cell(href, _shade(mean, healthy), _text(mean, healthy))


def _shade(milli: int | None, healthy: bool) -> str:
    shade = "hx" if milli is None else f"h{bisect_right(STEPS_MILLI, milli)}"
    return shade if healthy else f"{shade} sick"


def _text(milli: int | None, healthy: bool) -> str:
    if not healthy:
        return "!"
    return "–" if milli is None else str(milli // 10)


def _title(gpu: Gpu, wanted: bool) -> str:
    if not wanted:
        return ""
    use = f"{gpu.busy_milli / MILLI:.2f} used" if gpu.measured else "use not known"
    sick = "" if gpu.healthy else ", unhealthy"
    return f"GPU {gpu.index}: {use}, {(MILLI - gpu.free_milli) / MILLI:.2f} promised{sick}"
