"""The two local sockets of JSON lines: admin.sock changes tenants, status.sock only reads.

A client that does not read its lines is disconnected once a bound is reached; it never blocks the loop.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from aliquot.lib.decoding import decode_json
from aliquot.lib.package import version
from aliquot.model.errors import in_words

from .records import WIRE, Answer, Event, Request
from .report import status_of
from .server import Server, listen

_LINE_LIMIT: Final = 1 << 20
_BUFFER_LIMIT: Final = 4 << 20
_CLIENT_LIMIT: Final = 64
_ADMIN: Final = "admin.sock"


class Channel:
    """One client of one of the two sockets."""

    def __init__(self, owner: Channels, sock: socket.socket, *, admin: bool) -> None:
        self._owner = owner
        self._sock = sock
        self._admin = admin
        self._in = bytearray()
        self._out = bytearray()
        self._closed = False
        owner.server.selector.register(sock, selectors.EVENT_READ, self._ready)

    def close(self) -> None:
        """End it; more than once does no harm."""
        if self._closed:
            return
        self._closed = True
        self._owner.server.events.followers.discard(self._follow)
        self._owner.server.selector.unregister(self._sock)
        self._sock.close()
        self._owner.clients.discard(self)

    def _ready(self) -> None:
        if self._closed:
            return
        try:
            data = self._sock.recv(65536)
        except BlockingIOError:
            self._flush()
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._in += data
        while not self._closed and (end := self._in.find(b"\n")) >= 0:
            line = bytes(self._in[:end])
            del self._in[: end + 1]
            self._carry_out(line)
        if len(self._in) > _LINE_LIMIT:
            self.close()
        self._flush()

    def _carry_out(self, line: bytes) -> None:
        server = self._owner.server
        try:
            request = decode_json(line, Request)
        except (msgspec.DecodeError, RecursionError) as error:
            self._say(Answer(error=f"not a request: {error}"))
            return
        try:
            if request.op == "status":
                self._say(Answer(status=status_of(server)))
            elif request.op == "turns":
                self._say(Answer(turns=server.engine.turns.last_minute(request.name, time.monotonic_ns())))
            elif request.op == "events":
                for event in server.events.recent():
                    self._follow(event)
                if request.follow:
                    server.events.followers.add(self._follow)
                else:
                    self._say(Answer(end=True))
            elif not self._admin:
                raise ValueError(f"{request.op!r} is not read-only; use admin.sock")
            elif request.op == "add_tenant" and request.tenant is not None:
                is_new = request.tenant.name not in server.engine.tenants
                server.add_tenant(request.tenant)
                try:
                    if is_new:  # a known one is in the file already
                        self._owner.changed()
                except OSError:  # it is added and written, or neither
                    server.remove_tenant(request.tenant.name)
                    raise
                self._say(Answer())
            elif request.op == "resize_tenant" and request.tenant is not None:
                before = server.resize_tenant(request.tenant)
                try:
                    self._owner.changed()
                except OSError:  # it is resized and written, or neither
                    server.resize_tenant(before)
                    raise
                self._say(Answer())
            elif request.op == "park_tenant":
                parking = server.park_tenant(request.name, busy=request.busy)
                if parking.is_new:
                    self._owner.changed()
                self._say(Answer(parking=parking))
            elif request.op in ("unpark_tenant", "note_away", "take_back"):
                getattr(server, request.op)(request.name)
                self._owner.changed()
                self._say(Answer())
            elif request.op == "remove_tenant":
                server.remove_tenant(request.name, end=request.end)
                self._owner.changed()
                self._say(Answer())
            else:
                known = (
                    "status, turns, events, add_tenant, resize_tenant, park_tenant, note_away, take_back, "
                    "unpark_tenant, remove_tenant"
                )
                raise ValueError(f"unknown request {request.op!r}; known: {known}")
        except ValueError as error:
            self._say(Answer(error=str(error)))
        except OSError as error:
            self._say(Answer(error=in_words(error)))
        except Exception:  # as for a tenant's message: the connection ends, not the arbiter
            server.note_defect(f"{request.op} on a local socket", time.monotonic_ns())
            self.close()

    def _follow(self, event: Event) -> None:
        self._say(Answer(event=event))

    def _say(self, answer: Answer) -> None:
        if self._closed:
            return
        answer.wire, answer.version = WIRE, version()
        self._out += msgspec.json.encode(answer) + b"\n"
        if len(self._out) > _BUFFER_LIMIT:
            self.close()
            return
        self._flush()

    def _flush(self) -> None:
        """Write what the socket accepts, and wait for EPOLLOUT for the rest."""
        if self._closed:
            return
        try:
            while self._out:
                sent = self._sock.send(self._out)
                del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        self._owner.server.selector.modify(self._sock, mask, self._ready)


class Channels:
    """Both listening sockets; `changed` is called after the set of tenants changed."""

    def __init__(self, server: Server, changed: Callable[[], None]) -> None:
        self.server = server
        self.changed = changed
        self.clients: set[Channel] = set()
        self._listeners: dict[Path, socket.socket] = {}
        for name in (_ADMIN, "status.sock"):
            self._listen(server.settings.runtime_dir / name)
        server.housekeepers.append(self._bind_again)

    def close(self) -> None:
        """Close and unlink."""
        for client in list(self.clients):
            client.close()
        for path, sock in self._listeners.items():
            self.server.selector.unregister(sock)
            sock.close()
            path.unlink(missing_ok=True)

    def _listen(self, path: Path) -> None:
        admin = path.name == _ADMIN
        sock = listen(path, socket.SOCK_STREAM, 0o600 if admin else 0o660)
        self._listeners[path] = sock
        self.server.selector.register(sock, selectors.EVENT_READ, lambda: self._accept(sock, admin=admin))

    def _bind_again(self, now_ns: int) -> None:
        """A socket whose name was removed cannot be reached: bind it again."""
        for path, sock in [(path, sock) for path, sock in self._listeners.items() if not path.is_socket()]:
            with contextlib.suppress(OSError):  # its folder is gone; tried again with the next round
                self._listen(path)
                self.server.selector.unregister(sock)
                sock.close()
                self.server.events.emit("socket-bound-again", now_ns, path=str(path))

    def _accept(self, listener: socket.socket, *, admin: bool) -> None:
        with contextlib.suppress(OSError):
            sock, _ = listener.accept()
            sock.setblocking(False)
            if len(self.clients) >= _CLIENT_LIMIT:
                sock.close()
                return
            self.clients.add(Channel(self, sock, admin=admin))
