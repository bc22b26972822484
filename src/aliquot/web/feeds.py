"""Live pages: one feed for each open page and query, shared by all its viewers.

A feed draws its blocks, in a thread, whenever the facts have changed and numbers the changes. A stream sends what is
newer than what it sent last, so a reader that is slow gets fewer and larger messages and never costs memory; one that
takes nothing for some seconds is dropped and its browser connects again. Blocks are HTML that htmx morphs into the page
by their id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.types import Receive, Send

from aliquot.web.log import defect
from aliquot.web.render import Block

TICK_S: Final = 0.5
STUCK_S: Final = 10.0
QUIET_S: Final = 15.0
ASK_AGAIN_S: Final = 20.0
MAX_FEEDS: Final = 256
MAX_OF_ONE: Final = 64
"""Per-client limit, so that one client cannot use up all feeds."""
MAX_STREAMS: Final = 2000
CONTAINER: Final = "blocks"
HERE: Final = b"event: here\ndata:\n\n"
"""Sent when nothing has changed, so that a page knows that its facts are current."""

Draw = Callable[[], Sequence[Block]]
Revision = Callable[[], Hashable]
Still = Callable[[], Awaitable[bool]]


class TooMany(Exception):
    """The limit of streams is reached; the page works, but is not live."""


class Feed:
    """The blocks of one page and query, with the number of the change that made each what it is."""

    def __init__(self, draw: Draw, revision: Revision, reader: Hashable) -> None:
        self.reader = reader
        """The client that opened it."""
        self._draw = draw
        self._revision = revision
        self._drawn_of: Hashable = object()
        self._blocks: dict[str, tuple[Block, int]] = {}
        self._order: tuple[str, ...] = ()
        self._ordered_at = 0
        self._messages: dict[int, bytes] = {}
        self.version = 0
        self.streams = 0
        self.failed = False
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Draw again if the facts have moved on, and wake the streams if that changed anything."""
        revision = self._revision()
        if revision == self._drawn_of:
            return
        drawn = await asyncio.to_thread(self._draw)
        self._drawn_of, self.failed = revision, False
        blocks = {block.id: block for block in drawn}
        number, order = self.version + 1, tuple(blocks)
        new: dict[str, tuple[Block, int]] = {}
        for block_id, block in blocks.items():
            known = self._blocks.get(block_id)
            new[block_id] = known if known is not None and known[0] == block else (block, number)
        if order == self._order and all(since < number for _, since in new.values()):
            return
        if order != self._order:
            self._order, self._ordered_at = order, number
        self._blocks, self.version = new, number
        self._messages.clear()
        self.changed.set()
        self.changed = asyncio.Event()

    def message(self, since: int) -> bytes:
        """One event that takes a page from the state of `since` to now; 0 is a page of unknown state."""
        if since in self._messages:
            return self._messages[since]
        if since < self._ordered_at:
            inner = "".join(block.html for block, _ in self._blocks.values())
            html = f'<div id="{CONTAINER}" hx-swap-oob="innerMorph">{inner}</div>'
        else:
            html = ""
            for block in (block for block, number in self._blocks.values() if number > since):
                mark = f'id="{block.id}"'  # on the block's one element, where htmx has its word
                html += str(block.html).replace(mark, f'{mark} hx-swap-oob="outerMorph"', 1)
        lines = "".join(f"data: {line}\n" for line in html.splitlines())
        message = self._messages[since] = f"id: {self.version}\n{lines}\n".encode()
        return message


@dataclass
class Feeds:
    """All feeds of one server. Belongs to one event loop."""

    tick_s: float = TICK_S
    stuck_s: float = STUCK_S
    max_streams: int = MAX_STREAMS
    ask_again_s: float = ASK_AGAIN_S
    streams: int = field(init=False, default=0)
    _feeds: dict[Hashable, Feed] = field(init=False, default_factory=dict)
    _closing: bool = field(init=False, default=False)

    def close(self) -> None:
        """End every stream; call it in the loop's thread."""
        self._closing = True
        for feed in self._feeds.values():
            feed.changed.set()

    async def serve(
        self,
        key: Hashable,
        draw: Draw,
        revision: Revision,
        receive: Receive,
        send: Send,
        *,
        still: Still | None = None,
        reader: Hashable = None,
    ) -> None:
        """One stream until its reader goes away, gets stuck, may not see it any more, or the server closes.

        `still` is called now and then to check whether the reader may still see this.

        Raises:
            TooMany: there are as many streams or feeds as may be; nothing was sent.
        """
        feed = self._join(key, draw, revision, reader)
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await self._stream(feed, gone, send, still)
        except TimeoutError:
            return  # stuck: all that can be done is to close it
        finally:
            gone.cancel()
            self.streams -= 1
            feed.streams -= 1
            if feed.streams == 0:
                del self._feeds[key]
                if feed.task is not None:
                    feed.task.cancel()

    async def _stream(self, feed: Feed, gone: asyncio.Future[None], send: Send, still: Still | None) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sent, clock = 0, asyncio.get_running_loop().time
        ask_s = clock() + self.ask_again_s
        while not gone.done() and not self._closing:
            if clock() >= ask_s:
                if still is not None and not await still():
                    break
                ask_s = clock() + self.ask_again_s
            changed = feed.changed
            if feed.version > sent:
                body, sent = feed.message(sent), feed.version
            else:
                woken = asyncio.ensure_future(changed.wait())
                either: set[asyncio.Future[Any]] = {woken, gone}
                quiet_s = min(QUIET_S, self.ask_again_s)
                done, _ = await asyncio.wait(either, timeout=quiet_s, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                if done:
                    continue
                body = HERE
            async with asyncio.timeout(self.stuck_s):
                await send({"type": "http.response.body", "body": body, "more_body": True})
        if not gone.done():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _join(self, key: Hashable, draw: Draw, revision: Revision, reader: Hashable) -> Feed:
        if self.streams >= self.max_streams:
            raise TooMany(f"{self.streams} pages are live already")
        feed = self._feeds.get(key)
        if feed is None:
            if len(self._feeds) >= MAX_FEEDS:
                raise TooMany(f"{MAX_FEEDS} different pages are live already")
            if sum(other.reader == reader for other in self._feeds.values()) >= MAX_OF_ONE:
                raise TooMany(f"{MAX_OF_ONE} different pages are live for you already")
            feed = Feed(draw, revision, reader)
            feed.task = asyncio.ensure_future(self._keep_fresh(feed))
            self._feeds[key] = feed
        feed.streams += 1
        self.streams += 1
        return feed

    async def _keep_fresh(self, feed: Feed) -> None:
        while True:
            try:
                await feed.refresh()
            except Exception as error:
                if not feed.failed:  # once, not at each try
                    defect("live page failed", error)
                feed.failed = True
            await asyncio.sleep(self.tick_s)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
