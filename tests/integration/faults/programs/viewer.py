"""A program that asks and does not launch: `viewer.py nvml|cuda SECONDS`, or `viewer.py later SECONDS`.

`nvml` asks for memory and processes ten times a second; `cuda` asks once for the device's memory and sleeps; `later`
asks, and launches as soon as a line comes in, then says what it saw. Each prints a line when it has asked.
"""

import ctypes
import json
import sys
import time
from pathlib import Path

from kit.driver_calls import Out, OwnDriver


def nvml(seconds: float) -> None:
    """What `nvidia-smi -l` and monitors in a training program do."""
    lib, device, memory = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
    rows, count = (ctypes.c_uint64 * 1024)(), ctypes.c_uint(64)
    assert lib.nvmlInit_v2() == 0
    assert lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert lib.nvmlDeviceGetMemoryInfo(device, memory) == 0
        count.value = 64
        assert lib.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), rows) == 0
        files = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
        drivers = sorted(file for file in files if "libcuda" in file)
        threads = len(list(Path("/proc/self/task").iterdir()))
        facts = {"total": memory[0], "used": memory[2], "processes": count.value}
        print(json.dumps({**facts, "threads": threads, "drivers": drivers}), flush=True)
        time.sleep(0.1)


def ask() -> OwnDriver:
    """What a launcher or a server's front process does before its worker starts."""
    gpu = OwnDriver()
    gpu.ok("cuInit", 0)
    gpu.ok("cuDeviceGet", Out(4), 0)
    gpu.ok("cuDeviceGetName", Out(64), 64, 0)
    print(json.dumps({"total": gpu.new("cuDeviceTotalMem_v2", 0)}), flush=True)
    return gpu


def launch(gpu: OwnDriver) -> int:
    """One kernel of a millisecond, from nothing; the sum of its statuses."""
    gpu.ok("cuCtxSetCurrent", gpu.new("cuDevicePrimaryCtxRetain", 0))
    return gpu.launch(gpu.function(), 1_000_000) + gpu.code("cuCtxSynchronize")


def main() -> None:
    mode, seconds = sys.argv[1], float(sys.argv[2])
    if mode == "nvml":
        nvml(seconds)
        return
    gpu = ask()
    if mode == "cuda":
        time.sleep(seconds)
        return
    sys.stdin.readline()
    status, launches = 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        status += launch(gpu)
        launches += 1
    print(json.dumps({"status": status, "launches": launches}), flush=True)


if __name__ == "__main__":
    main()
