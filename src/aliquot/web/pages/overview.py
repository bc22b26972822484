"""Overview, the first page: what needs attention, the sums, what waits and why, and a heat map of all GPUs.

On a machine with few GPUs their bars follow; elsewhere a cell of the map leads to its GPU or node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from aliquot.model.quantities import format_milli
from aliquot.status import PENDING, Gpu, Node, StatusSource, Workload
from aliquot.status.source import totals
from aliquot.web.pages import NO_GPU, Drawn, Query, commands
from aliquot.web.pages.bars import with_bars
from aliquot.web.pages.heat import LEGEND, METRICS, heat_map
from aliquot.web.render import Block, address, block, clock_time, percent

WAITING_SHOWN: Final = 5
NAMED: Final = 3
"""How many of a kind an alert names before it counts the rest."""
FEW_GPUS: Final = 16
LOW_PERCENT: Final = 95.0
ENOUGH_WINDOWS: Final = 20


class Alert(NamedTuple):
    """One line at the top: what it is about, where that leads, and what is wrong."""

    href: str
    subject: str
    text: str


class WaitingWorkload(NamedTuple):
    """A workload that waits, why, and the command that explains it."""

    workload: Workload
    why: str
    command: str


def draw(facts: StatusSource, query: Query) -> Drawn:
    """The whole cluster, or in the map only the nodes from `first` to `last`."""
    gpus, nodes, workloads = facts.gpus(), facts.nodes(), facts.workloads()
    blocks = [
        block("alerts", "blocks/alerts.html", alerts=list(alerts(gpus, nodes, workloads))),
        block("summary", "blocks/summary.html", totals=totals(facts), window_s=facts.window_s),
        _waiting(facts, workloads),
    ]
    if gpus:
        blocks += [_map(gpus, nodes, query), *_bars(gpus)]
    else:
        blocks.append(block("none", "blocks/none.html", text=NO_GPU))
    return Drawn("Overview", blocks, {"command": commands.top(facts)})


def alerts(gpus: Sequence[Gpu], nodes: Sequence[Node], workloads: Sequence[Workload]) -> Iterator[Alert]:
    """What needs attention, what wastes most first: workloads that hold shares and do not run, nodes that do not
    answer, unhealthy GPUs, programs without a share, and promises that were not kept.
    """
    failing = sorted((w for w in workloads if w.failing and w.pieces), key=lambda w: (-w.request_milli, w.name))
    yield from _named([_waste(each) for each in failing], "/workloads", "more workloads hold GPUs and do not run")
    silent = [_silence(node) for node in nodes if node.silent]
    yield from _named(silent, "/gpus?state=unmeasured", "more nodes do not answer")
    sick = [
        Alert(f"/gpus/{gpu.uuid}", _place(gpu), "is unhealthy; nothing is placed on it")
        for gpu in gpus
        if not gpu.healthy
    ]
    yield from _named(sick, "/gpus?state=unhealthy", "more GPUs are unhealthy")
    past = [
        Alert(
            f"/gpus/{gpu.uuid}",
            _place(gpu),
            f"runs {gpu.bypassing} program{'s' * (gpu.bypassing != 1)} without a share",
        )
        for gpu in gpus
        if gpu.bypassing
    ]
    yield from _named(past, "/gpus", "more GPUs run programs without a share")
    broken = sorted(
        (w.kept_percent, w.name) for w in workloads
        if w.kept_percent is not None and w.kept_percent < LOW_PERCENT and w.windows >= ENOUGH_WINDOWS
    )  # fmt: skip
    low = [
        Alert(f"/workloads/{name}", name, f"got its request in {percent(kept)} of its windows") for kept, name in broken
    ]
    yield from _named(low, "/workloads", f"more workloads got theirs in less than {LOW_PERCENT:g} %")


def _named(found: list[Alert], href: str, rest: str) -> Iterator[Alert]:
    yield from found[:NAMED]
    if len(found) > NAMED:
        yield Alert(href, f"{len(found) - NAMED:,}", rest)


def _waste(workload: Workload) -> Alert:
    restarts = f", {workload.restarts} restarts" if workload.restarts else ""
    holds = f"holds {format_milli(workload.request_milli)} GPU, does not run"
    return Alert(f"/workloads/{quote(workload.name)}", workload.name, f"{holds}: {workload.state}{restarts}")


def _silence(node: Node) -> Alert:
    since = f"since {clock_time(node.silent_since_s)}" if node.silent_since_s else "so far"
    return Alert(address("/gpus", node=node.name), node.name, f"no news {since}: {node.silent}")


def _place(gpu: Gpu) -> str:
    return f"GPU {gpu.index} of {gpu.node}"


def _waiting(facts: StatusSource, workloads: Sequence[Workload]) -> Block:
    """The workloads that have waited longest, each with what its scheduler says; its own page has the explanation."""
    found = sorted((each for each in workloads if each.state == PENDING), key=lambda each: (-each.age_s, each.name))
    shown = [WaitingWorkload(each, _said(each), commands.explain(facts, each.name)) for each in found[:WAITING_SHOWN]]
    return block("waiting", "blocks/waiting.html", shown=shown, total=len(found))


def _said(workload: Workload) -> str:
    """What the scheduler says of a workload, without kube-scheduler's account of what evictions would not help."""
    return workload.message.partition(" preemption: ")[0] or "is not scheduled yet"


def _map(gpus: Sequence[Gpu], nodes: Sequence[Node], query: Query) -> Block:
    first, last = query.get("first", ""), query.get("last", "")
    shown = [gpu for gpu in gpus if gpu.node >= first and (not last or gpu.node <= last)]
    found = heat_map(shown, nodes, query.get("show", ""))
    choices = [
        (address("/", first=first, last=last, show=name), metric.label, name == found.metric)
        for name, metric in METRICS.items()
    ]
    return block(
        "map", "blocks/map.html", map=found, title=METRICS[found.metric].title, choices=choices, legend=LEGEND,
        part=f"{first} to {last}" if first or last else "",
    )  # fmt: skip


def _bars(gpus: Sequence[Gpu]) -> Iterator[Block]:
    if len(gpus) <= FEW_GPUS:
        several = len({gpu.node for gpu in gpus}) > 1
        yield block("bars", "blocks/bars.html", rows=with_bars(gpus), several=several)
