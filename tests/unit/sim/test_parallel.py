"""Runs on several processes: what they give, and how far one is told that they are."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aliquot_lab.sim import parallel
from aliquot_lab.sim.parallel import part_done, run_all

Task = tuple[str, float]


class Told:
    """What a progress bar would show; makes a file as soon as half a run is told."""

    def __init__(self, signal: Path) -> None:
        self.signal = signal
        self.counts: list[float] = []

    @contextmanager
    def __call__(self, title: str, total: int) -> Iterator[Callable[[float], None]]:
        def advance(done: float) -> None:
            self.counts.append(done)
            if done % 1:
                self.signal.touch()

        yield advance


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    made = Told(tmp_path / "seen")
    monkeypatch.setattr(parallel, "shown_progress", made)
    return made


def half_then_wait(task: Task) -> str:
    """Tells of a part of the run, and goes on once somebody has heard of it."""
    path, part = task
    part_done(part)
    for _ in range(1200):
        if Path(path).exists():
            return path
        time.sleep(0.05)
    raise TimeoutError("nobody heard")


def halved(task: float) -> float:
    """A run that tells of its half."""
    part_done(0.5)
    return task / 2


def test_parts_of_runs_count_while_processes_run(told: Told):
    """With several processes progress moves before the first run has ended, never back, and ends at all runs."""
    tasks = [(str(told.signal), 0.25), (str(told.signal), 0.5)]

    done = run_all(half_then_wait, tasks, workers=2)

    assert done.complete
    assert tasks == list(done.results)
    assert any(0 < count < 1 for count in told.counts)
    assert sorted(told.counts) == told.counts
    assert 2 == told.counts[-1]


def test_parts_of_runs_count_in_one_process_too(told: Told):
    """One run after the other, halves are told as halves."""
    done = run_all(halved, [2.0, 4.0], workers=1)

    assert [1.0, 2.0] == list(done.results.values())
    assert [0.5, 1, 1.5, 2] == told.counts
