"""Bounds on what requests cost a server: the bytes of their bodies, how many are worked on at once, and for how long.

Every server of ours has them, because each shares a process with other work. A request beyond them is answered in one
sentence (408, 413 or 503), before its body is read where it declares its length, and its connection is closed: what
it still sends is not read either. Applications get the body in one piece. Where a server has both small and large
requests, each kind has bounds of its own: large ones never keep a small one out.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
