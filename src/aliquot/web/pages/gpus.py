"""GPUs: every GPU as one bar of shares, by node or by model, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from aliquot.status import Gpu, Node, StatusSource
from aliquot.web.pages import NO_GPU, Drawn, Query, commands, misread, one_page
from aliquot.web.pages.bars import with_bars
from aliquot.web.render import Block, block, slug

PER_PAGE: Final = 48
STATES: Final[dict[str, Callable[[Gpu], bool]]] = {
    "idle": lambda gpu: gpu.state == "idle",
    "shared": lambda gpu: gpu.state == "shared",
    "whole": lambda gpu: gpu.state == "whole",
    "unhealthy": lambda gpu: not gpu.healthy,
    "unmeasured": lambda gpu: not gpu.measured,
}
SORTS: Final[dict[str, tuple[str, Callable[[Gpu], Any]]]] = {
    "": ("name", lambda gpu: 0),
    "busy": ("most used", lambda gpu: -gpu.busy_milli),
    "free": ("most free compute", lambda gpu: -gpu.free_milli),
    "memory": ("most free memory", lambda gpu: -gpu.free_mib),
}
GROUPS: Final = {"": "by node", "model": "by model"}
PARAMETERS: Final[Mapping[str, Iterable[str] | None]] = {
    "q": None, "model": None, "node": None, "state": STATES, "sort": [*filter(None, SORTS)],
    "group": [*filter(None, GROUPS)], "page": None,
}  # fmt: skip
"""What the page may be asked for, and the words of those that have some."""


def draw(facts: StatusSource, query: Query) -> Drawn:
    """The part of the GPUs that the query selects."""
    everything = facts.gpus()
    found = ordered(matching(everything, query), query)
    shown, pager = one_page(query, "/gpus", found, PER_PAGE, "GPUs")
    key = _group_key(query)
    silent = {node.name: node for node in facts.nodes() if node.silent}
    blocks = misread(query, PARAMETERS)
    for name, gpus in groupby(shown, key=key):
        blocks.append(_group(name, list(gpus), silent.get(name), by_model=query.get("group") == "model"))
    if not shown:
        blocks.append(block("none", "blocks/none.html", text="No GPU fits these filters." if everything else NO_GPU))
    blocks += pager
    frame = {
        "models": sorted({gpu.model for gpu in everything}),
        "states": list(STATES),
        "command": commands.top(facts),
        "total": len(everything),
        "found": len(found),
        "sorts": {name: text for name, (text, _) in SORTS.items()},
        "groups": GROUPS,
    }
    return Drawn("GPUs", blocks, frame)


def matching(gpus: Sequence[Gpu], query: Query) -> list[Gpu]:
    """The GPUs whose node, model, UUID, vGPU or a tenant contains the text, of the given state, model and node."""
    text, model, node = query.get("q", "").strip().lower(), query.get("model", ""), query.get("node", "")
    state = STATES.get(query.get("state", ""))
    return [
        gpu
        for gpu in gpus
        if (state is None or state(gpu))
        and (not model or gpu.model == model)
        and (not node or gpu.node == node)
        and (not text or _mentions(gpu, text))
    ]


def ordered(gpus: Sequence[Gpu], query: Query) -> list[Gpu]:
    """Groups by their best GPU, GPUs in a group by themselves; ties by node and index."""
    _, rank = SORTS.get(query.get("sort", ""), SORTS[""])
    key = _group_key(query)
    best: dict[str, Any] = {}
    for gpu in gpus:
        value = rank(gpu)
        best[key(gpu)] = min(best.get(key(gpu), value), value)
    return sorted(gpus, key=lambda gpu: (best[key(gpu)], key(gpu), rank(gpu), gpu.node, gpu.index))


def _mentions(gpu: Gpu, text: str) -> bool:
    names = (gpu.node, gpu.model, gpu.uuid, gpu.vgpu, *(share.tenant for share in gpu.shares))
    return any(text in name.lower() for name in names)


def _group_key(query: Query) -> Callable[[Gpu], str]:
    return (lambda gpu: gpu.model) if query.get("group") == "model" else (lambda gpu: gpu.node)


def _group(name: str, gpus: list[Gpu], silent: Node | None, *, by_model: bool) -> Block:
    models = sorted({gpu.model for gpu in gpus})
    return block(
        f"group-{slug(name)}",
        "blocks/group.html",
        name=name,
        by_model=by_model,
        about="" if by_model else ", ".join(models),
        emulated=all(gpu.emulated for gpu in gpus),
        free_milli=sum(gpu.free_milli for gpu in gpus),
        rows=with_bars(gpus),
        silent=silent,
        mixed=len(models) > 1,
    )
