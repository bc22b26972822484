"""Events for a pod's owner: its memory limit refused an allocation, or it gets less than its request.

Pure. The texts carry no counts, so that a repeated event counts as the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aliquot.model.quantities import format_milli
from aliquot.status.nodes import NodeReport, Owner
from aliquot.status.tenants import TenantStatus

OUT_OF_MEMORY: Final = "GpuOutOfMemory"
THROTTLED: Final = "GpuThrottled"
SPAN_S: Final = 30.0
WAITED_PART: Final = 0.8
PROMISE_PART: Final = 0.9


@dataclass(frozen=True)
class Notice:
    """One event for a pod's owner."""

    owner: Owner
    reason: str
    text: str


@dataclass(frozen=True)
class _Seen:
    at_s: float
    waited_ns: int
    refusals: int


class Notices:
    """Remembers the state of each container; forgets those that are gone."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Owner, str], _Seen] = {}

    def new_notices(self, facts: NodeReport, now_s: float) -> list[Notice]:
        """What is new in this snapshot, which was taken at `now_s` of a monotonic clock.

        A container is throttled if over at least `SPAN_S` it waited for most of the time and was below its request. The
        first snapshot of a container yields nothing, nor does one whose counters restarted with the arbiter.
        """
        told: list[Notice] = []
        seen: dict[tuple[Owner, str], _Seen] = {}
        for gpu in facts.gpus:
            for use in gpu.uses:
                key, now = (use.owner, gpu.uuid), use.status
                fresh = _Seen(now_s, now.waited_ns, now.memory_refusals)
                before = self._seen.get(key, fresh)
                if now.waited_ns < before.waited_ns or now.memory_refusals < before.refusals:
                    before = fresh
                told += _of_memory(use.owner, gpu.index, now, before)
                if now_s - before.at_s >= SPAN_S:
                    told += _of_time(use.owner, gpu.index, now, before, now_s)
                    before = fresh
                seen[key] = _Seen(before.at_s, before.waited_ns, now.memory_refusals)
        if facts.answers:
            self._seen = seen
        return told


def _of_memory(owner: Owner, gpu: int, now: TenantStatus, before: _Seen) -> list[Notice]:
    if now.memory_refusals <= before.refusals:
        return []
    text = (
        f"container {owner.container} requested more memory of GPU {gpu} than its limit of {now.memory_limit_mib} MiB"
    )
    return [Notice(owner, OUT_OF_MEMORY, text)]


def _of_time(owner: Owner, gpu: int, now: TenantStatus, before: _Seen, now_s: float) -> list[Notice]:
    waited_s, span_s = (now.waited_ns - before.waited_ns) / 1e9, now_s - before.at_s
    due = PROMISE_PART * min(now.request_milli, now.limit_milli) / 1000
    if waited_s < WAITED_PART * span_s or now.usage >= due:
        return []
    request = format_milli(now.request_milli)
    text = (
        f"container {owner.container} waits for GPU {gpu} most of the time and gets less than its request of {request}"
    )
    return [Notice(owner, THROTTLED, text)]
