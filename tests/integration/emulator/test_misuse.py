"""A bad handle is answered with an error: NULL, a wild number, one of another kind, one whose object is gone."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CLIENT = (HERE / "misuse.py").read_text("utf-8")
SYMBOLS = HERE.parents[2] / "native/symbols/cuda.def"


def table(name: str) -> list[str]:
    """The lines of a table beside this file, without comments."""
    return [line for line in (HERE / name).read_text("utf-8").splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("strict", [0, 1])
def test_a_bad_handle_is_an_error(clients, strict):
    """Every call answers every kind of bad handle with an error; for some that are gone strict mode aborts."""
    seen = clients("h100x2", f"strict={strict}").run(f"{CLIENT}\nanswer(wrong({table('misuse.txt')!r}, {strict}))")

    assert "" == "\n".join(seen)


def test_what_is_missing_is_an_error(clients):
    """NULL for an answer, a text or a list, and a number that means nothing are an error and write nowhere."""
    seen = clients("h100x2").run(f"{CLIENT}\nanswer(missing({table('nulls.txt')!r}))")

    assert "" == "\n".join(seen)


def test_zeros_end_no_program(clients):
    """Every call of the driver comes back when all its arguments are zero."""
    names = sorted(set(re.findall(r"ROW\(\w+, \d+, (\w+)\)", SYMBOLS.read_text("utf-8"))))

    assert len(names) == clients("h100x2").run(f"{CLIENT}\nanswer(survived({names!r}))")


def test_a_graph_that_is_not_the_programs_is_not_destroyed_by_it(clients):
    """The graph of a capture under way and that inside a node are refused, and work on."""
    refused, captured, child = clients().run("""
open_gpu(); s, k = ck(d.cuStreamCreate(1)), Spinner(); k.stream = s
ck(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode(2))); graph = ck(d.cuStreamGetCaptureInfo(s))[2]
refused = [code(d.cuGraphDestroy(graph))]; k.launch(1000); graph = ck(d.cuStreamEndCapture(s))
node = ck(d.cuGraphAddChildGraphNode(ck(d.cuGraphCreate(0)), [], 0, graph))
inside = ck(d.cuGraphChildGraphNodeGetGraph(node)); refused.append(code(d.cuGraphDestroy(inside)))
count = lambda g: ck(d.cuGraphGetNodes(g))[1]
answer([refused, count(graph), count(inside)])
""")

    assert ([1, 1], 1, 1) == (refused, captured, child)


def test_a_copy_that_leaves_its_memory_is_refused(clients):
    """A copy of rows beyond an allocation or an array is CUDA_ERROR_INVALID_VALUE, one that just fits is made."""
    answers = clients().run("""
open_gpu(); p, out = int(ck(d.cuMemAlloc(4096))), (ctypes.c_char * 8192)()
desc = d.CUDA_ARRAY_DESCRIPTOR(); desc.Width, desc.Height, desc.NumChannels = 64, 4, 1
desc.Format = d.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8; array = ck(d.cuArrayCreate(desc))
def rows(height, kind, y=0):
    c = d.CUDA_MEMCPY2D(); c.dstMemoryType, c.dstHost = d.CUmemorytype(1), ctypes.addressof(out)
    c.srcMemoryType, c.srcPitch, c.srcDevice, c.srcArray, c.srcY = d.CUmemorytype(kind), 1024, p, array, y
    c.WidthInBytes, c.Height = 64, height
    return code(d.cuMemcpy2D(c))
answer([rows(4, 2), rows(5, 2), rows(1 << 20, 2), rows(4, 3), rows(5, 3), rows(4, 3, y=1)])
""")

    assert [0, 1, 1, 0, 1, 1] == answers


def test_a_thread_without_a_context_launches_nothing(clients):
    """In a new thread a launch is CUDA_ERROR_INVALID_CONTEXT until a context is current, whatever the stream."""
    codes = clients().run("""
import threading
c = open_gpu(); k = Spinner(); codes = []
def work():
    for stream in (0, k.stream):
        k.stream, kept = stream, k.stream; codes.append(code(k.try_launch())); k.stream = kept
    ck(d.cuCtxSetCurrent(c)); codes.append(code(k.try_launch()))
t = threading.Thread(target=work); t.start(); t.join(); answer(codes)
""")

    assert [201, 201, 0] == codes
