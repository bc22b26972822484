"""A server that is a part of a program: uvicorn on a socket of ours, with the bounds that all our servers have.

It leaves signals to the program, serves until it is stopped or its task is cancelled, and then lets running requests
finish.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from aliquot.http.bounds import BoundedApplication, RequestLimits
from aliquot.http.connections import HEAD_BYTES, Connection

LIMITS: Final = RequestLimits()
KEEP_ALIVE_S: Final = 30
GRACE_S: Final = 2
_BACKLOG: Final = 1024


class _Uvicorn(uvicorn.Server):
    on_up: Callable[[], None] = staticmethod(lambda: None)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and call `on_up` when that is done."""
        await super().startup(sockets)
        self.on_up()


class HttpServer:
    """Serves `app` on a bound socket; `on_up` is called once connections are taken.

    `limits` bound what its requests cost. `context` is asked for once and may change what it shows later. Idle
    connections are kept for `keep_alive_s`.
    After `stop`, answers may take up to `grace_s`; None is without limit.
    """

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        *,
        limits: RequestLimits = LIMITS,
        context: ssl.SSLContext | None = None,
        protocol: type[asyncio.Protocol] = Connection,
        keep_alive_s: int = KEEP_ALIVE_S,
        grace_s: int | None = GRACE_S,
        log_level: str = "error",
        on_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._listener = listener
        self.port: int = listener.getsockname()[1]
        self.config = uvicorn.Config(
            BoundedApplication(app, limits),
            http=protocol,
            ws="none",
            log_config=None,
            access_log=False,
            log_level=log_level,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=keep_alive_s,
            timeout_graceful_shutdown=grace_s,
            h11_max_incomplete_event_size=HEAD_BYTES,
            backlog=_BACKLOG,
            ssl_context_factory=None if context is None else lambda *_: context,
        )
        self._uvicorn = _Uvicorn(self.config)
        self._uvicorn.on_up = on_up

    async def serve(self) -> None:
        """Serve until `stop`, or until cancelled; when this returns nothing listens any more."""
        serving = asyncio.ensure_future(self._uvicorn.serve([self._listener]))
        try:
            await asyncio.shield(serving)
        finally:
            self.stop()
            await asyncio.wait({serving})
            self._listener.close()

    def stop(self) -> None:
        """Accept no more connections, finish running requests, and end; may be called from any thread."""
        self._uvicorn.should_exit = True
