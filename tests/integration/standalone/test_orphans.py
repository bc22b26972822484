"""What programs leave running ends with their share, whatever was killed and whatever a process did to stay."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import eventually

from .stage import Aliquot, Cluster, alive, end, engine_of, sharepod

STAYS = "trap '' TERM HUP; echo $$ >> {note}; while true; do sleep 1; done"
"""Writes down its pid and ignores every signal that it can."""
WORKER = Path(__file__).with_name("programs") / "worker.py"
LEFT = "2 processes that the command left behind still used its GPU and were ended"


@pytest.fixture
def note(tmp_path: Path) -> Iterator[Path]:
    """Where the programs of a test write their pids; none of them is left at its end."""
    file = tmp_path / "pids"
    yield file
    for pid in pids(file):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def up(aliquot_cli: Aliquot, tmp_path: Path) -> Iterator[Cluster]:
    """An engine with one emulated V100."""
    with engine_of(aliquot_cli, "v100", "--no-web"):
        yield Cluster(aliquot_cli, tmp_path)


def leaver(note: Path) -> str:
    """A shell that leaves such a process in a session of its own."""
    return f"setsid sh -c '{STAYS.format(note=note)}' > /dev/null 2>&1 & ".replace("''", '""')


def pids(note: Path) -> list[int]:
    """The pids that were written down."""
    return [int(word) for word in note.read_text().split()] if note.exists() else []


def left(note: Path, count: int = 1) -> list[int]:
    """The pids, once there are so many."""
    eventually(lambda: len(pids(note)) >= count, f"{count} pids are written down")
    return pids(note)


def test_a_process_in_a_session_of_its_own_ends_with_its_sharepod(up: Cluster, note: Path):
    """A child without a GPU that called setsid and ignores SIGTERM ends when its SharePod is deleted."""
    up.apply(sharepod("a", leaver(note) + "sleep 600"))
    (pid,) = left(note)
    assert 0 == up.command("delete", "a").returncode
    assert not alive(pid)


def test_what_a_container_leaves_ends_before_its_next_start(up: Cluster, note: Path):
    """A container that is started again finds nothing of its last life; the other container of the pod runs on."""
    up.apply(sharepod("other", leaver(note) + "sleep 600"))
    (neighbour,) = left(note)
    up.apply(sharepod("a", leaver(note) + "sleep 0.5; exit 1", policy="OnFailure"))
    _, first, second = left(note, 3)[:3]
    assert not alive(first)
    assert alive(neighbour)
    assert first != second


@pytest.mark.parametrize("mode", ["auto", "library-path"])
def test_a_run_that_is_killed_leaves_no_process(up: Cluster, note: Path, mode: str):
    """After kill -9 of a run nothing of its command is left, though it ignores SIGTERM, and its share is free."""
    script = leaver(note) + STAYS.format(note=note)
    run = up.command.start("run", "--gpu-request", "0.8", "--inject", mode, "--", "sh", "-c", script)
    found = left(note, 2)
    end(run, signal.SIGKILL)
    eventually(lambda: not any(map(alive, found)), "the command has ended")
    eventually(lambda: up.command("run", "--gpu-request", "0.8", "--", "true").returncode == 0, "its share is free")


def test_a_background_job_outlives_a_run_that_ended_in_order(up: Cluster, note: Path):
    """A job without a GPU that a shell left in the background goes on after the run, as it does after any shell."""
    script = leaver(note) + f"while ! test -s {note}; do sleep 0.05; done"
    assert 0 == up.command("run", "--gpu-request", "0.3", "--", "sh", "-c", script).returncode
    assert [True] == [alive(pid) for pid in left(note)]


@pytest.mark.parametrize("part", ["0.3", "1"])
def test_what_a_run_leaves_on_its_gpu_ends_and_is_counted(up: Cluster, note: Path, tmp_path: Path, part: str):
    """Jobs that use the GPU end with the run, which says how many; one without a GPU goes on.

    A whole GPU is no exception, though its programs have the driver itself.
    """
    beats = [tmp_path / "first", tmp_path / "second"]
    works = [f"setsid {sys.executable} {WORKER} {each} 100 > /dev/null 2>&1 & " for each in beats]
    waits = " || ".join(f"! test -s {file}" for file in [note, *beats])
    script = leaver(note) + "".join(works) + f"while {waits}; do sleep 0.05; done"
    done = up.command("run", "--gpu-request", part, "--", "sh", "-c", script)

    assert (0, f"aliquot: {LEFT}\n") == (done.returncode, done.stderr)
    eventually(lambda: not any(alive(int(each.read_text().split()[0])) for each in beats), "the jobs have ended")
    assert [True] == [alive(pid) for pid in left(note)]


def test_an_engine_ends_what_the_one_before_it_left(aliquot_cli: Aliquot, tmp_path: Path, note: Path):
    """After kill -9 of an engine, the next one ends what the SharePods and runs of the first left running."""
    engine = aliquot_cli.start("up", "--emulate", "v100", "--no-web")
    eventually(lambda: aliquot_cli.engine_is_up, "the engine is up")
    Cluster(aliquot_cli, tmp_path).apply(sharepod("a", leaver(note) + "sleep 600"))
    command = ("run", "--gpu-request", "0.5", "--", "sh", "-c", STAYS.format(note=note))
    run = aliquot_cli.start(*command)
    found = left(note, 2)
    end(engine, signal.SIGKILL)

    with engine_of(aliquot_cli, "v100", "--no-web"):
        assert [False, False] == [alive(pid) for pid in found]
        said = run.communicate(timeout=10)[1]
        assert 0 == aliquot_cli("run", "--", "true").returncode
    assert (128 + signal.SIGKILL, 1) == (run.returncode, said.count("\n")), said


@pytest.mark.parametrize(("on_term", "status"), [("exit 7", 7), ("", 128 + signal.SIGKILL)])
def test_a_run_whose_engine_is_gone_is_told_to_end(aliquot_cli: Aliquot, note: Path, on_term: str, status: int):
    """When the engine is killed a run says so in one sentence, and its command gets SIGTERM, at last SIGKILL: the place
    is not its own any more."""
    script = f"trap '{on_term}' TERM; echo $$ > {note}; while true; do sleep 0.1; done"
    engine = aliquot_cli.start("up", "--emulate", "v100", "--no-web")
    eventually(lambda: aliquot_cli.engine_is_up, "the engine is up")
    run = aliquot_cli.start("run", "--gpu-request", "0.5", "--", "sh", "-c", script)
    left(note)
    end(engine, signal.SIGKILL)
    said = run.communicate(timeout=10)[1]

    assert (status, 1) == (run.returncode, said.count("\n"))
    assert "the engine has ended, and this run's place with it" in said
    assert 0 == aliquot_cli.run("--", "true").returncode
