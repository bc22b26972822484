"""The audit: programs that compute on a shared GPU without having registered with its arbiter.

What NVML lists on a GPU and what is attached to the arbiter should be equal. Any other program bypassed our library,
with its own copy of the driver or a driver that was mounted without a share. Nothing limits its use of the GPU. On a
GPU whose owner is not enforced, the owner's programs use the driver directly and register nowhere; others' are
recognised there by their pod.

Pure: the node's status, the clock and the reader of programs are given. No program is reported at once: it has a grace
period from the first check that found it. The period starts again with every new arbiter, since programs must attach
again, and pauses while the program is stopped. A program that has no driver open is never reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from aliquot.status.nodes import AuditTotals, NodeReport

MAX_TOLD: Final = 16
"""The maximum number of programs that one check reports; the others follow in the next."""
_POD: Final = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_CONTAINER: Final = re.compile(r"([0-9a-f]{64})")


_Key = tuple[str, int, str]
"""A GPU's UUID, a process number, and when that process began."""


@dataclass(frozen=True)
class GpuProgram:
    """A running process of the node; `began` distinguishes it from a later process with the same number."""

    pid: int
    began: str
    name: str = ""
    cgroup: str = ""
    drives: bool | None = None
    """Whether it has a driver's device open; None without permission to check."""
    stopped: bool = False


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
        self._looked_s = 0.0
        self._since: dict[_Key, float] = {}
        self._told: set[_Key] = set()

    def unreported(self, facts: NodeReport, now_s: float) -> list[Bypass]:
        """The programs bypassing Aliquot that have not been reported yet, at `now_s` of a monotonic clock."""
        if not facts.compared or facts.boot_id != self._arbiter:
            self._since.clear()
            self._arbiter = facts.boot_id
        if not facts.compared:
            self.totals = msgspec.structs.replace(self.totals, works=False, standing={})
            return []
        since, told, standing = {}, set(), dict.fromkeys((gpu.uuid for gpu in facts.gpus), 0)
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
                told |= {key} & self._told
                since[key] = self._since_when(key, now_s, stopped=program.stopped)
                if program.stopped or now_s - since[key] < self._grace_s:
                    continue
                standing[gpu.uuid] += 1
                if key not in told and len(fresh) < MAX_TOLD:
                    told.add(key)
                    fresh.append(Bypass(gpu.index, program, seen.memory_mib))
        self._since, self._told, self._looked_s = since, told, now_s
        self.totals = AuditTotals(True, standing, self.totals.found + len(fresh), self.totals.ended)
        return fresh

    def _since_when(self, key: _Key, now_s: float, *, stopped: bool) -> float:
        """When its grace period began. A stopped program can neither register nor load the GPU, so that time does not
        count;
        it does not restart the period either, since a program that stops itself now and then would then never be
        reported."""
        if key not in self._since:
            return now_s
        return self._since[key] + (now_s - self._looked_s if stopped else 0.0)

    def ended(self, count: int) -> None:
        """Note how many programs were ended."""
        self.totals = msgspec.structs.replace(self.totals, ended=self.totals.ended + count)


def pod_of(cgroup: str) -> tuple[str, str]:
    """The pod's uid and the container's id in a cgroup's path, as kubelet's drivers cgroupfs and systemd write it.

    Both empty where there is none, as for a process of the node itself.
    """
    pod = _POD.search(cgroup)
    if pod is None:
        return "", ""
    container = _CONTAINER.search(cgroup, pod.end())
    return pod.group(1).replace("_", "-"), container.group(1) if container else ""


def container_of(container_id: str, statuses: Iterable[tuple[str, str]]) -> str:
    """The name of the container with that id, by (name, id with its runtime's prefix); empty if it is not listed."""
    if not container_id:
        return ""
    return next((name for name, known in statuses if known.endswith(container_id)), "")
