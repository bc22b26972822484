"""`aliquot top` in tmux: a terminal as people have it, resized while it runs, with and without colour."""

import shutil
import sys
from collections.abc import Iterator

import pytest
from tmux import Tmux
from waiting import eventually

from .stage import Aliquot, end

pytest.importorskip("textual", reason="textual is not installed: no application to drive")
pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed: no terminal to resize")


@pytest.fixture
def tmux(engine: Aliquot) -> Iterator[Tmux]:
    """A terminal beside an engine with two emulated GPUs and one tenant."""
    terminal = Tmux(engine.env)
    work = engine.start("run", "--name", "team/worker", "--gpu-request", ".3", "--", "sleep", "120")
    try:
        eventually(lambda: "team/worker" in engine("get", "tenants").stdout, "the tenant has its place", 30)
        yield terminal
    finally:
        terminal.close()
        end(work)


TOP = (sys.executable, "-m", "aliquot.cli", "top", "--interval", "0.3")


def test_top_in_a_terminal_that_changes_its_size(tmux: Tmux):
    """GPUs and the tenant are shown with key hints; keys work; a narrow window gets what fits it; q ends it."""
    tmux.start(*TOP)
    tmux.wait(r"GPU 0[\s\S]*team/worker[\s\S]*GPU 1", "sleep 120")
    tmux.keys("g")
    tmux.wait("team/worker", "Open .* Quit|Quit .* Open", r"GPU 0 +shared .* 0\.70 ", r"GPU 1 +idle .* 1\.00 ", "TREND")

    tmux("resize-window", "-x", "60", "-y", "12")
    tmux.wait(r"^(?!.*TREND)[\s\S]*GPU 1")
    tmux.keys("Enter")
    # The box under the GPUs has its tenants too; and an Escape that comes with the next key is Alt and that key.
    tmux.wait(r"GPU 0 of .*[\s\S]*TENANT +REQUEST[\s\S]*team/worker")
    tmux.keys("Escape")
    tmux.wait(r"NODE +GPU")
    tmux.keys("q")
    assert 0 == tmux.ended()


def test_top_where_no_application_can_be(tmux: Tmux):
    """On a terminal that can do nothing a plain table is shown."""
    tmux.start("env", "TERM=dumb", *TOP)
    shown = tmux.wait(r"TENANT +REQUEST +LIMIT", "team/worker", "ended with status 0")

    assert "enter" not in shown
