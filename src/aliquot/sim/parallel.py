"""Independent runs on all cores: results as they finish, progress with the time left, and a clean stop by Ctrl-C."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def _nobody_listens(part: float) -> None:
    """Where several processes run, only whole runs are counted."""


_tell_part: Callable[[float], None] = _nobody_listens


def part_done(part: float) -> None:
    """A run says how far it is, 0..1; shown where runs are done one after another in this process."""
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
    with _progress(title, len(tasks)) as advance:
        runs = _inline(work, tasks, advance) if count <= 1 else _pooled(work, tasks, count)
        try:
            for task, result in runs:
                done.results[task] = result
                advance(len(done.results))
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
    finally:
        _tell_part = before


def _pooled(work: Callable[[Task], Result], tasks: Sequence[Task], count: int) -> Iterator[tuple[Task, Result]]:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_leave_interrupts_to_the_parent)
    waiting: dict[Future[Result], Task] = {pool.submit(work, task): task for task in tasks}
    try:
        while waiting:
            ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ready:
                yield waiting.pop(future), future.result()
    except BaseException:
        _end_now(pool)
        raise
    pool.shutdown()


def _end_now(pool: ProcessPoolExecutor) -> None:
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[float], None]]:
    """A bar with the time left on a terminal's standard error; nothing elsewhere."""
    if not title or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeLeft(), console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)
