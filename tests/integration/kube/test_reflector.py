"""What a reflector holds whatever the server does: the eight guarantees, against a server that breaks on purpose."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from breaking import Answer, Request, Server, status
from reflecting import TUNING, scene


def gone_status(code: int = 410) -> Callable[[Server, Request, Answer], Awaitable[None]]:
    """Refuse with an HTTP status."""

    async def fault(server: Server, request: Request, answer: Answer) -> None:
        await answer.whole(code, status(code, "Expired"))

    return fault


def error_event(code: int) -> Callable[[Server, Request, Answer], Awaitable[None]]:
    """Start a watch, then an ERROR event."""

    async def fault(server: Server, request: Request, answer: Answer) -> None:
        await answer.start()
        await answer.line("ERROR", status(code, "Expired"))
        await answer.end()

    return fault


async def test_a_list_is_read_page_by_page():
    """A store of more objects than a page holds is filled from all pages."""
    async with scene(replace(TUNING, page=3)) as s:
        for i in range(8):
            await s.server.put(f"p{i}")

        await s.start()

        assert {f"p{i}" for i in range(8)} == s.names
        assert 3 == len([r for r in s.server.requests if not r.watching])


async def test_a_version_is_seen_once_the_store_has_what_it_stands_for():
    """What the list or the watch brought is seen, a later version is not, and none is before the first list."""
    async with scene() as s:
        await s.server.put("a")
        assert not s.reflector.has_seen("1")
        await s.start()
        now = int(s.reflector.version)
        assert [True, False, True] == [s.reflector.has_seen(v) for v in (str(now), str(now + 1), "unordered")]

        await s.server.put("b")
        await s.until(lambda: s.reflector.has_seen(str(now + 1)))

        assert "b" in s.names


async def test_a_page_that_is_gone_starts_the_list_over():
    """When the history is lost between two pages, the list starts from its first page and is whole."""
    async with scene(replace(TUNING, page=2)) as s:
        for i in range(4):
            await s.server.put(f"p{i}")

        async def forget_after(server: Server, request: Request, answer: Answer) -> None:
            await server.list(request, answer)
            await server.forget()
            await server.remove("p3")

        s.server.on_list.append(forget_after)
        await s.start()

        assert {"p0", "p1", "p2"} == s.names
        assert 2 == len(s.server.lists)


async def test_what_was_deleted_while_nobody_watched_is_told_as_deleted():
    """After a gap in which history was lost, deletions, changes and additions are all told, each once."""
    async with scene() as s:
        for name in ("stays", "changes", "goes"):
            await s.server.put(name)
        await s.start()
        s.told.clear()

        async def away(server: Server, request: Request, answer: Answer) -> bool:
            await server.remove("goes")
            await server.put("changes", color="red")
            await server.put("comes")
            await server.forget()
            return True

        s.server.on_watch.append(away)
        await s.until(lambda: bool(s.server.watches))
        s.server.cut_all()
        await s.until(lambda: "comes" in s.names)

        assert [("added", "comes"), ("deleted", "goes"), ("modified", "changes")] == sorted(s.told)


async def test_a_clean_end_goes_on_from_the_last_version_without_a_list():
    """A watch that the server ends in order is followed by a watch from the last event's version, not by a list."""
    async with scene() as s:

        async def one_event(server: Server, request: Request, answer: Answer) -> None:
            await answer.start()
            await answer.line("ADDED", await server.put("a"))
            await answer.end()

        s.server.on_watch.append(one_event)
        await s.start()
        await s.until(lambda: len(s.server.watches) == 2)

        assert 1 == len(s.server.lists)
        assert "101" == s.server.watches[1].query["resourceVersion"]


async def test_bookmarks_move_the_version_on():
    """After a bookmark the next watch starts from the bookmark's version, so a quiet kind never becomes too old."""
    async with scene() as s:

        async def bookmark(server: Server, request: Request, answer: Answer) -> None:
            await answer.start()
            await answer.line("BOOKMARK", {"metadata": {"resourceVersion": "777"}, "spec": {"containers": None}})
            await answer.end()

        s.server.on_watch.append(bookmark)
        await s.start()
        await s.until(lambda: len(s.server.watches) == 2)

        assert "777" == s.server.watches[1].query["resourceVersion"]
        assert 0 == s.reflector.counts.undecodable


async def test_watches_end_at_different_times():
    """The server is asked to end each watch at a time between 290 and 590 s, so that not all clients return at once."""
    async with scene(replace(TUNING, watch_min_s=290, watch_max_s=590)) as s:
        await s.start()
        for _ in range(6):
            await s.until(lambda: bool(s.server._connections))
            s.server.cut_all()
            seen = len(s.server.watches)
            await s.until(lambda seen=seen: len(s.server.watches) > seen)

        times = {int(r.query["timeoutSeconds"]) for r in s.server.watches}
        assert len(times) > 2
        assert all(290 <= t <= 590 for t in times)


async def test_gone_leads_to_a_list_in_either_shape():
    """410 as an HTTP status and 410 as an ERROR event both lead to a new list."""
    async with scene() as s:
        s.server.on_watch += [gone_status(), error_event(410)]
        await s.start()
        await s.until(lambda: len(s.server.watches) == 3)

        assert 3 == len(s.server.lists)


async def test_gone_for_ever_is_no_hot_loop():
    """A server that lists but answers every watch with Gone is asked less and less often."""
    async with scene(replace(TUNING, wait_first_s=0.05, wait_max_s=10)) as s:
        s.server.on_watch += [gone_status()] * 1000
        await s.start()
        await asyncio.sleep(1.0)

        assert len(s.server.lists) <= 8


async def test_other_failures_try_the_same_watch_again():
    """After a refusal or a cut the watch goes on from the same version, and nothing is listed again."""
    async with scene() as s:
        await s.server.put("a")

        async def cut(server: Server, request: Request, answer: Answer) -> None:
            answer.cut()

        s.server.on_watch += [gone_status(500), cut, error_event(500)]
        await s.start()
        await s.until(lambda: len(s.server.watches) == 4)
        await s.server.put("b")
        await s.until(lambda: "b" in s.names)

        assert 1 == len(s.server.lists)
        assert {"101"} == {r.query["resourceVersion"] for r in s.server.watches}


async def test_a_watch_that_is_refused_again_and_again_ends_in_a_list():
    """After five refusals in a row the version itself is doubted and the objects are listed again."""
    async with scene() as s:
        s.server.on_watch += [gone_status(504)] * 5
        await s.start()
        await s.until(lambda: len(s.server.watches) == 6)

        assert 2 == len(s.server.lists)


async def test_synced_waits_for_the_whole_first_list():
    """`synced` is set after the last page of the first list and not before, however slow the list is."""
    async with scene(replace(TUNING, page=1)) as s:
        await s.server.put("a")
        await s.server.put("b")
        hold = asyncio.Event()

        async def at_once(server: Server, request: Request, answer: Answer) -> bool:
            return True

        async def slow(server: Server, request: Request, answer: Answer) -> bool:
            await hold.wait()
            return True

        s.server.on_list += [at_once, slow]
        s.task = asyncio.create_task(s.reflector.run())
        await s.until(lambda: len(s.server.requests) == 2)
        before = s.reflector.synced.is_set(), s.names
        hold.set()
        await s.until(s.reflector.synced.is_set)

        assert (False, set()) == before
        assert {"a", "b"} == s.names


async def test_a_failing_first_list_is_tried_until_it_works():
    """Refusals and cuts during the first list delay the store; they do not leave it half filled."""
    async with scene(replace(TUNING, page=1)) as s:
        await s.server.put("a")
        await s.server.put("b")

        async def half(server: Server, request: Request, answer: Answer) -> None:
            answer.writer.write(b'HTTP/1.1 200 X\r\nContent-Length: 900\r\n\r\n{"items": [{"metada')
            answer.cut()

        async def html(server: Server, request: Request, answer: Answer) -> None:
            await answer.whole(200, b"<html>a proxy says hello</html>")

        s.server.on_list += [gone_status(503), half, html, gone_status(429)]
        await s.start()

        assert {"a", "b"} == s.names


async def test_renewing_leaves_nothing_out():
    """`renew` returns when the store is a list made after the call, though the watch had told nothing of it."""
    async with scene() as s:

        async def silence(server: Server, request: Request, answer: Answer) -> None:
            await answer.start()
            await asyncio.sleep(3600)

        s.server.on_watch.append(silence)
        await s.start()
        await s.until(lambda: bool(s.server.watches))
        await s.server.put("a")
        before = s.names
        await s.reflector.renew()

        assert (set(), {"a"}) == (before, s.names)
        await s.server.put("b")
        await s.until(lambda: "b" in s.names)


async def test_a_store_under_constant_breakage_ends_equal_to_the_server():
    """Whatever mix of cuts, refusals and lost histories comes during churn, the store ends as the server's."""
    async with scene(replace(TUNING, page=5)) as s:
        faults = [gone_status(), error_event(410), gone_status(500), error_event(500)]
        await s.start()
        for step in range(120):
            name = f"p{step * 7 % 23}"
            if name in s.server.objects and step % 3 == 0:
                await s.server.remove(name)
            else:
                await s.server.put(name, step=str(step))
            if step % 5 == 0:
                s.server.on_watch.append(faults[step // 5 % 4])
                s.server.cut_all()
            if step % 31 == 0:
                await s.server.forget()
            await asyncio.sleep(0.002)
        s.server.on_watch.clear()

        def equal() -> bool:
            mine = {p.metadata.name: p.metadata.resource_version for p in s.reflector}
            return mine == {n: p["metadata"]["resourceVersion"] for n, p in s.server.objects.items()}

        await s.until(equal)
