"""Compares memory of every kind with what it wrote there, and writes it anew, whenever the number in a file changes."""

from __future__ import annotations

import random
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from kit.driver_calls import MIB, Out, OwnDriver

SIZE, WRITTEN = 2 * MIB, 0x5A
cells, seed = Path(sys.argv[1]), int(sys.argv[2])
said = cells.with_suffix(".said")
chance = random.Random(seed)
gpu = OwnDriver()
assert gpu.open() == 0


def mapped() -> int:
    """Physical memory at a reserved address."""
    address = gpu.new("cuMemAddressReserve", SIZE, 0, 0, 0)
    gpu.ok("cuMemMap", address, SIZE, 0, gpu.create(SIZE).value, 0)
    gpu.ok("cuMemSetAccess", address, SIZE, struct.pack("iii", 1, 0, 3), 1)
    return address


linear, mapping, by_graph = gpu.new("cuMemAlloc_v2", SIZE), mapped(), mapped()
pooled = int(gpu.take(gpu.new_pool(), SIZE).value)
gpu.sync()
gpu.ok("cuStreamBeginCapture_v2", gpu.stream, 2)
gpu.ok("cuMemsetD8Async", by_graph, WRITTEN, SIZE, gpu.stream)
captured = gpu.new("cuGraphInstantiateWithFlags", gpu.call("cuStreamEndCapture", gpu.stream, Out()).value, 0)
room = gpu.host_bytes(SIZE)
held: dict[int, bytes] = {}


def write(pointer: int) -> None:
    """Random bytes."""
    held[pointer] = chance.randbytes(SIZE)
    gpu.write(room, held[pointer])
    gpu.ok("cuMemcpyHtoD_v2", pointer, room, SIZE)


def as_it_was(pointer: int) -> bool:
    """Byte for byte."""
    gpu.ok("cuMemcpyDtoH_v2", room, pointer, SIZE)
    return gpu.read(room, SIZE) == held[pointer]


for each in (linear, mapping, pooled, by_graph):
    write(each)
said.write_text("held")
last = cells.read_text()
while True:
    if (now := cells.read_text()) in (last, ""):
        time.sleep(0.002)
        continue
    last = now
    same = all(map(as_it_was, held))
    gpu.ok("cuGraphLaunch", captured, gpu.stream)
    gpu.sync()
    held[by_graph] = bytes([WRITTEN]) * SIZE
    same = same and as_it_was(by_graph)
    write(chance.choice((linear, mapping, pooled)))
    write(by_graph)
    said.write_text(f"{now} as it was" if same else f"{now} has changed")
