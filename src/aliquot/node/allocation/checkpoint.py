"""State that survives an agent restart: which CDI device name it returned for which device ids, and the owner.

One JSON file of two lines, a header with the version and the SHA-256 of the second line, and the content. It is written
to a new file, synced, renamed over the old one, and the folder is synced, so after a crash either the old or the new
one exists. A file that is damaged, or of a newer version, is set aside and reported; it is never guessed at.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from aliquot.lib.decoding import decode_json
from aliquot.lib.files import read_plain, write_whole
from aliquot.model.errors import AliquotError

VERSION: Final = 2
NAME_BYTES: Final = 8
READ: Final = (1, 2)
"""The versions that can be read: version 1 had no driver."""


class CheckpointError(AliquotError):
    """The checkpoint could not be written; nothing that depends on it may continue."""


class Allotment(msgspec.Struct, frozen=True, omit_defaults=True):
    """One answer to Allocate: the CDI device `name` for these ids.

    The owner, the text of the plan that was followed, the generation of the driver volume that the container is shown
    (see `volume`), and the variables of its pod's dialect are known once its container has been announced. What was
    prepared for a claim has no ids; its owner is as `PodKey` says.
    """

    name: str
    ids: tuple[str, ...]
    uid: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    plan: str = ""
    driver: str = ""
    env: tuple[str, ...] = ()
    claim: str = ""
    user: str = ""

    @property
    def owner(self) -> PodKey | None:
        """The pod, if it is known."""
        return PodKey(self.uid, self.namespace, self.pod, self.claim, self.user) if self.uid else None


class PodKey(msgspec.Struct, frozen=True):
    """A pod by both of its names.

    For what a ResourceClaim gave, `claim` is its name and `uid` the claim's; `pod` and `user`, a uid, are those of the
    pod that it was prepared for.
    """

    uid: str
    namespace: str
    pod: str
    claim: str = ""
    user: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}"


class Content(msgspec.Struct, frozen=True):
    """The whole content, for the node of that name."""

    node: str = ""
    allotments: tuple[Allotment, ...] = ()


class _Header(msgspec.Struct):
    version: int
    sha256: str


def write_checkpoint(path: Path, content: Content) -> None:
    """Put the content on disk; when this returns it survives a power cut.

    Raises:
        CheckpointError: it could not be written, as when the disk is full; the old one still exists.
    """
    body = msgspec.json.encode(content)
    header = msgspec.json.encode(_Header(VERSION, hashlib.sha256(body).hexdigest()))
    try:
        write_whole(path, header + b"\n" + body + b"\n", synced=True)
    except OSError as error:
        raise CheckpointError(f"{path} could not be written ({error.strerror}); make room or mend the disk") from None


def read_checkpoint(path: Path) -> tuple[Content, str]:
    """The content, and the problem with it: empty without a problem, with the content empty otherwise.

    A damaged file is renamed to end in `.damaged`, so that it can be inspected.
    """
    try:
        raw = read_plain(path)
    except FileNotFoundError:
        return Content(), ""
    except OSError as error:
        return Content(), f"{path} could not be read ({error.strerror})"
    try:
        head, _, rest = raw.partition(b"\n")
        body = rest.partition(b"\n")[0]
        header = decode_json(head, _Header)
        if header.version not in READ:
            return Content(), _aside(path, f"is of version {header.version}, this agent reads up to version {VERSION}")
        if hashlib.sha256(body).hexdigest() != header.sha256:
            return Content(), _aside(path, "does not have the checksum it was written with")
        return decode_json(body, Content), ""
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        return Content(), _aside(path, f"is not a checkpoint ({error})")


def _aside(path: Path, why: str) -> str:
    kept = path.with_name(path.name + ".damaged")
    try:
        path.replace(kept)
    except OSError as error:
        return f"{path} {why}, and could not be set aside ({error.strerror})"
    return f"{path} {why}; it was set aside as {kept.name}"


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

    async def settle(
        self,
        name: str,
        owner: PodKey,
        container: str,
        ids: Sequence[str],
        plan: str,
        driver: str,
        env: tuple[str, ...] = (),
    ) -> None:
        """Record the owner of a name, its plan, and the driver and variables that its container gets.

        Raises:
            CheckpointError: it could not be written.
        """
        before = self._by_name.get(name) or Allotment(name, tuple(sorted(ids)))
        after = replace(
            before, uid=owner.uid, namespace=owner.namespace, pod=owner.pod, container=container,
            plan=plan, driver=driver, env=env, claim=owner.claim, user=owner.user,
        )  # fmt: skip
        if after != self._by_name.get(name):
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
