"""Holds memory and compares it with what it wrote there whenever it is used: `notebook.py FILE MIB`.

It makes FILE.held when it holds all; for each FILE.goN it launches a kernel, compares every byte, and writes the
outcome to FILE.doneN.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from driver import Driver

CHUNK = 64 << 20
file, size = Path(sys.argv[1]), int(sys.argv[2]) << 20
cuda = Driver()
room = cuda.host_bytes(CHUNK)
chunks = []
for number in range(1, size // CHUNK + 1):
    pointer, word = cuda.new("cuMemAlloc_v2", CHUNK), number * 0x01010101 & 0xFFFFFFFF
    cuda.ok("cuMemsetD32_v2", pointer, word, CHUNK // 4)
    chunks.append((pointer, word))
cuda.ok("cuCtxSynchronize")


def as_it_was(pointer: int, word: int) -> bool:
    """Every byte of a chunk."""
    cuda.ok("cuMemcpyDtoH_v2", room, pointer, CHUNK)
    return cuda.read(room, CHUNK) == word.to_bytes(4, "little") * (CHUNK // 4)


Path(f"{file}.held").touch()
number = 1
while True:
    if not Path(f"{file}.go{number}").exists():
        time.sleep(0.05)
        continue
    cuda.spin(1_000_000, cuda.stream)
    cuda.ok("cuStreamSynchronize", cuda.stream)
    same = all(as_it_was(pointer, word) for pointer, word in chunks)
    part = Path(f"{file}.part")
    part.write_text("as it was" if same else "changed")
    part.rename(f"{file}.done{number}")
    number += 1
