"""Sums what is read of GPUs into periods of a minute.

Used and waited times, windows and hand-overs are differences of the arbiter's counts, so that they are exact however
seldom it is read. Promise and memory are what they were at a reading, for the time since the reading before. A tenant
counts from the reading in which it is first seen to the last one that saw it.

Durations are of a clock that only goes forward; the wall's clock only names the minute. Where that clock is put back,
minutes that are there already grow, and where it is put forward there is a gap.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from aliquot.status import Gpu
from aliquot.status.history import MINUTE_S, Counts, Reading, TenantReading
from aliquot.web.history.points import FIELDS, GPU_ROW, HANDOVERS, KEPT, MEMORY, PROMISED, SPAN, USED, WAITED, WINDOWS

LONGEST_STEP_S: Final = 90.0
"""What happened between two readings that are farther apart is not known: a gap."""


class GpuMinute(NamedTuple):
    """The sums of one GPU: `tenants` by (name, owner), each with the fields of a row, and the time that was read."""

    gpu: Gpu
    span_ms: int
    tenants: dict[tuple[str, str], list[int]]


class Minute(NamedTuple):
    """All that was read in a minute; `at_s` is when it began."""

    at_s: int
    gpus: list[GpuMinute]


class MinuteSums:
    """Readings in, whole minutes out."""

    def __init__(self) -> None:
        self._at_s = -1
        self._read_s = 0.0
        self._before: dict[str, dict[tuple[str, str], TenantReading]] = {}
        self._sums: dict[str, GpuMinute] = {}

    def see(self, now_s: float, wall_s: float, readings: Iterable[Reading]) -> Minute | None:
        """Add a reading; returns the minute that it ends, if any.

        `now_s` is of a clock that only goes forward, `wall_s` of the wall's.
        """
        step_s = now_s - self._read_s
        known = self._before if 0 <= step_s <= LONGEST_STEP_S else {}
        self._read_s, self._before = now_s, {}
        for gpu, tenants in readings:
            before = known.get(gpu.uuid)
            now = {(tenant.name, tenant.owner): tenant for tenant in tenants}
            for key, tenant in now.items():
                if tenant.counts is None and before is not None and key in before:
                    now[key] = tenant._replace(counts=before[key].counts)
            if before is not None:
                self._add(gpu, before, now, step_s)
            self._before[gpu.uuid] = now
        at_s = int(wall_s // MINUTE_S) * MINUTE_S
        ended = None if at_s == self._at_s else self.end()
        self._at_s = at_s
        return ended

    def end(self) -> Minute | None:
        """The minute as far as it was read; what is read from now on is in the next."""
        sums, self._sums = self._sums, {}
        return Minute(self._at_s, list(sums.values())) if sums and self._at_s >= 0 else None

    def _add(
        self,
        gpu: Gpu,
        before: dict[tuple[str, str], TenantReading],
        now: dict[tuple[str, str], TenantReading],
        step_s: float,
    ) -> None:
        held = self._sums.get(gpu.uuid)
        sums = GpuMinute(gpu, (held.span_ms if held else 0) + round(step_s * 1000), held.tenants if held else {})
        self._sums[gpu.uuid] = sums
        for key, tenant in now.items():
            was = before.get(key)
            if was is not None:
                row = sums.tenants.setdefault(key, [0] * len(FIELDS))
                _grow(row, was, tenant, step_s)


def _grow(row: list[int], was: TenantReading, tenant: TenantReading, step_s: float) -> None:
    """Add what happened between two readings of one tenant."""
    row[SPAN] += round(step_s * 1000)
    row[PROMISED] += round(tenant.request_milli * step_s)
    row[MEMORY] += round(tenant.memory_mib * step_s)
    now, then = tenant.counts, was.counts
    if now is None or then is None:
        return
    if any(a < b for a, b in zip(now, then, strict=True)):
        then = Counts(0, 0, 0, 0, 0)  # the arbiter or the tenant is new, and counts from 0
    # Of the last microseconds nothing is lost: whole milliseconds of the counts are subtracted.
    row[USED] += now.charged_ns // 1_000_000 - then.charged_ns // 1_000_000
    row[WAITED] += now.waited_ns // 1_000_000 - then.waited_ns // 1_000_000
    row[WINDOWS] += now.windows - then.windows
    row[KEPT] += now.kept - then.kept
    row[HANDOVERS] += now.handovers - then.handovers


def rows_by_number(minute: GpuMinute, numbers: dict[tuple[str, str], int]) -> dict[int, list[int]]:
    """The sums of a GPU by the numbers of tenants, with the row of the GPU itself."""
    rows = {numbers[key]: list(row) for key, row in minute.tenants.items()}
    rows[GPU_ROW] = [minute.span_ms, *[0] * (len(FIELDS) - 1)]
    return rows
