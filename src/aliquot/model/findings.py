"""One line of a doctor's report, the same on a machine, on a node and for a cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One result: `state` is ok, note or fault; a fault has a remedy."""

    what: str
    state: str
    found: str
    way_out: str = ""
