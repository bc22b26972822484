"""`python -m aliquot.driver.checkpoints LIBCUDA LIBNVML`: moves other processes' device memory off GPUs.

The calls are the driver's cuCheckpointProcess... (CUDA 12.8, driver 570). They want a process that has started the
driver, which takes seconds on a machine with many GPUs, so one process does all of them and stays. It reads a call a
line on stdin, `STEP PID MILLISECONDS`, and answers each with two numbers on stdout, what the call returned and what it
answered; it ends with its stdin. `Free UUID PID,PID` is NVML's: the MiB of a GPU that are free or those processes'.
`Restore PID UUID,UUID` restores a process of the first GPU onto the second (CUDA 13.0, driver 580).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Literal
from uuid import UUID

from aliquot.driver.nvml import load_nvml
from aliquot.model.errors import AliquotError

Step = Literal["Lock", "Checkpoint", "Restore", "Unlock", "GetState", "Free", "Version"]
ABSENT: Final = -1
ENDED: Final = -2
"""The process that makes the calls was killed, and the one after it too."""
GONE: Final = frozenset({1, 3})
"""What is answered for a process that has ended, or has not started the driver."""
PAIRS_VERSION: Final = 13000
"""The first CUDA version whose driver restores onto other GPUs; an older one may ignore the pairs."""
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

    def __init__(self, step: Step, pid: int | str, code: int) -> None:
        known = {
            1: "the driver refuses the process or the GPU",
            ABSENT: "the driver has no calls for it; it takes driver 570 or later",
            ENDED: "the engine's process that makes these calls was killed",
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

    def __init__(self, libcuda: Path, libnvml: Path) -> None:
        self._libraries = [str(libcuda), str(libnvml)]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def room_mib(self, gpu: str, pids: Iterable[int]) -> int:
        """How much of a GPU is free, or in use by these processes, by the GPU itself.

        Raises:
            StepFailed: NVML does not say.
        """
        return self.do("Free", gpu, ",".join(map(str, pids)) or 0)

    def do(self, step: Step, pid: int | str, more: int | str = 0) -> int:
        """Take a step; returns what it answers, which of GetState is a `ProcessState`. Lock is given milliseconds.

        Raises:
            StepFailed: the driver refuses it, or has no such call.
        """
        code, answer = ENDED, 0
        with self._lock:
            for _ in range(2):  # one that was killed is started again
                if self._process is None:
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", "aliquot.driver.checkpoints", *self._libraries], text=True,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                        start_new_session=True,
                        env={name: text for name, text in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
                    )  # fmt: skip
                process = self._process
                assert process.stdin is not None and process.stdout is not None
                with contextlib.suppress(OSError):
                    process.stdin.write(f"{step} {pid} {more}\n")
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
        with contextlib.suppress(BrokenPipeError), process:  # its stdin has what it did not read
            process.kill()


def _room_mib(nvml: Any, gpu: str, pids: Iterable[str]) -> int:
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByUUID(gpu)
    running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    own = sum(process.usedGpuMemory or 0 for process in running if str(process.pid) in pids)
    return int(nvml.nvmlDeviceGetMemoryInfo(handle).free + own) >> 20


def _pairs(driver: Any, move: str) -> Any:
    """CUcheckpointRestoreArgs that swap two GPUs: a driver wants all GPUs of the machine named, each as old and as new.

    It refuses others also where the process has not seen those that it leaves out (NVIDIA/cuda-python#1983).
    """
    one, other = (UUID(word.removeprefix("GPU-")).bytes for word in move.split(","))
    count, uuid, pairs = ctypes.c_int(), (ctypes.c_char * 16)(), b""
    driver.cuDeviceGetCount(ctypes.byref(count))
    for number in range(count.value):
        driver.cuDeviceGetUuid_v2(uuid, number)
        pairs += uuid.raw + {one: other, other: one}.get(uuid.raw, uuid.raw)
    room = ctypes.create_string_buffer(pairs, len(pairs))
    args = (ctypes.c_uint64 * 8)(ctypes.addressof(room), count.value)
    args.room = room  # type: ignore[attr-defined]  # lives as long
    return args


def main(libcuda: str, libnvml: str) -> None:
    """Serve stdin."""
    driver = ctypes.CDLL(libcuda)
    nvml = load_nvml(libnvml)
    started = driver.cuInit(0)
    for line in sys.stdin:
        step, pid, more = line.split()
        call = getattr(driver, f"cuCheckpointProcess{step}", None)
        code, answer = started or ABSENT, ctypes.c_int()
        if step == "Free":
            with contextlib.suppress(nvml.NVMLError):
                code, answer = _SUCCESS, ctypes.c_int(_room_mib(nvml, pid, more.split(",")))
        elif step == "Version":
            code = driver.cuDriverGetVersion(ctypes.byref(answer))
        elif started == _SUCCESS and call is not None:
            if step == "GetState":
                code = call(int(pid), ctypes.byref(answer))
            elif step == "Restore" and more != "0":
                code = call(int(pid), _pairs(driver, more))
            else:  # CUcheckpointLockArgs: the time, then zeros
                code = call(int(pid), (ctypes.c_uint32 * 16)(int(more)) if step == "Lock" else None)
        sys.stdout.write(f"{code} {answer.value}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
