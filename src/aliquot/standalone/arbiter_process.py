"""The arbiter as a child process of the engine: started, watched, and restarted when it dies or stops answering.

It is a process of its own so that nothing the engine does can delay a grant. Grants outlive it until their deadlines
and its debts are in its journal, so a restart is invisible to programs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from aliquot.arbiter.client import ArbiterClient, ArbiterError, Status
from aliquot.driver.enter import PR_SET_PDEATHSIG
from aliquot.model.errors import AliquotError, status_in_words

READY_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 5.0
RESTART_PAUSE_S: Final = 0.2
RESTART_PAUSE_MAX_S: Final = 2.0
LOOK_EVERY_S: Final = 2.0
ANSWER_TIMEOUT_S: Final = 4.0
MISSES: Final = 2
RECENT_S: Final = 60.0
MAX_ENDS: Final = 100
PAGE_BYTES: Final = 4096


class ArbiterFailed(AliquotError):
    """The arbiter did not start."""


@dataclass(frozen=True)
class ArbiterOptions:
    """The options of the arbiter; see `python -m aliquot.arbiter --help`."""

    window_ms: int = 10_000
    turns: str = "fluid"
    quota_ms: int = 100
    min_quota_ms: int = 20
    handover: str = "auto"
    fail_policy: str = "pace"
    metrics_port: int | None = None
    native_handover: bool = True

    def argv(self, runtime: Path, libnvml: Path | None) -> list[str]:
        """The command line."""
        argv = [sys.executable, "-m", "aliquot.arbiter", "--runtime-dir", str(runtime)]
        for name in ("window_ms", "turns", "quota_ms", "min_quota_ms", "handover", "fail_policy"):
            argv += [f"--{name.replace('_', '-')}", str(getattr(self, name))]
        argv.append("--native-handover" if self.native_handover else "--no-native-handover")
        if libnvml is not None:
            argv += ["--libnvml", str(libnvml)]
        if self.metrics_port is not None:
            argv += ["--metrics-port", str(self.metrics_port)]
        return argv


class ArbiterProcess:
    """One arbiter at a time; the watching thread calls `on_answer` with each status that the arbiter returns.

    That thread also starts every arbiter, because the kernel ends an arbiter whose parent thread is gone: a killed
    engine takes its arbiter along.
    """

    def __init__(
        self, argv: list[str], runtime: Path, log: Path, on_answer: Callable[[Status], None], *, fresh: bool = True
    ) -> None:
        """`fresh`: the first forgets the tenants and debts of one that ran under an earlier engine."""
        self._argv = argv
        self._fresh = fresh
        self._runtime = runtime
        self._log = log
        self._on_answer = on_answer
        self._stopping = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._ends: deque[tuple[float, str]] = deque(maxlen=MAX_ENDS)
        self._failure: Exception | None = None
        self._first_answer = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="arbiter-watch", daemon=True)
        self._watcher.start()
        self._first_answer.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def pid(self) -> int:
        """The process id of the running arbiter; 0 while it is being restarted."""
        return self._process.pid if self._process is not None else 0

    @property
    def trouble(self) -> str:
        """How often the arbiter ended in the last minute, and how the last time; empty if it did not."""
        recent = [how for at_s, how in list(self._ends) if time.monotonic() - at_s < RECENT_S]
        if not recent:
            return ""
        times = "once" if len(recent) == 1 else f"{len(recent)} times"
        return f"the arbiter ended {times} in the last minute, the last time with {recent[-1]}"

    def stop(self) -> None:
        """End the arbiter in order, or by force when it does not answer."""
        self._stopping.set()
        self._signal(signal.SIGTERM)
        self._watcher.join(STOP_TIMEOUT_S)
        if self._watcher.is_alive():
            self._signal(signal.SIGKILL)
            self._watcher.join(STOP_TIMEOUT_S)

    def _signal(self, number: int) -> None:
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def _spawn(self, *extra: str) -> subprocess.Popen[str]:
        with self._log.open("ab") as log:
            said_before = log.tell()
            # Its own session: Ctrl-C at a terminal is for the engine, which then ends the arbiter last.
            process = subprocess.Popen(
                [*self._argv, *extra], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True, preexec_fn=_end_with_parent,
            )  # fmt: skip
        timer = threading.Timer(READY_TIMEOUT_S, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if line.strip() != "ready":
            process.kill()
            why = f"it ended with {status_in_words(process.wait())} and said nothing"
            if lines := self._log.read_bytes()[said_before:].decode(errors="replace").strip().splitlines():
                why = lines[-1].removeprefix("aliquot: ").removeprefix("Error: ")
            elif shutil.disk_usage(self._runtime).free < PAGE_BYTES:  # a full disk takes no log
                why = f"{self._runtime}: {os.strerror(errno.ENOSPC).lower()}"
            raise ArbiterFailed(f"the arbiter did not start: {why}")
        return process

    def _watch(self) -> None:
        # Without tenants there are no debts to come back to. Where there are some, the arbiter of the engine before may
        # be just ending.
        until_s = time.monotonic() + (0.0 if self._fresh else STOP_TIMEOUT_S)
        while self._process is None:
            try:
                self._process = self._spawn(*(["--fresh"] if self._fresh else []))
            except (AliquotError, OSError) as error:
                if time.monotonic() < until_s and not self._stopping.wait(RESTART_PAUSE_S):
                    continue
                self._failure = error
                self._first_answer.set()
                return
        self._first_answer.set()
        failures = 0
        while True:
            if self._process is not None:
                self._wait(self._process)
                self._note_end(status_in_words(self._process.returncode), self._process.pid)
            if self._stopping.wait(min(RESTART_PAUSE_S * failures, RESTART_PAUSE_MAX_S)):
                return
            try:
                self._process = self._spawn()
                if self._stopping.is_set():
                    self._signal(signal.SIGTERM)
                self._answers()
                failures = 0
            except (AliquotError, OSError) as error:
                self._process = None
                self._note_end(str(error).removeprefix("the arbiter did not start: it ended with "))
                failures += 1

    def _note_end(self, how: str, pid: int = 0) -> None:
        """Remember and log that the arbiter ended, or did not start."""
        if self._stopping.is_set():
            return
        self._ends.append((time.monotonic(), how))
        which = f"the arbiter (pid {pid})" if pid else "the arbiter"
        with contextlib.suppress(OSError), self._log.open("a") as log:
            log.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {which} ended with {how} and is started again\n")

    def _wait(self, process: subprocess.Popen[str]) -> None:
        """Wait until it has ended; one that does not answer is killed, because its tenants wait for it."""
        misses = 0
        while misses < MISSES:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_EVERY_S)
                return
            misses = 0 if self._stopping.is_set() or self._answers() else misses + 1
        process.kill()
        process.wait()

    def _answers(self) -> bool:
        try:
            with ArbiterClient(self._runtime, timeout_s=ANSWER_TIMEOUT_S) as client:
                status = client.status()
        except (ArbiterError, OSError):
            return False
        self._on_answer(status)
        return True


_LIBC: Final = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """Runs in the child between fork and exec: one system call and nothing else."""
    _LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
