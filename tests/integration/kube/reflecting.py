"""A reflector on a server that breaks on purpose, and what it told."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx2
from breaking import Server, serving

from aliquot.kube.api import Api, ClientLimits
from aliquot.kube.objects import PODS, Pod
from aliquot.kube.reflector import Change, Reflector, Tuning

TUNING = Tuning(idle_s=1.0, wait_first_s=0.01, wait_max_s=0.05, watch_min_s=30, watch_max_s=30)
LIMITS = ClientLimits(tries=1)


class Scene:
    """A server, a reflector on it, and what the reflector told."""

    def __init__(self, server: Server, reflector: Reflector[Pod]) -> None:
        self.server = server
        self.reflector = reflector
        self.told: list[tuple[str, str]] = []
        reflector.on_change = self._tell
        self.task: asyncio.Task[None] | None = None

    def _tell(self, change: Change[Pod]) -> None:
        self.told.append((change.kind, change.object.metadata.name))

    @property
    def names(self) -> set[str]:
        return {pod.metadata.name for pod in self.reflector}

    async def start(self) -> None:
        """Run the reflector and wait for its first list."""
        self.task = asyncio.create_task(self.reflector.run())
        await asyncio.wait_for(self.reflector.synced.wait(), 5)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that must come true within five seconds."""
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def scene(tuning: Tuning = TUNING) -> AsyncIterator[Scene]:
    """A scene that is taken down at the end; the reflector is not started."""
    async with serving() as server, httpx2.AsyncClient(base_url=server.url) as http:
        made = Scene(server, Reflector(Api(http, limits=LIMITS), PODS, tuning=tuning))
        yield made
        if made.task is not None:
            made.task.cancel()
            await asyncio.gather(made.task, return_exceptions=True)
