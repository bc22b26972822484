"""Lists that are long, or nested deeply: a reflector neither holds up its program nor ends it."""

import asyncio
from dataclasses import replace

from breaking import Answer, Request, Server
from reflecting import TUNING, scene

from aliquot.kube.reflector import SLICE


async def test_a_long_list_lets_others_have_their_turn():
    """Of a thousand objects that come, and then go, only a few are told before the loop's other tasks run."""
    async with scene(replace(TUNING, page=1000)) as s:
        between, told = 0, []

        async def turns() -> None:
            nonlocal between
            while True:
                told.append(len(s.told) - between)
                between = len(s.told)
                await asyncio.sleep(0)

        for i in range(1000):
            await s.server.put(f"p{i}")
        other = asyncio.create_task(turns())
        await s.start()
        await s.server.forget()
        for i in range(1000):
            await s.server.remove(f"p{i}")
        await s.reflector.renew()
        await asyncio.sleep(0)
        other.cancel()

        assert 2000 == len(s.told)
        assert max(told) <= SLICE


async def test_a_list_nested_too_deeply_is_a_failure_and_no_end():
    """An object whose fields are nested deeper than can be read is asked for again; the reflector goes on."""

    async def deep(server: Server, request: Request, answer: Answer) -> None:
        inner = b'{"a":' * 5000 + b"1" + b"}" * 5000
        await answer.whole(200, b'{"metadata":{"resourceVersion":"1"},"items":[%b]}' % inner)

    async with scene() as s:
        await s.server.put("p")
        s.server.on_list.append(deep)
        await s.start()

        assert ({"p"}, 1) == (s.names, s.reflector.counts.failures)
