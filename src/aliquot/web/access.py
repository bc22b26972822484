"""Token authorization: each viewer sees what its Kubernetes identity may list, and others see nothing.

GPUs, nodes and free room are visible to viewers that may list nodes, `vgpus.aliquot.dev`, or the pods of some namespace
with GPU work. Names are visible to viewers that may list the pods of their namespace. The answer is cached for
`BELIEVED_S`; then the API server is queried again, so that a revoked right takes effect on the pages, open ones too.

A token is stored only in the session that its owner opened, and written nowhere: the cache is keyed by its hash.

A session is a token, sealed into cookies of its owner's browser that only the dashboard can decrypt.

Nothing is stored here, so that every replica with the same key accepts sessions of another, and a restart ends
no session. A session ends after `LIFE_S`, when its owner signs out, and when the key is another. A copy of a cookie
that was made before signing out is refused by the replica that signed it out, for as long as it runs.

Programs need no session: they send their token with each request.

Replicas of a scheduler share the key in a Secret, which the first of them creates. It is checked periodically: a
deleted one is created again, and all viewers have to sign in again. Without the right to it each replica seals with
its own key, and logs that.

Signing in and out are requests that change nothing but the visitor's own cookie.

A token comes in the body of a form and nowhere else. The cookie that stands for it is for this host, is not readable by
scripts and is not sent along from other sites; without https it is given out on the loopback's names only.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request, cookie_parser
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from aliquot.kube.api import Api, ListQuestion, Reviews, TokenRefused
from aliquot.kube.errors import AlreadyExists, KubeError
from aliquot.kube.objects import SECRETS
from aliquot.lib.bounded import Bounded
from aliquot.status import NamespacedView, StatusSource
from aliquot.web.app import AccessDenied, sign_in_page
from aliquot.web.guard import LOOPBACK, host_name
from aliquot.web.log import notice

LIFE_S: Final = 8 * 3600
MAX_ENDED: Final = 10_000
PIECE: Final = 3800
"""Browsers take 4096 bytes with name and value; a token that is longer is in several cookies."""

MAX_PIECES: Final = 8
COUNTS: Final = frozenset(str(number) for number in range(1, MAX_PIECES + 1))
SECURE_COOKIE: Final = "__Host-aliquot"
"""A browser takes a cookie of this name from https only, for this host only."""

LOCAL_COOKIE: Final = "aliquot"
"""For the loopback's names, which are served without https. Elsewhere others could set a cookie of this name."""
SECRET: Final = "aliquot-dashboard"
FIELD: Final = "key"
LOOK_S: Final = 60.0
SOON_S: Final = 5.0


class Sessions:
    """Seals and opens with `key`, otherwise with a key of this process. May be used from any thread."""

    def __init__(self, key: bytes = b"", clock: Callable[[], float] = time.time) -> None:
        self._own = Fernet(key or Fernet.generate_key())
        self._seals = MultiFernet([self._own])
        self._clock = clock
        self._lock = threading.Lock()
        self._ended: Bounded[bytes, None] = Bounded(MAX_ENDED)

    def share(self, key: bytes) -> None:
        """Seal with this key from now on, as other replicas do; cookies sealed with this process's own key stay valid.

        Raises:
            ValueError: it is not a key.
        """
        self._seals = MultiFernet([Fernet(key), self._own])

    def open(self, token: str) -> list[str]:
        """A new session, in as many pieces as there are to be cookies; see `names`."""
        sealed = self._seals.encrypt_at_time(token.encode(), int(self._clock())).decode()
        pieces = [sealed[at : at + PIECE] for at in range(0, len(sealed), PIECE)]
        return [f"{len(pieces)}.{pieces[0]}", *pieces[1:]]

    def close(self, headers: Mapping[str, str]) -> None:
        """End the session that a request carries, if there is one."""
        good = [_mark(sealed) for sealed in _sealed(headers) if self._opened(sealed)]
        with self._lock:
            self._ended |= dict.fromkeys(good)

    def token_of(self, headers: Mapping[str, str]) -> str:
        """The token of a request: from its Authorization header, otherwise its session's; empty without one."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else self.session(headers)

    def session(self, headers: Mapping[str, str]) -> str:
        """The token of the open session that a request carries; empty without one."""
        return next((token for sealed in _sealed(headers) if (token := self._opened(sealed))), "")

    def _opened(self, sealed: str) -> str:
        if _mark(sealed) in self._ended:
            return ""
        try:
            return self._seals.decrypt_at_time(sealed.encode(), LIFE_S, int(self._clock())).decode()
        except (InvalidToken, UnicodeError):
            return ""


def names(cookie: str, count: int = MAX_PIECES) -> list[str]:
    """The names of a session's cookies, the first of them `cookie`."""
    return [cookie, *(f"{cookie}-{number}" for number in range(1, count))]


def _sealed(headers: Mapping[str, str]) -> list[str]:
    """The cookies of a request that may be a session."""
    cookies = cookie_parser(headers.get("cookie", ""))
    found = []
    local = host_name(headers.get("host", "")) in LOOPBACK
    for cookie in (SECURE_COOKIE, LOCAL_COOKIE) if local else (SECURE_COOKIE,):
        count, point, first = cookies.get(cookie, "").partition(".")
        if point and count in COUNTS:
            rest = [cookies.get(name, "") for name in names(cookie, int(count))[1:]]
            found.append("".join([first, *rest]))
    return found


def _mark(sealed: str) -> bytes:
    return hashlib.sha256(sealed.encode("utf-8", "surrogatepass")).digest()


async def keep_shared(api: Api, namespace: str, sessions: Sessions, tried: asyncio.Event) -> None:
    """Make these sessions use the shared key, until cancelled; `tried` is set after the first attempt."""
    shared, said = b"", ""
    while True:
        why = ""
        try:
            key = await shared_key(api, namespace)
            if key != shared:
                sessions.share(key)
                shared = key
        except KubeError as error:
            why = str(error)
        except ValueError:
            why = f'the Secret "{SECRET}" holds no key; delete it, and it is created again'
        if why and why != said:
            notice(f"sessions are valid at this replica only: {why}")
        said = why
        tried.set()
        await asyncio.sleep(SOON_S if why else LOOK_S)


async def shared_key(api: Api, namespace: str) -> bytes:
    """The key of the Secret, which is created if it does not exist.

    Raises:
        KubeError: it can be neither read nor created. ValueError: its content is not base64.
    """
    held = await api.find(SECRETS, SECRET, namespace=namespace)
    if held is None:
        key = base64.b64encode(Fernet.generate_key()).decode()
        body = {"metadata": {"name": SECRET, "namespace": namespace}, "type": "Opaque", "data": {FIELD: key}}
        try:
            held = await api.create(SECRETS, body, namespace=namespace)
        except AlreadyExists:  # another replica was faster
            held = await api.get(SECRETS, SECRET, namespace=namespace)
    return base64.b64decode(held.data.get(FIELD, ""), validate=True)


BELIEVED_S: Final = 30.0
REFUSED_S: Final = 10.0
ANSWERS_S: Final = 10.0
MAX_TOKENS: Final = 2000
MAX_VIEWS: Final = 256
MAX_NAMESPACES: Final = 500
"""With more namespaces with GPU work than this, the names of the rest are hidden from viewers without all pods."""

ANY_POD: Final = ListQuestion("pods")
OF_ROOM: Final = (ListQuestion("nodes"), ListQuestion("vgpus", "aliquot.dev"))
SIGN_IN: Final = "Sign in to see the cluster's GPUs."
NOTHING: Final = (
    "Your account may list neither nodes, nor vgpus.aliquot.dev, nor the pods of a namespace with GPU work; "
    "ask your administrator for one of these."
)


@dataclass
class _Known:
    """The cached rights of one token; `lock` lets one thread at a time query them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    until_s: float = 0.0
    refused: str = ""
    everything: bool = False
    room: bool = False
    namespaces: dict[str, bool] = field(default_factory=dict)


class TokenDoor:
    """See the module. Calls wait for the API server and may come from several threads."""

    def __init__(
        self, facts: StatusSource, asks: Reviews, sessions: Sessions, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._facts = facts
        self._asks = asks
        self._sessions = sessions
        self._clock = clock
        self._lock = threading.Lock()
        self._known: Bounded[bytes, _Known] = Bounded(MAX_TOKENS)
        self._views: Bounded[frozenset[str], NamespacedView] = Bounded(MAX_VIEWS)
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="web-reviews")

    def close(self) -> None:
        """Stop querying."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __call__(self, request: HTTPConnection) -> StatusSource:
        """The facts for a request.

        Raises:
            Refused: 401 without a token that the cluster knows, 403 for one without rights, 503 where the API server
                is not reachable.
        """
        token = self._sessions.token_of(request.headers)
        if not token:
            raise AccessDenied(SIGN_IN, 401)
        return self.view(token)

    def view(self, token: str) -> StatusSource:
        """The facts for a token's owner. Raises as a call does."""
        key = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            known = self._known[key] = self._known.get(key) or _Known()
        with known.lock:
            try:
                # Query what is not cached: everything after a while, new namespaces when they appear.
                now_s = self._clock()
                if now_s >= known.until_s:
                    known.refused, known.namespaces = "", {}
                    known.everything = self._asks.may_list(token, ANY_POD)
                    known.room = known.everything or any(self._asks.may_list(token, what) for what in OF_ROOM)
                    known.until_s = now_s + BELIEVED_S
                if not (known.everything or known.refused):
                    names = {workload.namespace for workload in self._facts.workloads()}
                    names |= {line.namespace for line in self._facts.quota()}
                    new = sorted(names - {""} - known.namespaces.keys())[: MAX_NAMESPACES - len(known.namespaces)]
                    questions = [ListQuestion("pods", namespace=name) for name in new]
                    answers = self._pool.map(
                        lambda what: self._asks.may_list(token, what), questions, timeout=ANSWERS_S
                    )
                    known.namespaces |= dict(zip(new, answers, strict=True))
            except TokenRefused as error:
                known.refused, known.until_s = str(error), self._clock() + REFUSED_S
            except (KubeError, TimeoutError):
                raise AccessDenied("The API server does not answer what you may see; try again.", 503) from None
            if known.refused:
                raise AccessDenied(f"Sign in again: {known.refused}.", 401)
            if known.everything:
                return self._facts
            mine = frozenset(name for name, allowed in known.namespaces.items() if allowed)
            if not (mine or known.room):
                raise AccessDenied(NOTHING, 403)
            with self._lock:  # viewers with equal rights get the same object, since live pages are shared by it
                view = self._views[mine] = self._views.get(mine) or NamespacedView(self._facts, mine)
                return view


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
