"""A server that is a part of a program: uvicorn on a socket of ours, with the bounds that all our servers have.

It leaves signals to the program, serves until it is stopped or its task is cancelled, and then lets running requests
finish.

Bounds on what requests cost a server: the bytes of their bodies, how many are worked on at once, and for how long.

Every server of ours has them, because each shares a process with other work. A request beyond them is answered in one
sentence (408, 413 or 503), before its body is read where it declares its length, and its connection is closed: what
it still sends is not read either. Applications get the body in one piece. Where a server has both small and large
requests, each kind has bounds of its own: large ones never keep a small one out.

Bounds on connections that strangers can open: their number, and the time until each must send a request.

A server shares its process, and with it the open files, with the scheduler or the agent; a client that reaches the
port, signed in or not, must not be able to use them up. Heads of requests are bounded by the parser.

A server's certificate, read again when its files have been renewed, as cert-manager does.

Connections that are open stay as they are; those that begin afterwards see the new certificate. A certificate and key
that do not match, as while one of the files is being written, change nothing until they do.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config
from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.http.h11_impl import H11Protocol

from aliquot.model.errors import UserError

LOOK_S: Final = 2.0
"""Time between two checks of the files."""
_Stamp = tuple[tuple[int, int, int], ...]


class BadCertificate(UserError):
    """Files that are not a certificate with its key."""


class Certificate:
    """`context` is what a server uses; `renew` checks whether the files have changed."""

    def __init__(self, chain: str, key: str, client_ca: str = "") -> None:
        """Read the files; with `client_ca` only clients are served whose certificate it signed.

        Raises:
            BadCertificate: they cannot be read, or do not belong together.
        """
        self._files = (chain, key)
        self._stamp: _Stamp = ()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.renew()
        if client_ca:
            try:
                self.context.load_verify_locations(client_ca)
            except (OSError, ValueError) as error:
                why = f"{client_ca} has no certificates of authorities: {_why(error)}"
                raise BadCertificate(f"{why}; give PEM") from None
            self.context.verify_mode = ssl.CERT_REQUIRED

    async def follow(self, told: Callable[[BadCertificate | None], None]) -> None:
        """Renew whenever the files change, until cancelled; `told` is called for each change, with its error if any."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if self.renew():
                    told(None)
            except BadCertificate as error:
                told(error)

    def renew(self) -> bool:
        """Reload the files if they have changed since the last try; returns whether they had.

        Raises:
            BadCertificate: they have changed and cannot be used; the old certificate stays.
        """
        chain, key = self._files
        try:
            stamp = tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in map(os.stat, self._files))
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            # Tried in another context first: one that accepted a certificate but not its key could serve no client.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, password="")
            self.context.load_cert_chain(chain, key, password="")
        except (OSError, ValueError) as error:
            text = f"{chain} and {key} are no certificate with its key: {_why(error)}"
            raise BadCertificate(f"{text}; give both as PEM, the key without a password") from None
        return True


def _why(error: Exception) -> str:
    why = getattr(error, "reason", "") or getattr(error, "strerror", "") or str(error)
    return str(why).lower().replace("_", " ")


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


@dataclass(frozen=True)
class RequestLimits:
    """The bounds of one server. All bodies of a kind together have twice the bytes that one may have."""

    body_bytes: int = 64 * 1024
    requests: int = 128
    """Requests whose body has come and whose answer has not begun; those beyond are refused."""
    body_s: float = 10.0
    answer_s: float = 60.0
    small_bytes: int = 0
    """Bodies that declare at most so many bytes are counted apart from larger ones."""


class _Count:
    """The requests of one kind that are being read or answered."""

    unanswered = held_bytes = 0


class RequestRefused(Exception):
    """A refused request; `code` is the HTTP status of the answer, the text one sentence."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class BoundedApplication:
    """An application within bounds."""

    def __init__(self, app: ASGIApp, limits: RequestLimits) -> None:
        self._app, self._limits = app, limits
        self._small, self._large = _Count(), _Count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = dict(scope["headers"])
        declared = asked.get(b"content-length", b"")
        size = int(declared) if declared.isdigit() else 0
        small = size <= self._limits.small_bytes and b"transfer-encoding" not in asked
        count = self._small if small else self._large
        body: list[bytes] = []
        try:
            if await self._read(size, count, receive, body):
                await self._answer(count, scope, receive, send, b"".join(body))
        except RequestRefused as error:
            headers = {"connection": "close"} | ({"retry-after": "1"} if error.code == 503 else {})
            await PlainTextResponse(f"{error}\n", error.code, headers)(scope, receive, send)
        finally:
            count.held_bytes -= sum(map(len, body))

    async def _read(self, size: int, count: _Count, receive: Receive, body: list[bytes]) -> bool:
        """Read the body, which declares `size`, into `body`; False if the client has gone."""
        most = self._limits.body_bytes
        if size > most:
            raise RequestRefused(413, f"the body has {size} bytes, the most is {most}")
        if count.unanswered >= self._limits.requests or count.held_bytes + size > 2 * most:
            raise RequestRefused(503, f"{count.unanswered} requests are waiting for their answer; try again")
        size = 0
        try:
            async with asyncio.timeout(self._limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return False
                    body.append(message.get("body", b""))
                    size += len(body[-1])
                    count.held_bytes += len(body[-1])
                    if size > most:
                        raise RequestRefused(413, f"the body has more than {most} bytes")
                    if count.held_bytes > 2 * most:
                        raise RequestRefused(503, "the bodies of other requests take all room; try again")
                    if not message.get("more_body", False):
                        return True
        except TimeoutError:
            raise RequestRefused(408, f"the body took longer than {self._limits.body_s:g} s") from None

    async def _answer(self, count: _Count, scope: Scope, receive: Receive, send: Send, body: bytes) -> None:
        """Call the application; when its answer begins, neither number nor time are bounded any more: it may stream."""
        waiting: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def whole() -> Message:
            nonlocal waiting
            message, waiting = waiting, None
            return message or await receive()

        answering = True

        async def begun(message: Message) -> None:
            nonlocal answering
            if answering:
                answering = False
                count.unanswered -= 1
                deadline.reschedule(None)
            await send(message)

        count.unanswered += 1
        try:
            async with asyncio.timeout(self._limits.answer_s) as deadline:
                await self._app(scope, whole, begun)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise RequestRefused(503, f"the answer took longer than {self._limits.answer_s:g} s; try again") from None
        finally:
            count.unanswered -= answering


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
