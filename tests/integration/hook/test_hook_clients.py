"""Unmodified clients under the hook."""

import os
import time

import pytest

from aliquot.arbiter.abi import MessageType

NUMBA = """
import numpy
from numba import cuda as nb
@nb.jit
def add(a): a[nb.threadIdx.x] += 1
array = nb.to_device(numpy.zeros(32, numpy.float32))
add[1, 32](array); nb.synchronize()
say(done=True)
"""
BINDINGS = """
from cuda.bindings import driver as d
d.cuInit(0); context = d.cuDevicePrimaryCtxRetain(0)[1]; d.cuCtxSetCurrent(context)
module = d.cuModuleLoadData(PTX)[1]; spin = d.cuModuleGetFunction(module, b"spin_ns")[1]
result = d.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, ((1000,), (ctypes.c_uint64,)), 0)[0]
d.cuCtxSynchronize()
say(done=int(result) == 0)
"""
TWO_STREAMS = """
import threading
cuda = Cuda(); spin = cuda.spin(); wrong = []
def work():
    cuda.lib.cuCtxSetCurrent(cuda.ctx)
    streams = [ctypes.c_void_p() for _ in range(2)]
    for s in streams: cuda.lib.cuStreamCreate(ctypes.byref(s), 1)
    for i in range(300):
        wrong.append(cuda.launch(spin, 20_000, streams[i % 2]))
        if i % 50 == 0: wrong.append(cuda.lib.cuStreamSynchronize(streams[0]))
    for s in streams: wrong.append(cuda.lib.cuStreamDestroy_v2(s))
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
cuda.sync(); stats = cuda.stats()
say(wrong=sum(map(bool, wrong)), launches=stats["launches"], bounded=stats["bounded"])
wait_line()
"""


def test_every_thread_is_bound_to_the_cores_asked_for(tenant):
    """Threads made before the first use of the GPU and after it run on the tenant's cores and no other."""
    allowed = sorted(os.sched_getaffinity(0))
    scene = tenant(cpus=f"{allowed[-1]}")
    program = scene.run(
        """
        import threading
        seen = {}; go = threading.Event()
        def look(name): seen[name] = sorted(os.sched_getaffinity(0))
        before = threading.Thread(target=lambda: (go.wait(), look("before"))); before.start()
        unbound = sorted(os.sched_getaffinity(0)); cuda = Cuda(); go.set(); before.join(); look("main")
        after = threading.Thread(target=look, args=("after",)); after.start(); after.join()
        say(unbound=unbound, **seen)
        """
    )
    bound = [allowed[-1]]

    assert program.read() == {"unbound": allowed, "before": bound, "main": bound, "after": bound}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPU cores")
def test_cores_that_the_program_was_not_given_are_replaced(tenant):
    """A container with CPUs of its own keeps to them, and has as many cores as were asked for."""
    first, *_, last = sorted(os.sched_getaffinity(0))
    absent = max(os.sched_getaffinity(0)) + 1
    scene = tenant(cpus=f"{last},{absent}")
    program = scene.run(
        f"""
        os.sched_setaffinity(0, {{{first}, {last}}})
        cuda = Cuda(); both = sorted(os.sched_getaffinity(0))
        say(both=both)
        """
    )
    assert {"both": [first, last]} == program.read()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPU cores")
def test_a_program_is_never_moved_to_anothers_cores(tenant):
    """Where kubelet gave other CPUs than the plan names, the program stays on kubelet's."""
    first, *_, last = sorted(os.sched_getaffinity(0))
    program = tenant(cpus=f"{last}").run(
        f"""
        os.sched_setaffinity(0, {{{first}}})
        cuda = Cuda()
        say(cores=sorted(os.sched_getaffinity(0)))
        """
    )
    assert {"cores": [first]} == program.read()


@pytest.mark.parametrize("mode", ["library-path", "preload"])
@pytest.mark.parametrize("code", [BINDINGS, NUMBA], ids=["cuda-bindings", "numba-cuda"])
def test_clients_run_unmodified_and_are_gated(tenant, code, mode):
    """cuda-bindings and numba-cuda launch only after a grant, in both ways in."""
    pytest.importorskip("numba.cuda" if code is NUMBA else "cuda.bindings")
    scene = tenant(memory_mib=2048, spec="a100")
    program = scene.run(code, mode=mode)
    asked = scene.arbiter.wait_for(MessageType.WANT, timeout_s=25)
    time.sleep(0.1)
    scene.arbiter.grant()

    assert program.read() == {"done": True}
    assert asked.type == MessageType.WANT


def test_threads_and_streams_under_a_token_that_comes_and_goes(tenant):
    """Grants that come and go under four threads with two streams each lose no launch and bound what is in flight."""
    scene = tenant(memory_mib=2048)
    program = scene.run(TWO_STREAMS)
    scene.arbiter.wait_for(MessageType.WANT, timeout_s=15)
    scene.arbiter.crowd()
    for _ in range(20):
        scene.arbiter.grant()
        time.sleep(0.01)
        heard = len(scene.arbiter.heard)
        scene.arbiter.revoke()
        scene.arbiter.wait_for(MessageType.DRAINED, since=heard)
    scene.arbiter.grant()
    scene.arbiter.auto_grant = True

    facts = program.read()

    assert (facts["wrong"], facts["launches"]) == (0, 1200)
    assert facts["bounded"] > 0
