"""Signing in and out with a cluster's tokens: requests that change nothing but the visitor's own cookie.

A token comes in the body of a form and nowhere else. The cookie that stands for it is for this host, is not readable by
scripts and is not sent along from other sites; without https it is given out on the loopback's names only.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from aliquot.web.access import TokenDoor
from aliquot.web.app import AccessDenied, sign_in_page
from aliquot.web.guard import LOOPBACK, host_name
from aliquot.web.sessions import LIFE_S, LOCAL_COOKIE, SECURE_COOKIE, Sessions, names

MAX_BYTES: Final = 32 * 1024
PATIENCE_S: Final = 10.0
NOT_HERE: Final = "A token is taken over https or at localhost only. Use https, or kubectl port-forward and localhost."


class SignIn:
    """The routes of signing in; `door` checks the tokens."""

    way_in = ""

    def __init__(self, door: TokenDoor, sessions: Sessions) -> None:
        self._door = door
        self._sessions = sessions

    def routes(self) -> list[Route]:
        """`/signin` and `/signout`."""
        return [
            Route("/signin", self._form, methods=["GET"]),
            Route("/signin", self._sign_in, methods=["POST"]),
            Route("/signout", self._sign_out, methods=["POST"]),
        ]

    def signed_in(self, request: Request) -> bool:
        """Whether a viewer is signed in."""
        return bool(self._sessions.session(request.headers))

    def _form(self, request: Request) -> Response:
        return HTMLResponse(sign_in_page(request, "" if _may_bring_token(request) else NOT_HERE))

    async def _sign_in(self, request: Request) -> Response:
        if not _may_bring_token(request):
            return HTMLResponse(sign_in_page(request, NOT_HERE), 403)
        try:
            async with asyncio.timeout(PATIENCE_S):
                token = await _token(request)
        except TimeoutError:
            return HTMLResponse(sign_in_page(request, "The form did not arrive in time; try again."), 408)
        if not token:
            return HTMLResponse(sign_in_page(request, "Paste a token."), 400)
        try:
            await run_in_threadpool(self._door.view, token)
        except AccessDenied as error:
            return HTMLResponse(sign_in_page(request, str(error)), error.status)
        self._sessions.close(request.headers)
        answer = Response(status_code=303, headers={"location": "/"})
        local = host_name(request.headers.get("host", "")) in LOOPBACK and request.url.scheme == "http"
        name, secure = (LOCAL_COOKIE, False) if local else (SECURE_COOKIE, True)
        pieces = self._sessions.open(token)
        for cookie, piece in zip(names(name), pieces, strict=False):
            answer.set_cookie(cookie, piece, max_age=LIFE_S, secure=secure, httponly=True, samesite="strict")
        return answer

    async def _sign_out(self, request: Request) -> Response:
        self._sessions.close(request.headers)
        answer = Response(status_code=303, headers={"location": "/signin"})
        for cookie in (*names(LOCAL_COOKIE), *names(SECURE_COOKIE)):
            if cookie in request.cookies:
                secure = cookie.startswith(SECURE_COOKIE)
                answer.delete_cookie(cookie, secure=secure, httponly=True, samesite="strict")
        return answer


def _may_bring_token(request: Request) -> bool:
    """Https here or at a proxy in front, or a name that does not leave the machine."""
    outside = request.headers.get("x-forwarded-proto", request.url.scheme)
    return outside == "https" or host_name(request.headers.get("host", "")) in LOOPBACK


async def _token(request: Request) -> str:
    """The form's `token`; empty if it is missing or the form is too long."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BYTES:
            return ""
    fields = parse_qs(bytes(body).decode("utf-8", "replace"), max_num_fields=4)
    return fields.get("token", [""])[0].strip()
