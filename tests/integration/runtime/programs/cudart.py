"""The CUDA runtime library of the given path, by ctypes; kernels by the driver interface. One line of JSON."""

import ctypes
import json
import sys

from counters import launches

PTX = b".visible .entry step(){ret;}\0"
lib, driver = ctypes.CDLL(sys.argv[1]), ctypes.CDLL("libcuda.so.1")
size, pointer = ctypes.c_size_t, ctypes.c_void_p
lib.cudaGetErrorName.restype = ctypes.c_char_p


def ok(result):
    """Fails with the error's name."""
    assert result == 0, lib.cudaGetErrorName(result)


def new(call, kind, *arguments):
    """The handle or number that a call writes to its first argument."""
    out = kind()
    ok(call(ctypes.byref(out), *arguments))
    return out


devices = new(lib.cudaGetDeviceCount, ctypes.c_int).value
version = new(lib.cudaRuntimeGetVersion, ctypes.c_int).value
there, back = ctypes.create_string_buffer(bytes(range(256))), ctypes.create_string_buffer(257)
at = new(lib.cudaMalloc, pointer, size(256))
ok(lib.cudaMemcpy(at, there, size(256), 1))
ok(lib.cudaMemcpy(back, at, size(256), 2))
pinned = new(lib.cudaHostAlloc, pointer, size(4096), 0)
managed = new(lib.cudaMallocManaged, pointer, size(4096), 1)
stream = new(lib.cudaStreamCreateWithFlags, pointer, 1)
pooled = new(lib.cudaMallocAsync, pointer, size(4096), stream)
ok(lib.cudaFreeAsync(pooled, stream))
first, last = (new(lib.cudaEventCreate, pointer) for _ in range(2))
module = new(driver.cuModuleLoadData, pointer, PTX)
step = new(driver.cuModuleGetFunction, pointer, module, b"step")
ok(lib.cudaEventRecord(first, stream))
for _ in range(11):
    ok(driver.cuLaunchKernel(step, 1, 1, 1, 1, 1, 1, 0, stream, None, None))
ok(lib.cudaEventRecord(last, stream))
ok(lib.cudaStreamSynchronize(stream))
ms = new(lib.cudaEventElapsedTime, ctypes.c_float, first, last).value
ok(lib.cudaStreamBeginCapture(stream, 0))
ok(lib.cudaMemsetAsync(at, 1, size(256), stream))
graph = pointer()
ok(lib.cudaStreamEndCapture(stream, ctypes.byref(graph)))
run = new(lib.cudaGraphInstantiateWithFlags, pointer, graph, ctypes.c_ulonglong(0))
ok(lib.cudaGraphLaunch(run, stream))
ok(lib.cudaStreamSynchronize(stream))
blocks, refused, block = [], 0, pointer()
while not (refused := lib.cudaMalloc(ctypes.byref(block), size(256 << 20))):
    blocks.append(block)
    block = pointer()
lib.cudaGetLastError()
for block in blocks:
    ok(lib.cudaFree(block))
unused, total = size(), size()
ok(lib.cudaMemGetInfo(ctypes.byref(unused), ctypes.byref(total)))
for free in ((lib.cudaFree, at), (lib.cudaFree, managed), (lib.cudaFreeHost, pinned), (lib.cudaStreamDestroy, stream)):
    ok(free[0](free[1]))
count = launches()
ok(lib.cudaDeviceReset())
facts = {
    "version": version,
    "devices": devices,
    "total_mib": total.value >> 20,
    "same": int(back.raw[:256] == there.raw[:256]),
}
facts |= {
    "timed": int(0 < ms < 1000),
    "blocks": len(blocks),
    "refused": lib.cudaGetErrorName(refused).decode(),
    **count,
}
print(json.dumps(facts))
