"""`python -m aliquot.driver.checkpoints LIBCUDA`: takes other processes' device memory off GPUs and brings it back.

The calls are the driver's cuCheckpointProcess... (CUDA 12.8, driver 570). They want a process that has started the
driver, which takes seconds on a machine with many GPUs, so one process does all of them and stays. It reads a call a
line on stdin, `STEP PID MILLISECONDS`, and answers each with two numbers on stdout, what the call returned and what it
answered; it ends with its stdin.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
from enum import IntEnum
from pathlib import Path
from typing import Final, Literal

from aliquot.model.errors import AliquotError

Step = Literal["Lock", "Checkpoint", "Restore", "Unlock", "GetState"]
ABSENT: Final = -1
_SUCCESS: Final = 0


class ProcessState(IntEnum):
    """CUprocessState."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3
    CHECKPOINTING = 4
    RESTORING = 5


class StepFailed(AliquotError):
    """The driver did not take a step; `code` is its number."""

    def __init__(self, step: Step, pid: int, code: int) -> None:
        known = {
            ABSENT: "the driver has no calls for it; it takes driver 570 or later",
            2: "out of memory",
            304: "the operating system refused it, or an earlier restore found no memory",
            401: "it is in another state",
            600: "its work did not end in time",
            801: "it has memory that the driver does not move",
        }
        super().__init__(f"cuCheckpointProcess{step} of process {pid}: {known.get(code, f'error {code}')}")
        self.code = code


class Checkpoints:
    """The helper process, started at the first call; one call at a time."""

    def __init__(self, libcuda: Path) -> None:
        self._libcuda = libcuda
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def do(self, step: Step, pid: int, *, timeout_ms: int = 0) -> int:
        """Take a step; returns what it answers, which of GetState is a `ProcessState`.

        Raises:
            StepFailed: the driver refuses it, or has no such call.
        """
        code, answer = ABSENT, 0
        with self._lock:
            for _ in range(2):  # one that was killed is started again
                if self._process is None:
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", __name__, str(self._libcuda)], stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
                        env={name: text for name, text in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
                    )  # fmt: skip
                process = self._process
                assert process.stdin is not None and process.stdout is not None
                with contextlib.suppress(OSError):
                    process.stdin.write(f"{step} {pid} {timeout_ms}\n")
                    process.stdin.flush()
                    if words := process.stdout.readline().split():
                        code, answer = int(words[0]), int(words[1])
                        break
                self._end(process)
        if code != _SUCCESS:
            raise StepFailed(step, pid, code)
        return answer

    def close(self) -> None:
        """End the helper."""
        with self._lock:
            if self._process is not None:
                self._end(self._process)

    def _end(self, process: subprocess.Popen[str]) -> None:
        self._process = None
        with process:
            process.kill()


def main(libcuda: str) -> None:
    """Serve stdin."""
    driver = ctypes.CDLL(libcuda)
    started = driver.cuInit(0)
    for line in sys.stdin:
        step, pid, timeout_ms = line.split()
        call = getattr(driver, f"cuCheckpointProcess{step}", None)
        answer = ctypes.c_int()
        if started != _SUCCESS or call is None:
            code = started or ABSENT
        elif step == "GetState":
            code = call(int(pid), ctypes.byref(answer))
        elif step == "Lock":
            args = (ctypes.c_uint32 * 16)(int(timeout_ms))  # CUcheckpointLockArgs: the time, then zeros
            code = call(int(pid), args)
        else:
            code = call(int(pid), None)
        sys.stdout.write(f"{code} {answer.value}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
