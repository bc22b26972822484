"""Holds memory and computes until it is ended: `worker.py BEATS MIB`; BEATS has its pid and its count of kernels."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from kit.driver_calls import MIB, OwnDriver

KERNEL_NS = 10_000_000
gpu = OwnDriver()
assert gpu.open() == 0
kernel = gpu.function()
gpu.new("cuMemAlloc_v2", int(sys.argv[2]) * MIB)
beats = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
count = 0
while True:
    assert gpu.launch(kernel, KERNEL_NS) == gpu.code("cuCtxSynchronize") == 0
    count += 1
    os.pwrite(beats, b"%d %d\n" % (os.getpid(), count), 0)
