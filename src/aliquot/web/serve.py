"""The dashboard's server: uvicorn in a thread of the program whose facts it shows, on a socket of our own making."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Collection
from types import TracebackType
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from aliquot.model.errors import AliquotError
from aliquot.serving.certificate import BadCertificate, Certificate
from aliquot.serving.connections import HEAD_BYTES, Connection
from aliquot.web.app import Door, SigningIn, dashboard
from aliquot.web.feeds import Feeds
from aliquot.web.guard import LOOPBACK
from aliquot.web.log import defect, notice

EVERY_ADDRESS: Final = ("0.0.0.0", "::")
USER_TIMEOUT_MS: Final = 20_000
_BACKLOG: Final = 1024
_STOP_S: Final = 5.0


class PortTaken(AliquotError):
    """Another program listens where the dashboard was to be; `reason` is what the kernel says."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


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
    ) -> None:
        """Start serving; of `tries` ports from `port` up the first free one is taken. `tls` names certificate and key.

        Raises:
            PortTaken: none is free.
            BadCertificate: `tls` names files that are none.
        """
        self._certificate = Certificate(*tls) if tls else None
        self._host = host
        self._socket = listening(host, port, tries)
        self.port: int = self._socket.getsockname()[1]
        self._feeds = Feeds()
        self._server = uvicorn.Server(
            self._config(dashboard(door, hosts=hosts, feeds=self._feeds, signing_in=signing_in))
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)
        self._thread.start()
        self._started.wait(_STOP_S)

    def __enter__(self) -> WebServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        return f"{'https' if self._certificate else 'http'}://{own_address(self._host)}:{self.port}/"

    def close(self) -> None:
        """End every stream, then the server."""
        self._server.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._feeds.close)
        self._thread.join(_STOP_S)
        self._socket.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._config_loop) as runner:
            runner.run(self._serve())

    def _config_loop(self) -> asyncio.AbstractEventLoop:
        factory = self._server.config.get_loop_factory()
        self._loop = factory() if factory is not None else asyncio.new_event_loop()
        return self._loop

    async def _serve(self) -> None:
        beside = [asyncio.create_task(self._tell_started())]
        if self._certificate is not None:
            beside.append(asyncio.create_task(self._certificate.follow(_renewed)))
        await self._server.serve(sockets=[self._socket])
        for task in beside:
            task.cancel()

    async def _tell_started(self) -> None:
        while not self._server.started:
            await asyncio.sleep(0.01)
        self._started.set()

    def _config(self, app: ASGIApp) -> uvicorn.Config:
        return uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            log_config=None,
            access_log=False,
            log_level="critical",  # defects are logged by the application itself, without queries and headers
            lifespan="off",
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=2,
            h11_max_incomplete_event_size=HEAD_BYTES,
            backlog=_BACKLOG,
            ssl_context_factory=self._certificate.context_for if self._certificate else None,
        )


def _renewed(fault: BadCertificate | None) -> None:
    if fault is None:
        notice("the dashboard has a new certificate")
    else:
        defect("the dashboard's new certificate is not used", fault)


def listening(host: str, port: int, tries: int = 1) -> socket.socket:
    """A bound socket whose connections the kernel cuts when their reader takes nothing for 20 s.

    Raises:
        PortTaken: none of the `tries` ports from `port` up is free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reason = ""
    for number in range(port, port + max(1, tries)):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        try:
            sock.bind((host, number))
        except OSError as error:
            sock.close()
            reason = (error.strerror or str(error)).lower()
        else:
            return sock
    raise PortTaken(f"--port {port}: {reason}; choose another port, or --no-web", reason)


def own_address(host: str) -> str:
    """How a browser addresses who listens at `host`.

    Where that is every address, it is the one that this machine asks others from; the loopback's if it can ask none.
    """
    if host not in EVERY_ADDRESS:
        return f"[{host}]" if ":" in host else host
    for family, elsewhere in ((socket.AF_INET6, "2001:db8::1"), (socket.AF_INET, "192.0.2.1")):
        if host == "::" or family == socket.AF_INET:
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect((elsewhere, 9))  # sends nothing
                return own_address(sock.getsockname()[0])
    return "[::1]" if host == "::" else "127.0.0.1"
