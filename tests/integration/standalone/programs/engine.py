"""Sizes its cache as an inference engine does, takes it, and writes how many bytes it took and what it was told.

`engine.py vllm OUT` measures before and after a profile run (v1/worker/gpu_worker.py: determine_available_memory),
`sglang` what is left after the weights (model_runner.py: profile_max_num_token). `neighbour` takes and frees 20 GiB.
"""

import json
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from kit.driver_calls import MIB, Out, OwnDriver

MODULES, WEIGHTS, PEAK = 40, 2048 * MIB, 1536 * MIB
PTX = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry kernel_%d(.param .u64 x) { ret; }\n\0"


class Engine(OwnDriver):
    """Short ways to use the GPU."""

    def told(self):
        """Free and total memory, by CUDA and by NVML, which agree."""
        free, total = self.memory_info()
        device = self.call("nvmlDeviceGetHandleByIndex_v2", 0, Out()).value
        assert (total, free) == struct.unpack("3Q", self.call("nvmlDeviceGetMemoryInfo", device, Out(24)).value)[:2]
        return free, total

    def take(self, size):
        """Device memory."""
        return self.new("cuMemAlloc_v2", size)

    def load_kernels(self):
        """Code, each kernel in a module of its own as those that Triton compiles; what was told after each."""
        seen = []
        for number in range(MODULES):
            module = self.new("cuModuleLoadData", (PTX % number).encode())
            self.new("cuModuleGetFunction", module, f"kernel_{number}")
            seen.append(self.told())
            time.sleep(0.002)
        return seen


def main(way, out):
    """Start, size the cache, take it, and hold it."""
    gpu = Engine()
    assert gpu.open() == 0
    gpu.ok("nvmlInit_v2")
    while way == "neighbour":
        for size in (20480 * MIB, 1024 * MIB, 2 * MIB):
            for taken in [gpu.take(size) for _ in range(20480 * MIB // size)]:
                gpu.ok("cuMemFree_v2", taken)
        Path(out).write_text("ready")
    seen = [gpu.told()]
    gpu.take(WEIGHTS)
    seen += gpu.load_kernels()
    if way == "vllm":
        gpu.ok("cuMemFree_v2", gpu.take(PEAK))
    seen.append(gpu.told())
    (first, total), (last, _) = seen[0], seen[-1]
    not_torch = total - last - WEIGHTS
    cache = int(0.9 * total) - WEIGHTS - PEAK - not_torch if way == "vllm" else int(last - first * (1 - 0.88))
    gpu.take(cache)
    Path(out).write_text(json.dumps([cache, *map(list, seen), list(gpu.told())]))
    time.sleep(600)


main(*sys.argv[1:])
