"""Bounds on connections that strangers can open: their number, and the time until each must send a request.

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
    """The bounds of all connections: closed at once if there are too many, and later if no request came for long."""

    _last: Any = None
    _look: asyncio.TimerHandle | None = None
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    connections: set[object]
    config: Config
    cycle: Any

    def patience_s(self) -> float:
        """Seconds in which a request has to come."""
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
        """Close it unless a request is being answered, or was since the last check."""
        if self.cycle is self._last and (self.cycle is None or self.cycle.response_complete):
            self.transport.abort()
            return
        self._last = self.cycle
        self._look = self.loop.call_later(self.patience_s(), self._still_there)


class Connection(BoundedConnection, H11Protocol):  # type: ignore[misc]
    """A connection from any client that reaches the port; the size of its request headers is bounded too."""


class ClientConnection(BoundedConnection, AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection from a component of the cluster, which keeps idle connections open.

    Parsed by httptools where that is installed, which is faster than h11 and does not bound headers.
    """

    def patience_s(self) -> float:
        """Longer than what was answered is kept open, so that no request crosses the end."""
        return self.config.timeout_keep_alive + PATIENCE_S
