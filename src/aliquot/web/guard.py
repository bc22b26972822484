"""Checks before every answer: allowed hosts, allowed methods, and what a browser may load.

The Host header must name this server, or be the address that the connection came to: a foreign page whose name was
re-bound to our address (DNS rebinding) is refused. Foreign pages may link to ours; any other request that they make a
browser send, such as dry runs in a loop, is refused. Only GET and HEAD are allowed, and POST on the paths of servers
where viewers sign in. The content security policy allows files of this server and nothing inline. Whole pages and JSON
are never cached; a response that may be cached sets its own header.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_READ_ONLY: Final = "This address is read with GET or HEAD; nothing can be changed here.\n"


class Guard:
    """Wraps an application. `hosts` are names without a port, IPv6 in brackets; POST is for `posts`: /signout, or /end/
    for all below."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] = LOOPBACK, posts: Collection[str] = ()) -> None:
        self._app = app
        self._posts = frozenset(posts)
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        host = host_name(headers.get("host", ""))
        if host not in self._hosts and host != _address(scope):
            known = ", ".join(sorted(self._hosts))
            return PlainTextResponse(f"This server is called {known}, not {host[:100]!r}.\n", 421)
        posts = scope["path"] in self._posts or f"/{scope['path'].split('/')[1]}/" in self._posts
        allowed = ("GET", "HEAD", "POST") if posts else ("GET", "HEAD")
        if scope["method"] not in allowed:
            words = "This address takes GET, HEAD and POST.\n" if "POST" in allowed else _READ_ONLY
            return PlainTextResponse(words, 405, {"allow": ", ".join(allowed)})
        # What another site's page has a browser send, unless it is a link to here: Sec-Fetch-Site says so. The Origin
        # of our own forms is `null`, as our pages send no referrer; programs other than browsers send neither.
        site, origin, post = headers.get("sec-fetch-site", ""), headers.get("origin", ""), scope["method"] == "POST"
        foreign = post and bool(origin) and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
        if site:
            foreign = site not in ("same-origin", "none")
        if foreign and (post or headers.get("sec-fetch-mode", "") != "navigate"):
            return PlainTextResponse("Another site's page asked for this; open it by itself.\n", 403)
        return None


def _address(scope: Scope) -> str | None:
    """The address that the connection came to, as in a Host header; None if unknown."""
    try:
        address = ip_address((scope.get("server") or ("",))[0])
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or f"[{address}]")


def host_name(header: str) -> str:
    """A Host header without its port, in lower case."""
    name, colon, port = header.strip().lower().rpartition(":")
    return name if colon and (port.isdigit() or not port) and not name.endswith(":") else header.strip().lower()
