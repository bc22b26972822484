"""Runs in a container: tells as one line of JSON what a CUDA client sees there, then computes until it is ended.

usage: probe.py [SECONDS]; with seconds it ends after so long.
"""

import ctypes
import json
import os
import sys
import time

from cuda.bindings import driver


def check(answer):
    """The values of an answer; anything but success ends the probe, with its line in this file."""
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        sys.exit(f"line {sys._getframe(1).f_lineno}: {answer[0].name}")
    return answer[1] if len(answer) == 2 else answer[1:]


def largest(size_mib):
    """MiB that could be had in one piece, down from `size_mib` in steps of 64."""
    while size_mib > 0:
        result, pointer = driver.cuMemAlloc(size_mib << 20)
        if result == driver.CUresult.CUDA_SUCCESS:
            check(driver.cuMemFree(pointer))
            return size_mib
        size_mib -= 64
    return 0


check(driver.cuInit(0))
count = check(driver.cuDeviceGetCount())
devices = [check(driver.cuDeviceGet(i)) for i in range(count)]
uuids = []
for device in devices:
    raw = bytes(check(driver.cuDeviceGetUuid(device)).bytes).hex()
    uuids.append(f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}")
context = check(driver.cuDevicePrimaryCtxRetain(devices[0]))
check(driver.cuCtxSetCurrent(context))
free, total = check(driver.cuMemGetInfo())
seen = {
    "uuids": uuids,
    "name": check(driver.cuDeviceGetName(64, devices[0])).split(b"\0")[0].decode(),
    "total_mib": total >> 20,
    "free_mib": free >> 20,
    "largest_mib": largest((total >> 20) + 512),
    "tenant": os.environ.get("ALIQUOT_TENANT", ""),
}
print(json.dumps(seen), flush=True)

PTX = open("/probe/spin.ptx", "rb").read() + b"\0"  # noqa: SIM115, PTH123
module = check(driver.cuModuleLoadData(PTX))
spin = check(driver.cuModuleGetFunction(module, b"spin_ns"))
stream = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
ends = time.monotonic() + float(sys.argv[1]) if len(sys.argv) > 1 else float("inf")
while time.monotonic() < ends:
    for _ in range(4):
        check(driver.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, ((2_000_000,), (ctypes.c_uint64,)), 0))
    check(driver.cuStreamSynchronize(stream))
