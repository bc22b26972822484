"""What a reflector makes of a stream that is silent, torn, endless or full of garbage."""

import asyncio
import json
from dataclasses import replace

from breaking import Answer, Request, Server
from reflecting import TUNING, scene


async def test_a_silent_watch_is_left():
    """A connection on which nothing comes any more is left after the idle time, and what was missed is caught up."""
    async with scene(replace(TUNING, idle_s=0.1)) as s:

        async def silence(server: Server, request: Request, answer: Answer) -> None:
            await answer.start()
            await server.put("a")
            await asyncio.sleep(3600)

        s.server.on_watch.append(silence)
        await s.start()
        await s.until(lambda: "a" in s.names)

        assert 1 == len(s.server.lists)


async def test_lines_are_put_together_from_any_pieces():
    """Events cut anywhere, also inside a letter of several bytes, are read as if they had come whole."""
    async with scene() as s:

        async def crumbs(server: Server, request: Request, answer: Answer) -> None:
            pod = await server.put("a", town="Zürich")
            text = json.dumps({"type": "ADDED", "object": pod}, ensure_ascii=False).encode() + b"\n"
            await answer.start()
            for i in range(len(text)):
                await answer.send(text[i : i + 1])
            await answer.end()

        s.server.on_watch.append(crumbs)
        await s.start()
        await s.until(lambda: "a" in s.names)

        found = s.reflector.get("default/a")
        assert found is not None
        assert "Zürich" == found.metadata.labels["town"]


async def test_a_line_without_end_does_not_fill_the_memory():
    """A line longer than the limit ends the watch, and the next one goes on."""
    async with scene(replace(TUNING, line_bytes=10_000)) as s:

        async def endless(server: Server, request: Request, answer: Answer) -> None:
            await answer.start()
            while True:
                await answer.send(b"x" * 4000)

        s.server.on_watch.append(endless)
        await s.start()
        await s.server.put("a")
        await s.until(lambda: "a" in s.names)

        assert "a line of more than 10000 bytes" in s.reflector.counts.last_failure


async def test_garbage_between_events_loses_none():
    """A line that is no event ends the watch; the next one starts from the last good version and misses nothing."""
    async with scene() as s:

        async def garbage(server: Server, request: Request, answer: Answer) -> None:
            await answer.start()
            await answer.line("ADDED", await server.put("a"))
            await server.put("b")
            await answer.send(b"<html>502</html>\n")
            await asyncio.sleep(3600)

        s.server.on_watch.append(garbage)
        await s.start()
        await s.until(lambda: {"a", "b"} == s.names)

        assert [("added", "a"), ("added", "b")] == s.told


async def test_an_object_that_can_not_be_read_is_counted_and_passed():
    """An event whose object has fields of wrong types changes nothing; the events behind it arrive."""
    async with scene() as s:

        async def odd(server: Server, request: Request, answer: Answer) -> bool:
            pod = await server.put("odd")
            pod["spec"] = {"containers": "none of them"}
            return True

        s.server.on_watch.append(odd)
        await s.start()
        await s.server.put("a")
        await s.until(lambda: "a" in s.names)

        assert {"a"} == s.names
        assert 1 == s.reflector.counts.undecodable


async def test_an_odd_object_in_a_list_does_not_hide_the_others():
    """A list with one undecodable object fills the store with the others."""
    async with scene() as s:
        (await s.server.put("odd"))["spec"] = 7
        await s.server.put("a")
        await s.start()

        assert {"a"} == s.names


async def test_events_that_come_twice_are_told_once():
    """Repeated and outdated events change nothing, whatever their order."""
    async with scene() as s:

        async def stutter(server: Server, request: Request, answer: Answer) -> bool:
            first = await server.put("a", step="1")
            second = await server.put("a", step="2")
            await answer.start()
            for pod in (first, second, second, first, first, second):
                await answer.line("MODIFIED", pod)
            await answer.end()
            return False

        s.server.on_watch.append(stutter)
        await s.start()
        await s.until(lambda: len(s.server.watches) == 2)

        assert [("added", "a"), ("modified", "a")] == s.told
        assert "2" == s.reflector.get("default/a").metadata.labels["step"]  # type: ignore[union-attr]


async def test_a_new_object_of_an_old_name_is_another_object():
    """When an object is deleted and made anew in a gap, both the deletion and the addition are told."""
    async with scene() as s:
        await s.server.put("a", uid="first")
        await s.start()
        s.told.clear()
        del s.server.objects["a"]
        await s.server.put("a", uid="second")
        await s.until(lambda: len(s.told) == 2)

        assert [("deleted", "a"), ("added", "a")] == s.told
