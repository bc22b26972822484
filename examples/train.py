"""A CUDA program to share a GPU with: python train.py [SECONDS] (3 without it).

It stands for your own. It needs nothing but a driver, knows nothing of Aliquot, and says each second, and at the end,
how much of the GPU's time it got: its kernels take 5 ms each by the GPU's own clock.
"""

import ctypes
import sys
import time

KERNEL_NS = 5_000_000
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

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    """One driver call; what fails ends the program with CUDA's own number."""
    status = getattr(cuda, name)(*arguments)
    if status:
        sys.exit(f"{name}: CUDA error {status}")


def main():
    """Launch, wait, count, for so many seconds."""
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    device, context = ctypes.c_int(), ctypes.c_void_p()
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    name, memory = ctypes.create_string_buffer(100), ctypes.c_size_t()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDeviceGetName", name, 100, device)
    call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), PTX)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin_ns")
    print(f"{name.value.decode()}, {memory.value >> 20} MiB", flush=True)
    duration = ctypes.c_uint64(KERNEL_NS)
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(duration), ctypes.c_void_p))
    in_all, began = 0, time.monotonic()
    for second in range(1, seconds + 1):
        done, until = 0, time.monotonic() + 1
        while time.monotonic() < until:
            call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
            call("cuCtxSynchronize")
            done += 1
        in_all += done
        print(f"second {second}: {done * KERNEL_NS / 1e9:.2f} of the GPU", flush=True)
    print(f"in all: {in_all * KERNEL_NS / 1e9 / (time.monotonic() - began):.2f} of the GPU")


main()
