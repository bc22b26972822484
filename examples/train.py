"""A CUDA program to share a GPU with: python train.py [SECONDS] (3 without it).

It stands for your own. It needs nothing but a driver, and says each second, and at the end, how much of the GPU's time
it got: its kernels take 5 ms each by the GPU's own clock.

python train.py --json [SECONDS] is for containers: one line of JSON says every GPU that it sees, then it computes in
silence, until it is ended or for so long (0: it only looks).
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import time

KERNEL_NS = 5_000_000
SILENT_KERNEL_NS = 20_000_000  # a launch costs CPU, and many such containers may be on one machine
# One thread that waits for as many nanoseconds as it is told.
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin_ns(.param .u64 duration)
{
    .reg .pred %p;
    .reg .b64 %r<5>;
    ld.param.u64 %r1, [duration];
    mov.u64 %r2, %globaltimer;
again:
    mov.u64 %r3, %globaltimer;
    sub.u64 %r4, %r3, %r2;
    setp.lt.u64 %p, %r4, %r1;
    @%p bra again;
    ret;
}
\0"""


def call(name, *arguments):
    """One driver call; what fails ends the program with CUDA's own number."""
    status = getattr(cuda, name)(*arguments)
    if status:
        sys.exit(f"{name}: CUDA error {status}")


def see(index):
    """One GPU by its number, which becomes the current one: UUID as nvidia-smi prints it, model and memory."""
    device, context, uuid = ctypes.c_int(), ctypes.c_void_p(), (ctypes.c_ubyte * 16)()
    model, free, total = ctypes.create_string_buffer(100), ctypes.c_size_t(), ctypes.c_size_t()
    call("cuDeviceGet", ctypes.byref(device), index)
    call("cuDeviceGetUuid_v2", uuid, device)
    call("cuDeviceGetName", model, 100, device)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    digits = bytes(uuid).hex()
    parts = (digits[start:end] for start, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
    return {"uuid": "GPU-" + "-".join(parts), "model": model.value.decode(), "total_mib": total.value >> 20}


def see_all():
    """Every GPU that is here; the first one stays current."""
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    return [see(index) for index in reversed(range(count.value))][::-1]


def largest_mib(total_mib):
    """The largest piece of memory that can be had, in steps of 64 MiB, tried from above what is there."""
    pointer = ctypes.c_uint64()
    for size_mib in range(total_mib + 512, 0, -64):
        if not cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size_mib << 20)):
            call("cuMemFree_v2", pointer)
            return size_mib
    return 0


def compute(seconds, kernel_ns, say):
    """Launch, wait, count, for so many seconds; then say the part of the GPU in all."""
    module, kernel, duration = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(kernel_ns)
    call("cuModuleLoadData", ctypes.byref(module), PTX)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin_ns")
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
    in_all, second, began = 0, 0, time.monotonic()
    while second < seconds:
        done, until = 0, time.monotonic() + 1
        while time.monotonic() < until:
            call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
            call("cuCtxSynchronize")
            done += 1
        in_all, second = in_all + done, second + 1
        say(f"second {second}: {done * kernel_ns / 1e9:.2f} of the GPU", flush=True)
    say(f"in all: {in_all * kernel_ns / 1e9 / (time.monotonic() - began):.2f} of the GPU")


def main():
    """Look, say it, compute."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float, nargs="?", help="how long it computes; inf: until it is ended")
    parser.add_argument("--json", action="store_true", help="say what it sees as JSON, and nothing more")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # a container's first program dies of no other signal
    call("cuInit", 0)
    gpus = see_all()
    if not asked.json:
        print(f"{gpus[0]['model']}, {gpus[0]['total_mib']} MiB", flush=True)
        compute(3 if asked.seconds is None else asked.seconds, KERNEL_NS, print)
        return
    seen = {"largest_mib": largest_mib(gpus[0]["total_mib"]), "tenant": os.environ.get("ALIQUOT_TENANT", "")}
    print(json.dumps({"gpus": gpus, **seen}), flush=True)
    compute(float("inf") if asked.seconds is None else asked.seconds, SILENT_KERNEL_NS, lambda *_, **__: None)


cuda = ctypes.CDLL("libcuda.so.1")
if __name__ == "__main__":
    main()
