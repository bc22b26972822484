"""What a person sees: the live chart and table in a real terminal, and Ctrl-C."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import eventually

from .stage import Aliquot, end, first_line, sharepod
from .terminal import COLUMNS, Screen, Terminal


@pytest.fixture
def terminal(aliquot_cli: Aliquot) -> Iterator[Callable[..., Terminal]]:
    """Starts the command in a terminal."""
    opened: list[Terminal] = []

    def start(*words: str, columns: int = COLUMNS) -> Terminal:
        opened.append(Terminal([sys.executable, "-m", "aliquot.cli", *words], aliquot_cli.env, columns))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def descendants(pid: int) -> set[int]:
    """All processes below one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _read(entry / "stat")
            if stat:
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found, fresh = set(), {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def alive(pids: set[int]) -> set[int]:
    """Those that have not ended; a zombie has."""
    return {pid for pid in pids if (stat := _read(Path(f"/proc/{pid}/stat"))) and stat.rpartition(")")[2][1] != "Z"}


def restored(terminal: Terminal) -> bool:
    """The terminal is as it was: settings, cursor, normal screen."""
    screen = terminal.screen
    return terminal.settings_now == terminal.settings and screen.cursor_shown and not screen.alternate


def test_the_chart_of_fig6_refreshes_in_place_and_ctrl_c_ends_it(terminal, tmp_path):
    """The chart has one line per tenant that changes in place; Ctrl-C ends everything in seconds with status 130."""
    demo = terminal("demo", "fig6", "--fast", "--emulate", "v100", "--out", str(tmp_path / "out"))
    row = re.compile(r"^  demo/a +0\.30 +0\.60  [█░│]{40}  (\d\.\d\d)  .*$", re.M)
    moments: set[str] = set()

    def three_moments(screen: Screen) -> bool:
        at = re.search(r"(\d+) of 48 s", screen.text())
        usage = row.search(screen.text())
        if at and usage and float(usage[1]) > 0:
            moments.add(at[1])
        return len(moments) >= 3

    def every_tenant_once(screen: Screen) -> bool:
        return all(screen.text().count(f"demo/{name}") == 1 for name in "abc")

    demo.watch(three_moments, 60)
    demo.watch(every_tenant_once, 10)  # a screen may be read in the middle of a frame
    widest = demo.screen.widest
    programs = descendants(demo.process.pid)
    demo.press(b"\x03")
    status = demo.wait(20)

    assert widest <= COLUMNS
    assert demo.screen.strange == []
    assert "Traceback" not in demo.screen.text()
    assert (status, restored(demo)) == (130, True)
    assert len(programs) >= 2
    eventually(lambda: not alive(programs), "every program of the demonstration has ended")


def test_top_refreshes_in_place_and_ctrl_c_ends_it(engine: Aliquot, terminal):
    """The plain table fills the screen, shows a GPU and its tenant, and is gone after Ctrl-C with status 130."""
    work = engine.start("run", "--name", "worker", "--", sys.executable, "-c", "import time; time.sleep(60)")
    top = terminal("top", "--plain", "--interval", "0.2")
    tenant = re.compile(r"^  worker\S* +1\.00 +1\.00", re.M)

    def whole_table(screen: Screen) -> bool:
        shown = screen.text()
        return screen.alternate and shown.count("GPU 0") == shown.count("GPU 1") == 1 and bool(tenant.search(shown))

    try:
        top.watch(whole_table, 30)  # and not a part of it: a screen may be read in the middle of a frame
        widest = top.screen.widest
        top.press(b"\x03")
        status = top.wait(5)
    finally:
        end(work)

    assert (status, restored(top)) == (130, True)
    assert widest <= COLUMNS
    assert "Traceback" not in top.screen.text()


def test_lists_and_sentences_fit_a_narrow_terminal(engine: Aliquot, terminal, tmp_path):
    """On 60 columns no line of them is wider, names are cut and no amount is."""
    (tmp_path / "waits.yaml").write_text(sharepod("a-notebook-of-a-team-with-a-long-name", "true", request=2))
    engine("share", "create", "a-share-with-a-long-name-of-a-team", "--gpu-request", ".3", "--gpu-mem", "4Gi")
    applied = engine("apply", str(tmp_path / "waits.yaml"))
    screens = {}
    for words in ("get all", "share list", "doctor", "explain"):
        shown = terminal(*words.split(), columns=60)
        shown.wait(30)
        screens[words] = shown.screen

    assert 0 == applied.returncode, applied.stderr
    assert {words: [] for words in screens} == {
        words: [line for line in screen.lines if len(line) > 60] for words, screen in screens.items()
    }
    for words, amounts in {"get all": "0.30 of 1.00  4.0 / 16.0 GiB", "share list": "4.0 GiB"}.items():
        assert amounts in screens[words].text() and "…" in screens[words].text(), screens[words].text()
    assert "away: pace" in screens["doctor"].text()
    assert "fits on" in screens["explain"].text()


HOST = """
import os, signal, sys, time
from pathlib import Path
from aliquot.model.requests import GpuRequest
from aliquot.standalone.engine import Engine
from aliquot.standalone.paths import RuntimeDir
from aliquot.standalone.program import start_program
tenant = Engine.start("v100", runtime=RuntimeDir(Path(sys.argv[1]))).admit("a", GpuRequest(500))
rest = [sys.executable, "-c", "import time; time.sleep(300)"]
program = start_program(tenant.folder, rest, os.environ, mode=sys.argv[2], death_signal=signal.SIGKILL)
time.sleep(1.0)
print(program.poll(), flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("injection", ["auto", "library-path"])
def test_programs_of_an_engine_end_with_a_killed_host(aliquot_cli: Aliquot, injection):
    """A host that is killed with -9 takes along its arbiter and the programs that it started."""
    argv = [sys.executable, "-c", HOST, str(aliquot_cli.runtime / "own"), injection]
    host = subprocess.Popen(argv, stdout=subprocess.PIPE, env=aliquot_cli.env, text=True)
    poll = first_line(host)
    programs = descendants(host.pid)
    host.kill()
    host.wait()
    host.stdout.close()

    assert poll == "None\n"
    assert len(programs) >= 2
    eventually(lambda: not alive(programs), "the arbiter and the program have ended", 10)
