"""Sessions: a token, sealed into cookies of its owner's browser that only the dashboard can decrypt.

Nothing is stored here, so that every replica with the same key accepts sessions of another, and a restart ends
no session. A session ends after `LIFE_S`, when its owner signs out, and when the key is another. A copy of a cookie
that was made before signing out is refused by the replica that signed it out, for as long as it runs.

Programs need no session: they send their token with each request.

Replicas of a scheduler share the key in a Secret, which the first of them creates. It is checked periodically: a
deleted one is created again, and all viewers have to sign in again. Without the right to it each replica seals with
its own key, and logs that.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from starlette.requests import cookie_parser

from aliquot.kube.api import Api
from aliquot.kube.errors import AlreadyExists, KubeError
from aliquot.kube.objects import SECRETS
from aliquot.lib.bounded import Bounded
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
