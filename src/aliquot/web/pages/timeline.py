"""One GPU, or a tenant's GPUs, over time: who held it, who waited, hand-overs and memory.

The last minute is drawn turn by turn. Longer times are stacked shares, drawn as steps; what was not recorded is a gap.
Everything is SVG from the server, whose coordinates are thousandths of the width and of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final, NamedTuple

from aliquot.status import Gpu, StatusSource, Timeline, Turns
from aliquot.status.history import RANGES, Lane, range_of
from aliquot.web.pages import NO_GPU, SHADES, Drawn, NotHere, Query, misread
from aliquot.web.pages.gpus import find
from aliquot.web.render import address, block, slug

TURNS: Final = "1m"
DEFAULT_RANGE: Final = "1h"
DRAWN: Final = 12
"""Tenants with a part of their own in a chart; the rest are one part."""
REST: Final = "(all others)"
MAX_GPUS: Final = 8
LABELS: Final = 5


class Stack(NamedTuple):
    """One layer of a stacked chart: whose, its shade, and its outline as an SVG path."""

    tenant: str
    shade: int
    path: str


def draw(facts: StatusSource, query: Query) -> Drawn:
    """The GPU that the query names by `gpu`, those of the `tenant` it names, or all, each by its compute only."""
    gpus, tenant, everything = chosen(facts, query), query.get("tenant", ""), facts.gpus()
    one = gpus[0].uuid if gpus and (query.get("gpu") or len(everything) == 1) else ""
    word = query.get("range", "") if query.get("range", "") in {TURNS, *RANGES} else DEFAULT_RANGE
    whom = {"tenant": tenant} if tenant else {"gpu": one}
    labels = {TURNS: "1 minute", **{each: span.label for each, span in RANGES.items()}}
    ranges = [(label, address("/timeline", **whom, range=each), each == word) for each, label in labels.items()]
    blocks = misread(query, {"gpu": None, "tenant": None, "range": [TURNS, *RANGES]})
    if not tenant and not one and len(gpus) < len(everything):
        blocks.append(
            block("part", "blocks/none.html", text=f"{len(gpus)} of {len(everything):,} GPUs; choose another.")
        )
    brief = not tenant and not one
    for gpu in gpus:
        block_id, title = f"timeline-{slug(gpu.uuid)}", f"GPU {gpu.index} of {gpu.node}"
        if word == TURNS:
            turns = facts.turns(gpu.uuid)
            values = _turns(turns, gpu, tenant) if turns is not None else None
            blocks.append(block(block_id, "blocks/turns.html", title=title, gpu=gpu, turns=values, brief=brief))
        else:
            drawn = charts(facts.past.timeline(gpu.uuid, range_of(word)), gpu, tenant)
            blocks.append(block(block_id, "blocks/timeline.html", title=title, gpu=gpu, brief=brief, **drawn))
    if not gpus:
        blocks.append(block("none", "blocks/none.html", text=NO_GPU))
    names = [(gpu.uuid, f"GPU {gpu.index} of {gpu.node}") for gpu in everything]
    frame = {"ranges": ranges, "gpus": names, "chosen": one, "word": word}
    return Drawn(f"Timeline of {tenant}" if tenant else "Timeline", blocks, frame)


def pace_s(query: Mapping[str, str]) -> float:
    """How often the page is drawn again."""
    return 2.0 if query.get("range") == TURNS else 20.0


def chosen(facts: StatusSource, query: Query) -> list[Gpu]:
    """The GPUs that a query is about.

    Raises:
        NotHere: the GPU or the tenant does not exist.
    """
    gpus, tenant = facts.gpus(), query.get("tenant", "")
    if tenant:
        found = [gpu for gpu in gpus if any(share.tenant == tenant for share in gpu.shares)]
        if not found:
            raise NotHere(f"No GPU has a tenant {tenant[:100]} now.")
        return found[:MAX_GPUS]
    if query.get("gpu"):
        return [find(facts, query["gpu"])]
    used = [gpu.uuid for gpu in gpus if gpu.shares][:MAX_GPUS]
    return [gpu for gpu in gpus if gpu.uuid in used] if len(gpus) > MAX_GPUS and used else list(gpus[:MAX_GPUS])


def charts(found: Timeline, gpu: Gpu, tenant: str = "") -> dict[str, Any]:
    """The charts of a timeline and its table; of one tenant where that is named, with all others as one."""
    # As in the GPU's bar, so that shades agree; then those that left, the largest first.
    places = {share.tenant: number for number, share in enumerate(gpu.shares)}
    lanes = sorted(
        found.lanes,
        key=lambda lane: (places.get(lane.tenant, len(places)), -sum(value or 0 for value in lane.used), lane.tenant),
    )
    drawn = DRAWN
    if tenant:
        lanes.sort(key=lambda lane: lane.tenant != tenant)
        drawn = sum(lane.tenant == tenant for lane in lanes)
    shown, rest = lanes[:drawn], lanes[drawn:]
    memory = max(1, gpu.memory_mib)
    return {
        "timeline": found,
        "compute": _stacked(shown, rest, lambda lane: lane.used, 1.0, found),
        "memory": _stacked(shown, rest, lambda lane: lane.memory_mib, memory, found),
        "waiting": _stacked(shown, rest, lambda lane: lane.waited, max(1, len(lanes)), found),
        "gaps": gaps(found.recorded),
        "rows": [_row(lane, number % SHADES, found) for number, lane in enumerate(shown)],
        "others": len(rest),
        "rest_shade": SHADES - 1,
        "labels": labels(found.since_s, found.until_s),
        "percent": 100 * sum(found.recorded) / len(found.recorded) if found.recorded else 0.0,
    }


def _stacked(
    shown: Sequence[Lane],
    rest: Sequence[Lane],
    values: Callable[[Lane], Sequence[float | None]],
    whole: float,
    found: Timeline,
) -> list[Stack]:
    """Layers from the bottom up, cut off where they would exceed the whole."""
    base = [0.0] * len(found.at_s)
    layers = [(lane.tenant, number % SHADES, values(lane)) for number, lane in enumerate(shown)]
    if rest:
        columns = zip(*(values(lane) for lane in rest), strict=True)
        layers.append((REST, SHADES - 1, [sum(value or 0.0 for value in column) for column in columns]))
    stacks = []
    for tenant, shade, heights in layers:
        top = [min(1.0, low + (height or 0.0) / whole) for low, height in zip(base, heights, strict=True)]
        stacks.append(Stack(tenant, shade, outline(base, top)))
        base = top
    return stacks


def outline(base: Sequence[float], top: Sequence[float]) -> str:
    """The area between two step curves of 0 to 1, as a path of thousandths; steps without height are left out."""
    count, paths = max(1, len(base)), []
    steps = [
        (1000 * n // count, 1000 * (n + 1) // count, round(1000 - 1000 * low), round(1000 - 1000 * high))
        for n, (low, high) in enumerate(zip(base, top, strict=True))
    ]
    for drawn, run in groupby(steps, key=lambda step: step[2] != step[3]):
        if drawn:
            area = list(run)
            since, _, _, high = area[0]
            along_top = _edge([(high, end) for _, end, _, high in area], high)
            back = _edge([(low, since) for since, _, low, _ in reversed(area)])
            paths.append(f"M{since} {high}{along_top}{back}Z")
    return "".join(paths)


def _edge(steps: Iterable[tuple[int, int]], height: int = -1) -> str:
    """A line along steps, each with its height and where it ends; it begins at `height`."""
    path = ""
    for step, x in steps:
        path += (f"V{step}" if step != height else "") + f"H{x}"
        height = step
    return path


def gaps(recorded: Sequence[float]) -> list[tuple[int, int]]:
    """What was not recorded at all, as (x, width)."""
    count, found, at = max(1, len(recorded)), [], 0
    while at < len(recorded):
        end = at
        while end < len(recorded) and not recorded[end]:
            end += 1
        if end > at:
            found.append((1000 * at // count, 1000 * end // count - 1000 * at // count))
        at = end + 1
    return found


def labels(since_s: float, until_s: float, form: str = "") -> list[str]:
    """Moments along the axis, at equal distances, in UTC."""
    form = form or (
        "%H:%M" if until_s - since_s <= 86_400 else "%b %d %H:%M" if until_s - since_s <= 604_800 else "%b %d"
    )
    step = (until_s - since_s) / (LABELS - 1)
    return [datetime.fromtimestamp(since_s + n * step, UTC).strftime(form) for n in range(LABELS)]


def _row(lane: Lane, shade: int, found: Timeline) -> dict[str, Any]:
    """One tenant in numbers, for viewers who do not see the charts: means over the time that was recorded, if any."""

    def mean(values: Sequence[float | None]) -> float | None:
        known = [(part, value) for part, value in zip(found.recorded, values, strict=True) if value is not None]
        weight = sum(part for part, _ in known)
        return sum(part * value for part, value in known) / max(weight, 1e-9) if known else None

    there = [value for value in lane.memory_mib if value]
    handovers = [value for value in lane.handovers if value is not None]
    return {
        "tenant": lane.tenant,
        "shade": shade,
        "used": mean(lane.used) or 0.0,
        "promised": mean(lane.promised) or 0.0,
        "lent": mean(lane.lent),
        "waited": mean(lane.waited),
        "memory_mib": sum(there) / len(there) if there else None,
        "kept": min((value for value in lane.kept_percent if value is not None), default=None),
        "handovers": sum(handovers) if handovers else None,
    }


def _turns(found: Turns, gpu: Gpu, tenant: str) -> dict[str, Any]:
    """Each tenant's turns as a row: as rectangles (x, width), and how long each was."""
    length = max(1e-9, found.until_s - found.since_s)
    names = list(dict.fromkeys([*(share.tenant for share in gpu.shares), *(turn.tenant for turn in found.turns)]))
    rows = []
    for number, name in enumerate(name for name in names if not tenant or name == tenant):
        own = [turn for turn in found.turns if turn.tenant == name]
        held = [turn.until_s - turn.since_s for turn in own]
        parts = [
            (round(1e4 * (turn.since_s - found.since_s) / length), max(1, round(1e4 * lasted / length)))
            for turn, lasted in zip(own, held, strict=True)
        ]
        percent = 100 * sum(held) / max(1e-9, found.until_s - max(found.since_s, found.known_s))
        rows.append({"tenant": name, "shade": number % SHADES, "parts": parts, "held_s": held, "percent": percent})
    waiting = {share.tenant for share in gpu.shares if share.waiting}
    known = round(1e4 * max(0.0, found.known_s - found.since_s) / length)
    return {
        "rows": rows,
        "waiting": waiting,
        "unknown": known,
        "labels": labels(found.since_s, found.until_s, "%H:%M:%S"),
    }
