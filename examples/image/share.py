"""What a CUDA program sees of its part of a GPU, as one line of JSON; then it computes.

share.py               computes until it is ended
share.py --seconds 10  computes for so long
share.py --once        only looks
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import time

from cuda.bindings import driver

KERNEL_NS = 20_000_000
IN_FLIGHT = 2
# One thread that waits for as many nanoseconds as it is told.
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin_ns(.param .u64 spin_ns_param_0)
{
    .reg .pred %p<2>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [spin_ns_param_0];
    mov.u64 %rd2, %globaltimer;
again:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra again;
    ret;
}
\0"""


def ask(answer):
    """The values of a driver's answer; anything but success ends the program."""
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        sys.exit(f"CUDA says {answer[0].name}")
    return answer[1] if len(answer) == 2 else answer[1:]


def uuid_of(device):
    """A GPU's UUID as nvidia-smi prints it."""
    digits = bytes(ask(driver.cuDeviceGetUuid(device)).bytes).hex()
    return "GPU-" + "-".join(digits[start:end] for start, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))


def largest_mib(total_mib):
    """The largest piece of memory that can be had, in steps of 64 MiB, tried from above what is there."""
    for size_mib in range(total_mib + 512, 0, -64):
        result, pointer = driver.cuMemAlloc(size_mib << 20)
        if result == driver.CUresult.CUDA_SUCCESS:
            ask(driver.cuMemFree(pointer))
            return size_mib
    return 0


def look():
    """Every GPU that is here, with its memory; the first one stays current."""
    gpus = []
    for device in reversed([ask(driver.cuDeviceGet(i)) for i in range(ask(driver.cuDeviceGetCount()))]):
        ask(driver.cuCtxSetCurrent(ask(driver.cuDevicePrimaryCtxRetain(device))))
        total_mib = ask(driver.cuMemGetInfo())[1] >> 20
        name = ask(driver.cuDeviceGetName(64, device)).split(b"\0")[0].decode()
        gpus.insert(0, {"uuid": uuid_of(device), "model": name, "total_mib": total_mib})
    return {
        "gpus": gpus,
        "largest_mib": largest_mib(gpus[0]["total_mib"]),
        "tenant": os.environ.get("ALIQUOT_TENANT", ""),
    }


def compute(until_s):
    """Keep the first GPU busy."""
    spin = ask(driver.cuModuleGetFunction(ask(driver.cuModuleLoadData(PTX)), b"spin_ns"))
    stream = ask(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    duration = ((KERNEL_NS,), (ctypes.c_uint64,))
    while time.monotonic() < until_s:
        for _ in range(IN_FLIGHT):
            ask(driver.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, duration, 0))
        ask(driver.cuStreamSynchronize(stream))


def main():
    """Look, say it, compute."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--once", action="store_true")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ask(driver.cuInit(0))
    print(json.dumps(look()), flush=True)
    if not asked.once:
        compute(time.monotonic() + asked.seconds)


main()
