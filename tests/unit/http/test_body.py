"""A request's body: all of it, or a status and one sentence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from aliquot.http.body import BadBody, body_of


def body(*parts: bytes, length: str = "", whole: bool = True) -> bytes:
    """What is read of a body that comes in these parts; one that is not whole ends with the connection."""
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.request"} if whole else {"type": "http.disconnect"})

    async def receive() -> Any:
        return messages.pop(0)

    headers = [(b"content-length", length.encode())] if length else []
    return asyncio.run(body_of(Request({"type": "http", "headers": headers}, receive), 10))


def test_the_parts_of_a_body_are_put_together():
    """As many bytes as may be are read, in whatever parts they come."""
    assert b"0123456789" == body(b"01234", b"", b"56789", length="10")


@pytest.mark.parametrize(
    ("parts", "length", "whole", "code"),
    [((), "11", True, 413), ((b"012345", b"67890"), "", True, 413), ((b"01",), "10", False, 400)],
)
def test_a_body_that_is_too_long_or_cut_off_is_refused(parts: tuple[bytes, ...], length: str, whole: bool, code: int):
    """By what it says of its length, by what comes without saying, and when it ends early."""
    with pytest.raises(BadBody) as refused:
        body(*parts, length=length, whole=whole)

    assert code == refused.value.code
