"""The webhook over HTTPS, in a process of its own: reviews come from strangers and must not hold up the scheduler.

One review may take long or much memory, whatever its bounds are; in a process of its own it delays other reviews only,
and the kernel shares the processors between them and filter, bind and the lease. The scheduler starts the process when
there is a certificate, and again when it ends (`Webhook`).

Small reviews, which nearly all are, are judged as they come. Large ones are judged beside them, in one thread, one at a
time and the smallest first: however many there are, a small review waits for none of them.

The scheduler gives it a bound socket, its settings and its certificates by standard input, a JSON document a line, and
ends it by closing that. What a namespace holds is asked for over another socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import socket
import ssl
import sys
import tempfile
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aliquot.http.listening import listening
from aliquot.http.server import ClientConnection, HttpServer, RequestLimits
from aliquot.kube import names
from aliquot.kube.api import Api
from aliquot.kube.dialects import aliyun, foreign
from aliquot.kube.settings import fixed_sizes
from aliquot.lib.decoding import decode_json
from aliquot.lib.log import Logger
from aliquot.placement.quota import Usage
from aliquot.scheduler.admission.certificates import CertificateBundle, CertificateManager
from aliquot.scheduler.admission.rules import Admission, AdmissionAnswer, BadReview, Document, answer
from aliquot.scheduler.settings import SchedulerSettings, address

log = Logger("scheduler")
AGAIN_S: Final = 1.0
END_S: Final = 5.0
"""How long the process may take to end."""
SMALL_BYTES: Final = 128 * 1024
"""A review of a pod with its managed fields has 5 to 50 KiB; one of this size is judged in some 10 ms."""
LIMITS: Final = RequestLimits(body_bytes=8 * 1024 * 1024, requests=16, answer_s=5.0, small_bytes=SMALL_BYTES)
"""More than the object and the one before it, of 3 MiB each, that the API server takes; it waits for 5 s."""

KEEP_ALIVE_S: Final = 180
"""Longer than the API server keeps an idle connection (90 s): the side that closes first may cut off a request."""
SWITCH_S: Final = 0.0005
"""For how long a large review keeps the interpreter from a small one that has come."""
NICE: Final = 5
"""Behind the scheduler where both want a processor."""
UP: Final = b"up\n"
"""What is written to standard output while reviews are answered, every BEAT_S."""
BEAT_S: Final = 1.0
SILENT_S: Final = 5.0
"""A process that has written nothing for twice this time hangs. Twice, for a scheduler that was stopped itself finds
only the first time over."""


@dataclass
class Webhook:
    """The webhook's process and the manager of its certificates. `usage` says what a namespace holds."""

    api: Api
    settings: SchedulerSettings
    usage: Callable[[str], Usage]
    leads: Callable[[], bool]
    on_listening: Callable[[str], None] = lambda url: None
    process: Process | None = None
    _up: bool = False
    _kept: CertificateBundle | None = None
    _ready: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        s = self.settings
        self.certificates = CertificateManager(self.api, s.namespace, s.webhook_names, self.leads, on_new=self.renew)

    def answers(self) -> bool:
        """Whether reviews are answered, or none are to be."""
        return self._up or not self.settings.webhook

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """The tasks to run; none without an address."""
        return [self.certificates.run(), self.serve()] if self.settings.webhook else []

    def renew(self, kept: CertificateBundle) -> None:
        """New certificates, for connections that begin from now on."""
        self._kept = kept
        self._ready.set()
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.write(msgspec.json.encode(kept) + b"\n")

    async def serve(self) -> None:
        """Keep the process running until cancelled."""
        await self._ready.wait()
        host, port = address(self.settings.webhook, "--webhook")
        listener = listening(host, port, called=f"--webhook {host}:{port}", instead="choose another address")
        with listener:
            listener.listen()  # connections wait while the process is being started
            url = f"https://{host}:{listener.getsockname()[1]}"
            while True:
                here, there = socket.socketpair()
                with there:
                    descriptors = listener.fileno(), there.fileno()
                    self.process = process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-m", "aliquot.scheduler.admission.server", *map(str, descriptors)),
                        stdin=PIPE, stdout=PIPE, pass_fds=descriptors, start_new_session=True,
                    )  # fmt: skip
                code = await self._run(process, here, url)
                log.warning("the webhook's process ended with status %d and is started again", code)
                await asyncio.sleep(AGAIN_S)

    async def _run(self, process: Process, here: socket.socket, url: str) -> int:
        """One life of the process, whose questions of what namespaces hold come by `here`; its status."""
        assert process.stdin is not None and process.stdout is not None and self._kept is not None

        async def answer() -> None:
            reader, writer = await asyncio.open_connection(sock=here)
            with contextlib.closing(writer):
                while line := await reader.readline():
                    writer.write(msgspec.json.encode(self.usage(line[:-1].decode())) + b"\n")
                    await writer.drain()

        answering = asyncio.create_task(answer())
        try:
            process.stdin.write(msgspec.json.encode(self.settings) + b"\n" + msgspec.json.encode(self._kept) + b"\n")
            if await process.stdout.readline():
                self._up = True
                self.on_listening(url)
            silent = 0
            while silent < 2:
                try:
                    if not await asyncio.wait_for(process.stdout.readline(), SILENT_S):
                        return await process.wait()
                    silent = 0
                except TimeoutError:
                    silent += 1
            log.warning("the webhook's process hangs and is killed")
            process.kill()
            return await process.wait()
        finally:
            self._up = False
            answering.cancel()
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), END_S)
            except TimeoutError:
                process.kill()
                await process.wait()


class LargeReviews:
    """Calls that run in a thread, one at a time: of those that wait, the smallest next."""

    def __init__(self) -> None:
        self._running = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()

    async def judge(self, size: int, call: Callable[[], Document]) -> Document:
        """The answer of `call`. A cancelled caller leaves its turn; a call that has begun runs to its end."""
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (size, next(self._numbers), turn))
        self._begin()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._ended()
            raise
        thread = asyncio.ensure_future(asyncio.to_thread(call))
        thread.add_done_callback(self._ended)
        return await asyncio.shield(thread)

    def _ended(self, thread: asyncio.Future[Document] | None = None) -> None:
        if thread is not None and not thread.cancelled():
            thread.exception()  # read, should its caller have gone
        self._running = False
        self._begin()

    def _begin(self) -> None:
        while self._waiting and not self._running:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.cancelled():
                turn.set_result(None)
                self._running = True


def application(admission: Admission) -> Starlette:
    """The routes."""
    large = LargeReviews()

    def review(judge: Callable[[Document], AdmissionAnswer]) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def respond(request: Request) -> Response:
            body = await request.body()
            try:
                if len(body) <= SMALL_BYTES:
                    return _json(answer(body, judge))
                return _json(await large.judge(len(body), lambda: answer(body, judge)))
            except BadReview as error:
                return _json({"error": str(error)}, 400)

        return respond

    return Starlette(
        routes=[
            Route("/mutate", review(admission.mutate), methods=["POST"]),
            *(
                Route(f"/mutate/{kind}", review(partial(admission.claim, kind=kind)), methods=["POST"])
                for kind in ("share", "placed")
            ),
            Route("/validate", review(admission.validate), methods=["POST"]),
            Route("/healthz", _ok),
            Route("/readyz", _ok),
        ]
    )


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
    settings = decode_json(await lines.readline(), SchedulerSettings)
    load(context, decode_json(await lines.readline(), CertificateBundle))

    async def beat() -> None:
        while True:
            os.write(sys.stdout.fileno(), UP)
            await asyncio.sleep(BEAT_S)

    beats: list[asyncio.Task[None]] = []
    admission = Admission(
        foreign(aliyun_unit=settings.aliyun_unit),
        usage,
        settings.gpus == "own",
        settings.default_limit_milli,
        frozenset({aliyun.MEMORY} if settings.gpushare_inspect else ()),
        settings.claims,
        frozenset(f"{names.PREFIX}{size}" for size in ("gpu", *fixed_sizes(settings.claim_sizes)) if settings.claims),
        settings.pod_scheduler,
    )
    server = HttpServer(
        application(admission),
        listener,
        limits=LIMITS,
        context=context,
        protocol=ClientConnection,
        keep_alive_s=KEEP_ALIVE_S,
        on_up=lambda: beats.append(asyncio.create_task(beat())),
    )
    serving = asyncio.create_task(server.serve())
    while line := await lines.readline():
        load(context, decode_json(line, CertificateBundle))
    server.stop()
    await serving
    for task in beats:
        task.cancel()


def main() -> None:
    """The process: descriptors of the bound socket and of the one that answers what a namespace holds."""
    listener, asking = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    answers, one_at_a_time = asking.makefile("rb"), threading.Lock()

    def usage(namespace: str) -> Usage:
        with one_at_a_time:
            asking.sendall(namespace.encode() + b"\n")
            held: Usage = decode_json(answers.readline(), dict[str, tuple[int, int]])
        return held

    os.nice(NICE)
    sys.setswitchinterval(SWITCH_S)
    asyncio.run(_serve(listener, usage))


if __name__ == "__main__":
    main()
