"""One framework allocates until it is refused: `memory.py torch|expandable|cupy|numba STEP_MIB OUT FULL`.

It creates the file FULL when it has all it can get, and waits until that is gone. Then it frees half and must be able
to go on computing, for OUT_OF_MEMORY must not poison a context. OUT gets {"allocated_mib", "refused": the exception's
name, "works_after": bool}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def full() -> None:
    """Rest with everything held until somebody has looked."""
    mark = Path(sys.argv[4])
    mark.touch()
    until = time.monotonic() + 30
    while mark.exists() and time.monotonic() < until:
        time.sleep(0.05)


def torch(step_mib: int) -> dict:
    import torch as t

    held: list = []
    refused = ""
    while not refused and len(held) < 100_000:
        try:
            held.append(t.ones(step_mib << 18, device="cuda"))
        except t.OutOfMemoryError as error:
            refused = type(error).__name__
    full()
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
    full()
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
    full()
    count = len(held)
    del held[count // 2 :]
    back = cuda.to_device(numpy.arange(1000)).copy_to_host()
    return {"allocated_mib": count * step_mib, "refused": refused, "works_after": bool(back.sum() == 499500)}


if __name__ == "__main__":
    facts = globals()[sys.argv[1]](int(sys.argv[2]))
    Path(sys.argv[3]).write_text(json.dumps(facts))
