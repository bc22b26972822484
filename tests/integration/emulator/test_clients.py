"""Unmodified clients find a GPU that allocates, copies, keeps time and captures."""

import pytest

NOT_READY = 600


@pytest.mark.real_time
def test_events_measure_the_kernels_between_them(clients):
    """The ends of a hundred kernels of 1 ms lie 100 ms apart on the GPU's clock.

    All of them are queued behind a kernel, so that the GPU does not wait for a program that a busy machine interrupts.
    """
    ms = clients().run("""
open_gpu()
k = Spinner()
first, last = ck(d.cuEventCreate(0)), ck(d.cuEventCreate(0))
k.launch(300_000_000)
ck(d.cuEventRecord(first, k.stream))
for _ in range(100): k.launch(1_000_000)
ck(d.cuEventRecord(last, k.stream))
ck(d.cuEventSynchronize(last))
answer(ck(d.cuEventElapsedTime(first, last)))
""")

    assert abs(ms - 100) < 0.5


def test_launch_is_asynchronous_and_bounded(clients):
    """A launch returns before its kernel ends; the 1025th waiting one waits for room."""
    launched, full = clients().run("""
open_gpu()
k = Spinner()
k.launch(1_000_000_000)
launched = code(d.cuStreamQuery(k.stream))
k.sync()
t = time.monotonic()
for _ in range(2000): k.launch(100_000)
full = time.monotonic() - t
k.sync()
answer([launched, full])
""")

    assert launched == NOT_READY
    assert full > 0.09


def test_legacy_stream_waits_for_blocking_streams(clients):
    """A synchronous copy on the legacy stream waits for kernels of a blocking stream only."""
    states = clients().run("""
open_gpu()
p = ck(d.cuMemAlloc(64))
states = []
for flags in (0, 1):
    k = Spinner(stream=ck(d.cuStreamCreate(flags)))
    k.launch(1_000_000_000)
    ck(d.cuMemcpyDtoH(bytearray(64), p, 64))
    states.append(code(d.cuStreamQuery(k.stream)))
    k.sync()
answer(states)
""")

    assert states == [0, NOT_READY]


def test_captured_work_runs_at_every_launch_of_its_graph(clients):
    """A fork and join captured over two streams becomes a graph that takes its kernels' time at each launch."""
    nodes, ms, first_word = clients().run("""
open_gpu()
k, side = Spinner(b"step_ms2"), Spinner(b"step_ms2")
fork, join = ck(d.cuEventCreate(2)), ck(d.cuEventCreate(2))
p = ck(d.cuMemAlloc(4096))
ck(d.cuStreamBeginCapture(k.stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
k.launch()
ck(d.cuEventRecord(fork, k.stream)); ck(d.cuStreamWaitEvent(side.stream, fork, 0))
side.launch()
ck(d.cuEventRecord(join, side.stream)); ck(d.cuStreamWaitEvent(k.stream, join, 0))
ck(d.cuMemsetD32Async(p, 7, 1024, k.stream))
graph = ck(d.cuStreamEndCapture(k.stream))
run = ck(d.cuGraphInstantiate(graph, 0))
t = time.monotonic()
for _ in range(5): ck(d.cuGraphLaunch(run, k.stream))
k.sync()
out = bytearray(4)
ck(d.cuMemcpyDtoH(out, p, 4))
answer([ck(d.cuGraphGetNodes(graph))[1], (time.monotonic() - t) * 1e3, out[0]])
""")

    assert nodes == 3
    assert ms >= 20
    assert first_word == 7


def test_unjoined_stream_fails_the_capture(clients):
    """A capture whose side stream was not joined ends with 904."""
    result = clients().run("""
open_gpu()
k, side = Spinner(), Spinner()
fork = ck(d.cuEventCreate(2))
ck(d.cuStreamBeginCapture(k.stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
ck(d.cuEventRecord(fork, k.stream)); ck(d.cuStreamWaitEvent(side.stream, fork, 0))
side.launch(1000)
answer(code(d.cuStreamEndCapture(k.stream)))
""")

    assert result == 904


def test_a_stream_frees_what_was_allocated_without_one(clients):
    """cuMemFreeAsync takes linear memory when the stream comes to it, and refuses what is not of the device's."""
    machine = clients()

    lost, codes = machine.run("""
open_gpu(); stream = ck(d.cuStreamCreate(1)); before = ck(d.cuMemGetInfo())[0]
p, managed, host = ck(d.cuMemAlloc(64 << 20)), ck(d.cuMemAllocManaged(1 << 20, 1)), ck(d.cuMemAllocHost(4096))
codes = [int(d.cuMemFreeAsync(x, stream)[0]) for x in (p, managed, host)]; ck(d.cuStreamSynchronize(stream))
answer([before - ck(d.cuMemGetInfo())[0], [*codes, int(d.cuMemFree(p)[0])]])
""")

    assert (lost, codes) == (0, [0, 0, 1, 1])


def test_a_child_graph_that_is_moved_belongs_to_its_parent(clients):
    """It runs with its parent, ends with it, and cannot be instantiated, destroyed, moved again or given memory."""
    machine = clients()

    codes, ends = machine.run("""
open_gpu(); stream = ck(d.cuStreamCreate(1)); seen = (ctypes.c_int * 1)()
count = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.__setitem__(0, seen[0] + 1))
lib = ctypes.CDLL("libcuda.so.1"); v, size = ctypes.c_void_p, ctypes.c_size_t
class Child(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("pad", ctypes.c_int * 3), ("graph", v), ("how", ctypes.c_int),
                ("rest", ctypes.c_ubyte * 256)]
def graph():
    g = v(); lib.cuGraphCreate(ctypes.byref(g), 0); return g
def move(child, parent):
    params = Child(4, (ctypes.c_int * 3)(), child, 1)
    return lib.cuGraphAddNode_v2(ctypes.byref(v()), parent, None, None, size(0), ctypes.byref(params))
parent, child, other, run = graph(), graph(), graph(), v()
host = (v * 2)(ctypes.cast(count, v), None)
lib.cuGraphAddHostNode(ctypes.byref(v()), child, None, size(0), host)
codes = [move(parent, parent), move(child, parent), move(child, other), lib.cuGraphDestroy(child),
         lib.cuGraphInstantiateWithFlags(ctypes.byref(v()), child, ctypes.c_uint64(0)), move(parent, child),
         lib.cuGraphAddMemFreeNode(ctypes.byref(v()), child, None, size(0), ctypes.c_uint64(1))]
codes.append(lib.cuGraphInstantiateWithFlags(ctypes.byref(run), parent, ctypes.c_uint64(0)))
codes.append(lib.cuGraphLaunch(run, v(int(stream)))); ck(d.cuStreamSynchronize(stream)); codes.append(seen[0])
nodes = ctypes.c_size_t(); alive = lib.cuGraphGetNodes(child, None, ctypes.byref(nodes))
ended = lib.cuGraphDestroy(parent); gone = lib.cuGraphGetNodes(child, None, ctypes.byref(nodes))
answer([codes, [alive, ended, gone, lib.cuGraphDestroy(other)]])
""")

    assert (codes, ends) == ([1, 0, 1, 1, 1, 1, 1, 0, 0, 1], [0, 0, 1, 0])


def test_forked_child_cannot_use_the_driver(clients):
    """After fork the child gets CUDA_ERROR_NOT_INITIALIZED from every call, as with the real driver."""
    result = clients().run("""
open_gpu()
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, bytes([code(d.cuCtxGetDevice()), code(d.cuInit(0))]))
    os._exit(0)
answer(list(os.read(read, 2)))
""")

    assert result == [3, 3]


def test_numba_compiles_and_runs_a_kernel(clients):
    """numba-cuda compiles a kernel for the emulated GPU, launches it and copies arrays back."""
    ok = clients().run("""
import numpy as np
from numba import cuda
@cuda.jit
def inc(a):
    i = cuda.grid(1)
    if i < a.size: a[i] += 1
host = np.arange(1000, dtype=np.float32)
there = cuda.to_device(host)
inc[64, 128](there)
cuda.synchronize()
answer(bool((there.copy_to_host() == host).all()))  # a kernel computes nothing here
""")

    assert ok


def test_cuda_core_compiles_and_launches(clients):
    """cuda-core compiles with NVRTC, allocates from its pool, launches and synchronises."""
    name = clients().run("""
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
device = Device(0)
device.set_current()
stream = device.create_stream()
buffer = device.memory_resource.allocate(1024, stream=stream)
source = 'extern "C" __global__ void k(int *a) { a[0] = 1; }'
kernel = Program(source, "c++", options=ProgramOptions(arch="sm_80")).compile("cubin").get_kernel("k")
launch(stream, LaunchConfig(grid=1, block=32), kernel, buffer)
stream.sync()
answer(device.name)
""")

    assert name == "NVIDIA A100-SXM4-40GB"


def test_host_function_runs_in_stream_order(clients):
    """A host function runs after the kernel before it and before the stream is done."""
    ran_after, done_after = clients().run("""
open_gpu()
k = Spinner()
seen = []
fn = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.append(time.monotonic()))
t = time.monotonic()
k.launch(20_000_000)
ck(d.cuLaunchHostFunc(k.stream, d.CUhostFn(ctypes.cast(fn, ctypes.c_void_p).value), 0))
k.sync()
answer([seen[0] - t, time.monotonic() - t])
""")

    assert ran_after >= 0.02
    assert [ran_after, done_after] == sorted([ran_after, done_after])


def test_host_functions_run_while_other_threads_ask_for_their_stream(clients):
    """Kernels and host functions in turn all run, each once, however often the stream is asked meanwhile."""
    ran = clients().run("""
open_gpu()
k = Spinner()
ran = []
fn = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: ran.append(1) or time.sleep(0.001))
call = d.CUhostFn(ctypes.cast(fn, ctypes.c_void_p).value)
for _ in range(50):
    k.launch(20_000)
    ck(d.cuLaunchHostFunc(k.stream, call, 0))
while d.cuStreamQuery(k.stream)[0] == d.CUresult.CUDA_ERROR_NOT_READY:
    pass
k.sync()
answer(len(ran))
""")

    assert 50 == ran
