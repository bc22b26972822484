"""In strict mode a capture is spoiled by every call that NVIDIA calls unsafe, from whichever thread its mode names."""

from typing import NamedTuple

import pytest
from kit.driver_calls import PTX, Argument, Array, Out

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
BLOCKING, NON_BLOCKING = 0, 1
UNSUPPORTED, INVALIDATED, IMPLICIT, CAPTURED_EVENT, INVALID_CONTEXT = 900, 901, 906, 907, 201


class Names(NamedTuple):
    """What a call beside a capture may name: an event, another stream, memory, a kernel, the stream that captures."""

    event: int
    other: int
    pointer: int
    function: int
    stream: int


def beside(clients, name, *arguments: Argument, extra=(), mode=GLOBAL, thread=GLOBAL, flags=NON_BLOCKING):
    """What a call of another thread answers during a capture, and how that ends; `Names` fill in the arguments."""
    gpu = clients("a100", "strict=1", *extra).gpu()
    other = gpu.new("cuStreamCreate", NON_BLOCKING)
    made = gpu.new("cuEventCreate", 2), other, gpu.new("cuMemAlloc_v2", 64), gpu.function()
    names = Names(*made, gpu.new("cuStreamCreate", flags))
    gpu.ok("cuEventRecord", names.event, other)
    gpu.ok("cuCtxSynchronize")
    gpu.ok("cuStreamBeginCapture_v2", names.stream, mode)
    assert 0 == gpu.launch(names.function, 1000, names.stream)
    by = gpu.on("beside")
    by.ok("cuCtxSetCurrent", gpu.context)
    by.ok("cuThreadExchangeStreamCaptureMode", Out(start=thread.to_bytes(4, "little")))
    given = [getattr(names, each) if each in Names._fields else each for each in arguments]
    answered = by.code(name, *given)
    return [answered, gpu.code("cuStreamEndCapture", names.stream, Out())]


UNSAFE: list[tuple[Argument, ...]] = [
    ("cuEventQuery", "event"),
    ("cuEventSynchronize", "event"),
    ("cuMemAlloc_v2", Out(), 64),
    ("cuMemFree_v2", "pointer"),
    ("cuMemHostAlloc", Out(), 64, 0),
    ("cuModuleLoadData", Out(), PTX),
    ("cuCtxSynchronize",),
    ("cuMemcpyHtoD_v2", "pointer", bytes(64), 64),
]
SAFE: list[tuple[Argument, ...]] = [
    ("cuEventRecord", "event", "other"),
    ("cuStreamQuery", "other"),
    ("cuMemGetInfo_v2", Out(), Out()),
    ("cuEventCreate", Out(), 2),
]
OF_THE_LEGACY_STREAM: list[tuple[Argument, ...]] = [
    ("cuEventRecord", "event", 0),
    ("cuStreamQuery", 0),
    ("cuLaunchKernel", "function", 1, 1, 1, 1, 1, 1, 0, 0, Array((bytes(8),)), 0),
    ("cuStreamWaitEvent", 0, "event", 0),
]


def name(call: tuple[Argument, ...]) -> str:
    return str(call[0])


@pytest.mark.parametrize("call", UNSAFE, ids=name)
def test_an_unsafe_call_of_any_thread_spoils_a_global_capture(clients, call):
    """It answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the capture ends with 901."""
    assert [UNSUPPORTED, INVALIDATED] == beside(clients, *call)


@pytest.mark.parametrize("call", SAFE, ids=name)
def test_a_safe_call_of_another_thread_leaves_the_capture_alone(clients, call):
    """Recording an event in another stream, asking for that stream or for memory is allowed during a capture."""
    assert [0, 0] == beside(clients, *call)


@pytest.mark.parametrize(
    ("mode", "thread"), [(GLOBAL, THREAD_LOCAL), (GLOBAL, RELAXED), (THREAD_LOCAL, GLOBAL), (RELAXED, 0)]
)
def test_modes_limit_which_threads_matter(clients, mode, thread):
    """Another thread spoils a capture only when both are in GLOBAL mode."""
    assert [0, 0] == beside(clients, "cuEventQuery", "event", mode=mode, thread=thread)


def test_what_is_not_documented_can_be_made_unsafe(clients):
    """`capture_unsafe` names further calls that spoil a capture."""
    extra = ("capture_unsafe=cuStreamQuery cuMemGetInfo",)

    assert [UNSUPPORTED, INVALIDATED] == beside(clients, "cuStreamQuery", "other", extra=extra)


@pytest.mark.parametrize("call", OF_THE_LEGACY_STREAM, ids=name)
def test_the_legacy_stream_spoils_the_capture_of_a_blocking_stream(clients, call):
    """Its use answers CUDA_ERROR_STREAM_CAPTURE_IMPLICIT in every mode; a non-blocking stream's capture goes on."""
    relaxed = {"mode": RELAXED, "thread": RELAXED}

    assert [IMPLICIT, INVALIDATED] == beside(clients, *call, flags=BLOCKING, **relaxed)
    assert [0, 0] == beside(clients, *call, **relaxed)


def test_asking_whether_the_legacy_stream_captures_spoils_nothing(clients):
    """cuStreamIsCapturing of the legacy stream answers 906 beside a blocking stream's capture, which goes on."""
    assert [IMPLICIT, 0] == beside(clients, "cuStreamIsCapturing", 0, Out(4), flags=BLOCKING)


@pytest.mark.parametrize("call", ["cuStreamQuery", "cuStreamSynchronize"])
def test_asking_a_capturing_stream_for_its_end_spoils_the_capture(clients, call):
    """A query or synchronisation of the stream that captures is refused in every mode."""
    assert [UNSUPPORTED, INVALIDATED] == beside(clients, call, "stream", mode=RELAXED, thread=RELAXED)


def test_an_event_recorded_in_a_capture_cannot_be_asked(clients):
    """cuEventQuery of it answers CUDA_ERROR_CAPTURED_EVENT in every mode and spoils the capture."""
    gpu = clients("a100", "strict=1").gpu()
    event, function = gpu.new("cuEventCreate", 2), gpu.function()
    gpu.ok("cuStreamBeginCapture_v2", gpu.stream, RELAXED)
    gpu.launch(function, 1, gpu.stream)
    gpu.ok("cuEventRecord", event, gpu.stream)

    assert CAPTURED_EVENT == gpu.code("cuEventQuery", event)
    assert INVALIDATED == gpu.code("cuStreamEndCapture", gpu.stream, Out())


@pytest.mark.parametrize(
    ("extra", "named"), [((), 0), (("capture_status_needs_context=1",), INVALID_CONTEXT)], ids=["", "configured"]
)
def test_a_named_stream_says_without_a_context_whether_it_captures(clients, extra, named):
    """cuStreamIsCapturing needs a current context for the default streams; for all, where the configuration says so."""
    gpu = clients("a100", "strict=1", *extra).gpu()
    gpu.ok("cuCtxPopCurrent_v2", Out())
    codes = [gpu.code("cuStreamIsCapturing", stream, Out(4)) for stream in (gpu.stream, 0)]

    assert [named, INVALID_CONTEXT] == codes
