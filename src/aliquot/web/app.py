"""The application: routes of pages, of live pages and of the API, behind the guard.

`door` decides which facts a request may see: an engine of one account has one answer for all, that of a machine checks
the viewer's session, a cluster the viewer's token. A page and its live feed use the same door, so a feed is shared
only by viewers of the same facts.

The dashboard's server: uvicorn in a thread of the program whose facts it shows, on a socket that we create.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, Protocol

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from aliquot.http.listening import listening, own_address
from aliquot.http.server import BadCertificate, Certificate, HttpServer
from aliquot.status import StatusSource
from aliquot.web import rest
from aliquot.web.feeds import Feeds, TooMany
from aliquot.web.guard import LOOPBACK, Guard
from aliquot.web.log import defect, notice
from aliquot.web.pages import (
    Draw,
    NotHere,
    gpus,
    hours,
    news,
    overview,
    stale_since,
    timeline,
    topology,
    trying,
    workloads,
)  # fmt: skip
from aliquot.web.render import Block, address, block, clock_time, render
from aliquot.web.rest import Door

NAVIGATION: Final[Sequence[tuple[str, str]]] = (
    ("/", "Overview"),
    ("/gpus", "GPUs"),
    ("/workloads", "Workloads"),
    ("/topology", "Topology"),
    ("/timeline", "Timeline"),
    ("/hours", "GPU-hours"),
    ("/pool", "Pool and quota"),
    ("/try", "What if"),
)
# path -> (its renderer, its template, the part of the path that becomes a query parameter)
PAGES: Final[Mapping[str, tuple[Draw, str, str]]] = {
    "/": (overview.draw, "overview.html", ""),
    "/gpus": (gpus.draw, "gpus.html", ""),
    "/gpus/{uuid}": (gpus.draw_one, "gpu.html", "uuid"),
    "/workloads": (workloads.draw, "workloads.html", ""),
    "/workloads/{name:path}": (workloads.draw_one, "workload.html", "name"),
    "/topology": (topology.draw, "topology.html", ""),
    "/timeline": (timeline.draw, "timeline.html", ""),
    "/hours": (hours.draw, "hours.html", ""),
    "/pool": (overview.draw_pool, "pool.html", ""),
    "/try": (trying.draw, "try.html", ""),
}
PACES: Final[Mapping[str, Callable[[Mapping[str, str]], float]]] = {
    "/timeline": timeline.pace_s,
    "/hours": lambda query: 30.0,
}
"""How often pages of the past are redrawn, by their query. All other pages are redrawn when the facts change."""


class AccessDenied(Exception):
    """The viewer may see nothing; `status` is 401, 403, or 503 if that cannot be determined."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class SigningIn(Protocol):
    """The additions of a door that viewers sign in at; see `aliquot.web.access` and `aliquot.web.accounts`."""

    way_in: str
    """The text that viewers without a session are shown; empty where there is none."""

    def routes(self) -> list[Route]:
        """Its own pages."""

    def signed_in(self, request: Request) -> bool:
        """Whether a viewer is signed in."""


def dashboard(
    door: Door, *, hosts: Collection[str] = LOOPBACK, feeds: Feeds | None = None, signing_in: SigningIn | None = None
) -> ASGIApp:
    """The whole dashboard as an ASGI application; the caller closes `feeds`.

    The door may block: it is called in a thread.
    """
    live = feeds or Feeds()
    routes: list[Any] = [Mount("/static", _Static(directory=str(files("aliquot.web") / "static")))]
    own = signing_in.routes() if signing_in else []
    routes += [*own, *rest.routes(door)]
    for path, (draw, template, word) in PAGES.items():
        routes.append(Route(f"/live{path}", _Live(door, draw, word, live)))
        routes.append(Route(path, _page(door, draw, template, word)))
    handlers: dict[Any, Callable[[Request, Exception], Response | Awaitable[Response]]] = {
        404: _not_found,
        NotHere: _not_found,
        AccessDenied: _refused,
        500: _defect,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.add_middleware(GZipMiddleware, minimum_size=1400, compresslevel=5)
    app.state.signing_in = signing_in
    return Guard(app, hosts, [route.path.partition("{")[0] for route in own if "POST" in (route.methods or ())])


class _Static(StaticFiles):
    """Files whose address changes with their content may be cached forever."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        if b"v=" in scope.get("query_string", b""):
            response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


def _page(door: Door, draw: Draw, template: str, word: str) -> Callable[[Request], Response]:
    def page(request: Request) -> Response:
        facts = door(request)
        query = _query(request, word)
        drawn = draw(facts, query)
        html = render(
            template,
            title=drawn.title,
            where=facts.title,
            navigation=[page for page in NAVIGATION if page[0] != "/pool" or overview.has_pool(facts)],
            path=request.url.path,
            live=address(f"/live{request.url.path}", **request.query_params),
            blocks=[news(facts), *drawn.blocks],
            as_of=clock_time(facts.as_of_s),
            query=query,
            frame=drawn.frame,
            **_viewer(request),
        )
        return HTMLResponse(html)

    return page


def _viewer(request: Request) -> dict[str, Any]:
    signing_in: SigningIn | None = request.app.state.signing_in
    known = signing_in is not None and signing_in.signed_in(request)
    return {"signed_in": known, "way_in": signing_in.way_in if signing_in else ""}


class _Live:
    """An endpoint in plain ASGI: it sends for as long as its reader listens."""

    def __init__(self, door: Door, draw: Draw, word: str, feeds: Feeds) -> None:
        self._door = door
        self._draw = draw
        self._word = word
        self._feeds = feeds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One stream."""
        request = Request(scope, receive)
        facts = await run_in_threadpool(self._door, request)
        query = _query(request, self._word)
        pace = PACES.get(request.url.path.removeprefix("/live"))
        step_s = pace(query) if pace else 0.0

        def revision() -> Hashable:
            """What changes whenever the page must be redrawn."""
            return (time.monotonic() // step_s if step_s else facts.revision, stale_since(facts))

        def blocks() -> list[Block]:
            try:
                return [news(facts), *self._draw(facts, query).blocks]
            except NotHere as error:
                return [block("none", "blocks/none.html", text=str(error))]

        async def still() -> bool:
            try:
                return await run_in_threadpool(self._door, request) is facts
            except AccessDenied:
                return False

        key = (id(facts), request.url.path, tuple(sorted(query.items())))
        reader = (id(facts), request.client.host if request.client else "")
        try:
            await self._feeds.serve(key, blocks, revision, receive, send, still=still, reader=reader)
        except TooMany as error:
            answer = PlainTextResponse(f"{error}\n", 503, {"retry-after": "30"})
            await answer(scope, receive, send)


def _query(request: Request, word: str) -> dict[str, str]:
    query = dict(request.query_params)
    if word:
        query[word] = request.path_params[word]
    return query


def _sorry(request: Request, status: int, text: str) -> Response:
    if request.url.path.startswith("/api/"):
        return rest.problem(text, status)
    return HTMLResponse(_alone(request, "sorry.html", title=text, text=text), status)


def _alone(request: Request, template: str, **values: Any) -> str:
    """A page without facts."""
    frame = {"where": "", "navigation": NAVIGATION, "path": request.url.path, "live": "", "blocks": [], "as_of": ""}
    return render(template, **frame, **_viewer(request), **values)


def sign_in_page(request: Request, text: str) -> str:
    """The form for a token, under the reason why it is shown."""
    return _alone(request, "signin.html", title="Sign in", text=text)


def _not_found(request: Request, error: Exception) -> Response:
    return _sorry(request, 404, str(error) if isinstance(error, NotHere) else "There is no such page.")


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, AccessDenied)
    if error.status == 401 and request.app.state.signing_in and not request.url.path.startswith(("/api/", "/live/")):
        answer: Response = HTMLResponse(sign_in_page(request, str(error)), 401)
    else:
        answer = _sorry(request, error.status, str(error))
    if error.status == 401:
        answer.headers["www-authenticate"] = "Bearer"
    return answer


def _defect(request: Request, error: Exception) -> Response:
    defect("page failed", error, path=request.url.path)
    return _sorry(request, 500, "This page has a defect; the server's log has the details.")


def everyone(facts: StatusSource) -> Door:
    """The door of one machine: every viewer sees everything."""
    return lambda _request: facts


__all__ = ["AccessDenied", "Door", "dashboard", "everyone"]


_STOP_S: Final = 5.0


class WebServer:
    """Serves while it is open; `port` is where."""

    def __init__(
        self,
        door: Door,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        hosts: Collection[str] = LOOPBACK,
        tries: int = 1,
        signing_in: SigningIn | None = None,
        tls: tuple[str, str] | None = None,
        called: str = "",
        instead: str = "choose another port, or --no-web",
    ) -> None:
        """Start serving on the first free of `tries` ports from `port` up. `tls` names certificate and key.

        `called` and `instead` are for the error of a taken port, as in `listening`.

        Raises:
            PortTaken: none is free.
            BadCertificate: `tls` names files that are none.
        """
        self._certificate = Certificate(*tls) if tls else None
        self._host = host
        self._feeds = Feeds()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._server = HttpServer(
            dashboard(door, hosts=hosts, feeds=self._feeds, signing_in=signing_in),
            listening(host, port, tries, called=called or f"--port {port}", instead=instead),
            context=self._certificate.context if self._certificate else None,
            log_level="critical",  # the application logs its defects itself, without queries and headers
            on_up=self._started.set,
        )
        self.port = self._server.port
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)
        self._thread.start()
        self._started.wait(_STOP_S)

    def __enter__(self) -> WebServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        return f"{'https' if self._certificate else 'http'}://{own_address(self._host)}:{self.port}/"

    def close(self) -> None:
        """End every stream, then the server."""
        self._server.stop()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._feeds.close)
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        def renewed(fault: BadCertificate | None) -> None:
            if fault is None:
                notice("the dashboard has a new certificate")
            else:
                defect("the dashboard's new certificate is not used", fault)

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            following = asyncio.create_task(self._certificate.follow(renewed)) if self._certificate else None
            await self._server.serve()
            if following is not None:
                following.cancel()

        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(serve())
