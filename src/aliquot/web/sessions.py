"""Who is signed in: random words in cookies, each for a token that stays in this process's memory.

A session ends after `LIFE_S`, after `IDLE_S` without a request, when its owner signs out, and with the process.
Programs need none: they send their token with each request.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from starlette.requests import cookie_parser

LIFE_S: Final = 8 * 3600.0
IDLE_S: Final = 3600.0
MOST: Final = 1000
SECURE_COOKIE: Final = "__Host-aliquot"
"""A browser takes a cookie of this name from https only, for this host only."""

LOCAL_COOKIE: Final = "aliquot"
"""For the loopback's names, which are served without https."""


@dataclass
class _Session:
    token: str
    opened_s: float
    used_s: float


class Sessions:
    """May be used from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: OrderedDict[bytes, _Session] = OrderedDict()

    def open(self, token: str) -> str:
        """A new session's word; of too many the one that was unused longest ends."""
        word, now_s = secrets.token_urlsafe(32), self._clock()
        with self._lock:
            self._open[_key(word)] = _Session(token, now_s, now_s)
            while len(self._open) > MOST:
                self._open.popitem(last=False)
        return word

    def close(self, headers: Mapping[str, str]) -> None:
        """End the session that a request carries, if there is one."""
        with self._lock:
            for word in _words(headers):
                self._open.pop(_key(word), None)

    def token_of(self, headers: Mapping[str, str]) -> str:
        """The token of a request: what its Authorization header bears, else its session's; empty without one."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return token.strip()
        return next((token for word in _words(headers) if (token := self._token(word))), "")

    def signed_in(self, headers: Mapping[str, str]) -> bool:
        """Whether a request carries an open session."""
        return any(self._token(word) for word in _words(headers))

    def _token(self, word: str) -> str:
        key, now_s = _key(word), self._clock()
        with self._lock:
            session = self._open.get(key)
            if session is None:
                return ""
            if now_s - session.opened_s > LIFE_S or now_s - session.used_s > IDLE_S:
                del self._open[key]
                return ""
            session.used_s = now_s
            self._open.move_to_end(key)
            return session.token


def _words(headers: Mapping[str, str]) -> list[str]:
    cookies = cookie_parser(headers.get("cookie", ""))
    return [cookies[name] for name in (SECURE_COOKIE, LOCAL_COOKIE) if cookies.get(name)]


def _key(word: str) -> bytes:
    return hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()
