"""Takes memory in a shape that is easily counted wrong until it is refused, then rests: `shapes.py SHAPE OUT`.

`odd`: cuMemAlloc just above a page. `arrays`: arrays of 256 bytes. `pools`: pools destroyed while they hold memory.
`imports`: physical memory exported, imported, and the exported handle released.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path

from driver import Driver, DriverError

MIB = 1 << 20
MAX_S = 15


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class PoolProps(ctypes.Structure):
    """CUmemPoolProps."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("security", ctypes.c_void_p),
        ("most", ctypes.c_size_t),
        ("rest", ctypes.c_char * 56),
    ]


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    ]


class ArrayShape(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = [
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
    ]


def odd(driver: Driver) -> int:
    """Bytes asked for by one step."""
    pointer = ctypes.c_uint64()
    driver("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(2 * MIB + 512))
    return 2 * MIB + 512


def arrays(driver: Driver) -> int:
    made, shape = ctypes.c_void_p(), ArrayShape(64, 0, 0x20, 1)
    driver("cuArrayCreate_v2", ctypes.byref(made), ctypes.byref(shape))
    return 256


def pools(driver: Driver) -> int:
    made, pointer, props = ctypes.c_void_p(), ctypes.c_uint64(), PoolProps(1, 0, Location(1, 0))
    driver("cuMemPoolCreate", ctypes.byref(made), ctypes.byref(props))
    try:
        driver("cuMemAllocFromPoolAsync", ctypes.byref(pointer), ctypes.c_size_t(256 * MIB), made, None)
        driver("cuCtxSynchronize")
    finally:
        driver("cuMemPoolDestroy", made)
    return 256 * MIB


def imports(driver: Driver) -> int:
    handle, second, descriptor = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_int()
    props = AllocationProp(1, 1, Location(1, 0))
    driver("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(256 * MIB), ctypes.byref(props), ctypes.c_uint64(0))
    driver("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, 1, ctypes.c_uint64(0))
    driver("cuMemImportFromShareableHandle", ctypes.byref(second), ctypes.c_void_p(descriptor.value), 1)
    driver("cuMemRelease", handle)
    os.close(descriptor.value)
    return 256 * MIB


def main(shape: str, out: Path) -> None:
    """Take until refused or for `MAX_S`, write what was asked for, rest."""
    driver, step, asked, code = Driver(), globals()[shape], 0, 0
    until = time.monotonic() + MAX_S
    while not code and time.monotonic() < until:
        try:
            asked += step(driver)
        except DriverError as error:  # not always OUT_OF_MEMORY: descriptors run out too
            code = error.code
    out.write_text(json.dumps({"asked_mib": asked // MIB, "refused_with": code}))
    time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
