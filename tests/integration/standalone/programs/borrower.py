"""Allocates GPU memory and writes what it has: `borrower.py FILE GIB [gives] [keeps] [busy] [unified] [grows]`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import aliquot.memory

sys.path.insert(0, str(Path(__file__).parents[3]))
from kit.driver_calls import MIB, Out, OwnDriver

said, gib, words = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
gpu = OwnDriver()
assert gpu.open() == 0
context, step = gpu.new("cuCtxGetCurrent"), gpu.function("step_ms2")
held: list[int] = []


def give_back(size_bytes: int, _seconds: float) -> None:
    """Free as much, in a thread that has no context yet."""
    gpu.ok("cuCtxSetCurrent", context)
    while size_bytes > 0 and held:
        gpu.ok("cuMemFree_v2", held.pop())
        size_bytes -= 1024 * MIB
    said.write_text(f"gave back, has {len(held)}")


if "unified" in words:
    gpu.new("cuMemAllocManaged", MIB, 1)
if "keeps" in words:
    assert aliquot.memory.on_call_back(lambda *_: None)
if "gives" in words:
    assert aliquot.memory.on_call_back(give_back)
free, total = (size // MIB for size in gpu.memory_info())
while len(held) < gib:
    if not (answer := gpu.call("cuMemAlloc_v2", Out(), 1024 * MIB)).code:
        held.append(answer.value)
    elif "grows" not in words:
        break
    else:  # it goes on once it may
        said.write_text(f"has {len(held)}, was told {free} of {total}")
        time.sleep(0.02)
said.write_text(f"has {len(held)}, was told {free} of {total}")
while True:
    if "busy" in words:
        assert gpu.launch(step) == gpu.sync() == 0
    time.sleep(0.001)
