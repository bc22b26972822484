"""A client while it runs: its lines as they come, and an end with the stacks of its threads where none comes."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuruns import Run

GONE_S = 5.0
STACKS_S = 2.0
"""How long a process has to write its stacks."""


def below(pid: int) -> list[int]:
    """The processes that a process started, and theirs."""
    with contextlib.suppress(OSError, ValueError):
        children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return [found for child in children for found in (child, *below(child))]
    return []


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal, which would end it otherwise."""
    with contextlib.suppress(OSError, StopIteration):
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        mask = next(line for line in status if line.startswith("SigCgt")).split()[1]
        return bool(int(mask, 16) >> (number - 1) & 1)
    return False


def runs(pid: int) -> bool:
    """Whether a process has not ended; its parent may not have waited for it yet."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] not in "ZX"


def stacks(run: Run) -> str:
    """What the threads of a run's processes do, by faulthandler (see clients/running.py)."""
    before = len(run.errors)
    for pid in (run.process.pid, *below(run.process.pid)):
        if catches(pid, signal.SIGUSR1):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
    time.sleep(STACKS_S)
    return run.errors[before:]


def end(run: Run) -> str:
    """End a run that hangs; its stacks."""
    seen = stacks(run)
    children = below(run.process.pid)
    run.process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(timeout=10)
    for pid in (*children, run.process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.process.wait()
    until_s = time.monotonic() + GONE_S
    while any(runs(pid) for pid in children) and time.monotonic() < until_s:
        time.sleep(0.01)
    return seen


class Watched:
    """The lines of JSON that a run prints."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.hung = ""
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.run.process.stdout is not None
        for line in self.run.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def facts(self, silent_s: float) -> Iterator[dict[str, Any]]:
        """Line by line until the output ends; a run that is silent for so long is ended, and `hung` has its stacks."""
        while True:
            try:
                line = self._lines.get(timeout=silent_s)
            except queue.Empty:
                self.hung = end(self.run) or "no stacks"
                return
            if not line:
                return
            if line.startswith("{"):
                yield json.loads(line)

    def ended(self, within_s: float) -> str:
        """Empty when the run ends with status 0 in time, else why not; a run that does not end is ended."""
        try:
            status = self.run.process.wait(timeout=within_s)
        except subprocess.TimeoutExpired:
            self.hung = end(self.run) or "no stacks"
            return f"the program had not ended {within_s:.0f} s after its last feature"
        last = (self.run.errors.strip().splitlines() or [""])[-1][:300]
        return f"the process ended with {status}: {last}" if status else ""
