"""The client: one object at a time, typed errors, bounded retries.

Reads, deletes and server-side applies may be repeated and are, with backoff, within a limit. A create or a bind is
repeated only when it is certain that it never arrived; otherwise the caller is informed that it may have happened
(`Unreachable.may_have_happened`) and must check. At most `in_flight` requests run at once, the others wait their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from aliquot.kube.config import load_config, open_client
from aliquot.kube.errors import BadAnswer, Busy, KubeError, NotFound, Unreachable, error_of
from aliquot.kube.objects import ApiStatus, HasMeta, RawList, Resource
from aliquot.lib.backoff import Backoff
from aliquot.lib.decoding import decode_json

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
