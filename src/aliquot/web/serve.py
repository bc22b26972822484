"""The dashboard's server: uvicorn in a thread of the program whose facts it shows, on a socket that we create."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Collection
from typing import Final

from aliquot.http.certificate import BadCertificate, Certificate
from aliquot.http.listening import listening, own_address
from aliquot.http.server import HttpServer
from aliquot.web.app import SigningIn, dashboard
from aliquot.web.feeds import Feeds
from aliquot.web.guard import LOOPBACK
from aliquot.web.log import defect, notice
from aliquot.web.rest import Door

_STOP_S: Final = 5.0


class WebServer:
    """Serves while it is open; `port` is where."""

    def __init__(
        self,
        door: Door,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        hosts: Collection[str] = LOOPBACK,
        tries: int = 1,
        signing_in: SigningIn | None = None,
        tls: tuple[str, str] | None = None,
        called: str = "",
        instead: str = "choose another port, or --no-web",
    ) -> None:
        """Start serving on the first free of `tries` ports from `port` up. `tls` names certificate and key.

        `called` and `instead` are for the error of a taken port, as in `listening`.

        Raises:
            PortTaken: none is free.
            BadCertificate: `tls` names files that are none.
        """
        self._certificate = Certificate(*tls) if tls else None
        self._host = host
        self._feeds = Feeds()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._server = HttpServer(
            dashboard(door, hosts=hosts, feeds=self._feeds, signing_in=signing_in),
            listening(host, port, tries, called=called or f"--port {port}", instead=instead),
            context=self._certificate.context if self._certificate else None,
            log_level="critical",  # the application logs its defects itself, without queries and headers
            on_up=self._started.set,
        )
        self.port = self._server.port
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)
        self._thread.start()
        self._started.wait(_STOP_S)

    def __enter__(self) -> WebServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        return f"{'https' if self._certificate else 'http'}://{own_address(self._host)}:{self.port}/"

    def close(self) -> None:
        """End every stream, then the server."""
        self._server.stop()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._feeds.close)
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        def renewed(fault: BadCertificate | None) -> None:
            if fault is None:
                notice("the dashboard has a new certificate")
            else:
                defect("the dashboard's new certificate is not used", fault)

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            following = asyncio.create_task(self._certificate.follow(renewed)) if self._certificate else None
            await self._server.serve()
            if following is not None:
                following.cancel()

        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(serve())
