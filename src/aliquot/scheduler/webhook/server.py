"""The webhook over HTTPS, with certificates that change while it serves."""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aliquot.http.body import BadBody, body_of
from aliquot.http.connections import ClientConnection
from aliquot.http.listening import listening
from aliquot.http.server import HttpServer
from aliquot.kube.api import Api
from aliquot.lib.log import Logger
from aliquot.scheduler.settings import SchedulerSettings, address
from aliquot.scheduler.webhook.admission import Admission, AdmissionAnswer, BadReview, Document, answer
from aliquot.scheduler.webhook.certs import CertificateBundle
from aliquot.scheduler.webhook.keeper import Keeper

log = Logger("scheduler")
MAX_BYTES: Final = 8 * 1024 * 1024
"""More than the object and the one before it, of 3 MiB each, that the API server takes."""

KEEP_ALIVE_S: Final = 180
"""Longer than the API server keeps an idle connection (90 s): the side that closes first may cut off a request."""


@dataclass
class Webhook:
    """The server and the keeper of its certificates."""

    api: Api
    settings: SchedulerSettings
    admission: Admission
    leads: Callable[[], bool]
    on_listening: Callable[[str], None] = lambda url: None
    _context: ssl.SSLContext = field(default_factory=lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    _ready: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        s = self.settings
        self.keeper = Keeper(self.api, s.namespace, s.webhook_names, self.leads, on_new=self._new)

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """The tasks to run; none without an address."""
        return [self.keeper.run(), self._serve()] if self.settings.webhook else []

    def app(self) -> Starlette:
        """The routes."""
        return Starlette(
            routes=[
                Route("/mutate", self._review(self.admission.mutate), methods=["POST"]),
                Route("/validate", self._review(self.admission.validate), methods=["POST"]),
                Route("/healthz", _ok),
                Route("/readyz", _ok),
            ]
        )

    async def _serve(self) -> None:
        await self._ready.wait()
        host, port = address(self.settings.webhook, "--webhook")
        listener = listening(host, port, called=f"--webhook {host}:{port}", instead="choose another address")
        url = f"https://{host}:{listener.getsockname()[1]}"
        await HttpServer(
            self.app(),
            listener,
            context=self._context,
            protocol=ClientConnection,
            keep_alive_s=KEEP_ALIVE_S,
            on_up=lambda: self.on_listening(url),
        ).serve()

    def _new(self, kept: CertificateBundle) -> None:
        """New certificates, for connections that begin from now on."""
        load(self._context, kept)
        self._ready.set()

    def _review(self, say: Callable[[Document], AdmissionAnswer]) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def respond(request: Request) -> Response:
            try:
                return _json(answer(await body_of(request, MAX_BYTES), say))
            except BadBody as error:
                return _json({"error": str(error)}, error.code)
            except BadReview as error:
                return _json({"error": str(error)}, 400)

        return respond


def load(context: ssl.SSLContext, kept: CertificateBundle) -> None:
    """Make a context use this certificate; its key is in a private file for a moment, as OpenSSL requires."""
    with tempfile.TemporaryDirectory(prefix="aliquot-") as folder:
        chain = Path(folder, "chain.pem")
        with os.fdopen(os.open(chain, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(kept.key + kept.certificate)
        context.load_cert_chain(chain)


async def _ok(request: Request) -> Response:
    return Response("ok\n", media_type="text/plain")


def _json(document: Document, code: int = 200) -> Response:
    return Response(msgspec.json.encode(document), code, media_type="application/json")
