"""What a request may cost a server, and that what was refused leaves nothing behind."""

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from aliquot.http.server import BoundedApplication, RequestLimits

SMALL = RequestLimits(body_bytes=10, requests=2)


class Client:
    """One request to a bounded application, whose body comes in parts; what was answered is in `code` and `text`."""

    def __init__(self, bounded: BoundedApplication, *parts: bytes, length: str = "", whole: bool = True) -> None:
        self.parts = list(parts)
        self.whole = whole
        self.reads = self.code = 0
        self.text = b""
        headers = [(b"content-length", length.encode()) if length else (b"transfer-encoding", b"chunked")]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        self.task = asyncio.ensure_future(bounded(scope, self.receive, self.send))  # type: ignore[arg-type]

    async def receive(self) -> Any:
        """The next part; after the last one of a body that is not whole, nothing comes."""
        self.reads += 1
        if not self.parts:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self.parts.pop(0), "more_body": bool(self.parts) or not self.whole}

    async def send(self, message: Any) -> None:
        """What comes back."""
        self.code = message.get("status", self.code)
        self.text += message.get("body", b"")


class App:
    """Answers with the body, once it may; `arrived` are the requests that have reached it."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.arrived = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As an ASGI application."""
        self.arrived += 1
        body = await Request(scope, receive).body()
        await self.may.wait()
        await PlainTextResponse(body)(scope, receive, send)


@pytest.fixture
def app() -> App:
    """An application that has not been asked."""
    return App()


async def test_the_parts_of_a_body_are_put_together(app: App):
    """As many bytes as may be are read, in whatever parts they come."""
    app.may.set()
    client = Client(BoundedApplication(app, SMALL), b"01234", b"", b"56789", length="10")
    await client.task

    assert (200, b"0123456789") == (client.code, client.text)


@pytest.mark.parametrize(("parts", "length", "reads"), [((b"0",), "11", 0), ((b"012345", b"67890"), "", 2)])
async def test_a_body_that_is_too_long_is_refused(app: App, parts: tuple[bytes, ...], length: str, reads: int):
    """Before it is read if it says its length, else as soon as it is too long; the application does not see it."""
    client = Client(BoundedApplication(app, SMALL), *parts, length=length)
    await client.task

    assert (413, reads, 0) == (client.code, client.reads, app.arrived)
    assert b"the most is 10" in client.text or b"more than 10" in client.text


async def test_requests_beyond_the_bound_are_refused_until_one_is_answered(app: App):
    """A flood costs no more than the requests that may wait; the server is back as soon as they are answered."""
    bounded = BoundedApplication(app, SMALL)
    first = [Client(bounded, b"a") for _ in range(2)]
    while app.arrived < 2:
        await asyncio.sleep(0)
    flood = [Client(bounded, b"b", length="1") for _ in range(50)]
    await asyncio.wait({client.task for client in flood})
    app.may.set()
    await asyncio.wait({client.task for client in first})
    last = Client(bounded, b"c")
    await last.task

    assert [(503, 0)] * 50 == [(client.code, client.reads) for client in flood]
    assert [200, 200, 200] == [client.code for client in (*first, last)]
    assert 3 == app.arrived


async def test_bodies_on_their_way_are_bounded_together(app: App):
    """Two bodies' room is taken by those that are not whole yet; it is free again when their clients go."""
    app.may.set()
    bounded = BoundedApplication(app, SMALL)
    slow = [Client(bounded, b"0123456789"[:9], whole=False) for _ in range(2)]
    await asyncio.sleep(0)
    refused = Client(bounded, b"abc", length="3")
    await refused.task
    for client in slow:
        client.task.cancel()
    await asyncio.wait({client.task for client in slow})
    welcome = Client(bounded, b"abc", length="3")
    await welcome.task

    assert (503, 200) == (refused.code, welcome.code)


@pytest.mark.parametrize("whole", [False, True])
async def test_large_requests_do_not_keep_small_ones_out(app: App, whole: bool):
    """Whether they are being read or wait for their answers, large requests take no room from small ones."""
    bounded = BoundedApplication(app, RequestLimits(body_bytes=10, requests=2, small_bytes=3))
    large = [Client(bounded, b"0123456789", length=length, whole=whole) for length in ("10", "")]
    await asyncio.sleep(0)
    refused = Client(bounded, b"0123", length="4")
    await refused.task
    app.may.set()
    small = Client(bounded, b"012", length="3")
    await small.task

    assert (503, 200) == (refused.code, small.code)
    for client in large:
        client.task.cancel()
    await asyncio.wait({client.task for client in large})


async def test_an_answer_that_has_begun_does_not_count():
    """Streams last as long as their readers; they neither run out of time nor keep others out."""

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    bounded = BoundedApplication(stream, RequestLimits(requests=1, answer_s=0.01))
    clients = [Client(bounded, b"") for _ in range(5)]
    while not all(client.code for client in clients):
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)  # longer than an answer may take to begin

    assert [(200, False)] * 5 == [(client.code, client.task.done()) for client in clients]
    for client in clients:
        client.task.cancel()


@pytest.mark.parametrize(
    ("limits", "whole", "code", "why"),
    [
        (RequestLimits(body_s=0.01), False, 408, b"the body took longer than 0.01 s"),
        (RequestLimits(answer_s=0.01), True, 503, b"the answer took longer than 0.01 s; try again"),
    ],
)
async def test_what_takes_too_long_is_answered(app: App, limits: RequestLimits, whole: bool, code: int, why: bytes):
    """A body that does not end and an application that does not answer."""
    client = Client(BoundedApplication(app, limits), b"x", whole=whole)
    await client.task

    assert (code, why + b"\n") == (client.code, client.text)
