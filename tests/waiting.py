"""Waiting in tests: by what is waited for, with a deadline that only a failure reaches."""

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


def eventually(holds: Callable[[], object], what: str = "what was waited for", timeout_s: float = 20.0) -> None:
    """Wait for something that other threads or processes make true."""
    until_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < until_s, f"not in {timeout_s} s: {what}"
        time.sleep(0.01)


def stop(pid: int) -> None:
    """Stop a process by SIGSTOP, and wait until none of its threads runs any more."""

    def stopped(task: Path) -> bool:
        try:
            return (task / "stat").read_text().rpartition(")")[2].split()[0] in "TX"
        except FileNotFoundError:  # the thread has ended
            return True

    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: all(map(stopped, Path(f"/proc/{pid}/task").iterdir())), f"process {pid} is stopped")


def engine_lives(runtime: Path) -> bool:
    """Whether an engine has the directory: it lets go of its socket first, of its lock last."""
    with contextlib.suppress(FileNotFoundError):
        directory = os.open(runtime, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(directory)
    return False
