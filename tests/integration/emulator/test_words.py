"""Streams wait for words of memory and write them; events and words reach across processes."""

WORDS = """
open_gpu()
word = ck(d.cuMemAlloc(64)); ck(d.cuMemsetD32(word, 0, 16))
def read(n=4):
    out = bytearray(n); ck(d.cuMemcpyDtoH(out, word, n)); return int.from_bytes(out, "little")
def waiting(stream): return code(d.cuStreamQuery(stream)) == 600
def stream(): return ck(d.cuStreamCreate(1))
"""


def test_a_stream_waits_until_another_stream_writes_the_word(clients):
    """cuStreamWaitValue32 holds what comes behind it until cuStreamWriteValue32 of another stream."""
    before, after, value = clients().run(
        WORDS + "a, b = stream(), stream(); k = Spinner(stream=a)\n"
        "ck(d.cuStreamWaitValue32(a, word, 7, 1)); k.launch(1000); time.sleep(0.02); before = waiting(a)\n"
        "ck(d.cuStreamWriteValue32(b, word, 7, 0)); ck(d.cuStreamSynchronize(a)); answer([before, waiting(a), read()])"
    )

    assert (before, after, value) == (True, False, 7)


def test_every_condition_of_a_wait_is_its_own(clients):
    """GEQ is signed and wraps, EQ is exact, AND needs a common bit, NOR a bit that both lack; 64 bits count."""
    held = clients().run(
        WORDS + "def held(call, now, value, flag, write):\n"
        "    s = stream(); ck(write(s, word, now, 0)); ck(call(s, word, value, flag)); time.sleep(0.01)\n"
        "    return waiting(s)\n"
        "w32, w64 = d.cuStreamWriteValue32, d.cuStreamWriteValue64\n"
        "c32, c64 = d.cuStreamWaitValue32, d.cuStreamWaitValue64\n"
        "answer([held(c32, 5, 5, 0, w32), held(c32, 4, 5, 0, w32), held(c32, 2, 0xFFFFFFFE, 0, w32),\n"
        "        held(c32, 5, 6, 1, w32), held(c32, 6, 2, 2, w32), held(c32, 4, 2, 2, w32),\n"
        "        held(c32, 0xFFFFFFFF, 0, 3, w32), held(c32, 0xFFFF0000, 0, 3, w32),\n"
        "        held(c64, 1 << 40, 1 << 40, 0, w64), held(c64, 1, 1 << 40, 0, w64)]); os._exit(0)"
    )

    assert held == [False, True, False, True, False, True, True, False, False, True]


def test_the_host_may_write_the_word_while_a_kernel_runs(clients):
    """A word in pinned memory that the host sets lets the stream go, though the GPU is busy with another stream."""
    held, freed = clients().run(
        WORDS + "host = ck(d.cuMemHostAlloc(64, 0)); seen = (ctypes.c_uint32).from_address(int(host)); seen.value = 0\n"
        "at = ck(d.cuMemHostGetDevicePointer(host, 0)); a = stream(); busy = Spinner(); busy.launch(300_000_000)\n"
        "ck(d.cuStreamWaitValue32(a, at, 1, 1)); time.sleep(0.02); held = waiting(a); seen.value = 1\n"
        "time.sleep(0.02); answer([held, not waiting(a)]); os._exit(0)"
    )

    assert (held, freed) == (True, True)


def test_a_batch_is_done_in_order_or_not_at_all(clients):
    """cuStreamBatchMemOp writes and waits in its order; one bad entry and nothing of it happens."""
    value, bad, untouched = clients().run(
        WORDS + "def op(kind, value, at=None):\n"
        "    p = d.CUstreamBatchMemOpParams(); part = p.writeValue if kind in (2, 5) else p.waitValue\n"
        "    part.operation = d.CUstreamBatchMemOpType(kind); part.address = at or word; part.value = value\n"
        "    part.flags = 0 if kind in (2, 5) else 1\n"
        "    return p\n"
        "s = stream(); ck(d.cuStreamBatchMemOp(s, 3, [op(2, 3), op(1, 3), op(2, 9)], 0))\n"
        "ck(d.cuStreamSynchronize(s))\n"
        "value = read(); bad = code(d.cuStreamBatchMemOp(s, 2, [op(2, 1), op(2, 1, at=64)], 0))\n"
        "ck(d.cuStreamSynchronize(s)); answer([value, bad, read()])"
    )

    assert (value, bad, untouched) == (9, 1, 9)


def test_an_event_of_another_process_is_waited_for(clients):
    """An event shown by its handle is unfinished in the importer until the exporter's kernel has ended."""
    machine = clients()
    owner = machine.start("""
open_gpu(); k = Spinner(); e = ck(d.cuEventCreate(2 | 4))
answer(list(ctypes.string_at(ck(d.cuIpcGetEventHandle(e)).getPtr(), 64))); sys.stdin.readline()
k.launch(300_000_000); ck(d.cuEventRecord(e, k.stream)); answer("launched"); sys.stdin.readline()
""")
    handle = owner.stdout.readline().strip()
    importer = machine.start(f"""
open_gpu(); h = d.CUipcEventHandle(); ctypes.memmove(h.getPtr(), bytes({handle}), 64)
e = ck(d.cuIpcOpenEventHandle(h)); s = ck(d.cuStreamCreate(1)); answer("opened"); sys.stdin.readline()
first = code(d.cuEventQuery(e)); ck(d.cuStreamWaitEvent(s, e, 0)); held = code(d.cuStreamQuery(s))
ck(d.cuStreamSynchronize(s)); answer([first, held, code(d.cuEventSynchronize(e)), code(d.cuEventQuery(e))])
""")
    importer.stdout.readline()
    for process in (owner, importer):
        process.stdin.write("go\n")
        process.stdin.flush()
        if process is owner:
            owner.stdout.readline()

    assert machine.answer(importer) == [600, 600, 0, 0]
