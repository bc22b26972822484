"""Numbers from samples: percentiles, hand-overs, idle time, share errors. Pure, in nanoseconds and fractions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from aliquot_lab.bench.fig6 import Tenant
from aliquot_lab.bench.progress import Interval


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed (nearest rank).

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("a percentile needs at least one value")
    ordered = sorted(values)
    return ordered[max(0, ceil(percent / 100 * len(ordered)) - 1)]


def percentiles(name: str, values: Sequence[float], digits: int) -> dict[str, float | None]:
    """The middle and the 99th percentile as `NAME_p50` and `NAME_p99`; None where nothing was seen."""
    return {f"{name}_p{part}": round(percentile(values, part), digits) if values else None for part in (50, 99)}


@dataclass(frozen=True)
class Handovers:
    """The changes of tenant in a stretch of time: each gap, and the share of the time in which the GPU was unused."""

    gaps_ns: tuple[int, ...]
    idle_percent: float


def handovers(turns: Mapping[Tenant, Sequence[Interval]]) -> Handovers:
    """What happened between tenants whose synchronous turns are known.

    A hand-over is the time from the last seen end of one tenant's work to the moment the next tenant's launch call
    returned; it includes the client's own way from "work finished" to "next launch". Idle is the hand-overs' part of
    the whole stretch: the pauses within one tenant's turns are the client's own.
    """
    merged = sorted((turn.launched_ns, turn.ended_ns, tenant) for tenant, seen in turns.items() for turn in seen)
    if len(merged) < 2:
        return Handovers((), 0.0)
    gaps: list[int] = []
    _, last_end_ns, last = merged[0]
    for launched_ns, ended_ns, tenant in merged[1:]:
        if tenant != last:
            gaps.append(max(0, launched_ns - last_end_ns))
        if ended_ns >= last_end_ns:
            last_end_ns, last = ended_ns, tenant
    span_ns = last_end_ns - merged[0][0]
    return Handovers(tuple(gaps), 100 * sum(gaps) / span_ns if span_ns > 0 else 0.0)


def overlap(turns: Mapping[Tenant, Sequence[Interval]]) -> dict[Tenant, list[Interval]]:
    """Only the turns of the time in which every tenant was at work."""
    busy = [seen for seen in turns.values() if seen]
    if not busy:
        return {}
    first_ns = max(seen[0].launched_ns for seen in busy)
    last_ns = min(seen[-1].ended_ns for seen in busy)
    return {
        tenant: [turn for turn in seen if turn.launched_ns >= first_ns and turn.ended_ns <= last_ns]
        for tenant, seen in turns.items()
    }


def worst_error(due: Mapping[Tenant, float], windows: Sequence[Mapping[Tenant, float]]) -> float:
    """The largest distance from what was due, in points (hundredths of a GPU), over all windows."""
    return max((100 * abs(seen[tenant] - share) for seen in windows for tenant, share in due.items()), default=0.0)


def slowdown_percent(alone_per_s: float, here_per_s: float) -> float:
    """How much slower than alone, in percent; below zero when faster."""
    return 100 * (1 - here_per_s / alone_per_s)
