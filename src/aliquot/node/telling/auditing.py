"""The audit as a task: runs periodically, reports to pods' owners, and kills what was found where configured."""

from __future__ import annotations

import asyncio
from typing import Final

from aliquot.lib.log import Logger
from aliquot.node.audit import Audit, Bypass, container_of, pod_of
from aliquot.node.events import Events
from aliquot.node.pods import NodePod, NodePods
from aliquot.node.processes import end_program
from aliquot.node.telling.facts import Sources, read_report

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
        ends = [await self._end(bypass) for bypass in found]
        for bypass, ended in zip(found, ends, strict=True):
            await self._tell(bypass, ended=ended)

    async def _end(self, bypass: Bypass) -> bool:
        if not self._kill or self._pods.get(pod_of(bypass.program.cgroup)[0]) is None:
            return False
        ended = await asyncio.to_thread(end_program, bypass.program)
        self._audit.ended(int(ended))
        return ended

    async def _tell(self, bypass: Bypass, *, ended: bool) -> None:
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
        container = container_of(container_id, _ids(pod))
        who = f"container {container}" if container else "a container"
        text = f"{who} bypasses Aliquot on GPU {bypass.gpu}: a process of it did not register, and no share limits it"
        key = pod.key
        if ended:
            text += "; it was killed"
        await self._events.about_pod(key.namespace, key.pod, key.uid, ENDED if ended else FOUND, text, "Warning")


def _ids(pod: NodePod) -> list[tuple[str, str]]:
    every = [*pod.status.init_container_statuses, *pod.status.container_statuses]
    return [(status.name, status.container_id) for status in every]
