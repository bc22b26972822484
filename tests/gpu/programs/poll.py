"""A process that only looks: `poll.py START`. Once the file START is there it asks NVML for memory and processes."""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path


def main(start: Path) -> None:
    """Ask ten times a second until ended."""
    while not start.exists():
        time.sleep(0.05)
    nvml, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    assert nvml.nvmlInit_v2() == 0
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    memory, count = (ctypes.c_uint64 * 3)(), ctypes.c_uint(0)
    while True:
        assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
        nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), None)
        time.sleep(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
