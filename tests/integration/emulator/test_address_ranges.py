"""Address ranges and mappings that are not the program's, or not of that size, are refused and stay as they are."""

from __future__ import annotations

SCENE = """
open_gpu(); L, PAGE, c = ctypes.CDLL("libcuda.so.1"), 2 << 20, ctypes
def word(value): return c.c_uint64(value % (1 << 64))
def call(name, *arguments): return getattr(L, name)(*(word(each) for each in arguments))
def given(name, *arguments):
    out = c.c_uint64(); assert getattr(L, name)(c.byref(out), *(word(each) for each in arguments)) == 0
    return out.value
prop = (c.c_uint64 * 4)(1, 1, 0, 0); access = (c.c_uint32 * 3)(1, 0, 3)
def memory(pages): return given("cuMemCreate", pages * PAGE, c.addressof(prop), 0)
def map_(at, pages, handle): return call("cuMemMap", at, pages * PAGE, 0, handle, 0)
def unmap(at, size): return call("cuMemUnmap", at, size)
def free(at, size): return call("cuMemAddressFree", at, size)
def allow(at, size, count=1): return call("cuMemSetAccess", at, size, c.addressof(access), count)
own, handle = given("cuMemAddressReserve", 8 * PAGE, 0, 0, 0), memory(2); host = c.create_string_buffer(b"kept", 4096)
linear = int(ck(d.cuMemAlloc(PAGE)))
"""


def test_only_what_was_reserved_is_freed_and_as_a_whole(clients):
    """A wrong address or size, memory of another kind, or a range with a mapping is CUDA_ERROR_INVALID_VALUE."""
    wrong, kept, right = clients().run(
        SCENE + "map_(own, 2, handle); at = c.addressof(host)\n"
        "wrong = [free(own, 4 * PAGE), free(own + PAGE, PAGE), free(own, 0), free(0, PAGE), free(own, 9 * PAGE),\n"
        "         free(own, -1), free(linear, PAGE), free(at // 4096 * 4096, 4096), free(own, 8 * PAGE)]\n"
        "kept = host.value.decode(); unmap(own, 2 * PAGE)\n"
        "answer([wrong, kept, [free(own, 8 * PAGE), free(own, 8 * PAGE)]])"
    )

    assert [1] * 9 == wrong
    assert "kept" == kept
    assert [0, 1] == right


def test_memory_is_mapped_into_what_is_reserved_and_free(clients):
    """Outside a reservation, over its end, onto a mapping or onto other memory it is CUDA_ERROR_INVALID_VALUE."""
    wrong, right = clients().run(
        SCENE + "wrong = [map_(linear, 2, handle), map_(0, 2, handle), map_(own + 7 * PAGE, 2, handle),\n"
        "         map_(own - PAGE, 2, handle), map_(-PAGE, 2, handle), map_(own + 512, 2, handle),\n"
        "         map_(own, 1, handle)]\n"
        "right = [map_(own + 2 * PAGE, 2, handle)]\n"
        "wrong += [map_(own + 2 * PAGE, 2, memory(2)), map_(own + PAGE, 2, handle), map_(own + 3 * PAGE, 2, handle)]\n"
        "right += [map_(own + 4 * PAGE, 2, handle), map_(own, 2, memory(2)), unmap(own, 6 * PAGE)]\n"
        "answer([wrong, right])"
    )

    assert [1] * 10 == wrong
    assert [0] * 4 == right


def test_whole_mappings_are_unmapped_and_made_accessible(clients):
    """A part of a mapping, a gap, or what is not mapped is CUDA_ERROR_INVALID_VALUE and leaves the others mapped."""
    wrong, right = clients().run(
        SCENE + "map_(own, 2, handle); map_(own + 4 * PAGE, 2, memory(2))\n"
        "wrong = [unmap(own, PAGE), unmap(own + PAGE, PAGE), unmap(own + PAGE, 2 * PAGE), unmap(own, 6 * PAGE),\n"
        "         unmap(own, 0), unmap(own, -1), unmap(own + 2 * PAGE, 2 * PAGE), unmap(linear, PAGE),\n"
        "         unmap(0, PAGE), allow(own, 4 * PAGE), allow(own, 0), allow(linear, PAGE),\n"
        "         allow(own + 2 * PAGE, PAGE), allow(own, -1), call('cuMemSetAccess', own, 2 * PAGE, 0, 1)]\n"
        "answer([wrong, [allow(own, 2 * PAGE), allow(own + 4 * PAGE, 2 * PAGE), unmap(own, 2 * PAGE),\n"
        "                unmap(own + 4 * PAGE, 2 * PAGE), free(own, 8 * PAGE)]])"
    )

    assert [1] * 15 == wrong
    assert [0] * 5 == right
