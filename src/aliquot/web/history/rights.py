"""The history as a viewer with rights to some namespaces sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from aliquot.web.history.keeping import Past
from aliquot.web.history.reading import Range, totalled
from aliquot.web.history.records import Hours, Lane, Timeline, Turn, Turns

OTHERS = "(other namespaces)"
HANDOVER_S = 0.001
"""Turns of others that are no farther apart are shown as one."""


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
        """When others held the GPU, without their names and without where one handed it to the next."""
        found = self._past.turns(gpu)
        if found is None:
            return None
        turns: list[Turn] = []
        for turn in found.turns:
            before = turns[-1] if turns else None
            if self._mine(turn.tenant):
                turns.append(turn)
            elif before is not None and before.tenant == OTHERS and turn.since_s - before.until_s <= HANDOVER_S:
                turns[-1] = Turn(OTHERS, before.since_s, max(before.until_s, turn.until_s))
            else:
                turns.append(msgspec.structs.replace(turn, tenant=OTHERS))
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

    nothing: list[Any] = [None] * len(lanes[0].used)
    return Lane(
        OTHERS, "", summed("used"), summed("promised"), summed("lent"), nothing, summed("memory_mib"), nothing, nothing
    )
