"""Events for a pod's owner: its memory limit refused an allocation, or it gets less than its request; or it was ended,
since it did not give back memory that was lent to it.

The texts carry no counts, so that a repeated event counts as the same one. `Notices` is pure.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from aliquot.model.quantities import format_milli
from aliquot.node.allocation.checkpoint import PodKey
from aliquot.node.display.facts import Sources, read_report
from aliquot.node.events import Events
from aliquot.status.nodes import NodeReport, Owner

OUT_OF_MEMORY: Final = "GpuOutOfMemory"
NOT_GIVEN_BACK: Final = "GpuMemoryNotGivenBack"
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
    lost: tuple[int, str]


class Notices:
    """Remembers the state of each container; forgets those that are gone."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Owner, str], _Seen] = {}

    def new_notices(self, facts: NodeReport, now_s: float) -> list[Notice]:
        """What is new in this snapshot, which was taken at `now_s` of a monotonic clock.

        A container is throttled if over at least `SPAN_S` it waited for most of the time and was below its request. The
        first snapshot of a container yields nothing, nor does one whose counters restarted with the arbiter.
        """
        notices: list[Notice] = []
        seen: dict[tuple[Owner, str], _Seen] = {}
        for gpu in facts.gpus:
            for use in gpu.uses:
                key, now = (use.owner, gpu.uuid), use.status
                fresh = _Seen(now_s, now.waited_ns, now.memory_refusals, now.lost)
                before = self._seen.get(key, fresh)
                if now.waited_ns < before.waited_ns or now.memory_refusals < before.refusals:
                    before = fresh
                who = f"container {use.owner.container}"
                if now.memory_refusals > before.refusals:
                    limit = f"its limit of {now.memory_limit_mib} MiB"
                    text = f"{who} requested more memory of GPU {gpu.index} than {limit}"
                    text += f"; it borrows no memory, for it {now.not_lent}" if now.not_lent else ""
                    notices.append(Notice(use.owner, OUT_OF_MEMORY, text))
                if now.lost != before.lost and now.lost_text:
                    notices.append(Notice(use.owner, NOT_GIVEN_BACK, f"{who} was ended: {now.lost_text}"))
                span_s = now_s - before.at_s
                if span_s >= SPAN_S:
                    waited_s = (now.waited_ns - before.waited_ns) / 1e9
                    due = PROMISE_PART * min(now.request_milli, now.limit_milli) / 1000
                    if waited_s >= WAITED_PART * span_s and now.usage < due:
                        request = f"its request of {format_milli(now.request_milli)}"
                        text = f"{who} waits for GPU {gpu.index} most of the time and gets less than {request}"
                        notices.append(Notice(use.owner, THROTTLED, text))
                    before = fresh
                seen[key] = _Seen(before.at_s, before.waited_ns, now.memory_refusals, now.lost)
        if facts.answers:
            self._seen = seen
        return notices


async def report_notices(sources: Sources, events: Events, period_s: float) -> None:
    """Check until cancelled, and write an event on each pod that has news."""
    notices = Notices()
    while True:
        facts = await asyncio.to_thread(read_report, sources)
        for notice in notices.new_notices(facts, asyncio.get_running_loop().time()):
            pod = PodKey(notice.owner.uid, notice.owner.namespace, notice.owner.pod)
            await events.about_pod(pod, notice.reason, notice.text)
        await asyncio.sleep(period_s)
