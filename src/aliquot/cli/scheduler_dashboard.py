"""The dashboard of `aliquot scheduler`: its status source, the pages, and who may see what of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aliquot.kube.api import Reviews
from aliquot.scheduler.agents import AgentThread
from aliquot.scheduler.settings import address
from aliquot.scheduler.status_source import UNSEEN_S, SchedulerSource
from aliquot.status import NamespacedView
from aliquot.web.access import Sessions, SignIn, TokenDoor, keep_shared
from aliquot.web.app import WebServer, everyone
from aliquot.web.guard import LOOPBACK
from aliquot.web.history.file import Limits
from aliquot.web.history.keeping import LongHistory
from aliquot.web.history.prometheus import PrometheusPast

if TYPE_CHECKING:
    from aliquot.scheduler.program import Scheduler

KEY_S: Final = 3.0


@contextlib.asynccontextmanager
async def dashboard_beside(scheduler: Scheduler) -> AsyncIterator[str]:
    """The pages of a running scheduler program, by its settings; gives their address.

    Without tokens every client that reaches it sees everything, or with `web_namespace` only the names of these: the
    read-only mode that an administrator sets. With tokens viewers sign in and see what Kubernetes lets them list.

    Raises:
        PortTaken: another program uses the port.
        BadCertificate: the files are not a certificate and its key.
        BadKubeConfig: tokens are required and the API server's authority cannot be read.
    """
    settings = scheduler.settings
    host, port = address(settings.web, "--web")
    async with contextlib.AsyncExitStack() as stack:
        path = Path(settings.web_history) if settings.web_history else None
        history = LongHistory(path, Limits(max_bytes=settings.web_history_mib << 20) if path else None)
        stack.push_async_callback(asyncio.to_thread, history.close)
        source = SchedulerSource(scheduler, settings.context or "cluster", history)
        if settings.web_prometheus:
            url = settings.web_prometheus.rstrip("/")
            source.read_past_from(PrometheusPast(url, history, names=source.names_on))
        shown = frozenset(settings.web_namespace)
        door, signing_in = everyone(NamespacedView(source, shown) if shown else source), None
        if settings.web_tokens:
            reviews = Reviews.connect(settings.kubeconfig, settings.context)
            stack.callback(reviews.close)
            sessions, tried = Sessions(), asyncio.Event()
            sharing = asyncio.create_task(keep_shared(scheduler.api, settings.namespace, sessions, tried))
            stack.callback(sharing.cancel)
            with contextlib.suppress(TimeoutError):  # signed-in viewers must not have to sign in again after a restart
                await asyncio.wait_for(tried.wait(), KEY_S)
            door = TokenDoor(source, reviews, sessions)
            stack.callback(door.close)
            signing_in = SignIn(door, sessions)
        if settings.web_agent_port:
            source.agents = AgentThread(watched=lambda: time.monotonic() - source.asked_s < UNSEEN_S)
            stack.push_async_callback(asyncio.to_thread, source.agents.close)
        reading = asyncio.create_task(source.run())
        stack.callback(reading.cancel)

        server = await asyncio.to_thread(
            WebServer, door, host=host, port=port, signing_in=signing_in, instead="choose another address",
            hosts=LOOPBACK | settings.web_hosts,
            tls=(settings.web_tls_cert, settings.web_tls_key) if settings.web_tls_cert else None,
            called=f"--web {host}:{port}",
        )  # fmt: skip
        stack.push_async_callback(asyncio.to_thread, server.close)
        yield server.url
