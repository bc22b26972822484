"""Runs in a container: prints as one line of JSON what a CUDA client sees there, holds 64 MiB, and ends with stdin.

`gpu.py GIB` holds so much and lets go of none of it: it hears that memory is called back and gives none, and has used
unified memory, so it is not parked.
"""

import ctypes
import json
import os
import sys


def ok(code: int) -> None:
    """Ends the program when a call failed."""
    if code:
        sys.exit(f"line {sys._getframe(1).f_lineno}: code {code}")


cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
context, pointer, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
ok(cuda.cuInit(0))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
ok(cuda.cuCtxSetCurrent(context))
ok(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
ok(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20)))
if sys.argv[1:]:
    import memory  # aliquot.memory, copied

    ok(cuda.cuMemAllocManaged(ctypes.byref(pointer), ctypes.c_size_t(1 << 20), 1))
    assert memory.on_call_back(lambda *_: None)
    for _ in range(int(sys.argv[1])):
        ok(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)))
beyond = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(total.value + 1))
ok(nvml.nvmlInit_v2())
ok(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)))
seen = {"total_mib": total.value >> 20, "beyond": beyond, "gpus": count.value, "uid": os.getuid(), "pid": os.getpid()}
print(json.dumps(seen | {"tenant": os.environ.get("ALIQUOT_TENANT")}), flush=True)
sys.exit(len(sys.stdin.read()))
