"""A connection to a server as far as strangers can open it: there are so many, and each has to ask for something.

A server shares its process, and with it the open files, with the scheduler or the agent; a client that reaches the
port, signed in or not, must not be able to use them up. Heads of requests are bounded by the parser.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any, Final

from uvicorn import Config
from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS: Final = 3000
HEAD_BYTES: Final = 65_536
PATIENCE_S: Final = 30.0


def max_connections() -> int:
    """Half of the files that this process may open, `MAX_CONNECTIONS` at most."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if allowed == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, allowed // 2)


class BoundedConnection(asyncio.Protocol):
    """What all connections have: closed at once where there are too many, and later when nothing was asked for long."""

    _last: Any = None
    _look: asyncio.TimerHandle | None = None
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    connections: set[object]
    config: Config
    cycle: Any

    def patience_s(self) -> float:
        """The time in which something has to be asked."""
        return PATIENCE_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """One more."""
        super().connection_made(transport)
        if len(self.connections) > max_connections():
            transport.abort()
            return
        self._look = self.loop.call_later(self.patience_s(), self._still_there)

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
        self._look = self.loop.call_later(self.patience_s(), self._still_there)


class Connection(BoundedConnection, H11Protocol):  # type: ignore[misc]
    """From a client that reaches the port; the heads of its requests are bounded too."""


class ClientConnection(BoundedConnection, AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """From a component of the cluster, which keeps its connections while it has nothing to ask.

    httptools reads it where that is installed, which is faster than h11 and bounds no heads.
    """

    def patience_s(self) -> float:
        """Longer than what was answered is kept open, so that no request crosses the end."""
        return self.config.timeout_keep_alive + PATIENCE_S
