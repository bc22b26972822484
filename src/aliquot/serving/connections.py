"""A connection to a server as far as strangers can open it: there are so many, and each has to ask for something.

A server shares its process, and with it the open files, with who places pods or keeps promises; whoever reaches the
port, signed in or not, must not be able to use them up. Heads of requests are bounded by the parser.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

MOST: Final = 3000
HEAD_BYTES: Final = 65_536
PATIENCE_S: Final = 30.0


def most_connections() -> int:
    """Half of the files that this process may open, `MOST` at most."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if allowed == resource.RLIM_INFINITY else min(MOST, allowed // 2)


class Connection(H11Protocol):
    """Is closed at once where there are too many, and later when it has asked for nothing in `PATIENCE_S`."""

    _last: RequestResponseCycle | None = None
    _look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """One more."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.abort()
            return
        self._look = self.loop.call_later(PATIENCE_S, self._still_there)

    def connection_lost(self, exc: Exception | None) -> None:
        """One less."""
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def _still_there(self) -> None:
        """Close it unless it is being answered, or was since the last look."""
        if self.cycle is self._last and (self.cycle is None or self.cycle.response_complete):
            self.transport.abort()
            return
        self._last = self.cycle
        self._look = self.loop.call_later(PATIENCE_S, self._still_there)
