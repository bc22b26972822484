"""The client: one object at a time, typed errors, bounded retries.

Reads, deletes and server-side applies may be repeated and are, with backoff, within a limit. A create or a bind is
repeated only when it is certain that it never arrived; otherwise the caller is informed that it may have happened
(`Unreachable.may_have_happened`) and must check. At most `in_flight` requests run at once, the others wait their turn.

Address and credentials come from kubeconfig files, service accounts and credential plugins.

lightkube does the work (TLS, tokens re-read when they rotate, plugins, proxies) and gives a configured HTTP client.
What it does not do is done here: several files in KUBECONFIG, plugins of the API `client.authentication.k8s.io/v1`,
contexts without a user, and errors that people can read.

Access reviews: what the owner of a token may do, queried from the API server with that token.

A review is made as the token's owner, over a connection without our own credentials.
Any account that can log in may ask this about itself (`system:basic-user`).

Calls wait for the answer and may come from several threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import quote

import httpx2
import msgspec
from lightkube.config.client_adapter import AsyncClient, Client, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import NameValue, User, UserExec
from lightkube.core.exceptions import ConfigError

from aliquot.kube.errors import BadAnswer, BadKubeConfig, Busy, KubeError, NotFound, Unreachable, error_of
from aliquot.kube.manifest import BadYaml, read_yaml_file
from aliquot.kube.objects import ApiStatus, HasMeta, RawList, Resource
from aliquot.lib.backoff import Backoff
from aliquot.lib.decoding import decode_json
from aliquot.model.errors import AliquotError

DEFAULT_FILE: Final = "~/.kube/config"
TIMEOUT_S: Final = 10.0
_EXEC_V1: Final = "client.authentication.k8s.io/v1"
_EXEC_V1BETA1: Final = "client.authentication.k8s.io/v1beta1"
_FILES_IN: Final = (
    ("clusters", "cluster", ("certificate-authority",)),
    ("users", "user", ("client-certificate", "client-key", "tokenFile")),
)


def load_config(kubeconfig: str = "", context: str = "") -> SingleConfig:
    """The connection to use: the file named, else the pod's service account, else KUBECONFIG, else ~/.kube/config.

    Raises:
        BadKubeConfig: none of these is there, one cannot be read, or the context is not in it.
    """
    try:
        config: KubeConfig | None = None
        if not kubeconfig and os.environ.get("KUBERNETES_SERVICE_HOST"):
            with contextlib.suppress(ConfigError):  # not in a pod, or in one without a service account
                config = KubeConfig.from_service_account()
        if config is None:
            config = _from_files(kubeconfig or os.environ.get("KUBECONFIG") or DEFAULT_FILE)
        single = config.get(context or None)
    except ConfigError as error:
        text = str(error)[:1].lower() + str(error)[1:]
        raise BadKubeConfig(f"{text}; name a kubeconfig with --kubeconfig or in KUBECONFIG") from None
    except KeyError as error:
        raise BadKubeConfig(f"the kubeconfig's context names {error}, which is not in the file") from None
    except (msgspec.ValidationError, TypeError, AttributeError) as error:
        raise BadKubeConfig(f"the kubeconfig is not in the form of one: {error}") from None
    if single is None:
        raise BadKubeConfig("the kubeconfig has no current context; choose one with --context")
    user = single.user or User()
    if (plugin := user.exec) is not None:
        # lightkube only knows v1beta1 of the plugins' API; the answers of v1 have the same form.
        told = {"apiVersion": plugin.apiVersion, "kind": "ExecCredential", "spec": {"interactive": False}}
        env = [*(plugin.env or []), NameValue("KUBERNETES_EXEC_INFO", json.dumps(told))]
        version = _EXEC_V1BETA1 if plugin.apiVersion == _EXEC_V1 else plugin.apiVersion
        user.exec = UserExec(version, plugin.command, env, plugin.args, plugin.installHint)
    return single._replace(user=user)


def open_client(config: SingleConfig) -> httpx2.AsyncClient:
    """An HTTP client for the API server, with its base address and credentials.

    Raises:
        BadKubeConfig: a certificate is missing or invalid, or the authentication method is unknown.
    """
    try:
        return AsyncClient(config, ConnectionParams(timeout=httpx2.Timeout(TIMEOUT_S)))
    except (ConfigError, OSError, ValueError) as error:
        raise BadKubeConfig(f"the kubeconfig cannot be used: {error}") from None


def _from_files(paths: str) -> KubeConfig:
    """One kubeconfig of several files, as kubectl merges them: of equal names the first counts."""
    merged: dict[str, Any] = {"clusters": [], "users": [], "contexts": []}
    seen: set[tuple[str, str]] = set()
    files = [path for text in paths.split(os.pathsep) if text and (path := Path(text).expanduser()).is_file()]
    if not files:
        raise BadKubeConfig(f"there is no kubeconfig at {paths}; name one with --kubeconfig or in KUBECONFIG")
    for path in files:
        try:
            document = read_yaml_file(path)
        except BadYaml as error:
            raise BadKubeConfig(str(error)) from None
        if not isinstance(document, dict):
            raise BadKubeConfig(f"{path} is not a kubeconfig: it holds no mapping")
        for section, inner, keys in _FILES_IN:  # the names of other files are relative to its own folder
            for body in [entry.get(inner) or {} for entry in document.get(section) or []]:
                body |= {key: str(path.parent / body[key]) for key in keys if body.get(key)}
        merged["current-context"] = merged.get("current-context") or document.get("current-context")
        for section in ("clusters", "users", "contexts"):
            for entry in document.get(section) or []:
                if (section, entry["name"]) not in seen:
                    seen.add((section, entry["name"]))
                    merged[section].append(entry)
    return KubeConfig.from_dict(merged, fname=files[0])


T = TypeVar("T", bound=HasMeta)
Body = Mapping[str, Any]
_JSON: Final = "application/json"
MERGE: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
_ERROR_BYTES: Final = 64 * 1024
_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


@dataclass(frozen=True)
class ClientLimits:
    """How hard the client tries. `wait_max_s` bounds each wait between two tries."""

    tries: int = 5
    wait_first_s: float = 0.1
    wait_max_s: float = 5.0
    in_flight: int = 64


class Api:
    """An API server."""

    def __init__(
        self, http: httpx2.AsyncClient, *, namespace: str = "default", limits: ClientLimits | None = None
    ) -> None:
        self.http = http
        self.namespace = namespace
        self.limits = limits or ClientLimits()
        self._slots = asyncio.Semaphore(self.limits.in_flight)

    @classmethod
    def connect(cls, kubeconfig: str = "", context: str = "", *, limits: ClientLimits | None = None) -> Self:
        """Connect by the kubeconfig or the pod's service account.

        Raises:
            BadKubeConfig: there is none that can be used.
        """
        config = load_config(kubeconfig, context)
        return cls(open_client(config), namespace=config.namespace, limits=limits)

    async def close(self) -> None:
        """Close all connections."""
        await self.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """One object.

        Raises:
            NotFound: it is not there. KubeError: any other failure.
        """
        return _decoded(resource, await self.request("GET", resource.path(namespace=namespace, name=name)))

    async def find(self, resource: Resource[T], name: str, *, namespace: str = "") -> T | None:
        """One object, or None if it does not exist."""
        try:
            return await self.get(resource, name, namespace=namespace)
        except NotFound:
            return None

    async def create(self, resource: Resource[T], body: Body | HasMeta, *, namespace: str = "") -> T:
        """A new object.

        Raises:
            AlreadyExists: the name is taken. Unreachable: it may or may not have been made.
        """
        path = resource.path(namespace=namespace)
        content = _encoded(resource, body)
        return _decoded(resource, await self.request("POST", path, content=content, repeat=False))

    async def patch(
        self, resource: Resource[T], name: str, body: Body, *, namespace: str = "", sub: str = "", repeat: bool = True
    ) -> T:
        """JSON merge patch; with `metadata.resourceVersion` in the body it is a compare and swap.

        Raises:
            Conflict: the object has another version than the body says.
        """
        path = resource.path(namespace=namespace, name=name, sub=sub)
        return _decoded(
            resource,
            await self.request("PATCH", path, content=msgspec.json.encode(body), content_type=MERGE, repeat=repeat),
        )

    async def apply(self, resource: Resource[T], body: Body, *, manager: str, sub: str = "") -> T:
        """Server-side apply: the object has at least these fields afterwards, and `manager` owns them, others' too.

        `body` has metadata.name, and metadata.namespace where the kind has one.
        """
        metadata = body["metadata"]
        path = resource.path(namespace=metadata.get("namespace", ""), name=metadata["name"], sub=sub)
        params = {"fieldManager": manager, "force": "true"}
        content = _encoded(resource, body)
        return _decoded(resource, await self.request("PATCH", path, content=content, content_type=APPLY, params=params))

    async def delete(
        self, resource: Resource[T], name: str, *, namespace: str = "", uid: str = "", grace_s: int | None = None
    ) -> bool:
        """Delete an object; with `uid` only if it has that uid. False if it did not exist.

        Raises:
            Conflict: the name now belongs to another object than the one with that uid.
        """
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self.request(
                "DELETE", resource.path(namespace=namespace, name=name), content=msgspec.json.encode(body)
            )
        except NotFound:
            return False
        return True

    async def pages(
        self, path: str, params: Mapping[str, str] | None = None, *, size: int = 0, timeout_s: float = 10.0
    ) -> AsyncIterator[RawList]:
        """A list page by page, with `size` objects in each; 0 is all in one.

        Raises:
            Gone: the next page is of a version that the API server no longer has.
            KubeError: it refused, or sent what is no list.
        """
        asked = {**(params or {}), **({"limit": str(size)} if size else {})}
        while True:
            body = await self.request("GET", path, params=asked, timeout_s=timeout_s)
            try:
                page = decode_json(body, RawList)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise BadAnswer(f"{path}: a list that cannot be read: {error}") from None
            yield page
            if not page.metadata.continue_:
                return
            asked["continue"] = page.metadata.continue_

    async def request(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        content_type: str = _JSON,
        params: Mapping[str, str] | None = None,
        repeat: bool = True,
        timeout_s: float = 10.0,
    ) -> bytes:
        """The body of the answer to one request, retried while that is safe and useful.

        `repeat` says that a second arrival does no harm.

        Raises:
            KubeError: of the kind that says what happened.
        """
        backoff = Backoff(self.limits.wait_first_s, self.limits.wait_max_s)
        headers = {"Content-Type": content_type} if content is not None else None
        what = f"{method.lower()} {path}"
        for left in range(self.limits.tries - 1, -1, -1):
            try:
                async with self._slots:
                    answer = await self.http.request(
                        method, quote(path), content=content, headers=headers, params=params, timeout=timeout_s
                    )
                if answer.is_success:
                    return answer.content
                failure: KubeError = failed(answer.status_code, answer.content, answer.headers, what)
                again = isinstance(failure, Busy) and (repeat or answer.status_code == 429)
            except httpx2.HTTPError as error:
                lost = unreachable(error, what)
                failure, again = lost, repeat or not lost.may_have_happened
            if not again or left == 0:
                raise failure
            await asyncio.sleep(max(backoff.next_s(), min(failure.retry_after_s, self.limits.wait_max_s)))
        raise AssertionError("a try either returns or raises")

    @asynccontextmanager
    async def stream(self, path: str, params: Mapping[str, str], *, idle_s: float) -> AsyncIterator[httpx2.Response]:
        """A streamed response; `idle_s` without a byte ends it as Unreachable.

        Not counted among the requests in flight, since it lasts.

        Raises:
            KubeError: the server refused, or the connection failed, also later while it is read.
        """
        what = f"watch {path}"
        timeout = httpx2.Timeout(10.0, read=idle_s)
        try:
            async with self.http.stream("GET", quote(path), params=params, timeout=timeout) as answer:
                if not answer.is_success:
                    body = b""
                    async for chunk in answer.aiter_bytes():
                        body += chunk
                        if len(body) >= _ERROR_BYTES:
                            break
                    raise failed(answer.status_code, body[:_ERROR_BYTES], answer.headers, what)
                yield answer
        except httpx2.HTTPError as error:
            raise unreachable(error, what) from None


def failed(code: int, body: bytes, headers: Mapping[str, str], what: str) -> KubeError:
    """The exception for an answer that is not a success; a body that is no Status is quoted."""
    try:
        status = decode_json(body, ApiStatus)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        status = ApiStatus(message=body[:200].decode("utf-8", "replace").strip(), code=code)
    after = headers.get("Retry-After", "")
    return error_of(code, status, what, float(after) if after.isdigit() else 0.0)


def unreachable(error: httpx2.HTTPError, what: str) -> Unreachable:
    """No answer: may the request have arrived?"""
    reason = str(error) or type(error).__name__
    return Unreachable(
        f"{what}: the API server does not answer ({reason})", may_have_happened=not isinstance(error, _NEVER_SENT)
    )


def _encoded(resource: Resource[T], body: Body | HasMeta) -> bytes:
    plain: Body = body if isinstance(body, Mapping) else msgspec.to_builtins(body)
    return msgspec.json.encode({"apiVersion": resource.api_version, "kind": resource.kind, **plain})


def _decoded(resource: Resource[T], body: bytes) -> T:
    try:
        return resource.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadAnswer(f"the API server sent a {resource.kind} that cannot be read: {error}") from None


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
