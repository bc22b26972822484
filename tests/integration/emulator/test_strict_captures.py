"""In strict mode a capture is spoiled by every call that NVIDIA calls unsafe, from whichever thread its mode names."""

from __future__ import annotations

import pytest

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2

BESIDE = """
import threading
open_gpu(); context = ck(d.cuCtxGetCurrent()); k = Spinner(stream=ck(d.cuStreamCreate({flags})))
other, e, p = ck(d.cuStreamCreate(1)), ck(d.cuEventCreate(2)), ck(d.cuMemAlloc(64))
ck(d.cuEventRecord(e, other)); ck(d.cuCtxSynchronize())
codes = []
def beside():
    ck(d.cuCtxSetCurrent(context)); ck(d.cuThreadExchangeStreamCaptureMode(d.CUstreamCaptureMode({thread})))
    codes.append(code({call}))
ck(d.cuStreamBeginCapture(k.stream, d.CUstreamCaptureMode({mode}))); k.launch(1000)
t = threading.Thread(target=beside); t.start(); t.join()
answer([codes[0], code(d.cuStreamEndCapture(k.stream))])
"""


def beside(clients, call, *extra, mode=GLOBAL, thread=GLOBAL, flags=1):
    """What `call` of another thread answers during a capture, and how that ends."""
    return clients("a100", "strict=1", *extra).run(BESIDE.format(call=call, mode=mode, thread=thread, flags=flags))


@pytest.mark.parametrize(
    "call",
    [
        "d.cuEventQuery(e)",
        "d.cuEventSynchronize(e)",
        "d.cuMemAlloc(64)",
        "d.cuMemFree(p)",
        "d.cuMemHostAlloc(64, 0)",
        "d.cuModuleLoadData(PTX)",
        "d.cuCtxSynchronize()",
        "d.cuMemcpyHtoD(p, bytes(64), 64)",
    ],
)
def test_an_unsafe_call_of_any_thread_spoils_a_global_capture(clients, call):
    """It answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the capture ends with 901."""
    assert beside(clients, call) == [900, 901]


@pytest.mark.parametrize(
    "call", ["d.cuEventRecord(e, other)", "d.cuStreamQuery(other)", "d.cuMemGetInfo()", "d.cuEventCreate(2)"]
)
def test_a_safe_call_of_another_thread_leaves_the_capture_alone(clients, call):
    """Recording an event in another stream, asking for that stream or for memory is allowed during a capture."""
    assert beside(clients, call) == [0, 0]


@pytest.mark.parametrize(
    ("mode", "thread"), [(GLOBAL, THREAD_LOCAL), (GLOBAL, RELAXED), (THREAD_LOCAL, GLOBAL), (RELAXED, 0)]
)
def test_modes_limit_which_threads_matter(clients, mode, thread):
    """Another thread spoils a capture only when both are in GLOBAL mode."""
    assert beside(clients, "d.cuEventQuery(e)", mode=mode, thread=thread) == [0, 0]


def test_what_is_not_documented_can_be_made_unsafe(clients):
    """`capture_unsafe` names further calls that spoil a capture."""
    assert beside(clients, "d.cuStreamQuery(other)", "capture_unsafe=cuStreamQuery cuMemGetInfo") == [900, 901]


@pytest.mark.parametrize(
    "call",
    [
        "d.cuEventRecord(e, 0)",
        "d.cuStreamQuery(0)",
        "d.cuLaunchKernel(k.function, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(k.params), 0)",
        "d.cuStreamWaitEvent(0, e, 0)",
    ],
)
def test_the_legacy_stream_spoils_the_capture_of_a_blocking_stream(clients, call):
    """Its use answers CUDA_ERROR_STREAM_CAPTURE_IMPLICIT in every mode; a non-blocking stream's capture goes on."""
    assert beside(clients, call, flags=0, mode=RELAXED, thread=RELAXED) == [906, 901]
    assert beside(clients, call, mode=RELAXED, thread=RELAXED) == [0, 0]


def test_asking_whether_the_legacy_stream_captures_spoils_nothing(clients):
    """cuStreamIsCapturing of the legacy stream answers 906 beside a blocking stream's capture, which goes on."""
    assert beside(clients, "d.cuStreamIsCapturing(0)", flags=0) == [906, 0]


@pytest.mark.parametrize(("call", "expected"), [("d.cuStreamQuery", 900), ("d.cuStreamSynchronize", 900)])
def test_asking_a_capturing_stream_for_its_end_spoils_the_capture(clients, call, expected):
    """A query or synchronisation of the stream that captures is refused in every mode."""
    assert beside(clients, f"{call}(k.stream)", mode=RELAXED, thread=RELAXED) == [expected, 901]


def test_an_event_recorded_in_a_capture_cannot_be_asked(clients):
    """cuEventQuery of it answers CUDA_ERROR_CAPTURED_EVENT in every mode and spoils the capture."""
    codes = clients("a100", "strict=1").run("""
open_gpu(); k = Spinner(); e = ck(d.cuEventCreate(2))
ck(d.cuStreamBeginCapture(k.stream, d.CUstreamCaptureMode(2))); k.launch(1); ck(d.cuEventRecord(e, k.stream))
answer([code(d.cuEventQuery(e)), code(d.cuStreamEndCapture(k.stream))])
""")

    assert codes == [907, 901]


def test_a_named_stream_says_without_a_context_whether_it_captures(clients):
    """cuStreamIsCapturing needs a current context for the default streams; for all, where the configuration says so."""
    ask = """
open_gpu(); s = ck(d.cuStreamCreate(1)); ck(d.cuCtxPopCurrent())
answer([code(d.cuStreamIsCapturing(s)), code(d.cuStreamIsCapturing(0))])
"""

    assert clients("a100", "strict=1").run(ask) == [0, 201]
    assert clients("a100", "strict=1", "capture_status_needs_context=1").run(ask) == [201, 201]
