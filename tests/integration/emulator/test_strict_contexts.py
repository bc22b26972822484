"""In strict mode a handle is valid no longer than its object; events, functions and streams belong to their context."""

import signal
import time

import pytest
from kit.driver_calls import INVALID_VALUE, NOT_READY, PTX, Argument, Driver, Out
from kit.driver_process import DriverProcess, ProcessEnded

INVALID_HANDLE, CONTEXT_IS_DESTROYED = 400, 709


@pytest.fixture
def gpu(clients):
    """A process with the primary context of a strict GPU."""
    return clients("a100", "strict=1").gpu()


def new_context(gpu: Driver) -> int:
    """A context, which is current."""
    return gpu.new("cuCtxCreate_v2", 0, 0)


def aborts(gpu: DriverProcess, name: str, *arguments: Argument) -> str:
    """A call that ends the program; what it says at its end."""
    with pytest.raises(ProcessEnded) as ended:
        gpu.call(name, *arguments)
    assert -signal.SIGABRT == ended.value.status
    return ended.value.errors


MAKERS = {
    "event": lambda gpu: gpu.new("cuEventCreate", 2),
    "stream": lambda gpu: gpu.new("cuStreamCreate", 1),
    "module": lambda gpu: gpu.new("cuModuleLoadData", PTX),
    "function": lambda gpu: gpu.function(),
}


@pytest.mark.parametrize(
    ("kind", "use", "more"),
    [
        ("event", "cuEventQuery", ()),
        ("event", "cuEventRecord", (0,)),
        ("stream", "cuStreamQuery", ()),
        ("function", "cuLaunchKernel", (1, 1, 1, 1, 1, 1, 0, 0, 0, 0)),
        ("module", "cuModuleGetFunction", ("spin_ns",)),
    ],
)
def test_an_object_of_a_reset_context_ends_the_program(gpu, kind, use, more):
    """The use of an event, a stream, a module or a kernel from before cuDevicePrimaryCtxReset aborts with one line."""
    handle = MAKERS[kind](gpu)
    gpu.ok("cuDevicePrimaryCtxReset_v2", 0)
    gpu.open()
    said = aborts(gpu, use, *([Out()] if kind == "module" else []), handle, *more)

    assert 1 == len([line for line in said.splitlines() if "aliquot emulator: " in line])
    assert "went with its context" in said


def test_destroying_what_went_with_its_context_answers_709(gpu):
    """cuEventDestroy, cuStreamDestroy and cuModuleUnload of a destroyed context's objects fail and end nothing."""
    context = new_context(gpu)
    objects = {
        "cuEventDestroy_v2": MAKERS["event"](gpu),
        "cuStreamDestroy_v2": MAKERS["stream"](gpu),
        "cuModuleUnload": MAKERS["module"](gpu),
    }
    gpu.ok("cuCtxDestroy_v2", context)

    assert {CONTEXT_IS_DESTROYED} == {gpu.code(name, handle) for name, handle in objects.items()}


@pytest.mark.parametrize(("kind", "destroy"), [("event", "cuEventDestroy_v2"), ("stream", "cuStreamDestroy_v2")])
def test_destroying_twice_ends_the_program(gpu, kind, destroy):
    """The second cuEventDestroy or cuStreamDestroy of one handle aborts."""
    handle = MAKERS[kind](gpu)
    gpu.ok(destroy, handle)

    assert "has been destroyed" in aborts(gpu, destroy, handle)


def test_a_destroyed_context_stays_current_to_other_threads_and_answers_709(gpu):
    """A thread whose current context another one destroyed gets CUDA_ERROR_CONTEXT_IS_DESTROYED."""
    context, other = new_context(gpu), gpu.on("other")
    other.ok("cuCtxSetCurrent", context)
    before = other.code("cuMemAlloc_v2", Out(), 64)
    gpu.ok("cuCtxDestroy_v2", context)

    assert (0, CONTEXT_IS_DESTROYED) == (before, other.code("cuMemAlloc_v2", Out(), 64))


def test_pushing_a_destroyed_context_ends_the_program(gpu):
    """cuCtxPushCurrent of a context that cuCtxDestroy has ended aborts."""
    context = new_context(gpu)
    gpu.ok("cuCtxDestroy_v2", context)

    assert "context" in aborts(gpu, "cuCtxPushCurrent_v2", context)


def test_a_reset_primary_context_answers_709_until_it_is_retained_again(gpu):
    """The primary context's handle survives cuDevicePrimaryCtxReset and is usable after the next retain."""
    gpu.ok("cuDevicePrimaryCtxReset_v2", 0)
    dead = gpu.code("cuMemAlloc_v2", Out(), 64)

    assert (CONTEXT_IS_DESTROYED, gpu.context) == (dead, gpu.new("cuDevicePrimaryCtxRetain", 0))
    assert 0 == gpu.code("cuMemAlloc_v2", Out(), 64)


def test_memory_of_a_destroyed_context_is_invalid(gpu):
    """A copy to an allocation of a destroyed context, and freeing it, answer CUDA_ERROR_INVALID_VALUE."""
    first = new_context(gpu)
    pointer = gpu.new("cuMemAlloc_v2", 64)
    new_context(gpu)
    gpu.ok("cuCtxDestroy_v2", first)

    assert INVALID_VALUE == gpu.code("cuMemcpyHtoD_v2", pointer, bytes(64), 64) == gpu.code("cuMemFree_v2", pointer)


def test_an_event_is_recorded_in_streams_of_its_context_only(gpu):
    """cuEventRecord into another context's stream is CUDA_ERROR_INVALID_HANDLE; waiting for and asking it is not."""
    new_context(gpu)
    event, own = MAKERS["event"](gpu), MAKERS["stream"](gpu)
    new_context(gpu)
    other = MAKERS["stream"](gpu)

    assert [INVALID_HANDLE, INVALID_HANDLE, 0] == [gpu.code("cuEventRecord", event, at) for at in (other, 0, own)]
    assert (0, 0) == (gpu.code("cuStreamWaitEvent", other, event, 0), gpu.code("cuEventQuery", event))


def test_a_function_is_launched_in_its_context_only(gpu):
    """A kernel of a module is refused in another context's stream; a library's kernel runs in any."""
    new_context(gpu)
    function = gpu.function()
    library = gpu.new("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
    kernel = gpu.new("cuLibraryGetKernel", library, "step_ms2")
    new_context(gpu)
    stream = MAKERS["stream"](gpu)

    assert [INVALID_HANDLE, 0] == [gpu.launch(each, 0, stream) for each in (function, kernel)]


def test_creating_and_destroying_needs_no_more_and_more_memory(gpu):
    """Contexts, streams, events and modules that are created and destroyed again and again leave no memory behind."""
    gpu.do("make_and_destroy", 600)
    before_kib = gpu.do("resident_kib")
    gpu.do("make_and_destroy", 1500)

    assert gpu.do("resident_kib") - before_kib < 1024


def test_work_of_a_destroyed_stream_and_event_still_ends(gpu):
    """Kernels in a stream that is destroyed meanwhile still take their time, and an event behind them completes."""
    function, event = gpu.function(), MAKERS["event"](gpu)
    stream, other = MAKERS["stream"](gpu), MAKERS["stream"](gpu)
    gpu.launch(function, 1_000_000_000, stream)
    gpu.ok("cuEventRecord", event, stream)
    gpu.ok("cuStreamWaitEvent", other, event, 0)
    gpu.ok("cuStreamDestroy_v2", stream)
    gpu.ok("cuEventDestroy_v2", event)
    early, began_s = gpu.code("cuStreamQuery", other), time.monotonic()
    gpu.ok("cuStreamSynchronize", other)

    assert NOT_READY == early
    assert time.monotonic() - began_s > 0.02


@pytest.mark.parametrize("strict", [0, 1])
@pytest.mark.parametrize("how", ["destroy", "reset"])
def test_threads_whose_context_another_one_ends_get_an_error(clients, built, how, strict):
    """Calls that are under way while another thread ends their context answer with an error, and nothing crashes."""
    machine = clients("a100", f"strict={strict}")

    status, out, err = machine.execute(built("emulator/vanishing.c"), how, "400")

    assert (0, "") == (status, err)
    assert {0, 709} <= {int(answer) for answer in out.split()} <= {0, 1, 400, 600, 709}
