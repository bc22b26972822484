"""Token authorization: each viewer sees what its Kubernetes identity may list, and others see nothing.

GPUs, nodes and free room are visible to viewers that may list nodes, `vgpus.aliquot.dev`, or the pods of some namespace
with GPU work. Names are visible to viewers that may list the pods of their namespace. The answer is cached for
`BELIEVED_S`; then the API server is queried again, so that a revoked right takes effect on the pages, open ones too.

A token is stored only in the session that its owner opened, and written nowhere: the cache is keyed by its hash.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import HTTPConnection

from aliquot.kube.errors import KubeError
from aliquot.kube.reviews import ListQuestion, Reviews, TokenRefused
from aliquot.lib.bounded import Bounded
from aliquot.status import NamespacedView, StatusSource
from aliquot.web.app import AccessDenied
from aliquot.web.sessions import Sessions

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
