"""Holds GPU memory of each kind, and compares it with what it wrote there whenever the number in a file changes."""

from __future__ import annotations

import itertools
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import aliquot
from aliquot.model.errors import AliquotError

sys.path.insert(0, str(Path(__file__).parents[3]))
from kit.driver_calls import MIB, Out, OwnDriver

cells, words = Path(sys.argv[1]), sys.argv[2:]
said = cells.with_suffix(".said")
gpu = OwnDriver()
assert gpu.open() == 0
SIZE = 32 * MIB
NVML = {"nvmlDeviceGetMemoryInfo": 24, "nvmlDeviceGetUtilizationRates": 8, "nvmlDeviceGetBAR1MemoryInfo": 24}
mapped = gpu.new("cuMemAddressReserve", SIZE, 0, 0, 0)
gpu.ok("cuMemMap", mapped, SIZE, 0, gpu.create(SIZE).value, 0)
gpu.ok("cuMemSetAccess", mapped, SIZE, struct.pack("iii", 1, 0, 3), 1)
held = {gpu.new("cuMemAlloc_v2", SIZE): b"", int(gpu.take(gpu.new_pool(), SIZE).value): b"", mapped: b""}
room = gpu.host_bytes(SIZE)
gpu.sync()
for pointer in held:
    held[pointer] = os.urandom(SIZE)
    gpu.write(room, held[pointer])
    gpu.ok("cuMemcpyHtoD_v2", pointer, room, SIZE)
graph, step = gpu.graph(SIZE, frees=True), gpu.function("step_ms2")
if words[:1] and words[0].isdigit():
    gpu.new("cuMemAlloc_v2", int(words[0]) << 30)
if "shareable" in words:  # by a descriptor, which is never made
    gpu.take(gpu.new_pool(handles=1), MIB)
if "unified" in words:
    gpu.new("cuMemAllocManaged", MIB, 1)


def as_it_was(pointer: int) -> bool:
    gpu.ok("cuMemcpyDtoH_v2", room, pointer, SIZE)
    return gpu.read(room, SIZE) == held[pointer]


def compute() -> bool:
    """Launch a kernel and the graph; whether all memory is as it was."""
    return gpu.launch(step) == graph.launch() == gpu.sync() == 0 and all(map(as_it_was, held))


def phase(say: Callable[[], None]) -> None:
    """One of a program that takes turns."""
    if "phases" in words:
        say()


if "busy" in words:
    threading.Thread(target=lambda: [compute() for _ in iter(int, 1)], daemon=True).start()


def watch() -> None:
    """Ask NVML for all that a monitor shows, and count how often it was answered."""
    for number in itertools.count(1):
        gpu.ok("nvmlInit_v2")
        device = gpu.call("nvmlDeviceGetHandleByIndex_v2", 0, Out()).value
        for name, size in NVML.items():
            gpu.ok(name, device, Out(size))
        gpu.call("nvmlDeviceGetComputeRunningProcesses_v3", device, Out(4), None)
        gpu.call("nvmlDeviceGetProcessUtilization", device, None, Out(4), 0)
        gpu.ok("nvmlShutdown")
        cells.with_suffix(".watched").write_text(str(number))
        time.sleep(0.005)


if "watched" in words:
    threading.Thread(target=watch, daemon=True).start()
try:
    phase(aliquot.yield_gpu)
    said.write_text("held")
except AliquotError as error:
    said.write_text(str(error))
last = cells.read_text()
while True:
    if (now := cells.read_text()) not in (last, ""):
        last = now
        phase(aliquot.acquire_gpu)
        same = compute()
        phase(aliquot.yield_gpu)
        said.write_text(f"{now} as it was" if same else f"{now} has changed")
    time.sleep(0.01)
