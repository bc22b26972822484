"""What a process says about memory stays below what the arbiter reads of it, so its messages about turns are read."""

import time

import pytest
from kit.driver_calls import MIB, Out
from waiting import eventually

from aliquot.arbiter.abi import MessageType, ReportFlag
from aliquot.arbiter.server import Settings

MEMORY = (MessageType.RESERVE, MessageType.RELEASE, MessageType.DENIED, MessageType.SHARE, MessageType.UNSHARE)
THREADS = ("first", "second", "third", "fourth")
TOO_MUCH = 1 << 40
LOOPS = {
    "refused allocations": (2500, "repeat", "cuMemAlloc_v2", Out(), TOO_MUCH),
    "refused allocations of a pool": (2500, "repeat", "cuMemAllocAsync", Out(), TOO_MUCH, 0),
    "refused contexts": (6000, "repeat", "cuCtxCreate_v2", Out(), 0, 0),
    "exports": (3000, "repeat_export", 2 * MIB),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_memory_is_asked_for_more_slowly_than_the_arbiter_reads(tenant, loop, tmp_path):
    """Four threads that repeat a call send a burst of messages, and then half as many a second as the arbiter reads."""
    times, operation, *arguments = LOOPS[loop]
    settings = Settings(tmp_path)
    scene = tenant(memory_mib=512, context_mib=300, auto_grant=True, shares=True)
    gpu = scene.gpu()
    threads = [gpu.on(name) for name in THREADS]
    for thread in threads:
        thread.ok("cuCtxSetCurrent", gpu.context)
    began_s = time.monotonic()
    for pending in [thread.start(operation, times // len(THREADS), *arguments) for thread in threads]:
        pending.result()
    seconds = time.monotonic() - began_s

    messages = sum(scene.arbiter.count(kind) for kind in MEMORY)
    assert settings.message_burst / 2 + settings.messages_per_second / 2 * seconds > messages > times


def test_nothing_is_said_on_a_new_connection_before_its_hello(tenant, built):
    """A thread that saw the connection before it alive, and then waited for its lock, does not speak on the new one."""
    scene = tenant(memory_mib=1024)
    program = scene.start([built("hook/programs/first_word.c", "-rdynamic")])
    assert program.read()["held"]
    scene.arbiter.stop()
    restarted = len(scene.arbiter.heard)

    scene.arbiter.start()

    assert not program.read()["held"]
    scene.arbiter.wait_for(MessageType.ATTACH, since=restarted)
    assert {MessageType.HELLO} == set(scene.arbiter.first_heard)


def test_what_stays_on_a_gpu_is_said_before_the_call_that_makes_it_returns(tenant):
    """A program that gives its GPU up right after it, or ends, has said so; no thread of the hook is waited for."""
    scene = tenant(memory_mib=1024)
    program = scene.run(
        "cuda = Cuda(); cuda.lib.cuMemAllocManaged(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(9), 1); os._exit(0)"
    )

    assert 0 == program.end()
    eventually(
        lambda: ReportFlag.UNIFIED in [one.flags for one in scene.arbiter.heard if one.type == MessageType.REPORT],
        "it was said",
    )
