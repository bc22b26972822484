"""The engine's hold on its arbiter: started again however often that fails."""

from pathlib import Path

import pytest
from waiting import eventually

from aliquot.standalone import arbiter_process
from aliquot.standalone.arbiter_process import ArbiterFailed, ArbiterProcess

FAILS = 25
ARBITER = """
echo start >> "$0"
[ $(wc -l < "$0") -gt 1 ] && [ $(wc -l < "$0") -lt {comes_back} ] && exit 1
echo ready
[ $(wc -l < "$0") -lt {comes_back} ] || exec sleep 60
"""


def test_an_arbiter_that_cannot_be_started_for_long_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """However many starts in a row have failed, as on a full disk, the next one is tried, and counts."""
    monkeypatch.setattr(arbiter_process, "RESTART_PAUSE_S", 0.0)
    starts = tmp_path / "starts"
    argv = ["sh", "-c", ARBITER.format(comes_back=FAILS + 2), str(starts)]
    process = ArbiterProcess(argv, tmp_path, tmp_path / "log", lambda status: None)
    try:
        eventually(lambda: len(starts.read_text().split()) >= FAILS + 2, "the last start")
    finally:
        process.stop()


def test_an_arbiter_that_ends_without_a_word_is_reported_by_how_it_ended(tmp_path: Path):
    """What an earlier arbiter wrote to the log is not taken for the words of this one."""
    log = tmp_path / "log"
    log.write_text("Error: something else\n")
    with pytest.raises(ArbiterFailed, match="it ended with signal SIGBUS and said nothing"):
        ArbiterProcess(["sh", "-c", "kill -BUS $$"], tmp_path, log, lambda status: None)


def test_an_arbiter_that_is_killed_again_and_again_is_told(tmp_path: Path):
    """Callers that wait for the arbiter, and its log, are told how often it ended and how, also before it was ready."""
    lives = tmp_path / "lives"
    script = f"echo >> {lives}; [ $(wc -l < {lives}) = 2 ] || echo ready; kill -KILL $$"
    log = tmp_path / "log"
    process = ArbiterProcess(["sh", "-c", script], tmp_path, log, lambda status: None)
    try:
        eventually(lambda: "3 times" in process.trouble, "three ends are counted")
    finally:
        process.stop()

    assert process.trouble.startswith("the arbiter ended")
    assert process.trouble.endswith("in the last minute, the last time with signal SIGKILL")
    assert log.read_text().count("ended with signal SIGKILL") >= 3
