"""Overview, the first page: what needs attention, the sums, what waits and why, and a heat map of all GPUs.

On a machine with few GPUs their bars follow; elsewhere a cell of the map leads to its GPU or node. The map has a cell
for each GPU, or where there are many for each node or run of nodes, in shades of one hue. A cell shows its percentage,
so the shade is never the only sign. GPUs are in rows by node; nodes are in rows by model.

With it the page of the pool, which is left out where there is neither a vGPU nor a quota.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple
from urllib.parse import quote

from aliquot.model.quantities import MILLI, format_milli
from aliquot.status import PENDING, Gpu, Node, StatusSource, Workload
from aliquot.status.source import totals
from aliquot.web.pages import NO_GPU, Drawn, Query, commands, with_bars
from aliquot.web.pages.gpus import abbreviated
from aliquot.web.render import address, block, clock_time, percent

MAX_CELLS: Final = 1500
"""A page with more would be more than a browser draws at once; what is larger is drawn by node."""
MAX_TITLES: Final = 256
STEPS_MILLI: Final = (50, 250, 500, 750, 950)
LEGEND: Final = ("0–4", "5–24", "25–49", "50–74", "75–94", "95–100")
WAITING_SHOWN: Final = 5
NAMED: Final = 3
"""How many of a kind an alert names before it counts the rest."""
FEW_GPUS: Final = 16
LOW_PERCENT: Final = 95.0
ENOUGH_WINDOWS: Final = 20
PHASES: Final = ("Creating", "Active", "Idle", "Deleting")
POOL_SHOWN: Final = 60


class Alert(NamedTuple):
    """One line at the top: what it is about, where that leads, and what is wrong."""

    href: str
    subject: str
    text: str


def draw(facts: StatusSource, query: Query) -> Drawn:
    """The whole cluster, or in the map only the nodes from `first` to `last`.

    Of what waits, the workloads that have waited longest are named with what their scheduler says; the page of each
    has the explanation.
    """
    gpus, nodes, workloads = facts.gpus(), facts.nodes(), facts.workloads()
    waiting = sorted((w for w in workloads if w.state == PENDING), key=lambda w: (-w.age_s, w.name))
    shown = []
    for workload in waiting[:WAITING_SHOWN]:
        # kube-scheduler's account of what evictions would not help is left out
        why = workload.message.partition(" preemption: ")[0] or "is not scheduled yet"
        shown.append((workload, why, commands.explain(facts, workload.name)))
    blocks = [
        block("alerts", "blocks/alerts.html", alerts=list(alerts(gpus, nodes, workloads))),
        block("summary", "blocks/summary.html", totals=totals(facts), window_s=facts.window_s),
        block("waiting", "blocks/waiting.html", shown=shown, total=len(waiting)),
    ]
    if gpus:
        first, last = query.get("first", ""), query.get("last", "")
        some = [gpu for gpu in gpus if gpu.node >= first and (not last or gpu.node <= last)]
        drawn = heat_map(some, nodes, query.get("show", ""))
        choices = [
            (address("/", first=first, last=last, show=name), metric.label, name == drawn.metric)
            for name, metric in METRICS.items()
        ]
        part = f"{first} to {last}" if first or last else ""
        title = METRICS[drawn.metric].title
        blocks.append(
            block("map", "blocks/map.html", map=drawn, title=title, choices=choices, legend=LEGEND, part=part)
        )
    else:
        blocks.append(block("none", "blocks/none.html", text=NO_GPU))
    if 0 < len(gpus) <= FEW_GPUS:
        several = len({gpu.node for gpu in gpus}) > 1
        blocks.append(block("bars", "blocks/bars.html", rows=with_bars(gpus), several=several))
    return Drawn("Overview", blocks, {"command": commands.top(facts)})


def alerts(gpus: Sequence[Gpu], nodes: Sequence[Node], workloads: Sequence[Workload]) -> Iterator[Alert]:
    """What needs attention, what wastes most first: workloads that hold shares and do not run, nodes that do not
    answer, unhealthy GPUs, programs without a share, and promises that were not kept.
    """
    wasteful = []
    for w in sorted((w for w in workloads if w.failing and w.pieces), key=lambda w: (-w.request_milli, w.name)):
        restarts = f", {w.restarts} restarts" if w.restarts else ""
        holds = f"holds {format_milli(w.request_milli)} GPU, does not run"
        wasteful.append(Alert(f"/workloads/{quote(w.name)}", w.name, f"{holds}: {w.state}{restarts}"))
    silent = []
    for node in (node for node in nodes if node.silent):
        since = f"since {clock_time(node.silent_since_s)}" if node.silent_since_s else "so far"
        silent.append(Alert(address("/gpus", node=node.name), node.name, f"no news {since}: {node.silent}"))
    unhealthy, bypassed = [], []
    for gpu in gpus:
        href, place = f"/gpus/{gpu.uuid}", f"GPU {gpu.index} of {gpu.node}"
        if not gpu.healthy:
            unhealthy.append(Alert(href, place, "is unhealthy; nothing is placed on it"))
        if gpu.bypassing:
            programs = f"{gpu.bypassing} program{'s' * (gpu.bypassing != 1)}"
            bypassed.append(Alert(href, place, f"runs {programs} without a share"))
    broken = sorted(
        (w.kept_percent, w.name) for w in workloads
        if w.kept_percent is not None and w.kept_percent < LOW_PERCENT and w.windows >= ENOUGH_WINDOWS
    )  # fmt: skip
    low = [
        Alert(f"/workloads/{name}", name, f"got its request in {percent(kept)} of its windows") for kept, name in broken
    ]
    for found, href, rest in (
        (wasteful, "/workloads", "more workloads hold GPUs and do not run"),
        (silent, "/gpus?state=unmeasured", "more nodes do not answer"),
        (unhealthy, "/gpus?state=unhealthy", "more GPUs are unhealthy"),
        (bypassed, "/gpus", "more GPUs run programs without a share"),
        (low, "/workloads", f"more workloads got theirs in less than {LOW_PERCENT:g} %"),
    ):
        yield from found[:NAMED]
        if len(found) > NAMED:
            yield Alert(href, f"{len(found) - NAMED:,}", rest)


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
            title = ""
            if titled:
                use = f"{gpu.busy_milli / MILLI:.2f} used" if gpu.measured else "use not known"
                unhealthy = "" if gpu.healthy else ", unhealthy"
                promised = f"{(MILLI - gpu.free_milli) / MILLI:.2f} promised"
                title = f"GPU {gpu.index}: {use}, {promised}{unhealthy}"
            cells.append(_cell(f"/gpus/{quote(gpu.uuid[:short], safe='')}", value(gpu), gpu.healthy, title))
        yield HeatRow(name, f"/gpus?node={quote(name, safe='')}", silent.get(name, ""), cells)


def _cell_of_nodes(some: Sequence[tuple[str, list[Gpu]]], metric: str) -> Cell:
    """The mean over the GPUs of some nodes, whose names are in order."""
    value = METRICS[metric].value
    known = [milli for _, gpus in some for gpu in gpus if (milli := value(gpu)) is not None]
    mean = sum(known) // len(known) if known else None
    healthy = all(gpu.healthy for _, gpus in some for gpu in gpus)
    first, last = some[0][0], some[-1][0]
    one = len(some) == 1
    href = f"/gpus?node={quote(first, safe='')}" if one else address("/", first=first, last=last, show=metric)
    return _cell(href, mean, healthy)


def _cell(href: str, milli: int | None, healthy: bool, title: str = "") -> Cell:
    """A cell of a quantity; what is not well has a mark in place of its number."""
    shade = "hx" if milli is None else f"h{bisect_right(STEPS_MILLI, milli)}"
    text = "–" if milli is None else str(milli // 10)
    return Cell(href, shade if healthy else f"{shade} unhealthy", text if healthy else "!", title)


def has_pool(facts: StatusSource) -> bool:
    """Whether there is a vGPU or a quota; where there is neither, the page is left out of the navigation."""
    bounded = any(line.hard_milli is not None or line.hard_mib is not None for line in facts.quota())
    return bounded or bool(facts.pool().vgpus)


def draw_pool(facts: StatusSource, query: Query) -> Drawn:
    """Pool and quota: named GPUs through their phases, and what each namespace has of each model; the API has all."""
    pool, quota = facts.pool(), facts.quota()
    shown, total = pool.vgpus[:POOL_SHOWN], len(pool.vgpus)
    counts = {phase: sum(vgpu.phase == phase for vgpu in pool.vgpus) for phase in PHASES}
    blocks = [
        block("pool", "blocks/pool.html", policy=pool.policy, vgpus=shown, counts=counts, total=total),
        block("quota", "blocks/quota.html", lines=quota[:POOL_SHOWN], total=len(quota)),
    ]
    return Drawn("Pool and quota", blocks, {"command": commands.pool(facts)})
