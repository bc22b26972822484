"""Contexts that end while other threads use them, or wait for work of other threads before they end."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_hook_programs import compile_c

from aliquot.arbiter.abi import MessageType


@pytest.fixture(scope="module")
def endings(tmp_path_factory) -> Path:
    """endings.c, built."""
    return compile_c("endings.c", tmp_path_factory.mktemp("endings") / "endings")


@pytest.mark.parametrize("how", ["destroy", "reset"])
def test_nothing_stays_charged_of_contexts_that_end_while_threads_allocate_in_them(tenant, endings, how):
    """What threads allocate and free in contexts that another ends is charged as long as the device lends it."""
    scene = tenant(memory_mib=4096, auto_grant=True, extra=("strict=0", "context_mib=0"))
    program = scene.start([str(endings), how, "3", "4"])
    stopped = program.read()
    held = scene.device_bytes()
    program.go()
    last = program.read()

    assert held <= stopped["reserved"]
    assert (0, 0, 0) == (last["reserved"], last["unbalanced"], scene.device_bytes())
    assert stopped["done"] > 1000
    assert stopped["ended"] > 20


# A thread makes a call that waits for a stream of context A, and the stream for a word in host memory, which the main
# thread has context B write.
WAITING = """
import threading
cuda = Cuda(context=False); L = cuda.lib; word = ctypes.c_void_p()
def check(*results): assert not any(results), results
def made(call, *arguments, type=ctypes.c_void_p):
    out = type(); check(getattr(L, call)(ctypes.byref(out), *arguments))
    return out
def green():
    sms = (ctypes.c_char * 256)(); check(L.cuDeviceGetDevResource(0, sms, 1))
    return made("cuGreenCtxCreate", made("cuDevResourceGenerateDesc", sms, 1), 0, 1)
def waits_in(context):
    check(L.cuCtxPushCurrent_v2(context)); mine = made("cuStreamCreate", 1); spin = cuda.spin()
    check(cuda.launch(spin, 1000, mine), L.cuStreamWaitValue32(mine, word, 1, 0), cuda.launch(spin, 1000, mine))
    event = made("cuEventCreate", 2); check(L.cuEventRecord(event, mine)); made("cuCtxPopCurrent_v2")
    return mine, event
def capture(stream):
    graph = ctypes.c_void_p(); check(L.cuStreamBeginCapture_v2(stream, 2), cuda.launch(spin, 1000, stream))
    check(L.cuStreamEndCapture(stream, ctypes.byref(graph)), L.cuGraphDestroy(graph))
B = made("cuCtxCreate_v2", 0, 0); spin = cuda.spin(); check(L.cuMemHostAlloc(ctypes.byref(word), 4096, 3))
ctypes.c_uint32.from_address(word.value).value = 0
def waiting(A, call):
    def run():
        check(L.cuCtxSetCurrent(A)); results.append(call())
    results = []; thread = threading.Thread(target=run); thread.start(); time.sleep(0.1)
    return thread, results
def opens_the_way(): check(L.cuStreamWriteValue32(made("cuStreamCreate", 1), word, 1, 0))
def own_context():
    A = made("cuCtxCreate_v2", 0, 0); made("cuCtxPopCurrent_v2")
    return A
def primary_context(): return made("cuDevicePrimaryCtxRetain", 0)
"""
CALLS = {
    "destroy": "A = own_context(); waits_in(A); call = lambda: L.cuCtxDestroy_v2(A)",
    "detach": "A = own_context(); waits_in(A); call = lambda: L.cuCtxDetach(A)",
    "reset": "A = primary_context(); waits_in(A); call = lambda: L.cuDevicePrimaryCtxReset_v2(0)",
    "release": "A = primary_context(); waits_in(A); call = lambda: L.cuDevicePrimaryCtxRelease_v2(0)",
    "green": "g = green(); A = made('cuCtxFromGreenCtx', g); waits_in(A); call = lambda: L.cuGreenCtxDestroy(g)",
    "stream destroyed": "A = own_context(); s, _ = waits_in(A); call = lambda: L.cuStreamDestroy_v2(s)",
    "event destroyed": "A = own_context(); _, e = waits_in(A); call = lambda: L.cuEventDestroy_v2(e)",
    "module unloaded": "A = own_context(); L.cuCtxPushCurrent_v2(A); m = made('cuModuleLoadData', PTX);"
    " L.cuCtxSetCurrent(B); waits_in(A); call = lambda: L.cuModuleUnload(m)",
    "freed": "A = own_context(); L.cuCtxPushCurrent_v2(A); p = made('cuMemAlloc_v2', ctypes.c_size_t(1 << 22),"
    " type=ctypes.c_uint64); L.cuCtxSetCurrent(B); waits_in(A); call = lambda: L.cuMemFree_v2(p)",
    "pool trimmed": "A = own_context(); waits_in(A); pool = made('cuDeviceGetDefaultMemPool', 0);"
    " call = lambda: L.cuMemPoolTrimTo(pool, ctypes.c_size_t(0))",
    "limit set": "A = own_context(); waits_in(A); call = lambda: L.cuCtxSetLimit(1, ctypes.c_size_t(2 << 20))",
    "context awaited": "A = own_context(); waits_in(A); call = L.cuCtxSynchronize",
    "stream awaited": "A = own_context(); s, _ = waits_in(A); call = lambda: L.cuStreamSynchronize(s)",
    "event awaited": "A = own_context(); _, e = waits_in(A); call = lambda: L.cuEventSynchronize(e)",
    "memory read": "A = own_context(); waits_in(A);"
    " p = made('cuMemAlloc_v2', ctypes.c_size_t(4096), type=ctypes.c_uint64);"
    " call = lambda: L.cuMemcpyDtoH_v2(ctypes.create_string_buffer(4096), p, ctypes.c_size_t(4096))",
}


@pytest.mark.parametrize("call", CALLS)
def test_the_other_threads_run_while_a_call_waits_in_the_driver(tenant, call):
    """While a call waits for work of its context, other threads launch, capture, allocate and wait in another one.

    They retain and release the primary context too, unless it is that which ends.
    """
    scene = tenant(auto_grant=True, memory_mib=2048)
    program = scene.run(
        WAITING
        + CALLS[call]
        + f"\nPRIMARY = {call in ('reset', 'release')}"
        + """
thread, results = waiting(A, call)
for name in ["cuLaunchKernel"] * 3 + ["cuLaunchKernel_ptsz"]:
    own = made("cuStreamCreate", 1) if name == "cuLaunchKernel" else None
    check(*(cuda.launch(spin, 1000, own, name) for _ in range(200)))
    check(L.cuStreamSynchronize(own) if own else 0, L.cuStreamDestroy_v2(own) if own else 0)
capture(made("cuStreamCreate", 1)); p = made("cuMemAlloc_v2", ctypes.c_size_t(64 << 20), type=ctypes.c_uint64)
check(L.cuMemFree_v2(p), L.cuModuleUnload(made("cuModuleLoadData", PTX)))
if not PRIMARY:
    retained = made("cuDevicePrimaryCtxRetain", 0); other = green()
    check(L.cuGreenCtxDestroy(other), L.cuDevicePrimaryCtxRelease_v2(0))
opens_the_way(); thread.join(); say(results=results)
"""
    )

    assert {"results": [0]} == program.read(30)


def test_a_token_changes_hands_while_a_context_is_being_destroyed(tenant):
    """What ends with its context late is drained late: the next grant is launched under, and both are answered."""
    scene = tenant(auto_grant=True)
    program = scene.run(
        WAITING
        + CALLS["destroy"]
        + """
thread, results = waiting(A, call); say(); wait_line()
mine = made("cuStreamCreate", 1); check(cuda.launch(spin, 1000, mine)); say(); wait_line()
opens_the_way(); thread.join(); say(results=results); wait_line()
"""
    )
    program.read()
    first = scene.arbiter.epoch
    scene.arbiter.revoke()
    program.go()
    program.read()
    early = [heard.a for heard in scene.arbiter.heard if heard.type == MessageType.DRAINED and heard.a == first]
    program.go()
    facts = program.read()
    scene.arbiter.wait_for(MessageType.DRAINED)

    assert ([], {"results": [0]}) == (early, facts)
