"""A server that is a part of a program."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from aliquot.http import server as connections
from aliquot.http.listening import PortTaken, listening
from aliquot.http.server import ClientConnection, Connection, HttpServer

KINDS = pytest.mark.parametrize("protocol", [Connection, ClientConnection])


def app(answer: Callable[[], Awaitable[str]] | None = None) -> Starlette:
    """One page, which may take its time."""

    async def page(_: Request) -> PlainTextResponse:
        return PlainTextResponse(await answer() if answer else "here")

    return Starlette(routes=[Route("/", page)])


@asynccontextmanager
async def served(
    protocol: type[asyncio.Protocol] = Connection, page: Starlette | None = None
) -> AsyncIterator[HttpServer]:
    """A server that is up."""
    up = asyncio.Event()
    server = HttpServer(page or app(), listening("127.0.0.1", 0), protocol=protocol, keep_alive_s=1, on_up=up.set)
    task = asyncio.create_task(server.serve())
    await up.wait()
    try:
        yield server
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def fetched(server: HttpServer) -> str:
    async with httpx.AsyncClient() as http:
        return (await http.get(f"http://127.0.0.1:{server.port}/")).text


async def end_of(reader: asyncio.StreamReader) -> bytes:
    """What comes before a connection ends."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@KINDS
async def test_it_answers_once_it_is_up(protocol: type[asyncio.Protocol]):
    """After `on_up` a request is answered, whichever parser reads it."""
    async with served(protocol) as server:
        assert "here" == await fetched(server)


async def test_a_cancelled_server_lets_go_of_its_port():
    """When the server's task is cancelled nothing listens any more, and the port can be had again."""
    async with served() as server:
        number = server.port

    listening("127.0.0.1", number).close()


async def test_a_cancelled_server_answers_what_was_asked():
    """A request that is being answered when the end comes has its answer."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        asked.set()
        await go_on.wait()
        return "late"

    async with served(page=app(slow)) as server:
        request = asyncio.create_task(fetched(server))
        await asked.wait()
        server.stop()
        asyncio.get_running_loop().call_later(0.3, go_on.set)
        assert "late" == await request


@KINDS
async def test_too_many_connections_are_closed_at_once(
    protocol: type[asyncio.Protocol], monkeypatch: pytest.MonkeyPatch
):
    """Every server of ours bounds its connections; when one ends there is room for another."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    async with served(protocol) as server:
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        reader, _ = await asyncio.open_connection("127.0.0.1", server.port)
        assert b"" == await end_of(reader)
        for _, writer in held:
            writer.close()
        await asyncio.sleep(0.2)
        assert "here" == await fetched(server)


@KINDS
async def test_a_silent_connection_is_closed(protocol: type[asyncio.Protocol], monkeypatch: pytest.MonkeyPatch):
    """Who asks for nothing within the patience of a server is cut off."""
    monkeypatch.setattr(connections, "PATIENCE_S", 0.2)
    async with served(protocol) as server:
        reader, _ = await asyncio.open_connection("127.0.0.1", server.port)
        assert b"" == await end_of(reader)


@KINDS
async def test_a_server_that_sets_no_bounds_has_them(protocol: type[asyncio.Protocol]):
    """A body that says it is too long is refused in one sentence before it is sent, and the connection ends."""
    async with served(protocol) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 65537\r\n\r\n")
        answer = await reader.read()
        writer.close()

    assert b" 413 " in answer.splitlines()[0]
    assert answer.endswith(b"the body has 65537 bytes, the most is 65536\n")


def test_a_port_that_is_taken_is_named():
    """The error names the port by its option, says why, and what to do instead."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(PortTaken, match=f"^--port {port}: address already in use; choose another port"):
            listening("127.0.0.1", port)
