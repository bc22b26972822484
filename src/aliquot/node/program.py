"""`aliquot node` as a process: log, signals, and the agent between them."""

from __future__ import annotations

import asyncio
import signal

from aliquot.kube.api import Api
from aliquot.lib.log import set_up_log
from aliquot.node.agent import Agent
from aliquot.node.settings import NodeSettings
from aliquot.tracing.spans import tracing


def serve(settings: NodeSettings) -> None:
    """Run the agent until SIGTERM or SIGINT.

    Raises:
        AliquotError: it could not start, or a part of it failed.
    """
    set_up_log(settings.log_format)
    asyncio.run(_serve(settings))


async def _serve(settings: NodeSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    facts = {"k8s.node.name": settings.name}
    with tracing("aliquot-node", settings.otlp_endpoint, facts) as spans:
        async with Api.connect(settings.kubeconfig) as api:
            await Agent(settings, api, spans).run(stop)
