"""The agent's checkpoint: the old one or the new one, never something else."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.node.allocation.checkpoint import (
    Allotment,
    Allotments,
    CheckpointError,
    Content,
    read_checkpoint,
    write_checkpoint,
)

HELD = Allotment("ab12", ("g0-000",), "uid", "ns", "pod", "main", '{"v":1}')
CONTENT = Content("node-1", (Allotment("ab12", ("g0-000", "g0-001"), "uid", "ns", "pod", "main", '{"v":1}', "570-a"),))
TEXT = st.text(max_size=12)
ALLOTMENTS = st.builds(
    Allotment, TEXT, st.lists(TEXT, max_size=4).map(tuple), TEXT, TEXT, TEXT, TEXT, st.text(max_size=40), TEXT
)


@given(st.builds(Content, TEXT, st.lists(ALLOTMENTS, max_size=5).map(tuple)))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, content: Content):
    """Whatever is kept comes back as it was."""
    file = tmp_path_factory.mktemp("state") / "checkpoint.json"

    write_checkpoint(file, content)

    assert (content, "") == read_checkpoint(file)


def test_nothing_there_is_no_fault(tmp_path: Path):
    """A node that never had a checkpoint starts with nothing and without a word."""
    assert (Content(), "") == read_checkpoint(tmp_path / "none")


def test_a_torn_file_is_never_believed(tmp_path: Path):
    """Cut off anywhere before its content is whole, the file is set aside and said to be damaged."""
    file = tmp_path / "checkpoint.json"
    write_checkpoint(file, CONTENT)
    whole = file.read_bytes()

    for length in range(len(whole) - 1):
        file.write_bytes(whole[:length])
        content, trouble = read_checkpoint(file)
        assert Content() == content
        assert "set aside as checkpoint.json.damaged" in trouble
        assert not file.exists()


@given(st.data())
def test_a_changed_byte_is_never_believed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    """A byte that was changed gives either the content as it was or none, but no other."""
    file = tmp_path_factory.mktemp("state") / "checkpoint.json"
    write_checkpoint(file, CONTENT)
    raw = bytearray(file.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    file.write_bytes(raw)

    assert read_checkpoint(file)[0] in (CONTENT, Content())


def test_a_newer_version_is_refused_by_its_number(tmp_path: Path):
    """A file of a version that this agent does not know is set aside, and the number is told."""
    file = tmp_path / "checkpoint.json"
    write_checkpoint(file, CONTENT)
    head, body = file.read_bytes().split(b"\n")[:2]
    header = msgspec.json.decode(head) | {"version": 9}
    file.write_bytes(msgspec.json.encode(header) + b"\n" + body + b"\n")

    assert "is of version 9, this agent reads up to version 2" in read_checkpoint(file)[1]


def test_a_file_of_the_version_before_is_read(tmp_path: Path):
    """It has everything but the driver that each container is shown."""
    file = tmp_path / "checkpoint.json"
    (was,) = CONTENT.allotments
    before = Content("node-1", (msgspec.structs.replace(was, driver=""),))
    write_checkpoint(file, before)
    head, body = file.read_bytes().split(b"\n")[:2]
    header = msgspec.json.decode(head) | {"version": 1}
    file.write_bytes(msgspec.json.encode(header) + b"\n" + body + b"\n")

    assert b"driver" not in body
    assert (before, "") == read_checkpoint(file)


def test_what_can_not_be_written_leaves_the_old_one(tmp_path: Path):
    """When the new file cannot be made, the old one is still there and a sentence says what to do."""
    file = tmp_path / "checkpoint.json"
    write_checkpoint(file, CONTENT)
    (tmp_path / "checkpoint.json.new").mkdir()

    with pytest.raises(CheckpointError, match=r"could not be written .*make room or mend the disk"):
        write_checkpoint(file, Content("other"))

    assert (CONTENT, "") == read_checkpoint(file)


@pytest.mark.parametrize("content", [b"", b"nothing", b"{}"])
def test_a_file_that_ends_too_early_is_told_in_words(tmp_path: Path, content: bytes):
    """What is wrong with the file, not what this program tripped over."""
    file = tmp_path / "checkpoint.json"
    file.write_bytes(content)

    trouble = read_checkpoint(file)[1]

    assert "is not a checkpoint (" in trouble
    assert "unpack" not in trouble


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
