"""One framework allocates until it is refused: `memory.py torch|expandable|cupy|numba STEP_MIB OUT`.

It writes {"allocated_mib", "refused": the exception's name, "works_after": bool}: after the refusal it frees half and
must be able to go on computing, for OUT_OF_MEMORY must not poison a context.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def torch(step_mib: int) -> dict:
    import torch as t

    held: list = []
    refused = ""
    while not refused and len(held) < 100_000:
        try:
            held.append(t.ones(step_mib << 18, device="cuda"))
        except t.OutOfMemoryError as error:
            refused = type(error).__name__
    count = len(held)
    del held[count // 2 :]
    works = float((held[0][:1000] * 2).sum()) == 2000.0
    return {"allocated_mib": count * step_mib, "refused": refused, "works_after": works}


def expandable(step_mib: int) -> dict:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        os.environ[name] = "expandable_segments:True"
    return torch(step_mib)


def cupy(step_mib: int) -> dict:
    import cupy

    held: list = []
    refused = ""
    while not refused and len(held) < 100_000:
        try:
            held.append(cupy.ones(step_mib << 18, dtype=cupy.float32))
        except cupy.cuda.memory.OutOfMemoryError as error:
            refused = type(error).__name__
    count = len(held)
    del held[count // 2 :]
    works = float((held[0][:1000] * 2).sum()) == 2000.0
    return {"allocated_mib": count * step_mib, "refused": refused, "works_after": works}


def numba(step_mib: int) -> dict:
    import numpy
    from numba import cuda
    from numba.cuda.cudadrv.driver import CudaAPIError

    held: list = []
    refused = ""
    while not refused and len(held) < 100_000:
        try:
            held.append(cuda.device_array(step_mib << 18, dtype=numpy.float32))
        except (CudaAPIError, MemoryError) as error:
            refused = str(error)
    count = len(held)
    del held[count // 2 :]
    back = cuda.to_device(numpy.arange(1000)).copy_to_host()
    return {"allocated_mib": count * step_mib, "refused": refused, "works_after": bool(back.sum() == 499500)}


if __name__ == "__main__":
    facts = globals()[sys.argv[1]](int(sys.argv[2]))
    Path(sys.argv[3]).write_text(json.dumps(facts))
