"""GPUs: every GPU as one bar of shares, by node or by model, a bounded number at a time; and one of them.

One GPU is shown with its tenants, the promise and the use of each, and the last hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from aliquot.status import Gpu, StatusSource
from aliquot.web.history.keeping import HOUR_S
from aliquot.web.pages import (
    NO_GPU,
    Drawn,
    NotHere,
    Query,
    commands,
    compute_bar,
    memory_bar,
    misread,
    one_page,
    with_bars,
)
from aliquot.web.render import block, slug

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
CHARTS: Final = (
    ("usage_milli", "Usage", "part of the GPU"),
    ("memory_mib", "Memory", "GiB"),
    ("wait_ms", "Wait for a grant, median", "ms"),
    ("quota_ms", "Length of a grant", "ms"),
    ("debt_ms", "Debt", "ms"),
)


FOLDED: Final = frozenset({"quota_ms", "debt_ms"})
"""Charts that explain how turns are taken, not what a tenant gets; they are opened on demand."""
SHORTEST: Final = 8
ABBREVIATIONS: Final = (12, 17, 22)
"""`GPU-` and the first of the groups of a UUID."""


def draw(facts: StatusSource, query: Query) -> Drawn:
    """The part of the GPUs that the query selects."""
    everything = facts.gpus()
    found = ordered(matching(everything, query), query)
    shown, pager = one_page(query, "/gpus", found, PER_PAGE, "GPUs")
    by_model = query.get("group") == "model"
    silent = {node.name: node for node in facts.nodes() if node.silent}
    blocks = misread(query, PARAMETERS)
    for name, group in groupby(shown, key=_group_key(query)):
        gpus = list(group)
        models = sorted({gpu.model for gpu in gpus})
        blocks.append(
            block(
                f"group-{slug(name)}",
                "blocks/group.html",
                name=name,
                by_model=by_model,
                about="" if by_model else ", ".join(models),
                emulated=all(gpu.emulated for gpu in gpus),
                free_milli=sum(gpu.free_milli for gpu in gpus),
                rows=with_bars(gpus),
                silent=silent.get(name),
                mixed=len(models) > 1,
            )
        )
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
        and any(
            text in name.lower() for name in (gpu.node, gpu.model, gpu.uuid, gpu.vgpu, *(s.tenant for s in gpu.shares))
        )
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


def _group_key(query: Query) -> Callable[[Gpu], str]:
    return (lambda gpu: gpu.model) if query.get("group") == "model" else (lambda gpu: gpu.node)


def draw_one(facts: StatusSource, query: Query) -> Drawn:
    """The GPU that the query names by `uuid`."""
    gpu = find(facts, query.get("uuid", ""))
    history = facts.history(gpu.uuid, HOUR_S)
    blocks = [
        block("gpu", "blocks/gpu.html", gpu=gpu, compute=compute_bar(gpu), memory=memory_bar(gpu)),
        block("tenants", "blocks/tenants.html", gpu=gpu, window_s=facts.window_s),
        block("hour", "blocks/hour.html", series=history.series if history else [], charts=CHARTS, gpu=gpu),
    ]
    return Drawn(
        f"GPU {gpu.index} of {gpu.node}",
        blocks,
        {"gpu": gpu, "charts": CHARTS, "folded": FOLDED, "command": commands.top(facts)},
    )


def find(facts: StatusSource, uuid: str) -> Gpu:
    """The GPU by that UUID, or by a beginning of it that no other has, as CUDA_VISIBLE_DEVICES takes them.

    Raises:
        NotHere: no such GPU exists, or several.
    """
    found = [gpu for gpu in facts.gpus() if gpu.uuid.startswith(uuid)] if len(uuid) >= SHORTEST else []
    for gpu in found:
        if gpu.uuid == uuid or len(found) == 1:
            return gpu
    raise NotHere(f"There is no GPU {uuid[:60]} here.")


def abbreviated(uuids: Sequence[str]) -> int:
    """How many characters of these UUIDs tell any two apart."""
    for length in ABBREVIATIONS:
        if len({uuid[:length] for uuid in uuids}) == len(uuids):
            return length
    return max(map(len, uuids))
