"""What arbiters say, as readings for the history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from aliquot.arbiter.records import GpuTurns
from aliquot.status.tenants import TenantStatus
from aliquot.web.api import Gpu, Share
from aliquot.web.history.recorder import Counts, Reading, TenantReading
from aliquot.web.history.records import Turn, Turns

CountsOf = Callable[[Gpu, Share], Counts | None]
OwnerOf = Callable[[str], str]
"""The controller of a tenant, such as `Deployment/web`."""
MOST: Final = 1 << 60
SHOWN_S: Final = 60.0
UNKNOWN: Final = "(unknown)"


def counts_of(now: TenantStatus) -> Counts:
    """The sums of a tenant on a GPU, each within bounds, since a node may report anything."""
    sums = (now.charged_ns, now.waited_ns, now.promise.windows, now.promise.kept, now.handovers)
    return Counts(*(min(max(0, number), MOST) for number in sums))


def readings(gpus: Iterable[Gpu], counts: CountsOf, owner_of: OwnerOf) -> list[Reading]:
    """The GPUs that are measured, with the tenants on them."""
    return [
        Reading(gpu, [
            TenantReading(
                share.tenant, owner_of(share.tenant), share.request_milli, share.memory_used_mib, counts(gpu, share)
            )
            for share in gpu.shares
        ])
        for gpu in gpus
        if gpu.measured
    ]  # fmt: skip


def turns_of(gpu: str, told: GpuTurns, now_s: float, names: Mapping[str, str] | None = None) -> Turns:
    """The arbiter's turns by the wall's clock, which is `now_s` at the arbiter's now, within the last minute.

    `names` maps the names in the report to tenants; a tenant missing in it is `UNKNOWN`. None: as reported.
    """

    def wall_s(ns: int) -> float:
        return round(now_s - min(SHOWN_S, max(0.0, (told.now_ns - ns) / 1e9)), 4)

    turns = [
        Turn(turn.tenant if names is None else names.get(turn.tenant, UNKNOWN), wall_s(turn.began_ns), ended_s)
        for turn in told.turns
        if wall_s(turn.began_ns) <= (ended_s := wall_s(turn.ended_ns))
    ]
    return Turns(gpu, now_s - SHOWN_S, now_s, wall_s(told.known_ns), turns)
