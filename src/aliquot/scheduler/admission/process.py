"""The webhook's process, as the scheduler sees it: started when there is a certificate, started again when it ends.

One review may take long or much memory, whatever its bounds are; in a process of its own it delays other reviews only,
and the kernel shares the processors between them and filter, bind and the lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from aliquot.http.listening import listening
from aliquot.kube.api import Api
from aliquot.kube.quotas import Usage
from aliquot.lib.log import Logger
from aliquot.scheduler.admission.certificates import CertificateBundle, CertificateManager
from aliquot.scheduler.settings import SchedulerSettings, address

log = Logger("scheduler")
AGAIN_S: Final = 1.0
END_S: Final = 5.0
"""How long the process may take to end."""


@dataclass
class Webhook:
    """The webhook's process and the manager of its certificates. `usage` says what a namespace holds."""

    api: Api
    settings: SchedulerSettings
    usage: Callable[[str], Usage]
    leads: Callable[[], bool]
    on_listening: Callable[[str], None] = lambda url: None
    process: Process | None = None
    _kept: CertificateBundle | None = None
    _ready: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        s = self.settings
        self.certificates = CertificateManager(self.api, s.namespace, s.webhook_names, self.leads, on_new=self.renew)

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
                code = await self._run(listener, url)
                log.warning("the webhook's process ended with status %d and is started again", code)
                await asyncio.sleep(AGAIN_S)

    async def _run(self, listener: socket.socket, url: str) -> int:
        """One life of the process; its status."""
        here, there = socket.socketpair()
        with there:
            descriptors = listener.fileno(), there.fileno()
            command = [sys.executable, "-m", "aliquot.scheduler.admission.server", *map(str, descriptors)]
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, pass_fds=descriptors, start_new_session=True
            )
        self.process = process
        assert process.stdin is not None and process.stdout is not None and self._kept is not None
        answering = asyncio.create_task(self._answer(here))
        try:
            process.stdin.write(msgspec.json.encode(self.settings) + b"\n" + msgspec.json.encode(self._kept) + b"\n")
            if await process.stdout.readline():
                self.on_listening(url)
            return await process.wait()
        finally:
            answering.cancel()
            await _end(process)

    async def _answer(self, here: socket.socket) -> None:
        """Answer what namespaces hold, for reviews of quotas."""
        reader, writer = await asyncio.open_connection(sock=here)
        with contextlib.closing(writer):
            while line := await reader.readline():
                writer.write(msgspec.json.encode(self.usage(line[:-1].decode())) + b"\n")
                await writer.drain()


async def _end(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), END_S)
    except TimeoutError:
        process.kill()
        await process.wait()
