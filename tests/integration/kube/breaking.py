"""A small API server that keeps ConfigMap-like pods in memory and breaks when told to.

It speaks enough HTTP/1.1 for the client: paged lists, watches with bookmarks, creates, patches and deletes. Faults are
queued: each list or watch that arrives takes the next one from its queue and does it instead of its duty, or before it.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Request:
    """One request that arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def watching(self) -> bool:
        return self.query.get("watch") == "true"


@dataclass
class Answer:
    """The way back to the client, in pieces of the test's choosing."""

    writer: asyncio.StreamWriter
    started: bool = False

    async def start(self, code: int = 200) -> None:
        """The head of a chunked answer."""
        self.started = True
        head = f"HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.writer.write(head.encode())
        await self.writer.drain()

    async def send(self, data: bytes) -> None:
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self.writer.drain()

    async def line(self, kind: str, obj: Any) -> None:
        """One watch event."""
        await self.send(json.dumps({"type": kind, "object": obj}).encode() + b"\n")

    async def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def whole(self, code: int, body: Any, headers: str = "") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"HTTP/1.1 {code} X\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)
        await self.writer.drain()

    def cut(self) -> None:
        """As a crash does: the connection is reset without an end."""
        self.writer.transport.abort()


Fault = Callable[["Server", Request, Answer], Awaitable[bool | None]]
"""Does something instead of the server's duty; True lets the server do its duty afterwards."""


def status(code: int, reason: str, message: str = "on purpose") -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


@dataclass
class Server:
    """The server; use `serving()`."""

    version: int = 100
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    log: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    on_list: deque[Fault] = field(default_factory=deque)
    on_watch: deque[Fault] = field(default_factory=deque)
    on_write: deque[Fault] = field(default_factory=deque)
    bookmark_s: float = 0.02
    forgotten: int = 0
    port: int = 0
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _connections: set[asyncio.StreamWriter] = field(default_factory=set)
    _snapshots: dict[str, tuple[int, list[dict[str, Any]]]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def lists(self) -> list[Request]:
        """First pages asked for, in order."""
        return [r for r in self.requests if r.method == "GET" and not r.watching and "continue" not in r.query]

    @property
    def watches(self) -> list[Request]:
        """Watches asked for, in order."""
        return [r for r in self.requests if r.watching]

    async def put(self, name: str, *, uid: str = "", **labels: str) -> dict[str, Any]:
        """Create or change a pod."""
        kind = "MODIFIED" if name in self.objects else "ADDED"
        self.version += 1
        old_uid = self.objects.get(name, {}).get("metadata", {}).get("uid")
        meta = {
            "name": name,
            "namespace": "default",
            "uid": uid or old_uid or f"uid-{name}-{self.version}",
            "resourceVersion": str(self.version),
            "labels": labels,
        }
        pod = {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": {"containers": [{"name": "main"}]}}
        self.objects[name] = pod
        await self._tell(kind, pod)
        return pod

    async def remove(self, name: str) -> None:
        """Delete a pod."""
        self.version += 1
        pod = self.objects.pop(name)
        pod = {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(self.version)}}
        await self._tell("DELETED", pod)

    async def forget(self) -> None:
        """Lose the history, as etcd's compaction does: older versions are Gone from now on."""
        self.version += 1
        self.forgotten = self.version
        self._snapshots.clear()

    async def _tell(self, kind: str, pod: dict[str, Any]) -> None:
        self.log.append((self.version, kind, pod))
        async with self._news:
            self._news.notify_all()

    def cut_all(self) -> None:
        """Reset every connection."""
        for writer in list(self._connections):
            writer.transport.abort()

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while (request := await _read(reader)) is not None:
                self.requests.append(request)
                await self._answer(request, Answer(writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _answer(self, request: Request, answer: Answer) -> None:
        if request.method != "GET":
            if self.on_write and not await self.on_write.popleft()(self, request, answer):
                return
            await answer.whole(200, request.body or b"{}")
        elif request.watching:
            if self.on_watch and not await self.on_watch.popleft()(self, request, answer):
                return
            await self.watch(request, answer)
        else:
            if self.on_list and not await self.on_list.popleft()(self, request, answer):
                return
            await self.list(request, answer)

    async def list(self, request: Request, answer: Answer) -> None:
        """A page of a consistent list; a token from before `forget` is Gone."""
        limit = int(request.query.get("limit", "500"))
        token = request.query.get("continue", "")
        if token and token not in self._snapshots:
            await answer.whole(410, status(410, "Expired"))
            return
        version, rest = self._snapshots.pop(token, (self.version, list(self.objects.values())))
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        if len(rest) > limit:
            meta["continue"] = f"token-{len(self.requests)}"
            self._snapshots[meta["continue"]] = (version, rest[limit:])
        await answer.whole(200, {"kind": "PodList", "metadata": meta, "items": rest[:limit]})

    async def watch(self, request: Request, answer: Answer) -> None:
        """Everything after the version asked for, then bookmarks, until the time is up."""
        seen = int(request.query["resourceVersion"] or 0)
        if seen < self.forgotten:
            await answer.whole(410, status(410, "Expired"))
            return
        await answer.start()
        ends = asyncio.get_running_loop().time() + float(request.query["timeoutSeconds"])
        while asyncio.get_running_loop().time() < ends:
            for version, kind, pod in list(self.log):
                if version > seen:
                    seen = version
                    await answer.line(kind, pod)
            try:
                async with self._news:
                    await asyncio.wait_for(self._news.wait(), self.bookmark_s)
            except TimeoutError:
                seen = max(seen, self.version)
                bookmark = {"kind": "Pod", "metadata": {"resourceVersion": str(seen)}, "spec": {"containers": None}}
                await answer.line("BOOKMARK", bookmark)
        await answer.end()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
    return Request(method, unquote(parts.path), query, headers, body)


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    """A server that listens until the block ends."""
    server = Server()
    listener = await asyncio.start_server(server.client, "127.0.0.1", 0, limit=64 * 1024 * 1024)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        server.cut_all()
        listener.close()
        await asyncio.sleep(0)
