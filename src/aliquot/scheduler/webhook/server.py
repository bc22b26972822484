"""The webhook over HTTPS, in a process of its own: reviews come from strangers and must not hold up the scheduler.

The program that starts it (`process.py`) gives it a bound socket, its settings and its certificates by standard input,
a JSON document a line, and ends it by closing that. What a namespace holds is asked for over another socket.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aliquot.http.bounds import RequestLimits
from aliquot.http.connections import ClientConnection
from aliquot.http.server import HttpServer
from aliquot.kube.dialects import aliyun, foreign
from aliquot.scheduler.operator.quotas import Usage
from aliquot.scheduler.settings import SchedulerSettings
from aliquot.scheduler.webhook.admission import Admission, AdmissionAnswer, BadReview, Document, answer
from aliquot.scheduler.webhook.certs import CertificateBundle

LIMITS: Final = RequestLimits(body_bytes=8 * 1024 * 1024, requests=16, answer_s=5.0)
"""More than the object and the one before it, of 3 MiB each, that the API server takes; it waits for 5 s."""

KEEP_ALIVE_S: Final = 180
"""Longer than the API server keeps an idle connection (90 s): the side that closes first may cut off a request."""
NICE: Final = 5
"""Behind the scheduler where both want a processor."""
UP: Final = b"up\n"
"""What is written to standard output once reviews are answered."""


def admission_of(settings: SchedulerSettings, usage: Callable[[str], Usage]) -> Admission:
    """The rules by the scheduler's settings."""
    return Admission(
        foreign(aliyun_unit=settings.aliyun_unit),
        usage,
        settings.gpus == "own",
        settings.default_limit_milli,
        frozenset({aliyun.MEMORY} if settings.gpushare_inspect else ()),
        settings.pod_scheduler,
    )


def application(admission: Admission) -> Starlette:
    """The routes."""
    return Starlette(
        routes=[
            Route("/mutate", _review(admission.mutate), methods=["POST"]),
            Route("/validate", _review(admission.validate), methods=["POST"]),
            Route("/healthz", _ok),
            Route("/readyz", _ok),
        ]
    )


def _review(say: Callable[[Document], AdmissionAnswer]) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def respond(request: Request) -> Response:
        try:
            return _json(answer(await request.body(), say))
        except BadReview as error:
            return _json({"error": str(error)}, 400)

    return respond


async def _ok(request: Request) -> Response:
    return Response("ok\n", media_type="text/plain")


def _json(document: Document, code: int = 200) -> Response:
    return Response(msgspec.json.encode(document), code, media_type="application/json")


def load(context: ssl.SSLContext, kept: CertificateBundle) -> None:
    """Make a context use this certificate; its key is in a private file for a moment, as OpenSSL requires."""
    with tempfile.TemporaryDirectory(prefix="aliquot-") as folder:
        chain = Path(folder, "chain.pem")
        with os.fdopen(os.open(chain, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(kept.key + kept.certificate)
        context.load_cert_chain(chain)


async def _serve(listener: socket.socket, usage: Callable[[str], Usage]) -> None:
    """Answer until standard input ends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    lines = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    settings = msgspec.json.decode(await lines.readline(), type=SchedulerSettings)
    load(context, msgspec.json.decode(await lines.readline(), type=CertificateBundle))

    def up() -> None:
        os.write(sys.stdout.fileno(), UP)

    server = HttpServer(
        application(admission_of(settings, usage)),
        listener,
        limits=LIMITS,
        context=context,
        protocol=ClientConnection,
        keep_alive_s=KEEP_ALIVE_S,
        on_up=up,
    )
    serving = asyncio.create_task(server.serve())
    while line := await lines.readline():
        load(context, msgspec.json.decode(line, type=CertificateBundle))
    server.stop()
    await serving


def main() -> None:
    """The process: descriptors of the bound socket and of the one that answers what a namespace holds."""
    listener, asking = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    answers = asking.makefile("rb")

    def usage(namespace: str) -> Usage:
        asking.sendall(namespace.encode() + b"\n")
        found: Usage = msgspec.json.decode(answers.readline(), type=dict[str, tuple[int, int]])
        return found

    os.nice(NICE)
    asyncio.run(_serve(listener, usage))


if __name__ == "__main__":
    main()
