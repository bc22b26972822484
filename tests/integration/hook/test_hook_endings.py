"""Contexts that end while other threads use them, or wait for work of other threads before they end."""

import os
import signal
import time

import pytest
from kit.driver_calls import MIB, PTX, Argument, Out
from kit.driver_process import DriverProcess

from aliquot.arbiter.abi import MessageType


@pytest.mark.parametrize("how", ["destroy", "reset"])
def test_nothing_stays_charged_of_contexts_that_end_while_threads_allocate_in_them(tenant, built, how):
    """What threads allocate and free in contexts that another ends is charged as long as the device lends it."""
    scene = tenant(memory_mib=4096, auto_grant=True, extra=("strict=0", "context_mib=0"))
    program = scene.start([built("hook/programs/endings.c"), how, "3", "4"])
    stopped = program.read()
    held = scene.device_bytes()
    program.go()
    last = program.read()

    assert held <= stopped["reserved"]
    assert (0, 0, 0) == (last["reserved"], last["unbalanced"], scene.device_bytes())
    assert stopped["done"] > 1000
    assert stopped["ended"] > 20


class Waiting:
    """A thread makes a call that waits for a stream of context A, and the stream for a word in host memory.

    The main thread has context B write the word.
    """

    def __init__(self, driver: DriverProcess, call: str) -> None:
        self.driver = driver
        driver.ok("cuInit", 0)
        self.b = driver.new("cuCtxCreate_v2", 0, 0)
        self.function = driver.function()
        self.word = driver.new("cuMemHostAlloc", 4096, 3)
        self.a, name, *arguments = getattr(self, call.replace(" ", "_"))()
        driver.ok("cuCtxSetCurrent", self.b)
        thread = driver.on("waits")
        thread.ok("cuCtxSetCurrent", self.a)
        self.call = thread.begin(name, *arguments)

    def end(self) -> int:
        """Open the way; what the call that waited answers."""
        self.driver.ok("cuStreamWriteValue32", self.driver.new("cuStreamCreate", 1), self.word, 1, 0)
        return self.call.answer().code

    def own_context(self) -> int:
        a = self.driver.new("cuCtxCreate_v2", 0, 0)
        self.driver.ok("cuCtxPopCurrent_v2", Out())
        return a

    def primary_context(self) -> int:
        return self.driver.new("cuDevicePrimaryCtxRetain", 0)

    def green(self) -> int:
        sms = self.driver.call("cuDeviceGetDevResource", 0, Out(256), 1).value
        return self.driver.new("cuGreenCtxCreate", self.driver.new("cuDevResourceGenerateDesc", sms, 1), 0, 1)

    def waits_in(self, context: int) -> tuple[int, int]:
        """A stream that waits, and an event behind that."""
        driver = self.driver
        driver.ok("cuCtxPushCurrent_v2", context)
        stream, function = driver.new("cuStreamCreate", 1), driver.function()
        assert driver.launch(function, 1000, stream) == 0
        driver.ok("cuStreamWaitValue32", stream, self.word, 1, 0)
        assert driver.launch(function, 1000, stream) == 0
        event = driver.new("cuEventCreate", 2)
        driver.ok("cuEventRecord", event, stream)
        driver.ok("cuCtxPopCurrent_v2", Out())
        return stream, event

    def own(self, name: str, *arguments: Argument, given: str = "") -> tuple[Argument, ...]:
        """A call in a context of its own, about its `given` context, stream or event, or with these arguments."""
        a = self.own_context()
        stream, event = self.waits_in(a)
        about = {"context": (a,), "stream": (stream,), "event": (event,), "": ()}[given]
        return a, name, *about, *arguments

    def made_in(self, maker: str, *arguments: Argument) -> tuple[int, int]:
        """A context and something that is made in it, before a stream of it waits."""
        a = self.own_context()
        self.driver.ok("cuCtxSetCurrent", a)
        handle = self.driver.new(maker, *arguments)
        self.driver.ok("cuCtxSetCurrent", self.b)
        self.waits_in(a)
        return a, handle

    def destroy(self) -> tuple[Argument, ...]:
        return self.own("cuCtxDestroy_v2", given="context")

    def detach(self) -> tuple[Argument, ...]:
        return self.own("cuCtxDetach", given="context")

    def reset(self) -> tuple[Argument, ...]:
        a = self.primary_context()
        self.waits_in(a)
        return a, "cuDevicePrimaryCtxReset_v2", 0

    def release(self) -> tuple[Argument, ...]:
        a = self.primary_context()
        self.waits_in(a)
        return a, "cuDevicePrimaryCtxRelease_v2", 0

    def green_context(self) -> tuple[Argument, ...]:
        green = self.green()
        a = self.driver.new("cuCtxFromGreenCtx", green)
        self.waits_in(a)
        return a, "cuGreenCtxDestroy", green

    def stream_destroyed(self) -> tuple[Argument, ...]:
        return self.own("cuStreamDestroy_v2", given="stream")

    def event_destroyed(self) -> tuple[Argument, ...]:
        return self.own("cuEventDestroy_v2", given="event")

    def module_unloaded(self) -> tuple[Argument, ...]:
        a, module = self.made_in("cuModuleLoadData", PTX)
        return a, "cuModuleUnload", module

    def freed(self) -> tuple[Argument, ...]:
        a, pointer = self.made_in("cuMemAlloc_v2", 4 * MIB)
        return a, "cuMemFree_v2", pointer

    def pool_trimmed(self) -> tuple[Argument, ...]:
        return self.own("cuMemPoolTrimTo", self.driver.new("cuDeviceGetDefaultMemPool", 0), 0)

    def limit_set(self) -> tuple[Argument, ...]:
        return self.own("cuCtxSetLimit", 1, 2 * MIB)

    def context_awaited(self) -> tuple[Argument, ...]:
        return self.own("cuCtxSynchronize")

    def stream_awaited(self) -> tuple[Argument, ...]:
        return self.own("cuStreamSynchronize", given="stream")

    def event_awaited(self) -> tuple[Argument, ...]:
        return self.own("cuEventSynchronize", given="event")

    def memory_read(self) -> tuple[Argument, ...]:
        return self.own("cuMemcpyDtoH_v2", Out(4096), self.driver.new("cuMemAlloc_v2", 4096), 4096)


ENDING = ["destroy", "detach", "reset", "release", "green context"]
CALLS = [*ENDING, "stream destroyed", "event destroyed", "module unloaded", "freed", "pool trimmed", "limit set"]
CALLS += ["context awaited", "stream awaited", "event awaited", "memory read"]


@pytest.mark.parametrize("call", CALLS)
def test_the_other_threads_run_while_a_call_waits_in_the_driver(tenant, call):
    """While a call waits for work of its context, other threads launch, capture, allocate and wait in another one.

    They retain and release the primary context too, unless it is that which ends.
    """
    driver = tenant(auto_grant=True, memory_mib=2048).driver()
    waiting = Waiting(driver, call)
    time.sleep(0.1)
    for name in ["cuLaunchKernel"] * 3 + ["cuLaunchKernel_ptsz"]:
        own = driver.new("cuStreamCreate", 1) if name == "cuLaunchKernel" else 0
        assert {0} == {driver.launch(waiting.function, 1000, own, name) for _ in range(200)}
        if own:
            driver.ok("cuStreamSynchronize", own)
            driver.ok("cuStreamDestroy_v2", own)
    stream = driver.new("cuStreamCreate", 1)
    driver.ok("cuStreamBeginCapture_v2", stream, 2)
    assert 0 == driver.launch(waiting.function, 1000, stream)
    driver.ok("cuGraphDestroy", driver.call("cuStreamEndCapture", stream, Out()).value)
    driver.ok("cuMemFree_v2", driver.new("cuMemAlloc_v2", 64 * MIB))
    driver.ok("cuModuleUnload", driver.new("cuModuleLoadData", PTX))
    if call not in ("reset", "release"):
        waiting.primary_context()
        driver.ok("cuGreenCtxDestroy", waiting.green())
        driver.ok("cuDevicePrimaryCtxRelease_v2", 0)

    assert 0 == waiting.end()


def test_a_token_changes_hands_while_a_context_is_being_destroyed(tenant):
    """What ends with its context late is drained late: the next grant is launched under, and both are answered."""
    scene = tenant(auto_grant=True)
    driver = scene.driver()
    waiting = Waiting(driver, "destroy")
    time.sleep(0.1)
    first = scene.arbiter.epoch
    scene.arbiter.revoke()
    assert 0 == driver.launch(waiting.function, 1000, driver.new("cuStreamCreate", 1))
    early = [heard.a for heard in scene.arbiter.heard if heard.type == MessageType.DRAINED and heard.a == first]

    assert ([], 0) == (early, waiting.end())
    scene.arbiter.wait_for(MessageType.DRAINED)


def test_a_revocation_that_nobody_was_awake_to_see_is_answered_when_its_work_has_ended(tenant):
    """The gate was closed and opened again while the process slept."""
    scene = tenant(auto_grant=True)
    driver = scene.driver()
    waiting = Waiting(driver, "destroy")
    first, pid = scene.arbiter.epoch, driver.process.pid
    driver.process.send_signal(signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    scene.arbiter.revoke()
    scene.arbiter.grant()
    driver.process.send_signal(signal.SIGCONT)
    assert 0 == driver.launch(waiting.function, 1000, driver.new("cuStreamCreate", 1))
    early = scene.arbiter.count(MessageType.DRAINED)

    assert (0, 0) == (early, waiting.end())
    assert first == scene.arbiter.wait_for(MessageType.DRAINED).a
