"""One framework computes something whose answer is known: `compute.py torch|cupy|triton|numba|jax|bindings OUT HELD`.

It writes {"right": bool, "total_bytes": what the framework believes the GPU has, "hook": what the hook counted}; the
computation knows nothing of Aliquot.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from driver import counters, hold

ROUNDS = 200


def torch() -> dict:
    import torch as t

    a = t.arange(512 * 512, dtype=t.float32).reshape(512, 512) % 7
    want = a @ a
    b = a.cuda()
    for _ in range(ROUNDS):
        got = b @ b
    return {"right": bool(t.allclose(got.cpu(), want)), "total_bytes": t.cuda.mem_get_info()[1]}


def cupy() -> dict:
    import cupy

    kernel = cupy.RawKernel(
        'extern "C" __global__ void twice(float *x) { x[threadIdx.x + blockIdx.x * blockDim.x] *= 2; }', "twice"
    )
    x = cupy.arange(1024, dtype=cupy.float32)
    for _ in range(10):
        kernel((4,), (256,), (x,))
    right = bool((x.get() == __import__("numpy").arange(1024, dtype="float32") * 1024).all())
    y = cupy.ones((256, 256), dtype=cupy.float32)
    return {"right": right and float((y @ y).sum()) == 256.0**3, "total_bytes": cupy.cuda.Device().mem_info[1]}


def triton() -> dict:
    import torch as t
    import triton as tri
    import triton.language as tl

    globals()["tl"] = tl

    x = t.arange(4096, device="cuda", dtype=t.float32)
    out = t.empty_like(x)
    add = tri.jit(_add)
    for _ in range(ROUNDS):
        add[(4,)](x, x, out, 4096, BLOCK=1024)
    return {"right": bool((out == 2 * x).all()), "total_bytes": t.cuda.mem_get_info()[1]}


def _add(a, b, out, n, BLOCK: tl.constexpr):  # noqa: N803, F821  (Triton's own spelling)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # noqa: F821
    keep = at < n
    tl.store(out + at, tl.load(a + at, mask=keep) + tl.load(b + at, mask=keep), mask=keep)  # noqa: F821


def numba() -> dict:
    import numpy
    from numba import cuda

    @cuda.jit
    def increment(x):
        at = cuda.grid(1)
        if at < x.size:
            x[at] += 1

    x = cuda.to_device(numpy.zeros(1000, dtype=numpy.int32))
    for _ in range(ROUNDS):
        increment[4, 256](x)
    return {
        "right": bool((x.copy_to_host() == ROUNDS).all()),
        "total_bytes": cuda.current_context().get_memory_info()[1],
    }


def jax() -> dict:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if os.environ.get("ALIQUOT_GPU_EMULATE"):
        from jax._src import hardware_utils

        # JAX looks for a device file before it asks the driver, and the emulated one makes none.
        hardware_utils._NVIDIA_GPU_DEVICES = ["/dev/null"]
    import jax as j
    import numpy

    assert j.default_backend() == "gpu", f"JAX computes on {j.default_backend()}"
    a = numpy.arange(512 * 512, dtype=numpy.float32).reshape(512, 512) % 7
    multiply = j.jit(lambda x: j.numpy.matmul(x, x, precision="highest"))
    b = j.numpy.asarray(a)
    for _ in range(ROUNDS):
        got = multiply(b)
    limit = (j.devices()[0].memory_stats() or {}).get("bytes_limit")
    return {"right": bool(numpy.allclose(got, a @ a)), "total_bytes": None, "pool_bytes": limit}


def bindings() -> dict:
    from cuda.bindings import driver

    from aliquot_lab.bench.cuda import CudaDevice, check

    gpu = CudaDevice()
    for _ in range(ROUNDS):
        gpu.spin(10_000)
    gpu.synchronize()
    return {"right": True, "total_bytes": check("cuMemGetInfo", driver.cuMemGetInfo())[1]}


if __name__ == "__main__":
    began = time.monotonic()
    facts = globals()[sys.argv[1]]()
    Path(sys.argv[2]).write_text(
        json.dumps({**facts, "hook": counters(), "seconds": round(time.monotonic() - began, 2)})
    )
    hold(Path(sys.argv[3]))
