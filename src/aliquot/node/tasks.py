"""Critical background tasks (their failure stops the agent) and one-shot tasks (their failure is logged).

A critical task that ends, with an error or not, ends the agent, so that it restarts as a whole: half an agent would go
on allocating shares that are no longer maintained. A failed one-shot task is only logged: a file that cannot be removed
now is no reason to withdraw the node's shares. The caller makes sure that unfinished work is found again (see `check`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from aliquot.lib.log import Logger
from aliquot.model.errors import AliquotError

_LOG: Final = Logger("node")


class PartEnded(AliquotError):
    """A critical part of the agent ended."""


class Tasks:
    """All tasks of one agent; they run in the loop in which they are started."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self._failed = asyncio.Event()
        self._failure: BaseException | None = None
        self._ending = False

    def critical(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that must not end before `end`."""
        self._start(name, work, critical=True)

    def once(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a one-shot task; an error is a line in the log."""
        self._start(name, work, critical=False)

    async def until(self, stop: asyncio.Event) -> None:
        """Wait for `stop`.

        Raises:
            PartEnded: a critical task ended before; if it failed, its error is raised.
        """
        waits = [asyncio.create_task(event.wait()) for event in (stop, self._failed)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self._failure is not None:
            raise self._failure

    async def end(self) -> None:
        """Cancel all and wait until they have ended."""
        self._ending = True
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self, name: str, work: Coroutine[Any, Any, None], *, critical: bool) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._running.discard(task)
            error = None if task.cancelled() else task.exception()
            if critical and not self._ending and self._failure is None:
                self._failure = error or PartEnded(f"the agent's part {name!r} ended by itself; it is restarted")
                self._failed.set()
            elif critical:
                return
            elif isinstance(error, AliquotError | OSError):
                _LOG.warning("not-done", what=name, why=str(error))
            elif error is not None:
                _LOG.error("not-done", what=name, exc_info=error)

        task = asyncio.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(ended)


async def every(period_s: float, work: Callable[[], Awaitable[None]]) -> None:
    """Run it periodically, first after one period."""
    while True:
        await asyncio.sleep(period_s)
        await work()
