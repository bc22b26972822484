"""Independent runs on all cores: results as they finish, progress with the time left, and a clean stop by Ctrl-C.

Progress counts parts of runs, wherever they run: each run writes how far it is into its own place of a piece of shared
memory, which the parent adds up twice a second.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


LOOK_EVERY_S: Final = 0.5
SPEED_OVER_S: Final = 300.0
"""Runs of one list differ in length; the time left is from what was done in so long."""


def _nobody_listens(part: float) -> None:
    """Outside of `run_all` progress is not counted."""


_tell_part: Callable[[float], None] = _nobody_listens


def part_done(part: float) -> None:
    """A run says how far it is, 0..1."""
    _tell_part(part)


@dataclass
class Finished(Generic[Task, Result]):
    """What was done of a list of tasks, in the order of the list; `complete` is False after an interruption."""

    results: dict[Task, Result] = field(default_factory=dict)
    complete: bool = True


def run_all(
    work: Callable[[Task], Result], tasks: Sequence[Task], *, workers: int | None = None, title: str = ""
) -> Finished[Task, Result]:
    """Do `work` for every task; `work` and tasks must be picklable, and a task's result must depend on it alone.

    Ctrl-C ends the runs that are not finished and returns those that are. A task's exception ends all and is raised.
    """
    count = min(workers or os.cpu_count() or 1, len(tasks))
    done: Finished[Task, Result] = Finished()
    with shown_progress(title, len(tasks)) as advance:
        runs = _inline(work, tasks, advance) if count <= 1 else _pooled(work, tasks, count, advance)
        try:
            for task, result in runs:
                done.results[task] = result
        except KeyboardInterrupt:
            done.complete = False
    done.results = {task: done.results[task] for task in tasks if task in done.results}
    return done


def _inline(
    work: Callable[[Task], Result], tasks: Sequence[Task], advance: Callable[[float], None]
) -> Iterator[tuple[Task, Result]]:
    global _tell_part
    before = _tell_part
    try:
        for number, task in enumerate(tasks):
            _tell_part = partial(lambda done, part: advance(done + part), number)
            yield task, work(task)
            advance(number + 1)
    finally:
        _tell_part = before


def _pooled(
    work: Callable[[Task], Result], tasks: Sequence[Task], count: int, advance: Callable[[float], None]
) -> Iterator[tuple[Task, Result]]:
    context = multiprocessing.get_context("spawn")
    parts = context.RawArray("d", len(tasks))
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin_worker, initargs=(parts,))
    waiting: dict[Future[Result], int] = {pool.submit(_counted, work, n, task): n for n, task in enumerate(tasks)}
    try:
        while waiting:
            ready, _ = wait(waiting, timeout=LOOK_EVERY_S, return_when=FIRST_COMPLETED)
            for future in ready:
                number = waiting.pop(future)
                parts[number] = 1.0
                yield tasks[number], future.result()
            advance(sum(parts))
    except BaseException:
        processes = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:  # workers ignore an interrupt
            process.terminate()
        raise
    pool.shutdown()


_parts: MutableSequence[float] = []
"""In a worker: how far each run is."""


def _begin_worker(parts: MutableSequence[float]) -> None:
    """Interrupts are the parent's to see."""
    global _parts
    _parts = parts
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _counted(work: Callable[[Task], Result], number: int, task: Task) -> Result:
    """One run in a worker, whose parts go to its place."""
    global _tell_part
    _tell_part = partial(_parts.__setitem__, number)
    return work(task)


@contextmanager
def shown_progress(title: str, total: int | None) -> Iterator[Callable[[float], None]]:
    """On a terminal's standard error a bar with the time left, or a count where the total is not known."""
    if not title or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns: tuple[ProgressColumn, ...] = (TextColumn("{task.completed:,.0f}"), TimeElapsedColumn())
    if total is not None:
        columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("left"), TimeLeft())
    shown = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), *columns, console=shown, speed_estimate_period=SPEED_OVER_S,
        transient=total is None,
    ) as bar:  # fmt: skip
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)
