"""The event that the hook puts behind a thread's last launches when that thread waits or asks."""

import pytest

STRICT = ("strict=1", "capture_unsafe=cuStreamQuery cuStreamSynchronize cuEventCreate cuMemGetInfo")
# Launches known to be short have an event of the hook's behind them now and then: not behind the last one here.
LAUNCHED = """
import threading
cuda = Cuda(); L = cuda.lib; spin = cuda.spin(); done = ctypes.c_void_p(); L.cuEventCreate(ctypes.byref(done), 2)
def stream(flags=1):
    made = ctypes.c_void_p(); assert L.cuStreamCreate(ctypes.byref(made), flags) == 0
    return made
def events(): return cuda.stats()["events"]
def launched(into, name="cuLaunchKernel"):
    for _ in range(40): cuda.launch(spin, 1000, into, name)
    L.cuCtxSynchronize(); time.sleep(0.03); before = -2; its_own = name.endswith("_ptsz")
    while events() != before + its_own:
        cuda.launch(spin, 1000, into, name); before = events(); cuda.launch(spin, 1000, into, name)
def asked():
    before = events(); result = L.cuEventQuery(done)
    return result, events() - before
"""


def test_a_question_puts_an_event_behind_the_last_launches_once(tenant):
    """The first question after some launches has an event put behind them, and the next one has not."""
    scene = tenant(auto_grant=True)
    program = scene.run(LAUNCHED + "s = stream(); launched(s); say(asked=asked(), again=asked())")

    assert program.read() == {"asked": [0, 1], "again": [0, 0]}


def test_no_event_is_put_into_a_stream_that_another_thread_has_destroyed(tenant):
    """A stream that ends between its last launch and its thread's question is not touched."""
    scene = tenant(auto_grant=True, extra=STRICT)
    program = scene.run(
        LAUNCHED + "s = stream(); launched(s); other = threading.Thread(target=L.cuStreamDestroy_v2, args=(s,))\n"
        "other.start(); other.join(); say(asked=asked())"
    )

    assert program.read() == {"asked": [0, 0]}


def test_streams_may_end_in_one_thread_while_another_asks(tenant):
    """Threads that launch and ask while another destroys their streams use none that has ended."""
    scene = tenant(auto_grant=True, extra=STRICT)
    program = scene.run(
        LAUNCHED + "s = [stream() for _ in range(200)]; [cuda.launch(spin, 1000, one) for one in s for _ in range(3)]\n"
        "other = threading.Thread(target=lambda: [L.cuStreamDestroy_v2(one) for one in s]); other.start()\n"
        "while other.is_alive(): asked()\n"
        "say(asked=asked()[0])"
    )

    assert program.read() == {"asked": 0}


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread-local", "relaxed"])
@pytest.mark.parametrize(
    ("into", "name"),
    [("stream()", "cuLaunchKernel"), ("None", "cuLaunchKernel"), ("None", "cuLaunchKernel_ptsz")],
    ids=["named", "legacy", "per-thread"],
)
def test_a_capture_is_not_spoiled_by_the_event(tenant, mode: int, into: str, name: str):
    """A thread that asks beside a capture after launches into another stream leaves the capture whole."""
    scene = tenant(auto_grant=True, extra=STRICT)
    program = scene.run(
        LAUNCHED + f"into = {into}; s = stream(0); graph = ctypes.c_void_p(); count = ctypes.c_size_t()\n"
        f"launched(into, '{name}'); begun = L.cuStreamBeginCapture_v2(s, {mode}); relaxed = ctypes.c_int(2)\n"
        "L.cuThreadExchangeStreamCaptureMode(ctypes.byref(relaxed)); result = asked()[0]\n"
        "L.cuThreadExchangeStreamCaptureMode(ctypes.byref(relaxed)); cuda.launch(spin, 1000, s); time.sleep(0.05)\n"
        "ended = L.cuStreamEndCapture(s, ctypes.byref(graph)); L.cuGraphGetNodes(graph, None, ctypes.byref(count))\n"
        "say(begun=begun, asked=result, ended=ended, nodes=count.value)"
    )

    assert program.read() == {"begun": 0, "asked": 0, "ended": 0, "nodes": 1}


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread-local", "relaxed"])
def test_no_event_is_captured_behind_launches_of_before(tenant, mode: int):
    """A stream that begins to capture after its last launches captures what is launched into it and nothing else."""
    scene = tenant(auto_grant=True, extra=STRICT)
    program = scene.run(
        LAUNCHED + "s = stream(); graph = ctypes.c_void_p(); count = ctypes.c_size_t(); launched(s)\n"
        f"begun = L.cuStreamBeginCapture_v2(s, {mode}); relaxed = ctypes.c_int(2)\n"
        "L.cuThreadExchangeStreamCaptureMode(ctypes.byref(relaxed)); result = asked()[0]\n"
        "L.cuThreadExchangeStreamCaptureMode(ctypes.byref(relaxed)); cuda.launch(spin, 1000, s); time.sleep(0.05)\n"
        "ended = L.cuStreamEndCapture(s, ctypes.byref(graph)); L.cuGraphGetNodes(graph, None, ctypes.byref(count))\n"
        "say(begun=begun, asked=result, ended=ended, nodes=count.value)"
    )

    assert program.read() == {"begun": 0, "asked": 0, "ended": 0, "nodes": 1}


@pytest.mark.parametrize("ending", ["L.cuCtxDestroy_v2(own)", "L.cuDevicePrimaryCtxReset_v2(0)"])
def test_launches_of_a_context_that_has_ended_have_no_event(tenant, ending: str):
    """A thread may ask after another has ended the context that it launched in last."""
    scene = tenant(auto_grant=True, extra=STRICT)
    own = (
        "own = ctypes.c_void_p(); L.cuCtxCreate_v2(ctypes.byref(own), 0, 0)\nspin = cuda.spin();"
        if "own" in ending
        else ""
    )
    begin = LAUNCHED.replace("spin = cuda.spin();", own or "spin = cuda.spin();")
    program = scene.run(
        begin + f"s = stream(); launched(s); other = threading.Thread(target=lambda: {ending}); other.start()\n"
        "other.join(); before = events(); L.cuCtxSynchronize(); say(events=events() - before)"
    )

    assert program.read() == {"events": 0}


def test_a_question_does_not_wait_for_a_context_that_ends(tenant):
    """While a context ends and its work waits for another thread, that thread gets its answers."""
    scene = tenant(auto_grant=True)
    program = scene.run(
        LAUNCHED
        + "s = stream(); launched(s); let_go = threading.Event(); own = ctypes.c_void_p(); popped = ctypes.c_void_p()\n"
        "L.cuCtxCreate_v2(ctypes.byref(own), 0, 0); t = stream(); L.cuCtxPopCurrent_v2(ctypes.byref(popped))\n"
        "waits = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: let_go.wait()); L.cuLaunchHostFunc(t, waits, None)\n"
        "other = threading.Thread(target=L.cuCtxDestroy_v2, args=(own,)); other.start(); time.sleep(0.3)\n"
        "say(alive=other.is_alive(), asked=asked()[0]); let_go.set(); other.join(); say(asked=asked()[0])"
    )

    assert program.read(20) == {"alive": True, "asked": 0}
    assert program.read(20) == {"asked": 0}
