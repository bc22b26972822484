"""One line of a doctor's report, the same on a machine, on a node and for a cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What was looked at: `state` is ok, note or fault; a fault has a way out."""

    what: str
    state: str
    found: str
    way_out: str = ""
