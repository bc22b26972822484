"""Each key once, one worker at a time, failures later and later."""

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.kube.reflector import WorkQueue
from aliquot.lib.backoff import Backoff


async def test_a_key_that_waits_is_not_added_twice():
    """Any number of adds of a waiting key are one look."""
    queue = WorkQueue()
    for _ in range(5):
        queue.add("a")

    assert 1 == len(queue)


def test_failures_come_back_later_and_later():
    """The waits double up to the ceiling and start over after a success."""
    backoff = Backoff(0.1, 1.0, random.Random(1))
    waits = [backoff.next_s() for _ in range(6)]

    assert all(0.5 * b <= w <= 1.5 * b for w, b in zip(waits, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True))


async def test_a_failed_look_is_repeated_until_it_succeeds():
    """A look that raises is told and tried again; the key's failures are forgotten when it succeeds."""
    queue = WorkQueue(first_s=0.001, max_s=0.01)
    failures: list[str] = []
    looks = 0
    done = asyncio.Event()

    async def look(key: str) -> None:
        nonlocal looks
        looks += 1
        if looks < 4:
            raise RuntimeError("not yet")
        done.set()

    queue.add("a")
    worker = asyncio.create_task(queue.work(look, lambda key, error: failures.append(key)))
    await done.wait()
    worker.cancel()

    assert (4, ["a", "a", "a"], 0) == (looks, failures, queue.later)


async def test_the_earliest_of_several_times_counts():
    """A later time for a key that waits for an earlier one changes nothing."""
    queue = WorkQueue()
    queue.add_after("a", 0.01)
    queue.add_after("a", 3600)
    async with queue.next() as key:
        assert "a" == key
    assert 0 == queue.later


async def test_the_queue_is_bounded():
    """What does not fit is dropped."""
    queue = WorkQueue(most=2)
    for key in "abc":
        queue.add(key)

    assert 2 == len(queue)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=40))
def test_no_news_is_lost_and_no_key_is_handed_out_twice(adds: list[tuple[str, int]]):
    """With several workers, every add is followed by the start of a look, and a key has one worker at a time."""

    async def body() -> None:
        queue = WorkQueue()
        busy: set[str] = set()
        news: dict[str, int] = {}
        seen: dict[str, int] = {}

        async def look(key: str) -> None:
            assert key not in busy
            busy.add(key)
            seen[key] = news[key]
            await asyncio.sleep(0)
            busy.discard(key)

        wrong: list[Exception] = []
        workers = [asyncio.create_task(queue.work(look, lambda key, error: wrong.append(error))) for _ in range(3)]
        for key, pause in adds:
            news[key] = news.get(key, 0) + 1
            queue.add(key)
            for _ in range(pause):
                await asyncio.sleep(0)
        while len(queue) or busy or seen != news:
            await asyncio.sleep(0)
        for worker in workers:
            worker.cancel()

        assert ([], news) == (wrong, seen)

    asyncio.run(body())


async def test_others_have_their_turn_between_two_looks_that_wait_for_nothing():
    """A thousand looks that never wait are no block: whoever else is ready runs between any two of a worker."""
    queue = WorkQueue()
    since_turn = longest = 0

    async def look(key: str) -> None:
        nonlocal since_turn, longest
        since_turn += 1
        longest = max(longest, since_turn)

    async def other() -> None:
        nonlocal since_turn
        while True:
            since_turn = 0
            await asyncio.sleep(0)

    for number in range(1000):
        queue.add(str(number))
    tasks = [asyncio.create_task(queue.work(look, lambda key, error: None)) for _ in range(8)]
    tasks.append(asyncio.create_task(other()))
    while len(queue):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()

    assert longest <= 8
