"""Calls of the CUDA driver, one a line: what tests of the hook and of the emulated driver are made of.

As a program (`python -m kit.driver_calls`, with tests/ in PYTHONPATH) it reads an operation a line as JSON on stdin,
such as `{"do": "allocate", "with": ["linear", 4096]}`, and answers each with a line on stdout. The operations are the
methods of `Driver`; most tests use `call`, by way of a `DriverProcess`, whose calls are made in a process of its own,
so that a test is ordinary Python. The program needs the standard library alone and runs over any libcuda.so.1 that its
loader finds: the hook, the emulated driver, or NVIDIA's.

Each call is made with 64-bit words, which is what the x86-64 ABI has in its registers and on its stack for every
integer, pointer and handle. Arguments are numbers and, passed as the address of a copy, bytes, `Out` and `Array`.
"""

from __future__ import annotations

import abc
import ctypes
import json
import os
import queue
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

MIB = 1 << 20
PAGE = 2 * MIB
PTX = (
    b".version 7.0\n.target sm_70\n.address_size 64\n"
    b".visible .entry spin_ns(.param .u64 ns) { ret; }\n.visible .entry step_ms2() { ret; }\n"
    b".visible .global .u32 words[4];\n\0"
)
INVALID_VALUE, OUT_OF_MEMORY, NOT_READY = 1, 2, 600
PINNED, ON_DEVICE, AS_DESCRIPTOR = 1, 1, 1
FLOAT = 0x20
MEMORY_NODE, GRAPH_NODE, MOVE_CHILD = 10, 4, 1
COUNTERS = (
    *("size", "mode", "launches", "waits", "passes", "unknown_names", "mapped_symbols", "names", "wants", "returns"),
    *("drains", "reconnects", "reserved_bytes", "leased_bytes", "unused_bytes", "ledger_entries", "denied", "bounded"),
    *("captures", "disagreed", "events", "fenced", "unbalanced"),
)


class Out(NamedTuple):
    """A place for an answer: so many zero bytes, or these bytes. Up to eight bytes come back as a number."""

    size: int = 8
    start: bytes = b""


class Array(NamedTuple):
    """The address of an array of words, each of them a number or the address of bytes."""

    words: tuple[int | bytes, ...]


Argument = int | bytes | str | Out | Array | None


class Answer(NamedTuple):
    """What a call returned, and what it left in its `Out` places."""

    code: int
    values: tuple[Any, ...] = ()

    @property
    def value(self) -> Any:
        """What the first place holds."""
        return self.values[0]


class DriverError(AssertionError):
    """A call that had to succeed did not."""


class Driver(abc.ABC):
    """Operations on the driver; `call` is how one call is made."""

    def __init__(self) -> None:
        self.stream = 0
        self.context = 0
        self.pool = 0

    @abc.abstractmethod
    def call(self, name: str, *arguments: Argument) -> Answer:
        """Call a function of the driver."""

    def code(self, name: str, *arguments: Argument) -> int:
        """The result alone."""
        return self.call(name, *arguments).code

    def new(self, name: str, *arguments: Argument) -> int:
        """What a function that must succeed puts into its first argument."""
        answer = self.call(name, Out(), *arguments)
        if answer.code:
            raise DriverError(f"{name}{arguments}: {answer.code}")
        return int(answer.value)

    def ok(self, name: str, *arguments: Argument) -> None:
        """Call a function that must succeed."""
        if code := self.code(name, *arguments):
            raise DriverError(f"{name}{arguments}: {code}")

    def open(self, device: int = 0) -> int:
        """Make the device's primary context current, with a stream of its own; the result of the retain."""
        self.ok("cuInit", 0)
        retained = self.call("cuDevicePrimaryCtxRetain", Out(), device)
        self.context = int(retained.value)
        self.call("cuCtxSetCurrent", self.context)
        if not retained.code:
            self.stream = self.new("cuStreamCreate", 1)
        return retained.code

    def sync(self) -> int:
        """Wait for the stream of `open`."""
        return self.code("cuStreamSynchronize", self.stream)

    def function(self, name: str = "spin_ns") -> int:
        """A kernel of a fresh module."""
        return self.new("cuModuleGetFunction", self.new("cuModuleLoadData", PTX), name)

    def launch(self, function: int, ns: int = 0, stream: int = 0, name: str = "cuLaunchKernel") -> int:
        """Launch a kernel of one thread that takes so long; the result."""
        return self.code(name, function, 1, 1, 1, 1, 1, 1, 0, stream, Array((struct.pack("Q", ns),)), 0)

    def counters(self) -> dict[str, int]:
        """The hook's own counters."""
        words = struct.pack("Q", 8 * len(COUNTERS)).ljust(8 * len(COUNTERS), b"\0")
        values = struct.unpack(f"{len(COUNTERS)}Q", self.call("aliquot_stats", Out(start=words)).value)
        return dict(zip(COUNTERS, values, strict=True))

    def charged(self) -> int:
        """Bytes that the hook has charged for this process's memory, without contexts."""
        return self.counters()["reserved_bytes"]

    def settle(self) -> int:
        """Wait for the stream of `open`, and have the hook look at what has been freed; bytes charged then."""
        self.ok("cuStreamSynchronize", self.stream)
        self.memory_info()
        return self.charged()

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes, by the driver."""
        free, total = self.call("cuMemGetInfo_v2", Out(), Out()).values
        return free, total

    def allocate(self, kind: str, size: int) -> Answer:
        """Allocate memory by one of the ways in `WAYS`; its value is what `free` takes."""
        return WAYS[kind].allocate(self, size)

    def free(self, kind: str, handle: int) -> int:
        """Free what `allocate` gave, and wait until it is free."""
        release = WAYS[kind].release
        code = self.code(release, handle, *([self.stream] if release.endswith("Async") else []))
        self.settle()
        return code

    def new_pool(self, *, handles: int = 0, device: int = 0) -> int:
        """A pool of a device's memory."""
        return self.new("cuMemPoolCreate", pool_properties(handles=handles, device=device))

    def take(self, pool: int, size: int) -> Answer:
        return self.call("cuMemAllocFromPoolAsync", Out(), size, pool, self.stream)

    def free_async(self, pointer: int) -> int:
        """Free when the stream comes to it."""
        return self.code("cuMemFreeAsync", pointer, self.stream)

    def create(self, size: int, *, handles: int = 0, device: int = 0) -> Answer:
        """Physical memory."""
        return self.call("cuMemCreate", Out(), size, memory_properties(handles=handles, device=device), 0)

    def export(self, handle: int) -> int:
        """A descriptor of physical memory."""
        answer = self.call("cuMemExportToShareableHandle", Out(4), handle, AS_DESCRIPTOR, 0)
        assert answer.code == 0
        return int(answer.value)

    def graph(self, size: int, *, frees: bool = False, flags: int = 0, captured: bool = False) -> Graph:
        """A graph that allocates memory, made node by node or captured, and where possible its executable."""
        graph, pointer, code = 0, 0, 0
        if captured:
            self.ok("cuStreamBeginCapture_v2", self.stream, 2)
            code, (pointer,) = self.call("cuMemAllocAsync", Out(), size, self.stream)
            if frees and not code:
                self.ok("cuMemFreeAsync", pointer, self.stream)
            graph = self.call("cuStreamEndCapture", self.stream, Out()).value
        else:
            graph = self.new("cuGraphCreate", 0)
            code, (node, filled) = self.call(
                "cuGraphAddMemAllocNode", Out(), graph, None, 0, Out(start=allocation_node(size))
            )
            pointer = struct.unpack("Q", filled[-8:])[0]
            if frees and not code:
                self.new("cuGraphAddMemFreeNode", graph, struct.pack("Q", node), 1, pointer)
        run = 0 if code else self.new("cuGraphInstantiateWithFlags", graph, flags)
        return Graph(self, code, graph, run, pointer)

    @abc.abstractmethod
    def host_bytes(self, size: int) -> int:
        """The address of zero bytes of the process's own, which stay."""

    @abc.abstractmethod
    def long(self, name: str, *arguments: Argument) -> int:
        """What a function returns that answers with a word, such as one of libc's."""

    @abc.abstractmethod
    def read(self, address: int, size: int) -> bytes:
        """Bytes of the process's own memory."""

    @abc.abstractmethod
    def write(self, address: int, data: bytes) -> None:
        """Change bytes of the process's own memory."""


@dataclass
class Graph:
    """A graph with memory: what adding the memory answered, its handles, and the memory's address."""

    driver: Driver
    code: int
    handle: int
    executable: int
    pointer: int

    def launch(self) -> int:
        """Into the stream of `open`."""
        return self.driver.code("cuGraphLaunch", self.executable, self.driver.stream)

    def destroy(self) -> list[int]:
        """The results of destroying executable and graph."""
        ended = self.driver.code("cuGraphExecDestroy", self.executable) if self.executable else 0
        return [ended, self.driver.code("cuGraphDestroy", self.handle)]


def memory_properties(*, kind: int = PINNED, handles: int = 0, where: int = ON_DEVICE, device: int = 0) -> bytes:
    """CUmemAllocationProp."""
    return struct.pack("4iQ8x", kind, handles, where, device, 0)


def pool_properties(*, kind: int = PINNED, handles: int = 0, device: int = 0) -> bytes:
    """CUmemPoolProps."""
    return struct.pack("4iQQ56x", kind, handles, ON_DEVICE, device, 0, 0)


def allocation_node(size: int, *, kind: int = PINNED, handles: int = 0) -> bytes:
    """CUDA_MEM_ALLOC_NODE_PARAMS; the driver puts the address into its last word."""
    return pool_properties(kind=kind, handles=handles) + struct.pack("4Q", 0, 0, size, 0)


def node_parameters(size: int) -> bytes:
    """CUgraphNodeParams for memory."""
    return struct.pack("4i", MEMORY_NODE, 0, 0, 0) + allocation_node(size) + bytes(256)


def child_parameters(graph: int) -> bytes:
    """CUgraphNodeParams for a graph that moves into its parent."""
    return struct.pack("4iQi256x", GRAPH_NODE, 0, 0, 0, graph, MOVE_CHILD)


def array_shape(width: int, height: int, form: int = FLOAT, channels: int = 1) -> bytes:
    """CUDA_ARRAY_DESCRIPTOR."""
    return struct.pack("QQiI", width, height, form, channels)


def array3d_shape(width: int, height: int, depth: int, flags: int = 0) -> bytes:
    """CUDA_ARRAY3D_DESCRIPTOR of floats."""
    return struct.pack("QQQiII4x", width, height, depth, FLOAT, 1, flags)


class Way(NamedTuple):
    """How memory is allocated, and the function that frees it."""

    allocate: Callable[[Driver, int], Answer]
    release: str


def _in_new_graph(driver: Driver, function: str, parameters: bytes) -> Answer:
    """The graph is what is freed."""
    graph = driver.new("cuGraphCreate", 0)
    return Answer(driver.code(function, Out(), graph, None, 0, Out(start=parameters)), (graph,))


def _from_pool(driver: Driver, size: int) -> Answer:
    driver.pool = driver.pool or driver.new_pool()
    return driver.take(driver.pool, size)


def _way(release: str, function: str, arguments: Callable[[Driver, int], tuple[Argument, ...]]) -> Way:
    return Way(lambda driver, size: driver.call(function, Out(), *arguments(driver, size)), release)


WAYS = {
    "linear": _way("cuMemFree_v2", "cuMemAlloc_v2", lambda d, n: (n,)),
    "managed": _way("cuMemFree_v2", "cuMemAllocManaged", lambda d, n: (n, 1)),
    "pitch": _way("cuMemFree_v2", "cuMemAllocPitch_v2", lambda d, n: (Out(), MIB, n // MIB, 4)),
    "async": _way("cuMemFreeAsync", "cuMemAllocAsync", lambda d, n: (n, d.stream)),
    "async_ptsz": _way("cuMemFreeAsync", "cuMemAllocAsync_ptsz", lambda d, n: (n, d.stream)),
    "pool": Way(_from_pool, "cuMemFreeAsync"),
    "physical": Way(lambda driver, size: driver.create(size), "cuMemRelease"),
    "array": _way("cuArrayDestroy", "cuArrayCreate_v2", lambda d, n: (array_shape(1 << 18, n // MIB),)),
    "array3d": _way("cuArrayDestroy", "cuArray3DCreate_v2", lambda d, n: (array3d_shape(1 << 18, n // MIB, 0),)),
    "mipmap": _way(
        "cuMipmappedArrayDestroy", "cuMipmappedArrayCreate", lambda d, n: (array3d_shape(1 << 18, n // MIB, 0), 1)
    ),
    "graph": Way(lambda d, n: _in_new_graph(d, "cuGraphAddMemAllocNode", allocation_node(n)), "cuGraphDestroy"),
    "graph_node": Way(lambda d, n: _in_new_graph(d, "cuGraphAddNode", node_parameters(n)), "cuGraphDestroy"),
    "linear_v1": _way("cuMemFree", "cuMemAlloc", lambda d, n: (n,)),
    "pitch_v1": _way("cuMemFree", "cuMemAllocPitch", lambda d, n: (Out(), MIB, n // MIB, 4)),
    "array_v1": _way(
        "cuArrayDestroy", "cuArrayCreate", lambda d, n: (struct.pack("IIiI", 1 << 18, n // MIB, FLOAT, 1),)
    ),
    "array3d_v1": _way(
        "cuArrayDestroy", "cuArray3DCreate", lambda d, n: (struct.pack("IIIiII", 1 << 18, n // MIB, 0, FLOAT, 1, 0),)
    ),
}


class OwnDriver(Driver):
    """Calls made by this very process."""

    def __init__(self) -> None:
        super().__init__()
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._nvml: ctypes.CDLL | None = None
        self._host: dict[int, Any] = {}

    def call(self, name: str, *arguments: Argument) -> Answer:
        places: list[Any] = []
        kept: list[Any] = []
        words = [self._word(argument, places, kept) for argument in arguments]
        code = self._function(name)(*words)
        return Answer(code, tuple(_value(place) for place in places))

    def host_bytes(self, size: int) -> int:
        data = ctypes.create_string_buffer(size)
        self._host[ctypes.addressof(data)] = data
        return ctypes.addressof(data)

    def long(self, name: str, *arguments: Argument) -> int:
        function, kept = ctypes.CDLL(None)[name], list[Any]()
        function.restype = ctypes.c_uint64
        return int(function(*(self._word(argument, [], kept) for argument in arguments)))

    def read(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def has(self, name: str) -> bool:
        """Whether the driver, or the hook in its place, has a function."""
        return hasattr(self._cuda, name)

    def posix(self, name: str, *arguments: Any) -> Any:
        """A function of `os`."""
        return getattr(os, name)(*arguments)

    def repeat(self, times: int, name: str, *arguments: Argument) -> list[int]:
        """The different results of so many calls."""
        return sorted({self.code(name, *arguments) for _ in range(times)})

    def repeat_export(self, times: int, size: int) -> None:
        """Make physical memory so often, export it, close that and release it."""
        for _ in range(times):
            handle = self.create(size, handles=AS_DESCRIPTOR).value
            os.close(self.export(handle))
            self.ok("cuMemRelease", handle)

    def make_and_destroy(self, times: int) -> None:
        """A context with a module, a kernel, streams and events, so often."""
        for _ in range(times):
            context = self.new("cuCtxCreate_v2", 0, 0)
            stream = self.new("cuStreamCreate", 1)
            self.launch(self.function(), 1000, stream)
            for _ in range(20):
                event = self.new("cuEventCreate", 2)
                self.ok("cuEventRecord", event, stream)
                self.ok("cuEventDestroy_v2", event)
            self.ok("cuStreamDestroy_v2", self.new("cuStreamCreate", 0))
            self.ok("cuCtxDestroy_v2", context)

    def resident_kib(self) -> int:
        """Memory of the process itself."""
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4

    def cost_ns(self, rounds: int, times: int, name: str, *arguments: int) -> float:
        """What a call of so many in a row takes, in the best of several rounds."""
        function, words = self._function(name), [ctypes.c_uint64(argument) for argument in arguments]
        took = []
        for _ in range(rounds):
            began = time.perf_counter_ns()
            for _ in range(times):
                function(*words)
            took.append((time.perf_counter_ns() - began) / times)
        return min(took)

    def forked(self, name: str, *arguments: Argument) -> int:
        """What a call answers in a child that this process forks for it."""
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, struct.pack("i", self.code(name, *arguments)))
            os._exit(0)
        return int(struct.unpack("i", os.read(read, 4))[0])

    def _function(self, name: str) -> Any:
        if name.startswith("0x"):  # one without a name, by its address
            return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 3)(int(name, 16))
        if name.startswith("nvml"):
            self._nvml = self._nvml or ctypes.CDLL("libnvidia-ml.so.1")
            return getattr(self._nvml, name)
        return getattr(self._cuda if hasattr(self._cuda, name) else ctypes.CDLL(None), name)

    def _word(self, argument: Argument, places: list[Any], kept: list[Any]) -> Any:
        if argument is None or isinstance(argument, int):
            return ctypes.c_uint64(int(argument or 0) & (1 << 64) - 1)
        if isinstance(argument, Array):
            words = (ctypes.c_uint64 * len(argument.words))()
            for i, word in enumerate(argument.words):
                words[i] = self._word(word, places, kept).value
            data: Any = words
        elif isinstance(argument, Out):
            data = ctypes.create_string_buffer(
                argument.start or bytes(argument.size), len(argument.start) or argument.size
            )
            places.append(data)
        else:
            text = argument.encode() + b"\0" if isinstance(argument, str) else argument
            data = ctypes.create_string_buffer(text, len(text))
        kept.append(data)
        return ctypes.c_uint64(ctypes.addressof(data))


def _value(place: Any) -> int | bytes:
    return int.from_bytes(place.raw, sys.byteorder) if len(place) <= 8 else bytes(place.raw)


def to_json(value: Any) -> Any:
    match value:
        case Out():
            return {"out": value.start.hex() if value.start else value.size}
        case Array():
            return {"array": [to_json(word) for word in value.words]}
        case bytes():
            return {"bytes": value.hex()}
        case tuple() | list():
            return [to_json(each) for each in value]
        case _:
            return value


def from_json(value: Any) -> Any:
    match value:
        case {"out": int(size)}:
            return Out(size)
        case {"out": str(start)}:
            return Out(start=bytes.fromhex(start))
        case {"array": words}:
            return Array(tuple(from_json(word) for word in words))
        case {"bytes": text}:
            return bytes.fromhex(text)
        case list():
            return [from_json(each) for each in value]
        case _:
            return value


def main() -> None:
    """Answer one operation a line."""
    driver, threads, writing = OwnDriver(), dict[str, queue.SimpleQueue[Any]](), threading.Lock()

    def perform(line: Any) -> None:
        try:
            arguments = [from_json(each) for each in line.get("with", [])]
            said = {"answer": to_json(getattr(driver, line["do"])(*arguments))}
        except Exception as error:
            said = {"error": repr(error)}
        with writing:
            print(json.dumps({"id": line.get("id", 0), **said}), flush=True)

    def serve(lines: queue.SimpleQueue[Any]) -> None:
        while (line := lines.get()) is not None:
            perform(line)

    def read() -> None:
        for text in sys.stdin:
            line = json.loads(text)
            name = line.get("on", "")
            if name not in threads:
                threads[name] = queue.SimpleQueue()
                threading.Thread(target=serve, args=(threads[name],), daemon=True).start()
            threads[name].put(line)
        threads[""].put(None)

    threads[""] = queue.SimpleQueue()
    threading.Thread(target=read, daemon=True).start()
    serve(threads[""])


if __name__ == "__main__":
    main()
