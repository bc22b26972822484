"""The gate: who has no token waits, who lost it stops, who is idle gives it back."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.arbiter.abi import FailPolicy, MessageType

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 17, 0x4206, 0x4207, 0x40000000

LAUNCH_TWICE = """
cuda = Cuda(); spin = cuda.spin(); say(ready=True)
t = time.monotonic_ns(); result = cuda.launch(spin, 1_000_000); say(result=result, waited_ns=time.monotonic_ns() - t)
wait_line()
t = time.monotonic_ns(); result = cuda.launch(spin, 1_000_000); say(result=result, waited_ns=time.monotonic_ns() - t)
say(**cuda.stats())
"""


@pytest.mark.parametrize("mode", ["library-path", "preload"])
def test_a_launch_waits_for_the_grant(tenant, mode):
    """Without a token a launch sleeps until the arbiter grants one."""
    scene = tenant()
    program = scene.run(LAUNCH_TWICE, mode=mode)
    program.read()
    scene.arbiter.wait_for(MessageType.WANT)

    time.sleep(0.1)
    scene.arbiter.grant()

    first = program.read()
    assert first["result"] == 0
    assert first["waited_ns"] > 90_000_000


def test_revocation_stops_the_next_launch_and_is_answered(tenant):
    """After a revocation the work in flight is waited for, DRAINED is sent, and the next launch waits."""
    scene = tenant(gap_us=1_000_000)
    program = scene.run(LAUNCH_TWICE.replace("1_000_000)", "50_000_000)", 1))
    program.read()
    scene.arbiter.wait_for(MessageType.WANT)
    epoch = scene.arbiter.grant()
    assert program.read()["result"] == 0

    revoked_ns = time.monotonic_ns()
    scene.arbiter.revoke()
    drained = scene.arbiter.wait_for(MessageType.DRAINED)
    before = len(scene.arbiter.heard)
    program.go()
    scene.arbiter.wait_for(MessageType.WANT, since=before)
    time.sleep(0.1)
    scene.arbiter.grant()

    assert drained.a == epoch
    assert drained.at_ns - revoked_ns > 20_000_000
    assert program.read()["waited_ns"] > 90_000_000


def sleeping_helper(pid: int) -> int:
    """The thread that the hook started, once it sleeps on the page (FUTEX_WAIT_BITSET) and so holds no lock."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for task in Path(f"/proc/{pid}/task").iterdir():
            call = (task / "syscall").read_text().split()
            sleeps = len(call) > 2 and (call[0], call[2]) == ("202", "0x9")
            if sleeps and (task / "comm").read_text() != "emulated-gpu\n":
                return int(task.name)
        time.sleep(0.001)
    raise TimeoutError("the helper does not sleep")


@contextlib.contextmanager
def without_its_helper(pid: int) -> Iterator[None]:
    """The thread that the hook started does not run: it is stopped by a debugger, and no other is."""
    libc = ctypes.CDLL(None, use_errno=True)
    helper = sleeping_helper(pid)
    if libc.ptrace(PTRACE_SEIZE, helper, None, None) != 0:
        pytest.skip(f"ptrace: {os.strerror(ctypes.get_errno())}")
    libc.ptrace(PTRACE_INTERRUPT, helper, None, None)
    os.waitpid(helper, WALL)
    yield
    libc.ptrace(PTRACE_DETACH, helper, None, None)


def test_a_thread_that_is_stopped_at_the_gate_says_itself_that_the_work_has_ended(tenant):
    """A program that waits for its work is not asked: where its next launch is stopped, DRAINED is sent at once."""
    scene = tenant(gap_us=1_000_000)
    program = scene.run(LAUNCH_TWICE.replace("wait_line()", "cuda.sync(); wait_line()", 1))
    program.read()
    scene.arbiter.wait_for(MessageType.WANT)
    epoch = scene.arbiter.grant()
    program.read()
    with without_its_helper(program.process.pid):
        scene.arbiter.revoke()
        program.go()
        drained = scene.arbiter.wait_for(MessageType.DRAINED)
    scene.arbiter.grant()

    assert drained.a == epoch
    assert program.read()["result"] == 0
    assert program.read()["drains"] == 1


def test_a_thread_that_is_stopped_at_the_gate_says_nothing_of_work_that_runs(tenant):
    """Where a launch is stopped behind a kernel of its program, no thread says DRAINED before that has ended."""
    scene = tenant(gap_us=1_000_000)
    program = scene.run(LAUNCH_TWICE.replace("1_000_000)", "300_000_000)", 1))
    program.read()
    scene.arbiter.wait_for(MessageType.WANT)
    scene.arbiter.grant()
    program.read()
    launched_ns = time.monotonic_ns()
    heard = len(scene.arbiter.heard)
    scene.arbiter.revoke()
    program.go()

    scene.arbiter.wait_for(MessageType.WANT, since=heard)

    assert scene.arbiter.wait_for(MessageType.DRAINED).at_ns - launched_ns > 250_000_000


def test_an_idle_holder_returns_the_token(tenant):
    """A program whose work has ended for longer than the burst gap gives the token back by itself."""
    scene = tenant(auto_grant=True)
    program = scene.run("cuda = Cuda(); spin = cuda.spin(); cuda.launch(spin, 1000); cuda.sync(); say(); wait_line()")
    program.read()

    returned = scene.arbiter.wait_for(MessageType.RETURN)

    assert returned.a == scene.arbiter.epoch


def test_a_running_kernel_is_not_idle(tenant):
    """The token is kept while a kernel runs, however quiet the program is."""
    scene = tenant(auto_grant=True)
    program = scene.run(
        "cuda = Cuda(); spin = cuda.spin(); cuda.launch(spin, 300_000_000)\nsay(at=time.monotonic_ns()); wait_line()"
    )
    launched_ns = program.read()["at"]

    assert scene.arbiter.wait_for(MessageType.RETURN).at_ns - launched_ns > 290_000_000


def test_after_a_return_the_next_launch_asks_again(tenant):
    """A returned token is not used again: the next launch asks and waits for a new grant."""
    scene = tenant(auto_grant=True)
    program = scene.run(LAUNCH_TWICE)
    program.read()
    program.read()
    scene.arbiter.wait_for(MessageType.RETURN)

    program.go()

    assert program.read()["result"] == 0
    assert scene.arbiter.epoch == 2


def test_threads_share_one_request(tenant):
    """Many threads that wait ask once, and all go with the same grant."""
    scene = tenant()
    program = scene.run(
        """
        import threading
        cuda = Cuda(); spin = cuda.spin(); results = []
        def work():
            cuda.lib.cuCtxSetCurrent(cuda.ctx); results.append(cuda.launch(spin, 1000))
        threads = [threading.Thread(target=work) for _ in range(8)]
        [t.start() for t in threads]; [t.join() for t in threads]
        say(results=results, **cuda.stats())
        """
    )
    scene.arbiter.wait_for(MessageType.WANT)
    time.sleep(0.2)
    scene.arbiter.grant()

    facts = program.read()

    assert facts["results"] == [0] * 8
    assert facts["launches"] == 8
    assert scene.arbiter.count(MessageType.WANT) == 1


def stop_asleep_at_the_gate(pid: int) -> None:
    """Stops the program once its main thread sleeps on the page: what it has not said by then is not said later."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        call = Path(f"/proc/{pid}/syscall").read_text().split()
        if len(call) > 3 and (call[0], call[2]) == ("202", "0x0"):
            os.kill(pid, signal.SIGSTOP)
            return
        time.sleep(0.001)
    raise TimeoutError("the program does not sleep at the gate")


def let_in_by_a_renewal(scene, program) -> None:
    """The program asks behind its deadline and goes on when that has moved."""
    scene.arbiter.wait_for(MessageType.WANT)
    heard = len(scene.arbiter.heard)
    scene.arbiter.grant(for_s=1e-9)
    scene.arbiter.wait_for(MessageType.WANT, since=heard)
    scene.arbiter.pages[0].renew(time.monotonic_ns() + 60_000_000_000)
    program.read()


def let_in_by_a_sister(scene, program) -> None:
    """The program has returned the token, which another process of the tenant holds on, and asks for it again."""
    scene.arbiter.wait_for(MessageType.WANT)
    scene.arbiter.grant()
    program.read()
    scene.arbiter.wait_for(MessageType.RETURN)
    program.go()
    program.read()


@pytest.mark.parametrize("let_in", [let_in_by_a_renewal, let_in_by_a_sister])
def test_a_thread_that_sleeps_at_the_gate_has_asked(tenant, let_in):
    """A thread asks at each gate that stops it, also where it went on before without a grant for what it had asked."""
    scene = tenant()
    program = scene.run(
        "cuda = Cuda(); spin = cuda.spin()\nfor _ in range(3): say(result=cuda.launch(spin, 1000)); wait_line()"
    )
    let_in(scene, program)
    scene.arbiter.revoke()
    heard = len(scene.arbiter.heard)
    program.go()
    stop_asleep_at_the_gate(program.process.pid)

    assert scene.arbiter.wait_for(MessageType.WANT, since=heard)

    os.kill(program.process.pid, signal.SIGCONT)
    scene.arbiter.grant()
    assert program.read() == {"result": 0}


@pytest.mark.parametrize(
    ("policy", "goes"), [(FailPolicy.PACE, True), (FailPolicy.OPEN, True), (FailPolicy.CLOSED, False)]
)
def test_without_an_arbiter_the_policy_decides(tenant, policy, goes):
    """When the arbiter is gone and the grant over, pace and open launch and closed waits."""
    scene = tenant(fail_policy=policy)
    program = scene.run(LAUNCH_TWICE)
    program.read()
    scene.arbiter.wait_for(MessageType.WANT)
    scene.arbiter.grant(for_s=0.2)
    program.read()
    scene.arbiter.stop()
    time.sleep(0.4)

    program.go()

    if goes:
        assert program.read()["result"] == 0
    else:
        time.sleep(0.5)
        assert program.process.poll() is None
        scene.arbiter.start()
        before = len(scene.arbiter.heard)
        scene.arbiter.wait_for(MessageType.WANT, since=before)
        scene.arbiter.grant()
        assert program.read()["result"] == 0


@pytest.mark.real_time
def test_pace_runs_the_share_of_the_request(tenant):
    """Left alone with `pace`, a tenant with a request of 0.3 launches during about 0.3 of the time."""
    scene = tenant(fail_policy=FailPolicy.PACE, request_milli=300)
    program = scene.run(
        """
        cuda = Cuda(); spin = cuda.spin(); cuda.launch(spin, 1000); say(); wait_line()
        start = time.monotonic(); busy = 0.0
        while time.monotonic() - start < 2.0:
            t = time.monotonic(); cuda.launch(spin, 1_000_000); cuda.sync(); busy += min(time.monotonic() - t, 0.005)
        say(share=busy / 2.0)
        """
    )
    scene.arbiter.wait_for(MessageType.WANT)
    scene.arbiter.grant(for_s=0.1)
    program.read()
    scene.arbiter.stop()
    time.sleep(0.2)

    program.go()

    assert program.read()["share"] == pytest.approx(0.3, abs=0.1)


@pytest.mark.parametrize(
    "launch", ["L.cuLaunch(f)", "L.cuLaunchGrid(f, 2, 1)", "L.cuLaunchGridAsync(f, 2, 1, None)"], ids=lambda x: x[2:14]
)
def test_launches_of_the_first_interface_wait_too(tenant, launch):
    """cuLaunch and its kin of CUDA 3 wait for the grant like any launch, and are counted."""
    scene = tenant()
    program = scene.run(
        f"""
        cuda = Cuda(); f = cuda.spin(); L = cuda.lib; ns = ctypes.c_uint64(1000)
        say(set=[L.cuFuncSetBlockShape(f, 1, 1, 1), L.cuParamSetSize(f, 8), L.cuParamSetv(f, 0, ctypes.byref(ns), 8)])
        t = time.monotonic_ns(); result = {launch}
        say(result=result, waited_ns=time.monotonic_ns() - t, launches=cuda.stats()["launches"])
        """
    )

    assert program.read() == {"set": [0, 0, 0]}
    scene.arbiter.wait_for(MessageType.WANT)
    time.sleep(0.1)
    scene.arbiter.grant()
    facts = program.read()

    assert (facts["result"], facts["launches"]) == (0, 1)
    assert facts["waited_ns"] > 90_000_000


GANG = """
class Launch(ctypes.Structure):
    _fields_ = [("f", ctypes.c_void_p), *((n, ctypes.c_uint) for n in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
                ("stream", ctypes.c_void_p), ("params", ctypes.c_void_p)]
gpus = [Cuda(device=0), Cuda(device=1)]; L = gpus[0].lib; ns = ctypes.c_uint64(30_000_000)
params = (ctypes.c_void_p * 1)(ctypes.addressof(ns)); launches = (Launch * 2)()
for i, gpu in enumerate(gpus):
    L.cuCtxSetCurrent(gpu.ctx); stream = ctypes.c_void_p(); L.cuStreamCreate(ctypes.byref(stream), 1)
    at = ctypes.cast(params, ctypes.c_void_p)
    launches[i] = Launch(gpu.spin(), 1, 1, 1, 1, 1, 1, 0, stream, at)
def gang(): return L.cuLaunchCooperativeKernelMultiDevice(launches, 2, 0)
"""


def test_a_launch_on_two_gpus_needs_the_tokens_of_both(tenant):
    """cuLaunchCooperativeKernelMultiDevice waits until every GPU of its list is granted, and each drains its part."""
    scene = tenant(spec="v100x2", gap_us=1_000_000)
    program = scene.run(GANG + "say(); say(result=gang(), launches=gpus[0].stats()['launches']); wait_line()")
    program.read()
    assert scene.arbiter.wait_for(MessageType.WANT).gpu == 0
    scene.arbiter.grant(0)
    second = scene.arbiter.wait_for(MessageType.WANT, since=len(scene.arbiter.heard))
    time.sleep(0.1)

    assert second.gpu == 1
    assert program.process.poll() is None
    scene.arbiter.grant(1)
    assert program.read() == {"result": 0, "launches": 2}
    for gpu in (0, 1):
        before = len(scene.arbiter.heard)
        scene.arbiter.pages[gpu].close_gate(gpu + 1)
        assert scene.arbiter.wait_for(MessageType.DRAINED, since=before).gpu == gpu


def test_a_launch_on_one_gpu_twice_counts_once(tenant):
    """Two entries of one GPU in one launch go with one token, as one launch, and both are drained."""
    scene = tenant(auto_grant=True, gap_us=1_000_000)
    twice = GANG.replace("Cuda(device=1)", "Cuda(device=0)")
    program = scene.run(twice + "say(result=gang(), launches=gpus[0].stats()['launches']); wait_line()")
    assert program.read() == {"result": 0, "launches": 1}

    revoked_ns = time.monotonic_ns()
    scene.arbiter.revoke()

    assert scene.arbiter.wait_for(MessageType.DRAINED).at_ns - revoked_ns > 30_000_000
