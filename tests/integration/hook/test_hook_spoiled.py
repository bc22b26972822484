"""Captures that make no graph: spoiled by another call, or gone with their stream or context."""

import pytest

MIB = 1 << 20
CAPTURES = """
import ctypes as c, threading
cuda = Cuda(); L = cuda.lib; MIB = 1 << 20; ctx, stream, graph = c.c_void_p(), c.c_void_p(), c.c_void_p()
def new_stream(): L.cuStreamCreate(c.byref(stream), 1)
def begin(mode=0): return L.cuStreamBeginCapture_v2(stream, mode)
def allocate(mib=64): p = c.c_uint64(); return L.cuMemAllocAsync(c.byref(p), c.c_size_t(mib * MIB), stream)
def end(): return L.cuStreamEndCapture(stream, c.byref(graph))
def held(): return cuda.stats()["reserved_bytes"]
def settled():
    until = time.monotonic() + 10
    while L.cuCtxSynchronize() == 0 and held() and time.monotonic() < until: time.sleep(0.005)
    return held()
"""
SPOILED, UNSUPPORTED = 901, 900


def test_what_a_spoiled_capture_has_allocated_is_not_charged_any_more(tenant):
    """A capture that another call spoils has no graph in the end, and nothing is charged for its allocations."""
    program = tenant(memory_mib=512, auto_grant=True).run(
        CAPTURES + "new_stream(); begun = begin(); made = [allocate(), allocate()]; during = held()\n"
        "spoils = L.cuMemAlloc_v2(c.byref(c.c_uint64()), c.c_size_t(MIB))\n"
        "say(begun=begun, made=made, during=during, spoils=spoils, end=end(), left=settled())"
    )
    facts = program.read()

    assert {"begun": 0, "made": [0, 0], "spoils": UNSUPPORTED, "end": SPOILED} == {
        key: facts[key] for key in ("begun", "made", "spoils", "end")
    }
    assert facts["during"] >= 128 * MIB
    assert 0 == facts["left"]


def test_a_capture_that_is_spoiled_at_any_moment_leaves_nothing_charged(tenant):
    """Also where another thread spoils it between an allocation and the hook's question for its graph."""
    program = tenant(memory_mib=2048, auto_grant=True).run(
        CAPTURES
        + """
new_stream(); over, event, spoiled = [], c.c_void_p(), 0
L.cuEventCreate(c.byref(event), 0)
def spoil():
    L.cuCtxSetCurrent(cuda.ctx)
    while not over: L.cuEventQuery(event)
thread = threading.Thread(target=spoil); thread.start()
until = time.monotonic() + 40
while spoiled < 30 and time.monotonic() < until:
    begin(); [allocate(1) for _ in range(8)]
    if end() == 0: L.cuGraphDestroy(graph)
    else: spoiled += 1
over.append(1); thread.join(); say(spoiled=spoiled, left=settled(), unbalanced=cuda.stats()["unbalanced"])
"""
    )
    facts = program.read()

    assert (0, 0) == (facts["left"], facts["unbalanced"])
    assert 30 == facts["spoiled"]


@pytest.mark.parametrize("how", ["stream", "context"])
def test_a_capture_that_ends_with_its_stream_or_context_leaves_nothing_charged(tenant, how):
    """What was captured in a stream that is destroyed, alone or with its context, is charged no more."""
    ends = "L.cuStreamDestroy_v2(stream)" if how == "stream" else "L.cuCtxDestroy_v2(ctx)"
    program = tenant(memory_mib=1024, auto_grant=True).run(
        CAPTURES + "L.cuCtxCreate_v2(c.byref(ctx), 0, 0); new_stream(); begin(2); made = allocate(); during = held()\n"
        f"ended = {ends}; L.cuCtxSetCurrent(cuda.ctx); say(made=made, during=during, ended=ended, left=settled())"
    )
    facts = program.read()

    assert (0, 0, 0) == (facts["made"], facts["ended"], facts["left"])
    assert facts["during"] >= 64 * MIB
