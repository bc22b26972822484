"""What a process says about memory stays below what the arbiter reads of it, so its messages about turns are read."""

from __future__ import annotations

import pytest
from test_hook_programs import compile_c
from test_hook_shares import SHARES

from aliquot.arbiter.abi import MessageType
from aliquot.arbiter.server import Settings

MEMORY = (MessageType.RESERVE, MessageType.RELEASE, MessageType.DENIED, MessageType.SHARE, MessageType.UNSHARE)
LOOPS = {
    "refused allocations": ("lambda: linear(1 << 20)", 2500),
    "refused allocations of a pool": ("lambda: asynchronous(1 << 20)", 2500),
    "refused contexts": ("lambda: L.cuCtxCreate_v2(c.byref(c.c_void_p()), 0, 0)", 6000),
    "exports": ("lambda: (lambda made: (os.close(made[1]), release(made[0])))(shown())", 3000),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_memory_is_asked_for_more_slowly_than_the_arbiter_reads(tenant, loop, tmp_path):
    """Four threads that repeat a call send a burst of messages, and then half as many a second as the arbiter reads."""
    call, times = LOOPS[loop]
    settings = Settings(tmp_path)
    scene = tenant(memory_mib=512, context_mib=300, auto_grant=True, shares=True)
    program = scene.run(
        SHARES + "import threading\n"
        "def repeat():\n"
        "    L.cuCtxSetCurrent(cuda.ctx)\n"
        f"    for _ in range({times} // 4): call()\n"
        f"call = {call}; threads = [threading.Thread(target=repeat) for _ in range(4)]\n"
        "began = time.monotonic(); [t.start() for t in threads]; [t.join() for t in threads]\n"
        "say(seconds=time.monotonic() - began)"
    )

    seconds = program.read(60)["seconds"]

    messages = sum(scene.arbiter.count(kind) for kind in MEMORY)
    assert settings.message_burst / 2 + settings.messages_per_second / 2 * seconds > messages > times


@pytest.fixture(scope="module")
def first_word(tmp_path_factory) -> str:
    """first_word.c, built so that the hook's calls of libc reach it."""
    return str(compile_c("first_word.c", tmp_path_factory.mktemp("first_word") / "first_word", "-rdynamic"))


def test_nothing_is_said_on_a_new_connection_before_its_hello(tenant, first_word):
    """A thread that saw the connection before it alive, and then waited for its lock, does not speak on the new one."""
    scene = tenant(memory_mib=1024)
    program = scene.start([first_word])
    assert program.read()["held"]
    scene.arbiter.stop()
    restarted = len(scene.arbiter.heard)

    scene.arbiter.start()

    assert not program.read()["held"]
    scene.arbiter.wait_for(MessageType.ATTACH, since=restarted)
    assert {MessageType.HELLO} == set(scene.arbiter.first_heard)
