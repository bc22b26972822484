"""Holds memory and computes until it is ended: `worker.py PTX BEATS MIB`; BEATS has its pid and count of kernels."""

import ctypes
import os
import sys
from pathlib import Path

KERNEL_NS = 10_000_000


def ok(code: int) -> None:
    """Ends the program with the driver's code when a call failed."""
    if code:
        sys.exit(f"line {sys._getframe(1).f_lineno}: code {code}")


cuda, context, module, kernel, pointer = ctypes.CDLL("libcuda.so.1"), *(ctypes.c_void_p() for _ in range(4))
ok(cuda.cuInit(0))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
ok(cuda.cuCtxSetCurrent(context))
ok(cuda.cuModuleLoadData(ctypes.byref(module), Path(sys.argv[1]).read_bytes() + b"\0"))
ok(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"spin_ns"))
ok(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[3]) << 20)))
duration = ctypes.c_uint64(KERNEL_NS)
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
beats = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT, 0o600)
count = 0
while True:
    ok(cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, parameters, None))
    ok(cuda.cuCtxSynchronize())
    count += 1
    os.pwrite(beats, b"%d %d\n" % (os.getpid(), count), 0)
