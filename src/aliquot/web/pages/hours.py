"""GPU-hours by namespace, controller and model: promised, used, lent to others and idle, for a range.

Below them what is promised now and was not used, by namespace, and what each workload should ask for.
"""

from __future__ import annotations

from typing import Final

from aliquot.status import Hours, StatusSource
from aliquot.status.history import COLUMNS, DEFAULT_RANGE, DIMENSIONS, RANGES, dimensions, hours_range, summed_by
from aliquot.status.rightsize import recommendations
from aliquot.web.pages import Drawn, Query, misread
from aliquot.web.render import address, block

SHOWN: Final = 200
GROUPS: Final = {
    "namespace": "Namespace",
    "namespace,controller": "Namespace and controller",
    "namespace,controller,model": "Namespace, controller and model",
    "model": "Model",
}
NAME: Final = "name"
SORTS: Final = (NAME, *COLUMNS)


def draw(facts: StatusSource, query: Query) -> Drawn:
    """The hours of a range, by some of the dimensions, sorted.

    In place of words that are unknown the page has its usual ones, and says so.
    """
    by_words = [*DIMENSIONS, *([query["by"]] if _known("by", query.get("by", "")) else [])]
    mistakes = misread(query, {"range": RANGES, "by": by_words, "sort": SORTS})
    query = {name: text for name, text in query.items() if _known(name, text)}
    hours, by = asked_hours(facts, query), dimensions(query.get("by", ""))
    sort = query.get("sort", "promised")
    if sort == NAME:
        lines = sorted(hours.lines, key=lambda line: (line.namespace, line.owner, line.model))
    else:
        lines = sorted(hours.lines, key=lambda line: -float(getattr(line, sort)))
    word = query.get("range", "") or DEFAULT_RANGE

    def at(**changes: str) -> str:
        return address("/hours", **{**query, **changes})

    ranges = [(span.label, at(range=each), each == word) for each, span in RANGES.items()]
    groups = [(label, at(by=each), each == ",".join(by)) for each, label in GROUPS.items()]
    heads = [(COLUMNS[field], at(sort=field), field == sort) for field in COLUMNS]
    asked = {name: query[name] for name in ("range", "by") if query.get(name)}
    bars = []
    for line in lines[:SHOWN]:  # the promise in thousandths: used, lent, idle
        whole = max(line.promised, 1e-9)
        used = min(1000, round(1000 * (line.used - line.borrowed) / whole))
        lent = min(1000 - used, round(1000 * line.lent / whole))
        bars.append((used, lent, 1000 - used - lent if line.promised else 0))
    hours_block = block(
        "hours",
        "blocks/hours.html",
        hours=hours,
        lines=lines[:SHOWN],
        by=by,
        heads=heads,
        name_sort=(at(sort=NAME), sort == NAME),
        columns=list(COLUMNS),
        csv=address("/api/v1/hours.csv", **asked),
        bars=bars,
    )
    found = recommendations(facts, hours_range(query.get("range", "")))
    unused = block("unused", "blocks/unused.html", found=found, lines=found.recommendations[:SHOWN])
    return Drawn("GPU-hours", [*mistakes, hours_block, unused], {"ranges": ranges, "groups": groups})


def asked_hours(facts: StatusSource, query: Query) -> Hours:
    """The hours that a query asks for.

    Raises:
        UserError: the range or a dimension is unknown.
    """
    return summed_by(facts.past.hours(hours_range(query.get("range", ""))), dimensions(query.get("by", "")))


def _known(name: str, text: str) -> bool:
    if name == "by":
        return all(word in DIMENSIONS for word in text.split(","))
    return text in {"range": RANGES, "sort": SORTS}.get(name, ())
