"""Temperature, power and clocks of GPUs: NVML is queried in a separate process, which prints a line of JSON a reading.

A separate process for the reasons of `aliquot.driver.discovery`. What a driver does not answer, as many boards' power,
is left out and never 0. The process ends when stdin is closed.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from aliquot.driver.nvml import load_nvml
from aliquot.lib.decoding import decode_json
from aliquot.status.sensors import Sensors

EVERY_S: Final = 5.0
RETRY_S: Final = 60.0
STOP_S: Final = 3.0


class SensorReader:
    """The last readings by UUID, from a process that is started by the first `start`. May be used from any thread.

    Where the process ends by itself, as while a driver is being exchanged, the first `start` a minute after the last
    attempt starts another.
    """

    def __init__(self, libnvml: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.now: Mapping[str, Sensors] = {}
        self._libnvml = libnvml
        self._clock = clock
        self._started_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin to read, if nothing reads."""
        with self._lock:
            if self._process is not None:
                if self._process.poll() is None or self._clock() - self._started_s < RETRY_S:
                    return
                self.close()
            self._started_s = self._clock()
            command = [sys.executable, "-m", "aliquot.driver.sensors", str(self._libnvml)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            process: subprocess.Popen[bytes] = subprocess.Popen(command, **pipes)  # type: ignore[call-overload]
            thread = threading.Thread(target=self._read, args=(process,), name="sensors", daemon=True)
            thread.start()
            self._process, self._thread = process, thread

    def read(self) -> Mapping[str, Sensors]:
        """The last readings; the first call begins to read and finds none."""
        self.start()
        return self.now

    @property
    def pid(self) -> int | None:
        """The process that reads; None before the first."""
        return self._process.pid if self._process is not None else None

    def close(self) -> None:
        """End the process."""
        if self._process is None or self._thread is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:  # a driver that hangs
            self._process.kill()
            self._process.wait()
        self._thread.join(STOP_S)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self.now = decode_json(line, dict[str, Sensors])
        self.now = {}


def sensors_of(nvml: Any, handle: Any) -> dict[str, float]:
    """What NVML answers of one GPU."""
    asks: dict[str, Callable[[], float]] = {
        "celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "limit_watts": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
    }
    found = {}
    for name, ask in asks.items():
        with contextlib.suppress(nvml.NVMLError):
            found[name] = ask()
    return found


def main(libnvml: str) -> None:
    """Print a reading every few seconds, until stdin is closed."""
    pynvml = load_nvml(libnvml)
    pynvml.nvmlInit()
    handles: dict[str, Any] = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
        except pynvml.NVMLError:
            continue
        handles[uuid] = handle
    while True:
        read = {uuid: sensors_of(pynvml, handle) for uuid, handle in handles.items()}
        sys.stdout.write(f"{json.dumps(read)}\n")
        sys.stdout.flush()
        if select.select([sys.stdin], [], [], EVERY_S)[0]:
            return


if __name__ == "__main__":
    main(sys.argv[1])
