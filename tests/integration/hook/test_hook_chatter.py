"""What a process says about memory stays below what the arbiter reads of it, so its messages about turns are read."""

from __future__ import annotations

import pytest
from test_hook_shares import SHARES

from aliquot.arbiter.abi import MessageType
from aliquot.arbiter.settings import Settings

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
