"""Sizes its cache as an inference engine does, takes it, and writes how many bytes it took and what it was told.

`engine.py vllm OUT` measures before and after a profile run (v1/worker/gpu_worker.py: determine_available_memory),
`sglang` what is left after the weights (model_runner.py: profile_max_num_token). `neighbour` takes and frees 20 GiB.
"""

import ctypes
import json
import sys
import time
from pathlib import Path

MIB = 1 << 20
MODULES, WEIGHTS, PEAK = 40, 2048 * MIB, 1536 * MIB
PTX = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry kernel_%d(.param .u64 x) { ret; }\n"
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")


def call(name, *arguments):
    """A function of the driver, which succeeds."""
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name}: {code}"


def told():
    """Free and total memory, by CUDA and by NVML, which agree."""
    free, total, by_nvml, device = ctypes.c_size_t(), ctypes.c_size_t(), (ctypes.c_uint64 * 3)(), ctypes.c_void_p()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, by_nvml) == 0
    assert [total.value, free.value] == list(by_nvml)[:2]
    return free.value, total.value


def allocate(size):
    """Device memory."""
    pointer = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
    return pointer


def load_kernels():
    """Code, each kernel in a module of its own as those that Triton compiles; what was told after each."""
    seen = []
    for number in range(MODULES):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(module), (PTX % number).encode() + b"\0")
        call("cuModuleGetFunction", ctypes.byref(function), module, b"kernel_%d" % number)
        seen.append(told())
        time.sleep(0.002)
    return seen


def main(way, out):
    """Start, size the cache, take it, and hold it."""
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    assert nvml.nvmlInit_v2() == 0
    while way == "neighbour":
        for size in (20480 * MIB, 1024 * MIB, 2 * MIB):
            for taken in [allocate(size) for _ in range(20480 * MIB // size)]:
                call("cuMemFree_v2", taken)
        Path(out).write_text("ready")
    seen = [told()]
    weights = allocate(WEIGHTS)
    seen += load_kernels()
    if way == "vllm":
        call("cuMemFree_v2", allocate(PEAK))
    seen.append(told())
    (first, total), (last, _) = seen[0], seen[-1]
    not_torch = total - last - WEIGHTS
    cache = int(0.9 * total) - WEIGHTS - PEAK - not_torch if way == "vllm" else int(last - first * (1 - 0.88))
    blocks = allocate(cache)
    Path(out).write_text(json.dumps([cache, *map(list, seen), list(told())]))
    time.sleep(600)
    return weights, blocks


main(*sys.argv[1:])
