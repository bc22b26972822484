"""A container's log: bounded, and followed without a gap."""

import time
from pathlib import Path

import pytest

from aliquot.standalone.logs import ContainerLog, NoPreviousRun
from aliquot.standalone.wire import LogCut


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


@pytest.mark.parametrize(
    ("printed", "lines", "kept"),
    [
        (b"one\ntwo\nhalf", 0, b""),
        (b"one\ntwo\nhalf", 1, b"half"),
        (b"one\ntwo\nhalf", 2, b"two\nhalf"),
        (b"one\ntwo\nhalf", 9, b"one\ntwo\nhalf"),
        (b"one\ntwo\nhalf", None, b"one\ntwo\nhalf"),
        (b"one\ntwo\n", 1, b"two\n"),  # the end of a line begins no further one
    ],
)
def test_the_tail_is_the_last_lines(tmp_path: Path, printed: bytes, lines: int | None, kept: bytes):
    """A line that is not finished yet counts as one."""
    log = ContainerLog(tmp_path / "main.log")
    log.append(printed)

    assert kept == log.text(LogCut(tail=lines))


def test_what_is_older_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With a time, only what was printed since then is shown."""
    log = ContainerLog(tmp_path / "main.log")
    now_s = time.time()
    for age_s, line in ((3600, b"long ago\n"), (30, b"lately\n"), (1, b"now\n")):
        monkeypatch.setattr(time, "time", lambda age_s=age_s: now_s - age_s)
        log.append(line)
    monkeypatch.setattr(time, "time", lambda: now_s)

    assert b"lately\nnow\n" == log.text(LogCut(since_s=60))
    assert b"" == log.text(LogCut(since_s=0.5))


def test_the_previous_run_is_apart(tmp_path: Path):
    """Previous output is that between the last two starts of the program; before a second start there is none."""
    log = ContainerLog(tmp_path / "main.log")
    log.begin_run()
    log.append(b"first\n")
    with pytest.raises(NoPreviousRun):
        log.text(LogCut(previous=True))
    for line in (b"second\n", b"third\n"):
        log.begin_run()
        log.append(line)

    assert b"second\n" == log.text(LogCut(previous=True))


def test_a_part_of_a_log_that_turned_over(tmp_path: Path):
    """Positions hold when the oldest half was dropped."""
    log = ContainerLog(tmp_path / "main.log", half_bytes=10)
    for number in range(4):
        log.begin_run()
        log.append(b"run %d\n" % number)

    assert b"run 2\n" == log.text(LogCut(previous=True))
