"""The recent turns on each GPU, in a ring of bounded length, for views of the last minute.

A hand-over costs two appends. Nothing is computed until it is queried.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from .records import GpuTurns, HeldTurn

KEPT: Final = 4096
"""Beginnings and ends that are kept of one GPU."""
SHOWN_NS: Final = 60_000_000_000


class TurnLog:
    """The beginnings of turns, and the moments from which on no tenant held the GPU."""

    def __init__(self) -> None:
        self._of: dict[str, deque[tuple[int, str]]] = {}

    def began(self, gpu: str, tenant: str, now_ns: int) -> None:
        """A tenant was granted a GPU; the turn before it has ended."""
        log = self._of.get(gpu)
        if log is None:
            log = self._of[gpu] = deque(maxlen=KEPT)
        log.append((now_ns, tenant))

    def ended(self, gpu: str, tenant: str, now_ns: int) -> None:
        """The tenant's work has ended; nothing changes if another one was granted the GPU meanwhile."""
        log = self._of.get(gpu)
        if log and log[-1][1] == tenant:
            log.append((now_ns, ""))

    def last_minute(self, gpu: str, now_ns: int) -> GpuTurns:
        """The turns that ended less than a minute ago, and the one that has not."""
        log = self._of.get(gpu) or ()
        since_ns = now_ns - SHOWN_NS
        known_ns = log[0][0] if isinstance(log, deque) and len(log) == KEPT else since_ns
        ends = [*(at_ns for at_ns, _ in log), now_ns][1:]
        turns = [
            HeldTurn(tenant, max(began_ns, since_ns), ended_ns)
            for (began_ns, tenant), ended_ns in zip(log, ends, strict=True)
            if tenant and ended_ns > since_ns
        ]
        return GpuTurns(now_ns, max(known_ns, since_ns), turns)
