"""What the agent has given, while its checkpoint cannot be written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aliquot.node.allocation.checkpoint import Allotment, Allotments, CheckpointError, read_checkpoint

HELD = Allotment("ab12", ("g0-000",), "uid", "ns", "pod", "main", '{"v":1}')


def test_an_agent_that_starts_on_a_full_disk_knows_what_is_held(tmp_path: Path):
    """What recovery found is known though it cannot be written; nothing new is given until it can be."""
    in_the_way = tmp_path / "checkpoint.json.new"
    in_the_way.mkdir()
    allotments = Allotments(tmp_path / "checkpoint.json", "node-1")

    asyncio.run(allotments.start_with([HELD]))
    assert ([HELD], True) == (list(allotments), "could not be written" in allotments.failure)
    with pytest.raises(CheckpointError):
        asyncio.run(allotments.give(["g0-001"]))
    assert [HELD] == list(allotments)

    in_the_way.rmdir()
    asyncio.run(allotments.write())
    assert "" == allotments.failure
    assert (HELD,) == read_checkpoint(tmp_path / "checkpoint.json")[0].allotments
