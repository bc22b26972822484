"""What workloads use of what they asked for, and the share that would do: pure functions of the history's sums.

A recommendation is made for each controller and container, for all of its tenants alike, on each of their GPUs:

- *request*: what 95 of 100 minutes used, and a margin;
- *limit*: as it is, for an unused limit keeps nothing from others; raised where a minute reached it;
- *memory*: the most that was held, and a margin; never raised, for use cannot tell who wants more than it has.

Nothing is said before an hour is recorded. A size that is a little too large stays as it is, so that a recommendation
that was followed does not change with the next minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from aliquot.model.ages import format_age
from aliquot.model.quantities import MILLI, format_mib, format_milli
from aliquot.status.gpus import Share
from aliquot.status.history import RANGES, ControllerUse, Past, Range, names_of_use
from aliquot.status.source import StatusSource

MIN_HISTORY_S: Final = 3600
MARGIN: Final = 1.15
BAND: Final = 1.25
"""How much larger than the recommendation a size may be and stay."""
REACHED: Final = 0.95
STEP_MILLI: Final = 10
STEP_MIB: Final = 256
PARK_S: Final = 600
"""What is idle for longer might be parked."""


class Size(msgspec.Struct, frozen=True, order=True):
    """A share of one GPU."""

    request_milli: int
    limit_milli: int
    memory_mib: int


class Recommendation(msgspec.Struct, frozen=True):
    """What a controller's container asks for, used, and should ask for; `tenants` counts its shares of GPUs now.

    `command` makes the change, empty where nothing is to be changed or no command can. `idle_s` is for how long none of
    them has used or wanted its GPUs.
    """

    namespace: str
    controller: str
    container: str
    tenants: int
    asked: Size
    recommended: Size
    use: ControllerUse | None
    reasons: list[str]
    command: str
    idle_s: int = 0

    @property
    def name(self) -> str:
        """`namespace/controller`, with the container where there is one."""
        return "/".join(word for word in (self.namespace, self.controller, self.container) if word)


class Unused(msgspec.Struct, frozen=True):
    """What a namespace was promised, used at its peak and in 95 of 100 minutes, and what recommendations would free."""

    namespace: str
    promised_milli: int = 0
    used_milli: int = 0
    freed_milli: int = 0
    promised_mib: int = 0
    used_mib: int = 0
    freed_mib: int = 0


class Recommendations(msgspec.Struct, frozen=True):
    """Recommendations from what was recorded from `since_s` to `until_s`, and what they add up to by namespace."""

    since_s: int
    until_s: int
    recommendations: list[Recommendation]
    namespaces: list[Unused]
    note: str = ""


def recommend(asked: Size, use: ControllerUse | None) -> tuple[Size, list[str]]:
    """The size that the use calls for, and why; the size itself where it will do."""
    if use is None or use.recorded_s < MIN_HISTORY_S:
        recorded = format_age(use.recorded_s if use is not None else 0)
        return asked, [f"{recorded} are recorded, and a recommendation takes {format_age(MIN_HISTORY_S)}"]
    request, limit, memory, why = asked.request_milli, asked.limit_milli, asked.memory_mib, []
    needed = min(MILLI, max(STEP_MILLI, _up(use.milli.p95 * MARGIN, STEP_MILLI)))
    if use.milli.p95 > request or request > max(needed * BAND, needed + 2 * STEP_MILLI):
        request = needed
        idle = use.idle_s >= use.recorded_s
        used = "no minute had work" if idle else f"95 of 100 minutes used {format_milli(use.milli.p95)} or less"
        why.append(f"request: {used}")
    if use.milli.peak >= REACHED * limit and limit < MILLI:
        limit = min(MILLI, _up(use.milli.peak * BAND, STEP_MILLI))
        why.append(f"limit: a minute used {format_milli(use.milli.peak)} of {format_milli(asked.limit_milli)}")
    limit = max(limit, request)
    enough = max(STEP_MIB, _up(use.memory_mib.peak * MARGIN, STEP_MIB))
    if memory > max(enough * BAND, enough + 2 * STEP_MIB):
        memory = enough
        why.append(f"memory: at most {format_mib(use.memory_mib.peak)} were held")
    return Size(request, limit, memory), why or ["what is asked fits what is used"]


def _up(value: float, step: int) -> int:
    """The next multiple of a step; what is above one by less than a millionth is that."""
    return -int(-(value - value * 1e-9) // step) * step


def recommendations(facts: StatusSource, span: Range) -> Recommendations:
    """Recommendations for everything that has a share now. May take a second."""
    found = facts.past.uses(span)
    uses = {(use.namespace, use.controller, use.container): use for use in found.uses}
    shares: dict[tuple[tuple[str, str, str], Size], list[Share]] = {}  # while a controller changes it has two sizes
    for share in (share for gpu in facts.gpus() for share in gpu.shares if share.owner):
        size = Size(share.request_milli, share.limit_milli, share.memory_mib)
        shares.setdefault((names_of_use(share.tenant, share.owner), size), []).append(share)
    lines = []
    for (key, asked), own in sorted(shares.items()):
        wanted, why = recommend(asked, uses.get(key))
        command = command_for(facts.program, own[0], asked, wanted) if wanted != asked else ""
        idle_s = min(share.idle_s for share in own)
        if facts.program == "aliquot" and idle_s >= PARK_S and asked.request_milli < MILLI:
            why = [*why, f"idle for {format_age(idle_s)}: parked, its memory would be others' meanwhile"]
        lines.append(Recommendation(*key, len(own), asked, wanted, uses.get(key), why, command, idle_s))
    return Recommendations(found.since_s, found.until_s, lines, unused(lines), found.note)


def requests_of_a_day(past: Past) -> Callable[[str, str, int, int], int]:
    """The request that the last day calls for, up to the limit, by tenant, owner, request and limit. May take a second.

    Memory is not among it: time that is missing is lent up to the limit, memory that is missing ends a program.
    """
    uses = {(use.namespace, use.controller, use.container): use for use in past.uses(RANGES["24h"]).uses}

    def wanted(tenant: str, owner: str, request_milli: int, limit_milli: int) -> int:
        size, _ = recommend(Size(request_milli, limit_milli, 0), uses.get(names_of_use(tenant, owner)))
        return min(size.request_milli, limit_milli)

    return wanted


def unused(lines: Iterable[Recommendation]) -> list[Unused]:
    """The sums by namespace, what could be freed most first; what grows is freed of nothing."""
    sums: dict[str, list[int]] = {}
    for line in lines:
        asked, wanted, use = line.asked, line.recommended, line.use
        each = (
            asked.request_milli, use.milli.p95 if use else 0, max(0, asked.request_milli - wanted.request_milli),
            asked.memory_mib, use.memory_mib.peak if use else 0, asked.memory_mib - wanted.memory_mib,
        )  # fmt: skip
        held = sums.setdefault(line.namespace, [0] * len(each))
        sums[line.namespace] = [a + line.tenants * b for a, b in zip(held, each, strict=True)]
    rows = [Unused(namespace, *values) for namespace, values in sums.items()]
    return sorted(rows, key=lambda row: (-row.freed_milli, -row.freed_mib, row.namespace))


def command_for(program: str, share: Share, asked: Size, wanted: Size) -> str:
    """The command that makes a change; empty where none can.

    What a controller's template says takes effect in new pods. Whole GPUs are not resized: they become shares with a
    new start.
    """
    if asked.request_milli >= MILLI:
        return ""
    fields = {
        "request": (format_milli(wanted.request_milli), wanted.request_milli != asked.request_milli),
        "limit": (format_milli(wanted.limit_milli), wanted.limit_milli != asked.limit_milli),
        "memory": (f"{wanted.memory_mib}Mi", wanted.memory_mib != asked.memory_mib),
    }
    changed = {name: text for name, (text, differs) in fields.items() if differs}
    flags = {"request": "--gpu-request", "limit": "--gpu-limit", "memory": "--gpu-mem"}
    sizes = " ".join(f"{flags[name]} {text}" for name, text in changed.items())
    if program == "aliquot":
        return f"aliquot resize {share.tenant.removeprefix('default/')} {sizes}"
    namespace, controller, container = names_of_use(share.tenant, share.owner)
    kind, _, name = controller.partition("/")
    if kind in ("SharePod", "Pod"):
        only = f" -c {container}" if kind == "Pod" else ""
        return f"kubectl aliquot resize {kind.lower()}/{name} -n {namespace}{only} {sizes}"
    resources = [
        f"aliquot.dev/gpu-percent={wanted.request_milli // 10}" if "request" in changed else "",
        f"aliquot.dev/gpu-memory={changed['memory']}" if "memory" in changed else "",
    ]
    if not any(resources):
        return ""
    limits = ",".join(filter(None, resources))
    return f"kubectl -n {namespace} set resources {kind.lower()}/{name} -c {container} --limits={limits}"
