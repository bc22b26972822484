"""The runtime interface of cuda-bindings, which has a runtime of its own inside; one line of JSON."""

import json

from counters import launches
from cuda.bindings import nvrtc
from cuda.bindings import runtime as rt


def ok(answer):
    """What a call returned besides cudaSuccess."""
    assert int(answer[0]) == 0, answer[0]
    return answer[1] if len(answer) == 2 else answer[1:]


devices = ok(rt.cudaGetDeviceCount())
properties = ok(rt.cudaGetDeviceProperties(0))
there = bytearray(range(256))
back = bytearray(256)
at = ok(rt.cudaMalloc(256))
ok(rt.cudaMemcpy(at, there, 256, rt.cudaMemcpyKind.cudaMemcpyHostToDevice))
ok(rt.cudaMemcpy(back, at, 256, rt.cudaMemcpyKind.cudaMemcpyDeviceToHost))

program = ok(nvrtc.nvrtcCreateProgram(b'extern "C" __global__ void step() {}', b"step.cu", 0, [], []))
ok(nvrtc.nvrtcCompileProgram(program, 1, [b"-arch=sm_90"]))
image = b" " * ok(nvrtc.nvrtcGetCUBINSize(program))
ok(nvrtc.nvrtcGetCUBIN(program, image))
library = ok(rt.cudaLibraryLoadData(image, [], [], 0, [], [], 0))
kernel = ok(rt.cudaLibraryGetKernel(library, b"step"))
stream = ok(rt.cudaStreamCreate())
from cuda.bindings import driver  # noqa: E402 - the runtime has made the context by now

for _ in range(11):
    ok(driver.cuLaunchKernel(int(kernel), 1, 1, 1, 1, 1, 1, 0, int(stream), 0, 0))
ok(rt.cudaStreamSynchronize(stream))

blocks = []
while int((asked := rt.cudaMalloc(256 << 20))[0]) == 0:
    blocks.append(asked[1])
refused = asked[0].name
rt.cudaGetLastError()
for block in blocks:
    ok(rt.cudaFree(block))
total = ok(rt.cudaMemGetInfo())[1]
count = launches()
ok(rt.cudaDeviceReset())
name = properties.name.decode().rstrip("\0")
facts = {"devices": devices, "name": name, "property_mib": properties.totalGlobalMem >> 20, "total_mib": total >> 20}
facts |= {"same": int(back == there), "blocks": len(blocks), "refused": refused, **count}
print(json.dumps(facts))
