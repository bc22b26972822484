"""Files that are written whole or not at all."""

import errno
import os
from pathlib import Path

import pytest

from aliquot.lib.files import UNFINISHED, write_whole


@pytest.mark.parametrize("synced", [True, False])
def test_a_file_is_replaced_in_one_step(tmp_path: Path, synced: bool):
    """Whoever has the old file open goes on reading the old content, and the new one is whole under its name."""
    path = tmp_path / "folder" / "state"
    write_whole(path, b"old", synced=synced)
    with path.open("rb") as reader:
        write_whole(path, b"new", synced=synced)

        assert (b"old", b"new") == (reader.read(), path.read_bytes())
    assert [path] == list(path.parent.iterdir())


def test_a_failed_write_leaves_what_was_there(tmp_path: Path):
    """On a full disk the old content stays, the caller hears the reason, and nothing unfinished is left."""
    path = tmp_path / "state"
    write_whole(path, b"old", synced=False)
    (tmp_path / f"state{UNFINISHED}").symlink_to("/dev/full")

    with pytest.raises(OSError, match="No space left on device"):
        write_whole(path, b"new", synced=False)

    assert b"old" == path.read_bytes()
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize(("synced", "times"), [(True, 2), (False, 0)])
def test_only_a_synced_file_waits_for_the_disk(tmp_path: Path, monkeypatch, synced: bool, times: int):
    """With `synced` the file and its folder are on disk when the call returns; without it no disk is waited for."""
    waited: list[int] = []
    monkeypatch.setattr(os, "fsync", waited.append)

    write_whole(tmp_path / "state", b"new", synced=synced)

    assert times == len(waited)


def test_a_file_is_its_owners_unless_said_otherwise(tmp_path: Path):
    """State is readable by its owner alone; `mode` opens it, as far as the umask allows."""
    write_whole(tmp_path / "a", b"", synced=False)
    write_whole(tmp_path / "b", b"", synced=False, mode=0o644)

    assert 0o600 == (tmp_path / "a").stat().st_mode & 0o777
    assert 0o600 == (tmp_path / "b").stat().st_mode & 0o600


def test_a_failed_write_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A full disk is an error of a descriptor, which has no name; the sentence for a person needs one."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OSError) as error:
        write_whole(tmp_path / "state", b"new", synced=True)

    assert (str(tmp_path / "state"), []) == (error.value.filename, list(tmp_path.iterdir()))
