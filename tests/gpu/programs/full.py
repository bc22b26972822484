"""Takes all the memory it can get by every way, then rests until it is ended: `full.py OUT`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

CHUNK_BYTES = 32 << 20
HEAP_BYTES = 256 << 20


def main() -> None:
    """A context, a larger heap, then linear, pooled and physical memory until each is refused."""
    from cuda.bindings import driver as d

    d.cuInit(0)
    d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
    heap = d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE, HEAP_BYTES)[0]
    stream = d.cuStreamCreate(1)[1]
    prop = d.CUmemAllocationProp()
    prop.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    ways = {
        "physical": lambda: d.cuMemCreate(CHUNK_BYTES, prop, 0)[0],
        "pooled": lambda: d.cuMemAllocAsync(CHUNK_BYTES, stream)[0],
        "linear": lambda: d.cuMemAlloc(CHUNK_BYTES)[0],
    }
    taken: dict[str, int] = {}
    for number, (way, take) in enumerate(ways.items()):
        for taken[way] in range(10_000):
            if number < 2 and taken[way] == 10:
                break  # leave room for the next way
            if take() != d.CUresult.CUDA_SUCCESS:
                break
    Path(sys.argv[1]).write_text(json.dumps({"heap": int(heap), "taken_chunks": taken}))
    time.sleep(60)


if __name__ == "__main__":
    main()
