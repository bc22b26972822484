"""In strict mode a handle is valid no longer than its object; events, functions and streams belong to their context."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

OWN = """
ck(d.cuInit(0)); dev = ck(d.cuDeviceGet(0))
def own(): return ck(d.cuCtxCreate(None, 0, dev))
"""


def ends(machine, code):
    """The return code and the error text of a client that is expected to end badly."""
    child = machine.start(code, ALIQUOT_EMULATOR_STRICT="1")
    _, err = child.communicate(timeout=60)
    return child.returncode, err


@pytest.mark.parametrize(
    ("make", "use"),
    [
        ("e = ck(d.cuEventCreate(2))", "d.cuEventQuery(e)"),
        ("e = ck(d.cuEventCreate(2))", "d.cuEventRecord(e, 0)"),
        ("s = ck(d.cuStreamCreate(1))", "d.cuStreamQuery(s)"),
        ("k = Spinner()", "d.cuLaunchKernel(k.function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)"),
        ("m = ck(d.cuModuleLoadData(PTX))", "d.cuModuleGetFunction(m, b'spin_ns')"),
    ],
)
def test_an_object_of_a_reset_context_ends_the_program(clients, make, use):
    """The use of an event, a stream, a module or a kernel from before cuDevicePrimaryCtxReset aborts with one line."""
    code, err = ends(clients(), f"open_gpu(); {make}; d.cuDevicePrimaryCtxReset(0); open_gpu(); {use}; answer(1)")

    assert code == -signal.SIGABRT
    assert len([line for line in err.splitlines() if "aliquot emulator: " in line]) == 1
    assert "went with its context" in err


def test_destroying_what_went_with_its_context_answers_709(clients):
    """cuEventDestroy, cuStreamDestroy and cuModuleUnload of a destroyed context's objects fail and end nothing."""
    codes = clients("a100", "strict=1").run(
        OWN + "c = own(); e, s, m = ck(d.cuEventCreate(2)), ck(d.cuStreamCreate(1)), ck(d.cuModuleLoadData(PTX))\n"
        "ck(d.cuCtxDestroy(c))\n"
        "answer([code(d.cuEventDestroy(e)), code(d.cuStreamDestroy(s)), code(d.cuModuleUnload(m))])"
    )

    assert codes == [709, 709, 709]


@pytest.mark.parametrize(
    ("make", "destroy"),
    [("ck(d.cuEventCreate(2))", "d.cuEventDestroy"), ("ck(d.cuStreamCreate(1))", "d.cuStreamDestroy")],
)
def test_destroying_twice_ends_the_program(clients, make, destroy):
    """The second cuEventDestroy or cuStreamDestroy of one handle aborts."""
    code, err = ends(clients(), f"open_gpu(); x = {make}; ck({destroy}(x)); {destroy}(x); answer(1)")

    assert code == -signal.SIGABRT
    assert "has been destroyed" in err


def test_a_destroyed_context_stays_current_to_other_threads_and_answers_709(clients):
    """A thread whose current context another one destroyed gets CUDA_ERROR_CONTEXT_IS_DESTROYED."""
    before, after = clients("a100", "strict=1").run(
        OWN + "import threading\nc = own(); gone, done = threading.Event(), threading.Event(); codes = []\n"
        "def other():\n"
        "    ck(d.cuCtxSetCurrent(c)); codes.append(code(d.cuMemAlloc(64))); done.set(); gone.wait()\n"
        "    codes.append(code(d.cuMemAlloc(64)))\n"
        "t = threading.Thread(target=other); t.start(); done.wait(); ck(d.cuCtxDestroy(c)); gone.set(); t.join()\n"
        "answer(codes)"
    )

    assert (before, after) == (0, 709)


def test_pushing_a_destroyed_context_ends_the_program(clients):
    """cuCtxPushCurrent of a context that cuCtxDestroy has ended aborts."""
    code, err = ends(clients(), OWN + "c = own(); ck(d.cuCtxDestroy(c)); d.cuCtxPushCurrent(c); answer(1)")

    assert code == -signal.SIGABRT
    assert "context" in err


def test_a_reset_primary_context_answers_709_until_it_is_retained_again(clients):
    """The primary context's handle survives cuDevicePrimaryCtxReset and is usable after the next retain."""
    codes = clients("a100", "strict=1").run("""
c = open_gpu(); ck(d.cuDevicePrimaryCtxReset(0)); dead = code(d.cuMemAlloc(64))
same = int(ck(d.cuDevicePrimaryCtxRetain(0))) == int(c); answer([dead, same, code(d.cuMemAlloc(64))])
""")

    assert codes == [709, True, 0]


def test_memory_of_a_destroyed_context_is_invalid(clients):
    """A copy to an allocation of a destroyed context, and freeing it, answer CUDA_ERROR_INVALID_VALUE."""
    codes = clients("a100", "strict=1").run(
        OWN + "a = own(); p = ck(d.cuMemAlloc(64)); b = own(); ck(d.cuCtxDestroy(a))\n"
        "answer([code(d.cuMemcpyHtoD(p, bytes(64), 64)), code(d.cuMemFree(p))])"
    )

    assert codes == [1, 1]


def test_an_event_is_recorded_in_streams_of_its_context_only(clients):
    """cuEventRecord into another context's stream is CUDA_ERROR_INVALID_HANDLE; waiting for and asking it is not."""
    codes = clients("a100", "strict=1").run(
        OWN
        + "a = own(); e, s = ck(d.cuEventCreate(2)), ck(d.cuStreamCreate(1)); b = own(); t = ck(d.cuStreamCreate(1))\n"
        "answer([code(d.cuEventRecord(e, t)), code(d.cuEventRecord(e, 0)), code(d.cuEventRecord(e, s)),\n"
        "        code(d.cuStreamWaitEvent(t, e, 0)), code(d.cuEventQuery(e))])"
    )

    assert codes == [400, 400, 0, 0, 0]


def test_a_function_is_launched_in_its_context_only(clients):
    """A kernel of a module is refused in another context's stream; a library's kernel runs in any."""
    codes = clients("a100", "strict=1").run(
        OWN + "a = own(); k = Spinner(); l = ck(d.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))\n"
        "f = ck(d.cuLibraryGetKernel(l, b'step_ms2')); b = own(); s = ck(d.cuStreamCreate(1))\n"
        "go = lambda f: code(d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, 0, 0))\n"
        "answer([go(k.function), go(d.CUfunction(int(f)))])"
    )

    assert codes == [400, 0]


def test_creating_and_destroying_needs_no_more_and_more_memory(clients):
    """Contexts, streams, events and modules that are created and destroyed again and again leave no memory behind."""
    grown_kib = clients("a100", "strict=1").run(
        OWN + "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4\n"
        "def round(n):\n"
        "    for _ in range(n):\n"
        "        c = own(); k = Spinner(); k.launch(1000)\n"
        "        for _ in range(20):\n"
        "            e = ck(d.cuEventCreate(2)); ck(d.cuEventRecord(e, k.stream)); ck(d.cuEventDestroy(e))\n"
        "        s = ck(d.cuStreamCreate(0)); ck(d.cuStreamDestroy(s)); ck(d.cuCtxDestroy(c))\n"
        "round(600); before = resident(); round(1500); answer(resident() - before)"
    )

    assert grown_kib < 1024


def test_work_of_a_destroyed_stream_and_event_still_ends(clients):
    """Kernels in a stream that is destroyed meanwhile still take their time, and an event behind them completes."""
    early, late = clients("a100", "strict=1").run("""
open_gpu(); k = Spinner(); other = ck(d.cuStreamCreate(1)); e = ck(d.cuEventCreate(2))
k.launch(30_000_000); ck(d.cuEventRecord(e, k.stream)); ck(d.cuStreamWaitEvent(other, e, 0))
ck(d.cuStreamDestroy(k.stream)); ck(d.cuEventDestroy(e))
early = code(d.cuStreamQuery(other)); t = time.monotonic(); ck(d.cuStreamSynchronize(other))
answer([early, time.monotonic() - t])
""")

    assert early == 600
    assert late > 0.02


@pytest.mark.parametrize("strict", [0, 1])
@pytest.mark.parametrize("how", ["destroy", "reset"])
def test_threads_whose_context_another_one_ends_get_an_error(clients, tmp_path: Path, how, strict):
    """Calls that are under way while another thread ends their context answer with an error, and nothing crashes."""
    machine, program = clients("a100", f"strict={strict}").machine, tmp_path / "vanishing"
    source = Path(__file__).with_name("vanishing.c")
    subprocess.run(["gcc", "-w", "-O1", "-pthread", "-o", program, source, "-ldl"], check=True)
    env = {**os.environ, "LD_LIBRARY_PATH": str(machine.directory)}

    done = subprocess.run([program, how, "400"], env=env, capture_output=True, text=True, timeout=60, check=False)

    assert (0, "") == (done.returncode, done.stderr)
    assert {0, 709} <= {int(answer) for answer in done.stdout.split()} <= {0, 1, 400, 600, 709}
