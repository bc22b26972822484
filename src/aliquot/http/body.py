"""Read a request's body up to a maximum size."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request


class BadBody(Exception):
    """A refused body; `code` is the HTTP status of the answer, the text one sentence."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


async def body_of(request: Request, max_bytes: int) -> bytes:
    """The body.

    Raises:
        BadBody: it is longer than `max_bytes` (413), or ended before its end (400).
    """
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > max_bytes:
        raise BadBody(413, f"the body has {told} bytes, the most is {max_bytes}")
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > max_bytes:
                raise BadBody(413, f"the body has more than {max_bytes} bytes")
            parts.append(part)
    except ClientDisconnect:
        raise BadBody(400, "the body was cut off") from None
    return b"".join(parts)
