"""Asynchronous copies to memory that the driver knows nothing of."""


def test_a_copy_to_pageable_memory_has_ended_when_it_returns(clients):
    """An asynchronous copy to pageable memory waits for the work before it; one to pinned memory does not."""
    pageable_s, busy, first = clients().run("""
open_gpu()
k, p = Spinner(), ck(d.cuMemAlloc(64))
ck(d.cuMemsetD8(p, 7, 64))
back, t = bytearray(64), time.monotonic()
k.launch(100_000_000); ck(d.cuMemcpyDtoHAsync(back, p, 64, k.stream)); took, first = time.monotonic() - t, back[0]
k.launch(2_000_000_000); ck(d.cuMemcpyDtoHAsync(ck(d.cuMemAllocHost(64)), p, 64, k.stream))
answer([took, code(d.cuStreamQuery(k.stream)), first])
""")

    assert pageable_s > 0.09
    assert (600, 7) == (busy, first)


def test_a_copy_from_pageable_memory_takes_what_was_there(clients):
    """What is written to a pageable source after the call, in either form of it, does not reach the device."""
    seen = clients().run("""
open_gpu()
k, p = Spinner(), ck(d.cuMemAlloc(64))
seen = []
for copy in (d.cuMemcpyHtoDAsync, lambda to, source, size, stream: d.cuMemcpyAsync(to, at(source), size, stream)):
    source = (ctypes.c_ubyte * 64)(*[5] * 64)
    at = lambda array: ctypes.addressof(array)
    k.launch(20_000_000)
    ck(copy(p, at(source) if copy is d.cuMemcpyHtoDAsync else source, 64, k.stream))
    source[0] = 9
    k.sync()
    out = bytearray(64)
    ck(d.cuMemcpyDtoH(out, p, 64))
    seen.append(out[0])
answer(seen)
""")

    assert [5, 5] == seen
