"""De-duplicating, rate-limited work queue (client-go: workqueue).

Level-triggered work needs to know *what* to reconcile, not what happened: so the queue holds keys, and adding one that
waits changes nothing. A key that is added while it is worked on is handed out again afterwards, never twice at once.
The queue cannot grow beyond the number of objects; `most` bounds it all the same, and what is dropped then is added
again with the next full resync.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aliquot.lib.backoff import Backoff


class WorkQueue:
    """A queue of keys for one event loop."""

    def __init__(self, *, most: int = 100_000, first_s: float = 0.05, max_s: float = 60.0) -> None:
        self._most = most
        self._first_s = first_s
        self._max_s = max_s
        self._ready: deque[str] = deque()
        self._waiting: set[str] = set()
        self._busy: set[str] = set()
        self._again: set[str] = set()
        self._failures: dict[str, Backoff] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def later(self) -> int:
        """Keys that wait for their time."""
        return len(self._timers)

    def add(self, key: str) -> None:
        """Add this key."""
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            if len(self._waiting) >= self._most:
                return
            self._waiting.add(key)
            self._ready.append(key)
            self._news.set()

    def add_after(self, key: str, wait_s: float) -> None:
        """Add a key after this many seconds; of several times the earliest counts."""
        loop = asyncio.get_running_loop()
        known = self._timers.get(key)
        if known is not None and known.when() <= loop.time() + wait_s:
            return
        if known is not None:
            known.cancel()

        def due() -> None:
            self._timers.pop(key, None)
            self.add(key)

        self._timers[key] = loop.call_later(wait_s, due)

    def failed(self, key: str) -> float:
        """Add a failed key again, with a longer delay than after the previous failure; returns the delay in seconds."""
        wait_s = self._failures.setdefault(key, Backoff(self._first_s, self._max_s)).next_s()
        self.add_after(key, wait_s)
        return wait_s

    def succeeded(self, key: str) -> None:
        """Forget the key's failures."""
        self._failures.pop(key, None)

    @asynccontextmanager
    async def next(self) -> AsyncIterator[str]:
        """The next key, ours alone until the block ends; waits for one."""
        while not self._ready:
            self._news.clear()
            await self._news.wait()
        key = self._ready.popleft()
        self._waiting.discard(key)
        self._busy.add(key)
        try:
            yield key
        finally:
            self._busy.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)

    async def work(self, look: Callable[[str], Awaitable[None]], on_failure: Callable[[str, Exception], None]) -> None:
        """Pass keys to `look` one after another until cancelled; start it several times for several workers.

        An exception from `look` brings the key back later; `on_failure` is called with it.
        """
        while True:
            async with self.next() as key:
                try:
                    await look(key)
                except Exception as error:
                    on_failure(key, error)
                    self.failed(key)
                else:
                    self.succeeded(key)
            await asyncio.sleep(0)  # a look that had nothing to wait for: others have their turn before the next

    def close(self) -> None:
        """Cancel the timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
