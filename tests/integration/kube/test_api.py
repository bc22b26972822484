"""What the client repeats, what it never repeats, and how hard it tries; against a server that breaks on purpose."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx2
import msgspec
import pytest
from breaking import Answer, Request, Server, serving, status

from aliquot.kube.api import Api, ClientLimits
from aliquot.kube.errors import AlreadyExists, Busy, Conflict, Forbidden, Gone, Invalid, NotFound, Unreachable
from aliquot.kube.objects import PODS, Binding, Meta, ObjectReference

LIMITS = ClientLimits(tries=4, wait_first_s=0.005, wait_max_s=0.05, in_flight=3)
POD = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "main"}]}}


@asynccontextmanager
async def talking() -> AsyncIterator[tuple[Server, Api]]:
    """A server and a client of it."""
    async with serving() as server, httpx2.AsyncClient(base_url=server.url) as http:
        yield server, Api(http, limits=LIMITS)


def says(code: int, reason: str = "", headers: str = "") -> Callable[[Server, Request, Answer], Awaitable[None]]:
    async def fault(server: Server, request: Request, answer: Answer) -> None:
        await answer.whole(code, status(code, reason), headers)

    return fault


async def cut(server: Server, request: Request, answer: Answer) -> None:
    """Read the request and reset the connection."""
    answer.cut()


async def cut_inside(server: Server, request: Request, answer: Answer) -> None:
    """Reset the connection in the middle of the answer."""
    answer.writer.write(b"HTTP/1.1 200 X\r\nContent-Length: 900\r\n\r\n{")
    answer.cut()


async def test_an_apply_is_repeated_until_it_is_answered():
    """Server-side apply may arrive twice, so cuts and refusals are tried again."""
    async with talking() as (server, api):
        server.on_write += [cut, says(503), cut_inside]
        await api.apply(PODS, POD, manager="me")

        assert 4 == len(server.requests)
        assert {"me"} == {r.query["fieldManager"] for r in server.requests}
        assert {"application/apply-patch+yaml"} == {r.headers["content-type"] for r in server.requests}


async def test_a_create_whose_answer_is_lost_is_not_repeated():
    """The caller of a create learns that it may have happened; a second one could make two."""
    async with talking() as (server, api):
        server.on_write += [cut_inside]
        with pytest.raises(Unreachable) as caught:
            await api.create(PODS, POD)

        assert caught.value.may_have_happened
        assert 1 == len(server.requests)


async def test_a_create_that_never_arrived_is_repeated():
    """When nobody listens the create is tried again, and the error says that it did not happen."""
    async with httpx2.AsyncClient(base_url="http://127.0.0.1:9") as http:
        began = time.monotonic()
        with pytest.raises(Unreachable) as caught:
            await Api(http, limits=LIMITS).create(PODS, POD)

        assert not caught.value.may_have_happened
        assert time.monotonic() - began > 0.01


async def test_too_many_requests_is_waited_out_even_for_a_create():
    """429 means that nothing happened; Retry-After is heeded within the limit."""
    async with talking() as (server, api):
        server.on_write += [says(429, headers="Retry-After: 1\r\n")]
        began = time.monotonic()
        await api.create(PODS, POD)

        assert 2 == len(server.requests)
        assert time.monotonic() - began >= 0.05


async def test_trying_ends():
    """A server that never recovers is given up after the set number of tries."""
    async with talking() as (server, api):
        server.on_list += [says(503)] * 100
        with pytest.raises(Busy):
            await api.get(PODS, "a", namespace="default")

        assert 4 == len(server.requests)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Forbidden),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Gone),
        (422, "Invalid", Invalid),
    ],
)
async def test_an_answer_that_would_be_the_same_again_is_not_asked_again(code: int, reason: str, kind: type[Exception]):
    """Each refusal is its own error, once, and says what was asked."""
    async with talking() as (server, api):
        server.on_list += [says(code, reason)]
        with pytest.raises(kind, match="get /api/v1/namespaces/default/pods/a: on purpose"):
            await api.get(PODS, "a", namespace="default")

        assert 1 == len(server.requests)


async def test_an_answer_that_is_no_status_is_quoted():
    """A proxy's page is quoted in the error instead of hiding it."""
    async with talking() as (server, api):

        async def page(server: Server, request: Request, answer: Answer) -> None:
            await answer.whole(403, b"<html>who are you?</html>")

        server.on_list.append(page)
        with pytest.raises(Forbidden, match="who are you"):
            await api.get(PODS, "a", namespace="default")


async def test_requests_in_flight_are_bounded():
    """No more than the set number of requests run at once; the others wait their turn."""
    async with talking() as (server, api):
        running, most = 0, 0

        async def slow(server: Server, request: Request, answer: Answer) -> bool:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            return True

        server.on_write += [slow] * 12
        await asyncio.gather(*(api.apply(PODS, POD, manager="me") for _ in range(12)))

        assert 3 == most


def test_a_binding_says_what_it_is():
    """The body of a bind has kind, target, annotations and the uid as precondition."""
    meta = Meta(name="a", namespace="default", uid="u-1", annotations={"aliquot.dev/plan": "{}"})

    assert {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a", "namespace": "default", "uid": "u-1", "annotations": {"aliquot.dev/plan": "{}"}},
        "target": {"kind": "Node", "name": "node-1"},
    } == msgspec.to_builtins(Binding(meta, ObjectReference(kind="Node", name="node-1")))
