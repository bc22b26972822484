"""A kernel of your own with numba-cuda: `aliquot run --gpu-request .3 --gpu-mem 1Gi -- python numba_saxpy.py`.

It prints what it sees of the GPU and how many elements are right. On an emulated GPU kernels compute nothing, so none
are.
"""

import json

import numpy as np
from numba import cuda


@cuda.jit
def saxpy(a: float, x: np.ndarray, y: np.ndarray) -> None:
    """Adds a multiple of x to y."""
    i = cuda.grid(1)
    if i < x.size:
        y[i] += a * x[i]


def main() -> None:
    """Launch it a hundred times."""
    count = 1 << 16
    x, y = cuda.to_device(np.ones(count, np.float32)), cuda.to_device(np.zeros(count, np.float32))
    for _ in range(100):
        saxpy[-(-count // 256), 256](np.float32(0.5), x, y)
    cuda.synchronize()
    right = int((y.copy_to_host() == 50).sum())
    memory = cuda.current_context().get_memory_info()
    print(f"{cuda.get_current_device().name}: {right} of {count} elements are right")
    print(json.dumps({"total_mib": memory.total >> 20, "used_mib": (memory.total - memory.free) >> 20}))


if __name__ == "__main__":
    main()
