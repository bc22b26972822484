"""Starts a program whenever NAME.go has another number; that writes the UUID of its device 0 to NAME.number."""

import subprocess
import sys
import time
from pathlib import Path

LOOK = """
import ctypes, sys, uuid
cuda, text = ctypes.CDLL("libcuda.so.1"), (ctypes.c_ubyte * 16)()
assert cuda.cuInit(0) == cuda.cuDeviceGetUuid_v2(text, 0) == 0
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == cuda.cuMemAlloc_v2(ctypes.byref(memory), 4096) == 0
open(sys.argv[1], "w").write(f"GPU-{uuid.UUID(bytes=bytes(text))}")
"""
name, done = sys.argv[1], ""
while True:
    go = Path(f"{name}.go")
    if go.exists() and (number := go.read_text()) not in ("", done):
        subprocess.run([sys.executable, "-c", LOOK, f"{name}.new"], check=True)
        Path(f"{name}.new").rename(f"{name}.{number}")
        done = number
    time.sleep(0.02)
