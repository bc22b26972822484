"""The audit: programs that compute on a shared GPU without having registered with its arbiter.

What NVML lists on a GPU and what is attached to the arbiter should be equal. Any other program bypassed our library,
with its own copy of the driver or a driver that was mounted without a share. Nothing limits its use of the GPU. On a
GPU whose owner is not enforced, the owner's programs use the driver directly and register nowhere; others' are
recognised there by their pod.

`Audit` is pure: the node's status, the clock and the reader of programs are given; `Auditing` runs it periodically,
reports to pods' owners, and kills what was found where that is configured. No program is reported at once: it has a
grace period from the first check that found it. The period starts again with every new arbiter, since programs must
attach again, and pauses while the program is stopped. A program that has no driver open is never reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from aliquot.lib.log import Logger
from aliquot.node.display.facts import Sources, read_report
from aliquot.node.events import Events
from aliquot.node.pods import NodePods
from aliquot.node.processes import GpuProgram, end_program, pod_of
from aliquot.status.nodes import AuditTotals, NodeReport

MAX_REPORTED: Final = 16
"""The maximum number of programs that one check reports; the others follow in the next."""


_Key = tuple[str, int, str]
"""A GPU's UUID, a process number, and when that process began."""


@dataclass(frozen=True)
class Bypass:
    """A program that bypasses Aliquot, on the GPU of that index."""

    gpu: int
    program: GpuProgram
    memory_mib: int


class Audit:
    """Keeps when each unregistered program was first found, and which were already reported."""

    def __init__(self, read: Callable[[int], GpuProgram | None], grace_s: float) -> None:
        self.totals = AuditTotals()
        self._read = read
        self._grace_s = grace_s
        self._arbiter = 0
        self._checked_s = 0.0
        self._since: dict[_Key, float] = {}
        self._reported: set[_Key] = set()

    def unreported(self, facts: NodeReport, now_s: float) -> list[Bypass]:
        """The programs bypassing Aliquot that have not been reported yet, at `now_s` of a monotonic clock."""
        if not facts.compared or facts.boot_id != self._arbiter:
            self._since.clear()
            self._arbiter = facts.boot_id
        if not facts.compared:
            self.totals = msgspec.structs.replace(self.totals, works=False, standing={})
            return []
        since: dict[_Key, float] = {}
        reported, standing = set(), dict.fromkeys((gpu.uuid for gpu in facts.gpus), 0)
        fresh: list[Bypass] = []
        for gpu in facts.gpus:
            owners = {use.owner.uid for use in gpu.uses} - {""}
            for seen in (*gpu.unregistered, *gpu.bare):
                program = self._read(seen.pid)
                if program is None or program.drives is False:
                    continue  # ended, or another process with that number
                if seen in gpu.bare and (not owners or pod_of(program.cgroup)[0] in owners):
                    continue
                key = (gpu.uuid, program.pid, program.began)
                reported |= {key} & self._reported
                # A stopped program can neither register nor load the GPU, so that time does not count. It does not
                # restart the period either: a program that stops itself now and then would never be reported.
                paused_s = now_s - self._checked_s if program.stopped else 0.0
                since[key] = self._since[key] + paused_s if key in self._since else now_s
                if program.stopped or now_s - since[key] < self._grace_s:
                    continue
                standing[gpu.uuid] += 1
                if key not in reported and len(fresh) < MAX_REPORTED:
                    reported.add(key)
                    fresh.append(Bypass(gpu.index, program, seen.memory_mib))
        self._since, self._reported, self._checked_s = since, reported, now_s
        self.totals = AuditTotals(True, standing, self.totals.found + len(fresh), self.totals.ended)
        return fresh

    def ended(self, count: int) -> None:
        """Note how many programs were ended."""
        self.totals = msgspec.structs.replace(self.totals, ended=self.totals.ended + count)


def container_of(container_id: str, statuses: Iterable[tuple[str, str]]) -> str:
    """The name of the container with that id, by (name, id with its runtime's prefix); empty if it is not listed."""
    if not container_id:
        return ""
    return next((name for name, known in statuses if known.endswith(container_id)), "")


_LOG: Final = Logger("node")
FOUND: Final = "GpuUnregisteredProcess"
ENDED: Final = "GpuUnregisteredProcessEnded"


class Auditing:
    """`run` never returns. With `kill`, programs of pods are killed; those of the node itself are only reported."""

    def __init__(self, audit: Audit, sources: Sources, pods: NodePods, events: Events, *, kill: bool) -> None:
        self._audit = audit
        self._sources = sources
        self._pods = pods
        self._events = events
        self._kill = kill
        self._works: bool | None = None

    async def run(self, period_s: float) -> None:
        """Check until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(period_s)

    async def check(self) -> None:
        """One check, and its consequences."""
        facts = await asyncio.to_thread(read_report, self._sources)
        found = await asyncio.to_thread(self._audit.unreported, facts, asyncio.get_running_loop().time())
        if (works := self._audit.totals.works) != self._works:
            self._works = works
            _LOG.info("audit", level="audited" if works else "cooperative")
        # All are killed before the first is reported: a hanging API server gains no program time.
        killed = []
        for bypass in found:
            known = self._pods.get(pod_of(bypass.program.cgroup)[0]) is not None
            killed.append(self._kill and known and await asyncio.to_thread(end_program, bypass.program))
        self._audit.ended(sum(killed))
        for bypass, ended in zip(found, killed, strict=True):
            await self._report(bypass, ended=ended)

    async def _report(self, bypass: Bypass, *, ended: bool) -> None:
        program, (uid, container_id) = bypass.program, pod_of(bypass.program.cgroup)
        pod = self._pods.get(uid) if uid else None
        _LOG.warning(
            "unregistered-process", pid=program.pid, name=program.name, gpu=bypass.gpu, memory_mib=bypass.memory_mib,
            pod=str(pod.key) if pod else "", ended=ended,
        )  # fmt: skip
        if pod is None:
            whose = f"a process of pod {uid}, which this node does not know," if uid else "a process of no pod"
            await self._events.about_node(FOUND, f"{whose} bypasses Aliquot on shared GPU {bypass.gpu}")
            return
        container = container_of(container_id, [(status.name, status.container_id) for status in pod.statuses])
        who = f"container {container}" if container else "a container"
        text = f"{who} bypasses Aliquot on GPU {bypass.gpu}: a process of it did not register, and no share limits it"
        if ended:
            text += "; it was killed"
        await self._events.about_pod(pod.key, ENDED if ended else FOUND, text)
