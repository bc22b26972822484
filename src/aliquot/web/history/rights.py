"""The history as a viewer with rights to some namespaces sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from aliquot.web.history.keeping import Past
from aliquot.web.history.reading import Range, totalled
from aliquot.web.history.records import Hours, Lane, Timeline, Turns

OTHERS = "(other namespaces)"


class NamespacedPast:
    """Names and hours of what `mine` says of a tenant's name; all others are one lane without a name."""

    def __init__(self, past: Past, mine: Callable[[str], bool]) -> None:
        self._past = past
        self._mine = mine

    def timeline(self, gpu: str, span: Range) -> Timeline:
        """Others' use of the GPU is shown in sum."""
        found = self._past.timeline(gpu, span)
        own = [lane for lane in found.lanes if self._mine(lane.tenant)]
        others = [lane for lane in found.lanes if not self._mine(lane.tenant)]
        return msgspec.structs.replace(found, lanes=[*own, _together(others)] if others else own)

    def turns(self, gpu: str) -> Turns | None:
        """Others' turns have no name."""
        found = self._past.turns(gpu)
        if found is None:
            return None
        turns = [
            turn if self._mine(turn.tenant) else msgspec.structs.replace(turn, tenant=OTHERS) for turn in found.turns
        ]
        return msgspec.structs.replace(found, turns=turns)

    def hours(self, span: Range) -> Hours:
        """Only the viewer's own namespaces."""
        found = self._past.hours(span)
        mine = [line for line in found.lines if line.namespace and self._mine(f"{line.namespace}/")]
        return totalled(msgspec.structs.replace(found, lines=mine))


def _together(lanes: Sequence[Lane]) -> Lane:
    def summed(field: str) -> list[Any]:
        columns = zip(*(getattr(lane, field) for lane in lanes), strict=True)
        return [None if any(value is None for value in column) else round(sum(column), 4) for column in columns]

    nothing: list[float | None] = [None] * len(lanes[0].used)
    return Lane(
        OTHERS, "", summed("used"), summed("promised"), summed("lent"), nothing, summed("memory_mib"), nothing,
        summed("handovers"),
    )  # fmt: skip
