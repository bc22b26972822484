"""Runs that wait for room instead of being refused: placed in the order in which they came, SharePods before them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aliquot.model.ids import TenantName
from aliquot.model.requests import GpuRequest
from aliquot.placement.machine import NoRoom
from aliquot.standalone.engine import Engine, EngineTenant
from aliquot.standalone.pods import Pods
from aliquot.standalone.wire import QueuedRun

TRY_EVERY_S: Final = 0.2


@dataclass
class _Waiting:
    """A run in the queue: why it waits, its tenant once there is room, or the error for which there never is."""

    name: TenantName
    request: GpuRequest
    cpu_bind: int
    reason: str = ""
    tenant: EngineTenant | None = None
    error: Exception | None = None
    came_s: float = field(default_factory=time.monotonic)


class RunQueue:
    """The runs that wait, each with a thread of its own; the thread that checks first serves all of them."""

    def __init__(self, engine: Engine, pods: Pods) -> None:
        self._engine = engine
        self._pods = pods
        self._lock = threading.Lock()
        self._queue: list[_Waiting] = []
        self._next_s = 0.0

    def admit(
        self,
        name: TenantName,
        request: GpuRequest,
        *,
        cpu_bind: int,
        gone: Callable[[], bool],
        say: Callable[[str], None],
    ) -> EngineTenant | None:
        """Make a run a tenant as soon as there is room; None if its caller has `gone` before.

        `say` gets the reason whenever another one keeps it waiting.

        Raises:
            AliquotError: as `Engine.admit`, but for NoRoom.
        """
        waiting = _Waiting(name, request, cpu_bind)
        with self._lock:
            self._queue.append(waiting)
            self._next_s = 0.0
        said, taken = "", False
        try:
            while not gone():
                with self._lock:
                    self._serve()
                if waiting.error is not None:
                    raise waiting.error
                if waiting.tenant is not None:
                    taken = True
                    return waiting.tenant
                if said != waiting.reason:
                    said = waiting.reason
                    say(said)
                time.sleep(TRY_EVERY_S)
            return None
        finally:
            with self._lock:
                if waiting in self._queue:
                    self._queue.remove(waiting)
            if waiting.tenant is not None and not taken:
                self._engine.release(waiting.tenant)

    def waiting(self) -> list[QueuedRun]:
        """The runs that wait, in order."""
        now_s = time.monotonic()
        with self._lock:
            return [
                QueuedRun(
                    each.name, each.request.request_milli, each.request.ceiling_milli, each.reason,
                    round(now_s - each.came_s, 1),
                )
                for each in self._queue
            ]  # fmt: skip

    def _serve(self) -> None:
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + TRY_EVERY_S
        self._pods.place_waiting()
        for each in list(self._queue):
            try:
                each.tenant = self._engine.admit(
                    each.name, each.request, cpu_bind=each.cpu_bind, again=bool(each.reason)
                )
            except NoRoom as error:
                each.reason = str(error)
                continue
            except Exception as error:
                each.error = error
            self._queue.remove(each)
