"""A container's log: bounded, and followed without a gap."""

from __future__ import annotations

from pathlib import Path

from aliquot.standalone.logs import ContainerLog


def test_who_follows_misses_nothing_and_hears_nothing_twice(tmp_path: Path):
    """What is printed while the first piece is being read comes with the next one, also when the log turns over."""
    log = ContainerLog(tmp_path / "main.log", half_bytes=8)
    log.append(b"one\n")
    following = log.follow()
    heard = [next(following)]
    log.append(b"two\n")
    heard.append(next(following))
    log.append(b"three\n")
    heard += [next(following), next(following)]

    assert b"one\ntwo\nthree\n" == b"".join(heard)


def test_a_log_keeps_the_last_and_forgets_the_first(tmp_path: Path):
    """Two halves take turns, so no more than twice a half is ever kept."""
    log = ContainerLog(tmp_path / "main.log", half_bytes=100)
    for number in range(1000):
        log.append(b"%03d\n" % number)
    kept = log.text()

    assert len(kept) <= 200
    assert kept.endswith(b"998\n999\n")


def test_a_log_that_was_cleared_is_empty(tmp_path: Path):
    """Nothing of a deleted container is left."""
    log = ContainerLog(tmp_path / "main.log", half_bytes=4)
    log.append(b"one\n")
    log.append(b"two\n")
    log.clear()

    assert (b"", []) == (log.text(), list(tmp_path.iterdir()))


def test_a_log_says_how_much_could_not_be_written(tmp_path: Path):
    """What could not be written is lost, never raised, and counted in front of what comes next."""
    log = ContainerLog(tmp_path / "a" / "main.log")
    log.append(b"one\n")
    (tmp_path / "a").rename(tmp_path / "b")
    log.append(b"two\n")
    log.append(b"three\n")
    (tmp_path / "b").rename(tmp_path / "a")
    log.append(b"four\n")
    why = f"{log.path}: no such file or directory"

    assert f"one\naliquot: 10 bytes were not kept: {why}\nfour\n" == log.text().decode()
