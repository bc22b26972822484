"""The log of all programs."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from aliquot.lib.log import Logger, Repeats, set_up_log


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leaves the log as it was."""
    config, handlers, level = structlog.get_config(), logging.root.handlers[:], logging.root.level
    yield
    structlog.configure(**config)
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def test_a_line_has_time_level_event_and_facts(capsys: pytest.CaptureFixture[str]):
    """As text, one line on stderr; values of an event are put in as logging does."""
    set_up_log("text")
    Logger("scheduler").warning("node %s takes no pods", "a", why="no inventory")
    out, err = capsys.readouterr()

    assert "" == out
    assert "[warning  ] node a takes no pods" in err
    assert "why='no inventory'" in err
    assert 1 == err.count("\n")


def test_json_has_one_object_a_line(capsys: pytest.CaptureFixture[str]):
    """As JSON, what goes wrong with its trace is one line too."""
    set_up_log("json")
    try:
        raise ValueError("bad")
    except ValueError as error:
        Logger("node").error("not-done", what="x", exc_info=error)
    (line,) = capsys.readouterr().err.splitlines()
    said = json.loads(line)

    assert ("error", "not-done", "x") == (said["level"], said["event"], said["what"])
    assert "ValueError: bad" in said["exception"]


def test_libraries_log_the_same_way(capsys: pytest.CaptureFixture[str]):
    """What a library says through logging is in the same form, from warnings up."""
    set_up_log("json")
    logging.getLogger("httpx2").info("a request")
    logging.getLogger("httpx2").warning("a refusal of %s", "this")
    (line,) = capsys.readouterr().err.splitlines()

    assert ("warning", "a refusal of this") == (json.loads(line)["level"], json.loads(line)["event"])


def test_a_program_that_sets_nothing_up_logs_text():
    """A library user of Aliquot, too, has its lines on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", "from aliquot.lib.log import Logger; Logger('x').info('here', a=1)"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert "" == done.stdout
    assert "here" in done.stderr
    assert "a=1" in done.stderr


def test_only_news_is_news():
    """What was said last about a subject is not said again until something else, or nothing, was to be said."""
    repeats = Repeats()
    said = [repeats.news(what, about) for what, about in [
        ("full", "a"), ("full", "a"), ("full", "b"), ("gone", "a"), ("", "a"), ("gone", "a"),
    ]]  # fmt: skip

    assert [True, False, True, True, False, True] == said
