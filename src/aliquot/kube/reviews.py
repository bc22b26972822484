"""Access reviews: what the owner of a token may do, queried from the API server with that token.

A review is made as the token's owner, over a connection without our own credentials.
Any account that can log in may ask this about itself (`system:basic-user`).

Calls wait for the answer and may come from several threads.
"""

from __future__ import annotations

import re
import threading
from typing import Final, NamedTuple, Self

import httpx2
import msgspec
from lightkube.config.client_adapter import Client, ConnectionParams
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from aliquot.kube.api import failed, unreachable
from aliquot.kube.config import load_config
from aliquot.kube.errors import BadAnswer, BadKubeConfig, Busy
from aliquot.lib.decoding import decode_json
from aliquot.model.errors import AliquotError

TOKEN: Final = re.compile(r"[\x21-\x7e]{1,16384}")
"""A bearer token. An empty one would make the request anonymous, which is another identity."""

_PATH: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_TIMEOUT_S: Final = 5.0
_TURN_S: Final = 3.0
_AT_ONCE: Final = 16


class TokenRefused(AliquotError):
    """The API server does not know the token (any more)."""


class ListQuestion(NamedTuple):
    """The question whether objects may be listed; in all namespaces without one."""

    resource: str
    group: str = ""
    namespace: str = ""


class _Allowed(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Allowed


class Reviews:
    """Queries one API server on behalf of tokens."""

    def __init__(self, config: SingleConfig) -> None:
        """Connect with the cluster's address and authority of `config`, without its user.

        Raises:
            BadKubeConfig: the authority's certificate is missing or no certificate.
        """
        try:
            anonymous = config._replace(user=User())
            self._http = Client(anonymous, ConnectionParams(timeout=httpx2.Timeout(_TIMEOUT_S)))
        except (ConfigError, OSError, ValueError) as error:
            raise BadKubeConfig(f"the kubeconfig cannot be used: {error}") from None
        self._slots = threading.BoundedSemaphore(_AT_ONCE)

    @classmethod
    def connect(cls, kubeconfig: str = "", context: str = "") -> Self:
        """At the API server that `Api.connect` with the same words talks to."""
        return cls(load_config(kubeconfig, context))

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def may_list(self, token: str, what: ListQuestion) -> bool:
        """Whether the token's owner may list something.

        Raises:
            TokenRefused: the token is none, or none of this cluster's.
            KubeError: the API server does not answer, or too many ask at once (`Busy`).
        """
        if not TOKEN.fullmatch(token):
            raise TokenRefused("this is not a token: one is a single word of letters, digits and signs")
        attributes = {"verb": "list", "group": what.group, "resource": what.resource, "namespace": what.namespace}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        if not self._slots.acquire(timeout=_TURN_S):
            raise Busy("too many ask at once what they may do; try again")
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            answer = self._http.post(_PATH, content=msgspec.json.encode(body), headers=headers)
        except httpx2.HTTPError as error:
            raise unreachable(error, "ask what a token may do") from None
        finally:
            self._slots.release()
        if answer.status_code == 401:
            raise TokenRefused("the API server does not accept this token; it may have expired")
        if answer.status_code == 403:
            return False  # one who may not even ask
        if not answer.is_success:
            raise failed(answer.status_code, answer.content, answer.headers, "ask what a token may do")
        try:
            return decode_json(answer.content, _Review).status.allowed
        except msgspec.DecodeError as error:
            raise BadAnswer(f"the API server's review cannot be read: {error}") from None
