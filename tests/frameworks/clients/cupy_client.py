"""CuPy as people use it: each function is a feature."""

from __future__ import annotations

import multiprocessing

import cupy
import cupyx
import numpy
from running import feature, main, sys

BLOCK = 256 << 20


@feature
def arrays():
    """Creation, arithmetic, reductions, sorting, copies there and back."""
    there = numpy.arange(1000, dtype=numpy.float32)
    assert (cupy.asnumpy(cupy.asarray(there)) == there).all()
    x = cupy.ones((256, 256), dtype=cupy.float32)
    (x * 2 + 1).sum(), cupy.sort(x), x.mean(axis=0)
    cupy.cuda.Device().synchronize()
    return {"total_mib": cupy.cuda.runtime.memGetInfo()[1] >> 20}


@feature
def memory_statistics():
    """What the memory pool takes is what the driver sees go."""
    pool, info = cupy.get_default_memory_pool(), cupy.cuda.runtime.memGetInfo
    pool.free_all_blocks()
    free = info()[0]
    block = cupy.empty(BLOCK, dtype=cupy.uint8)
    assert BLOCK == free - info()[0] and pool.total_bytes() >= BLOCK
    del block
    pool.free_all_blocks()
    assert free == info()[0]


def _receive(handle: bytes, queue: multiprocessing.Queue) -> None:
    at = cupy.cuda.runtime.ipcOpenMemHandle(handle)
    memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(at, 32, None), 0)
    queue.put(cupy.asnumpy(cupy.ndarray(8, cupy.int32, memory)).tolist())
    cupy.cuda.runtime.ipcCloseMemHandle(at)


@feature
def ipc():
    """An array is shown to another process without a copy."""
    context = multiprocessing.get_context("spawn")
    shown = cupy.asarray(numpy.arange(8, dtype=numpy.int32))
    queue = context.Queue()
    child = context.Process(target=_receive, args=(cupy.cuda.runtime.ipcGetMemHandle(shown.data.ptr), queue))
    child.start()
    got = queue.get(timeout=120)
    child.join(60)
    assert list(range(8)) == got and 0 == child.exitcode, (got, child.exitcode)


@feature
def matmul():
    """cuBLAS."""
    for dtype in (cupy.float32, cupy.float64, cupy.float16):
        x = cupy.ones((128, 128), dtype=dtype)
        x @ x
    cupy.cuda.Device().synchronize()


@feature
def raw_kernel():
    """A kernel of CUDA C++ is compiled by NVRTC and launched."""
    kernel = cupy.RawKernel('extern "C" __global__ void step(float *x) { x[threadIdx.x] += 1; }', "step")
    kernel((1,), (32,), (cupy.zeros(32, dtype=cupy.float32),))
    cupy.cuda.Device().synchronize()


@feature
def elementwise_kernel():
    """A kernel from an expression."""
    cupy.ElementwiseKernel("float32 a", "float32 b", "b = a * 2", "twice")(cupy.ones(64, dtype=cupy.float32))
    cupy.cuda.Device().synchronize()


@feature
def streams_and_graph():
    """Work on a stream, captured and replayed."""
    x, stream = cupy.zeros(1024), cupy.cuda.Stream(non_blocking=True)
    with stream:
        x += 1
        stream.synchronize()
        stream.begin_capture()
        x += 1
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()


@feature
def pinned_memory():
    """A pinned array is copied to the device and back."""
    there = cupyx.empty_pinned((1 << 16,))
    there[:] = 3
    assert (cupy.asnumpy(cupy.asarray(there, blocking=False)) == 3).all()


@feature
def async_and_managed_pools():
    """The driver's pool and managed memory behind the allocator."""
    before = cupy.cuda.get_allocator()
    try:
        for pool in (cupy.cuda.MemoryAsyncPool(), cupy.cuda.MemoryPool(cupy.cuda.malloc_managed)):
            cupy.cuda.set_allocator(pool.malloc)
            cupy.ones(1 << 20).sum()
            cupy.cuda.Device().synchronize()
    finally:
        cupy.cuda.set_allocator(before)


@feature
def linear_algebra():
    """cuSOLVER and cuSPARSE."""
    from cupyx.scipy import sparse

    # Empty, for CuPy looks at what it makes of the indices with a kernel, and a kernel computes nothing here.
    cupy.linalg.qr(cupy.eye(16)), sparse.csr_matrix((16, 16)) @ cupy.ones((16, 4))
    cupy.cuda.Device().synchronize()


@feature
def random_numbers():
    """cuRAND."""
    cupy.random.rand(1000), cupy.random.default_rng(1).standard_normal(1000)
    cupy.cuda.Device().synchronize()


@feature
def out_of_memory():
    """Filling the memory ends in OutOfMemoryError, which is caught; after it everything goes on."""
    cupy.get_default_memory_pool().free_all_blocks()
    blocks = []
    try:
        while len(blocks) < 1000:
            blocks.append(cupy.empty(BLOCK, dtype=cupy.uint8))
    except cupy.cuda.memory.OutOfMemoryError:
        count = len(blocks)
    blocks.clear()
    cupy.get_default_memory_pool().free_all_blocks()
    total = cupy.cuda.runtime.memGetInfo()[1]
    assert 0.5 * total < count * BLOCK <= total, (count, total)
    cupy.ones(64).sum()
    return {"blocks": count}


@feature
def fft():
    """Fourier transforms by cuFFT: of complex and of real numbers, of sizes with and without small factors."""
    for shape in ((64,), (97,), (1 << 16,), (33, 65), (16, 16, 16)):
        for dtype in (cupy.complex64, cupy.complex128):
            x = cupy.fft.fftn(cupy.ones(shape, dtype=dtype))
            cupy.fft.irfftn(x), cupy.fft.rfftn(x.real)
    cupy.cuda.Device().synchronize()


if __name__ == "__main__":
    main(sys.argv[1:], {"CuPy": cupy.__version__, "CUDA": str(cupy.cuda.runtime.runtimeGetVersion())})
