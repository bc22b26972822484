"""Live pages: what a stream is sent, and who is cut off."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from markupsafe import Markup

from aliquot.web.feeds import Feeds, TooMany
from aliquot.web.render import Block


class Page:
    """Blocks that a test changes."""

    def __init__(self, **texts: str) -> None:
        self.texts = dict(texts)
        self.revision = 0
        self.drawn = 0

    def set(self, **texts: str) -> None:
        self.texts = texts
        self.revision += 1

    def draw(self) -> list[Block]:
        """What the page is now."""
        self.drawn += 1
        return [Block(name, Markup(f'<p id="{name}">{text}</p>')) for name, text in self.texts.items()]


class Reader:
    """One visitor's connection: what it was sent, and whether it takes anything."""

    def __init__(self, feeds: Feeds, page: Page, key: object = "page", name: str = "") -> None:
        self.got: list[str] = []
        self.started: dict[str, Any] = {}
        self.gone = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()
        self.ended = False
        serve = feeds.serve(key, page.draw, lambda: page.revision, self._receive, self._send, reader=name)
        self.task = asyncio.ensure_future(serve)

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.started = message
            return
        await self.takes.wait()
        self.got.append(message["body"].decode())
        self.ended = not message["more_body"]


async def until(true: Callable[[], bool]) -> None:
    """Wait for something for two seconds at most."""
    async with asyncio.timeout(2):
        while not true():
            await asyncio.sleep(0.002)


@pytest.fixture
def feeds() -> Feeds:
    """Feeds that look every 5 ms."""
    return Feeds(tick_s=0.005)


async def test_a_new_reader_gets_everything_then_only_changes(feeds: Feeds):
    """The first message replaces all blocks, later ones carry those that changed."""
    page = Page(a="1", b="1")
    reader = Reader(feeds, page)
    await until(lambda: len(reader.got) == 1)
    page.set(a="2", b="1")
    await until(lambda: len(reader.got) == 2)

    assert '<div id="blocks" hx-swap-oob="innerMorph"><p id="a">1</p><p id="b">1</p></div>' in reader.got[0]
    assert 'data: <p id="a" hx-swap-oob="outerMorph">2</p>\n\n' in reader.got[1]
    assert 'id="b"' not in reader.got[1]
    assert (b"content-type", b"text/event-stream; charset=utf-8") in reader.started["headers"]


async def test_a_quiet_page_hears_that_the_connection_lives(feeds: Feeds, monkeypatch: pytest.MonkeyPatch):
    """Without news a stream sends an event without content, which does not change the page."""
    monkeypatch.setattr("aliquot.web.feeds.QUIET_S", 0.01)

    reader = Reader(feeds, Page(a="1"))
    await until(lambda: len(reader.got) >= 3)

    drawn = [event for event in reader.got if "<div" in event]  # the first, unless drawing took longer than a pause
    assert 1 == len(drawn) and {"event: here\ndata:\n\n"} == {*reader.got} - {*drawn}


async def test_other_blocks_or_another_order_replace_all(feeds: Feeds):
    """When blocks come, go or change places, the whole container is sent."""
    page = Page(a="1", b="1")
    reader = Reader(feeds, page)
    await until(lambda: len(reader.got) == 1)
    page.set(b="1", a="1")
    await until(lambda: len(reader.got) == 2)

    assert '<p id="b">1</p><p id="a">1</p></div>' in reader.got[1]


async def test_nothing_new_is_not_sent(feeds: Feeds):
    """Facts that moved without changing a block wake nobody, and facts that stand still are not even drawn."""
    page = Page(a="1")
    reader = Reader(feeds, page)
    await until(lambda: len(reader.got) == 1)
    page.set(a="1")
    await until(lambda: page.drawn == 2)
    await asyncio.sleep(0.05)

    assert (1, 2) == (len(reader.got), page.drawn)


async def test_readers_of_one_page_share_its_drawing(feeds: Feeds):
    """However many look at the same page, it is drawn once for each change."""
    page = Page(a="1")
    readers = [Reader(feeds, page) for _ in range(200)]
    await until(lambda: all(reader.got for reader in readers))
    page.set(a="2")
    await until(lambda: all(len(reader.got) == 2 for reader in readers))

    assert (2, 200) == (page.drawn, feeds.streams)


async def test_a_slow_reader_gets_the_newest_state(feeds: Feeds):
    """What changed while a reader took nothing comes in one message."""
    page = Page(a="0", b="0")
    reader = Reader(feeds, page)
    await until(lambda: len(reader.got) == 1)
    reader.takes.clear()
    for n in range(1, 20):
        page.set(a=str(n), b="0")
        await until(lambda n=n: page.drawn == n + 1)
    reader.takes.set()
    await until(lambda: "19</p>" in reader.got[-1])

    assert len(reader.got) <= 3  # the first, the one that was stuck, the newest


async def test_a_stuck_reader_is_dropped():
    """A reader that takes nothing for so long loses its stream; the others go on."""
    feeds = Feeds(tick_s=0.005, stuck_s=0.05)
    page = Page(a="1")
    stuck, well = Reader(feeds, page), Reader(feeds, page)
    stuck.takes.clear()
    await until(stuck.task.done)
    page.set(a="2")
    await until(lambda: len(well.got) == 2)

    assert 1 == feeds.streams and not stuck.got


async def test_a_reader_that_leaves_is_forgotten(feeds: Feeds):
    """With its last reader a feed ends: nothing is drawn for nobody."""
    page = Page(a="1")
    reader = Reader(feeds, page)
    await until(lambda: len(reader.got) == 1)
    reader.gone.set()
    await until(reader.task.done)
    drawn = page.drawn
    page.set(a="2")
    await asyncio.sleep(0.05)

    assert (0, drawn) == (feeds.streams, page.drawn)


async def test_streams_are_bounded():
    """Above the bound a stream is refused before anything was sent."""
    feeds = Feeds(tick_s=0.005, max_streams=3)
    page = Page(a="1")
    kept = [Reader(feeds, page) for _ in range(3)]
    await until(lambda: all(reader.got for reader in kept))
    with pytest.raises(TooMany):
        await Reader(feeds, page).task


async def test_one_reader_can_not_take_all_pages(feeds: Feeds, monkeypatch: pytest.MonkeyPatch):
    """Who has begun as many different pages as one may is refused one more; others are not, nor is a shared page."""
    monkeypatch.setattr("aliquot.web.feeds.MAX_OF_ONE", 3)

    page = Page(a="1")
    kept = [Reader(feeds, page, number, "greedy") for number in range(3)]
    await until(lambda: all(reader.got for reader in kept))
    with pytest.raises(TooMany, match="3 different pages are live for you already"):
        await Reader(feeds, page, "one more", "greedy").task
    others = [Reader(feeds, page, "one more", "modest"), Reader(feeds, page, "one more", "greedy")]
    await until(lambda: all(reader.got for reader in others))


async def test_closing_ends_every_stream(feeds: Feeds):
    """When the server closes, each reader is told the end."""
    readers = [Reader(feeds, Page(a="1"), key) for key in range(3)]
    await until(lambda: all(reader.got for reader in readers))
    feeds.close()
    await until(lambda: all(reader.task.done() for reader in readers))

    assert all(reader.ended for reader in readers)


async def test_a_page_that_fails_is_tried_again(feeds: Feeds, capsys: pytest.CaptureFixture):
    """A drawing that raises costs its readers nothing but that change, and is logged once, not at each try."""
    page = Page(a="1")
    draw = page.draw
    failures = iter([True, True, True])
    page.draw = lambda: 1 / 0 if next(failures, False) else draw()  # type: ignore[method-assign]
    reader = Reader(feeds, page)
    await until(lambda: len(reader.got) == 1)

    assert 1 == capsys.readouterr().err.count("live page failed")
