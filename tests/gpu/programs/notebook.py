"""Holds memory and compares it with what it wrote there whenever it is used: `notebook.py FILE MIB`.

It makes FILE.held when it holds all; for each FILE.goN it launches a kernel, compares every byte, and writes the
outcome to FILE.doneN.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

from driver import Driver

CHUNK = 64 << 20
file, size = Path(sys.argv[1]), int(sys.argv[2]) << 20
cuda = Driver()
stream = cuda.stream()
room = (ctypes.c_uint32 * (CHUNK // 4))()
chunks = []
for number in range(1, size // CHUNK + 1):
    pointer = ctypes.c_uint64()
    cuda("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(CHUNK))
    cuda("cuMemsetD32_v2", pointer, number * 0x01010101 & 0xFFFFFFFF, ctypes.c_size_t(CHUNK // 4))
    chunks.append((pointer, number * 0x01010101 & 0xFFFFFFFF))
cuda("cuCtxSynchronize")


def as_it_was(pointer: ctypes.c_uint64, word: int) -> bool:
    """Every byte of a chunk."""
    cuda("cuMemcpyDtoH_v2", room, pointer, ctypes.c_size_t(CHUNK))
    return bytes(room) == word.to_bytes(4, "little") * (CHUNK // 4)


Path(f"{file}.held").touch()
number = 1
while True:
    if not Path(f"{file}.go{number}").exists():
        time.sleep(0.05)
        continue
    cuda.spin(1_000_000, stream)
    cuda("cuStreamSynchronize", stream)
    same = all(as_it_was(pointer, word) for pointer, word in chunks)
    part = Path(f"{file}.part")
    part.write_text("as it was" if same else "changed")
    part.rename(f"{file}.done{number}")
    number += 1
