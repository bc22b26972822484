"""Memory that a tenant's processes have leased and do not use is there for its other processes."""

import sys

from waiting import eventually

HOLDER = """
import ctypes, sys, time
L = ctypes.CDLL("libcuda.so.1"); L.cuInit(0); c = ctypes.c_void_p(); p = ctypes.c_uint64()
assert L.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0) == L.cuCtxSetCurrent(c) == 0
assert L.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(2 << 20)) == 0
open(sys.argv[1], "w").write("held"); time.sleep(600)
"""
TAKER = """
import ctypes, sys
L = ctypes.CDLL("libcuda.so.1"); L.cuInit(0); c = ctypes.c_void_p(); p = ctypes.c_uint64(); taken = 0
assert L.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0) == L.cuCtxSetCurrent(c) == 0
while L.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(16 << 20)) == 0: taken += 16
open(sys.argv[1], "w").write(str(taken))
"""
LIMIT_MIB = 3000


def test_idle_processes_keep_nothing_from_a_busy_one(stage):
    """Beside six processes that hold 2 MiB each, a seventh gets all but one step of what is left of the limit."""
    scene = stage()
    folder = scene.tenant("t", 500, memory_mib=LIMIT_MIB)
    marks = [scene.directory / f"held{i}" for i in range(6)]
    for i, mark in enumerate(marks):
        scene.program(folder, [sys.executable, "-c", HOLDER, str(mark)], f"holder{i}")
    eventually(lambda: all(mark.exists() and mark.read_text() for mark in marks), "six hold memory", 30)
    out = scene.directory / "taken"
    taker = scene.program(folder, [sys.executable, "-c", TAKER, str(out)], "taker")
    eventually(lambda: out.exists() and out.read_text(), "the seventh has taken what it can", 30)
    left_mib = LIMIT_MIB - 6 * 2 - scene.seen("t").memory_context_mib

    assert left_mib - 16 <= int(out.read_text()) <= left_mib, taker.said
