"""The names returned by Allocate, in memory and on disk; a name is returned to kubelet only once it is on disk."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from aliquot.node.checkpoint import Allotment, CheckpointError, Content, write_checkpoint
from aliquot.node.identity import Claim

NAME_BYTES = 8


class Allotments:
    """All allotments of the node by name. A change that could not be written did not happen."""

    def __init__(self, path: Path, node: str) -> None:
        self._path = path
        self._node = node
        self._by_name: dict[str, Allotment] = {}
        self._lock = asyncio.Lock()
        self.failure = ""
        """Why the last write failed; empty when it did not."""

    def __iter__(self) -> Iterator[Allotment]:
        return iter(list(self._by_name.values()))

    def get(self, name: str) -> Allotment | None:
        """The allotment of that name."""
        return self._by_name.get(name)

    async def start_with(self, allotments: Sequence[Allotment]) -> None:
        """Replace everything with the result of recovery; a failed write is in `failure`, and memory is updated all the
        same.

        Containers hold these already, so an agent that started on a full disk serves them and gives nothing new.
        """
        self._by_name = {allotment.name: allotment for allotment in allotments}
        with contextlib.suppress(CheckpointError):
            await self.write()

    async def give(self, ids: Sequence[str]) -> str:
        """Return a new name, never returned before, for these ids.

        Raises:
            CheckpointError: it could not be written.
        """
        made = Allotment(secrets.token_hex(NAME_BYTES), tuple(sorted(ids)))
        await self._change(lambda: self._by_name | {made.name: made})
        return made.name

    async def settle(self, claim: Claim, ids: Sequence[str], plan: str, driver: str, env: tuple[str, ...] = ()) -> None:
        """Record the owner of a name, its plan, and the driver and variables that its container gets.

        Raises:
            CheckpointError: it could not be written.
        """
        before = self._by_name.get(claim.name) or Allotment(claim.name, tuple(sorted(ids)))
        owner = claim.owner
        after = replace(
            before, uid=owner.uid, namespace=owner.namespace, pod=owner.pod, container=claim.container,
            plan=plan, driver=driver, env=env,
        )  # fmt: skip
        if after != self._by_name.get(claim.name):
            await self._change(lambda: self._by_name | {after.name: after})

    async def drop(self, names: Sequence[str]) -> None:
        """Forget names.

        Raises:
            CheckpointError: it could not be written.
        """
        if any(name in self._by_name for name in names):
            await self._change(lambda: {n: a for n, a in self._by_name.items() if n not in names})

    async def write(self) -> None:
        """Write the current state again, to check whether that is possible.

        Raises:
            CheckpointError: it is not.
        """
        await self._change(lambda: self._by_name)

    async def _change(self, change: Callable[[], dict[str, Allotment]]) -> None:
        async with self._lock:
            after = change()
            content = Content(self._node, tuple(after.values()))
            try:
                await asyncio.to_thread(write_checkpoint, self._path, content)
            except BaseException as error:
                self.failure = str(error)
                raise
            self._by_name, self.failure = after, ""
