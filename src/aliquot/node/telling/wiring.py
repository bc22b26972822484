"""What the agent hands to the display: its seats, its arbiter, its sick GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from aliquot.arbiter.client import ArbiterClient, ArbiterError
from aliquot.arbiter.records import Status
from aliquot.node.seating import Seating
from aliquot.node.telling.facts import Owner, Sources

_TIMEOUT_S: Final = 2.0


def sources_of(seating: Seating, runtime_dir: Path, sick: Callable[[], Mapping[str, str]] = dict) -> Sources:
    """The sources of a node whose arbiter listens in `runtime_dir`."""

    def owners() -> dict[str, Owner]:
        seats = list(seating.seats.values())
        return {s.record.name: Owner(s.owner.namespace, s.owner.pod, s.container, s.owner.uid) for s in seats}

    return Sources(seating.node, seating.machine, lambda: arbiter_status(runtime_dir), owners, sick)


def arbiter_status(runtime_dir: Path) -> Status | None:
    """What the arbiter tells now; None while it does not answer. A connection of its own, so any thread may ask."""
    try:
        with ArbiterClient(runtime_dir, timeout_s=_TIMEOUT_S) as client:
            return client.status()
    except (ArbiterError, OSError):
        return None
