"""Sign-in for the accounts of a machine: by a link that its engine gives an account that the kernel has identified.

A link works once, for a minute, and opens a session. Its cookie is not readable by scripts and not sent along from
other sites, but browsers send it to every port of the loopback address, where another account may listen. So link and
cookie count on connections of their own account alone: the kernel knows whose socket is at the other end.
"""

from __future__ import annotations

import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from aliquot.lib.bounded import Bounded
from aliquot.model.errors import AliquotError
from aliquot.status import OwnedView, StatusSource

LINK_S: Final = 60.0
SESSION_S: Final = 8 * 3600
MAX_SESSIONS: Final = 8
"""Of one account; one more ends its oldest."""
MAX_TOKENS: Final = 4096
COOKIE: Final = "aliquot-account"
OLD_LINK: Final = "This link was used, is older than a minute, or is another account's; a new one: aliquot dashboard"


class Owners(Protocol):
    """The program whose facts are shown; an account is a value of its own, which has a `uid`."""

    def owns(self, account: Any, name: str) -> bool:
        """Whether a workload is the account's."""

    def logs(self, account: Any, name: str, container: str) -> str:
        """What a container has printed."""

    def end(self, account: Any, name: str) -> str:
        """End a workload."""


class Person(NamedTuple):
    """An account, and the facts as it may see them: the same object for all of a session, for live pages share it."""

    account: Any
    facts: OwnedView


class Tokens:
    """Random texts that stand for accounts, each for `life_s`; an account has `each` of them at most."""

    def __init__(self, each: int, life_s: float, clock: Callable[[], float]) -> None:
        self._each, self._life_s, self._clock = each, life_s, clock
        self._lock = threading.Lock()
        self._tokens: Bounded[str, tuple[Person, float]] = Bounded(MAX_TOKENS)

    def issue(self, person: Person) -> str:
        """A new one, in place of the oldest where the account has enough."""
        with self._lock:
            own = [token for token, (owner, _) in self._tokens.items() if owner.account.uid == person.account.uid]
            for token in own[: max(0, len(own) + 1 - self._each)]:
                del self._tokens[token]
            self._tokens[token := secrets.token_urlsafe(32)] = (person, self._clock() + self._life_s)
            return token

    def person(self, token: str, uid: int | None, *, drop: bool = False) -> Person | None:
        """The account that a token stands for, if its number is `uid`; with `drop` the token is void from now on."""
        with self._lock:
            person, until_s = self._tokens.get(token, (None, 0.0))
            if person is None or person.account.uid != uid or until_s <= self._clock():
                return None
            if drop:
                del self._tokens[token]
            return person


def connection_uid(request: HTTPConnection) -> int | None:
    """The account whose socket is at the other end of an IPv4 connection within this machine, as the kernel says."""
    if "x-forwarded-for" in request.headers:  # uvicorn takes the client's address from there
        return None
    client, server = (
        f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"
        for host, port in (request.scope["client"], request.scope["server"])
    )
    rows = map(str.split, Path("/proc/net/tcp").read_text().splitlines())
    return next((int(row[7]) for row in rows if row[1:4] == [client, server, "01"]), None)  # 01: established


class AccountDoor:
    """Shows shares and names to all; to an account that has signed in also events, logs and an end of its own."""

    way_in = "Your own events and logs: aliquot dashboard"

    def __init__(
        self, facts: StatusSource, owners: Owners, *, uid_of: Callable[[HTTPConnection], int | None] = connection_uid,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._facts, self._owners, self._uid_of = facts, owners, uid_of
        self._anyone = OwnedView(facts, lambda name: False)
        self._links, self._sessions = Tokens(1, LINK_S, clock), Tokens(MAX_SESSIONS, SESSION_S, clock)

    def link(self, account: Any) -> str:
        """The path that signs an account in; its link before is void."""
        own = OwnedView(self._facts, lambda name: self._owners.owns(account, name))
        return f"signin?token={self._links.issue(Person(account, own))}"

    def __call__(self, request: HTTPConnection) -> StatusSource:
        """The facts for a request."""
        person = self._person(request)
        return cast(StatusSource, person.facts if person else self._anyone)

    def signed_in(self, request: HTTPConnection) -> bool:
        """Whether a viewer is signed in."""
        return self._person(request) is not None

    def routes(self) -> list[Route]:
        """Signing in and out; logs, and the end of a workload."""
        return [
            Route("/signin", self._sign_in),
            Route("/signout", self._sign_out, methods=["POST"]),
            Route("/logs/{name:path}", self._own),
            Route("/end/{name:path}", self._own, methods=["POST"]),
        ]

    def _person(self, request: HTTPConnection, *, drop: bool = False) -> Person | None:
        token = request.cookies.get(COOKIE, "")
        return self._sessions.person(token, self._uid_of(request), drop=drop) if token else None

    def _sign_in(self, request: Request) -> Response:
        person = self._links.person(request.query_params.get("token", ""), self._uid_of(request), drop=True)
        if person is None:
            return PlainTextResponse(f"{OLD_LINK}\n", 403)
        self._person(request, drop=True)
        # No redirect: where another site had the link, browsers would not send the new cookie with it.
        answer = HTMLResponse('Signed in: <a href="/">to the dashboard</a>.', headers={"refresh": "0; url=/"})
        answer.set_cookie(COOKIE, self._sessions.issue(person), max_age=SESSION_S, httponly=True, samesite="strict")
        return answer

    def _sign_out(self, request: Request) -> Response:
        self._person(request, drop=True)
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    def _own(self, request: Request) -> Response:
        """Show the log of a workload of the viewer's own, or end it; one sentence for what is not."""
        person, name = self._person(request), request.path_params["name"]
        if person is None:
            return PlainTextResponse("Sign in with the link that aliquot dashboard prints.\n", 401)
        if not person.facts.owns(name):
            return PlainTextResponse(f"{name[:100]} is not yours; its owner and root can do that.\n", 403)
        try:
            if request.method == "POST":
                self._owners.end(person.account, name)
                return RedirectResponse("/workloads", 303)
            return PlainTextResponse(self._owners.logs(person.account, name, request.query_params.get("container", "")))
        except AliquotError as error:
            return PlainTextResponse(f"{error}\n", 404)
