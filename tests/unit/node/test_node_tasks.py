"""What ends the agent and what does not: parts that last, and things that are done once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from structlog.testing import capture_logs

from aliquot.driver.cdi import CdiError
from aliquot.node.tasks import PartEnded, Tasks

Work = Callable[[], Coroutine[Any, Any, None]]


async def nothing() -> None:
    """Ends by itself."""


async def for_ever() -> None:
    """Never ends."""
    await asyncio.Event().wait()


def fails_with(error: Exception) -> Work:
    async def work() -> None:
        raise error

    return work


async def agent(*, lasting: Work = for_ever, once: Work = nothing) -> None:
    """An agent of one lasting part and one thing to do, that is told to stop a moment later."""
    tasks, stop = Tasks(), asyncio.Event()
    tasks.critical("watch", lasting())
    tasks.once("clear", once())
    asyncio.get_running_loop().call_later(0.05, stop.set)
    try:
        await asyncio.wait_for(tasks.until(stop), 10)
    finally:
        await tasks.end()


def test_a_lasting_part_that_fails_ends_the_agent():
    """With its own error, which says why."""
    with pytest.raises(OSError, match="the disk is gone"):
        asyncio.run(agent(lasting=fails_with(OSError("the disk is gone"))))


def test_a_lasting_part_that_ends_by_itself_ends_the_agent():
    """Nobody would do its work any more, and nobody would notice."""
    with pytest.raises(PartEnded, match="part 'watch' ended by itself"):
        asyncio.run(agent(lasting=nothing))


@pytest.mark.parametrize(
    ("error", "level"),
    [(CdiError("no room"), "warning"), (OSError("no room"), "warning"), (ValueError("a defect"), "error")],
)
def test_a_thing_that_could_not_be_done_is_told_and_the_agent_goes_on(error: Exception, level: str):
    """What can be read and acted upon as a sentence, a defect with its traceback."""
    with capture_logs() as told:
        asyncio.run(agent(once=fails_with(error)))

    assert [("not-done", "clear", level)] == [(line["event"], line["what"], line["log_level"]) for line in told]


def test_the_end_cancels_everything_and_is_no_failure():
    """Both kinds are waited for."""
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(1)

    asyncio.run(agent(lasting=work, once=work))

    assert 2 == len(ended)
