"""The few CUDA calls the clients need, on cuda-bindings, with errors as exceptions.

No CUDA runtime and no framework: what these clients call is what the driver library, or whatever stands in its place,
gets to see.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from cuda.bindings import driver


class CudaError(RuntimeError):
    """A driver call answered with something else than success; `name` is CUDA's own word for it."""

    def __init__(self, call: str, code: Any) -> None:
        super().__init__(f"{call}: {code.name}")
        self.name = str(code.name)


def check(call: str, answer: tuple[Any, ...]) -> Any:
    """The values of a cuda-bindings answer.

    Raises:
        CudaError: the call failed.
    """
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(call, answer[0])
    return answer[1] if len(answer) == 2 else answer[1:]


class CudaDevice:
    """The first device with a context and a stream of its own, and the spinning kernels loaded."""

    def __init__(self) -> None:
        check("cuInit", driver.cuInit(0))
        self.device = check("cuDeviceGet", driver.cuDeviceGet(0))
        self.context = check("cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(self.device))
        check("cuCtxSetCurrent", driver.cuCtxSetCurrent(self.context))
        ptx = Path(__file__).with_name("spin.ptx").read_bytes() + b"\0"
        self.module = check("cuModuleLoadData", driver.cuModuleLoadData(ptx))
        self._spin = check("cuModuleGetFunction", driver.cuModuleGetFunction(self.module, b"spin_ns"))
        self.stream = check("cuStreamCreate", driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))

    @property
    def name(self) -> str:
        """The model as CUDA names it."""
        name: bytes = check("cuDeviceGetName", driver.cuDeviceGetName(64, self.device))
        return name.split(b"\0")[0].decode()

    def spin(self, duration_ns: int) -> None:
        """Launch one kernel of `duration_ns` on the stream."""
        launch = driver.cuLaunchKernel(
            self._spin, 1, 1, 1, 1, 1, 1, 0, self.stream, ((duration_ns,), (ctypes.c_uint64,)), 0
        )
        check("cuLaunchKernel", launch)

    def synchronize(self) -> None:
        """Wait for the stream."""
        check("cuStreamSynchronize", driver.cuStreamSynchronize(self.stream))

    def event(self) -> Any:
        """A new event without timing."""
        return check("cuEventCreate", driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))

    def record(self, event: Any) -> None:
        """Put `event` behind what the stream holds now."""
        check("cuEventRecord", driver.cuEventRecord(event, self.stream))

    def wait(self, event: Any) -> None:
        """Block until `event` has happened."""
        check("cuEventSynchronize", driver.cuEventSynchronize(event))

    def capture(self, duration_ns: int, count: int) -> Any:
        """An executable graph of `count` kernels in a row."""
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check("cuStreamBeginCapture", driver.cuStreamBeginCapture(self.stream, mode))
        for _ in range(count):
            self.spin(duration_ns)
        graph = check("cuStreamEndCapture", driver.cuStreamEndCapture(self.stream))
        return check("cuGraphInstantiate", driver.cuGraphInstantiate(graph, 0))

    def launch_graph(self, executable: Any) -> None:
        """Launch a captured graph on the stream."""
        check("cuGraphLaunch", driver.cuGraphLaunch(executable, self.stream))

    def allocate(self, size_bytes: int) -> Any:
        """Device memory."""
        return check("cuMemAlloc", driver.cuMemAlloc(size_bytes))

    def fill(self, pointer: Any, value: int) -> None:
        """Write a byte into the first MiB."""
        check("cuMemsetD8", driver.cuMemsetD8(pointer, value, 1 << 20))

    def sample(self, pointer: Any) -> int:
        """The byte that is in all of the first MiB; -1 where there are several."""
        room = bytearray(1 << 20)
        check("cuMemcpyDtoH", driver.cuMemcpyDtoH(room, pointer, len(room)))
        return room[0] if room.count(room[0]) == len(room) else -1

    def free(self, pointer: Any) -> None:
        """Give device memory back."""
        check("cuMemFree", driver.cuMemFree(pointer))
