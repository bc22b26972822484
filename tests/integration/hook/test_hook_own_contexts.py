"""Contexts that were made past the hook, as libraries of the driver's maker may do by its private tables."""

from __future__ import annotations

import pytest

PRIVATE = """
import ctypes as c, uuid
cuda = Cuda(context=False); L = cuda.lib; MIB = 1 << 20; p = c.c_uint64(); table = c.POINTER(c.c_void_p)()
L.cuGetExportTable(c.byref(table), uuid.UUID("0ca50b8c-1004-929a-89a7-d0df10e77286").bytes)
private = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_uint, c.c_int)(table[1])
context = c.c_void_p()
stream = c.c_void_p()
def first_use(mib): return L.cuMemAlloc_v2(c.byref(p), c.c_size_t(mib * MIB))
def first_use_async(mib): return L.cuMemAllocAsync(c.byref(p), c.c_size_t(mib * MIB), None)
"""


@pytest.mark.parametrize("use", ["first_use", "first_use_async"])
def test_the_first_allocation_in_a_context_made_past_the_hook_needs_room_for_both(tenant, use):
    """The context is reserved before the first allocation in it: one that does not fit beside it is out of memory."""
    scene = tenant(memory_mib=512, context_mib=300)
    program = scene.run(
        PRIVATE + f"made = private(c.byref(context), 0, 0); over = {use}(320); within = {use}(64)\n"
        "say(made=made, over=over, within=within); wait_line(); say(gone=L.cuCtxDestroy_v2(context)); wait_line()"
    )
    facts = program.read()
    held = scene.device_bytes() >> 20

    assert ({"made": 0, "over": 2, "within": 0}, 1) == (facts, scene.arbiter.contexts[0])
    assert held <= 512


def test_a_context_made_past_the_hook_is_no_reason_to_lend_memory_without_room_for_it(tenant):
    """Where the context itself does not fit, every allocation in it is out of memory."""
    scene = tenant(memory_mib=256, context_mib=300)
    program = scene.run(PRIVATE + "say(made=private(c.byref(context), 0, 0), used=first_use(2))")

    assert program.read() == {"made": 0, "used": 2}


def test_a_context_made_past_the_hook_is_charged_until_it_is_destroyed(tenant):
    """It is charged once, beside the primary one, and given back with cuCtxDestroy."""
    scene = tenant(memory_mib=1024, context_mib=300)
    program = scene.run(
        PRIVATE + "private(c.byref(context), 0, 0); used = [first_use(2), first_use(2)]; say(used=used); wait_line()\n"
        "primary = c.c_void_p(); L.cuDevicePrimaryCtxRetain(c.byref(primary), 0); say(); wait_line()\n"
        "gone = L.cuCtxDestroy_v2(context); end = cuda.stats()\n"
        "say(gone=gone, held=end['reserved_bytes'], unbalanced=end['unbalanced'], made=first_use(0)); wait_line()"
    )
    used = program.read()["used"]
    charged = [scene.arbiter.contexts[0]]
    program.go()
    program.read()
    charged.append(scene.arbiter.contexts[0])
    program.go()
    facts = program.read()

    assert ([0, 0], [1, 2]) == (used, charged)
    assert (0, 0, 0) == (facts["gone"], facts["held"], facts["unbalanced"])
